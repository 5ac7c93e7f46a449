"""Commands and calls that fail: one line on stderr, or in a UserError, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.errors import UserError
from sottovoce.cli import main as cli


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """Return the last line on stderr. Nothing is on stdout, and nothing is left in the working folder but a cache."""

    def there() -> list[str]:
        return sorted(str(path) for path in Path().rglob("*") if path.parts[0] != "cache")

    capsys.readouterr()
    before = there()
    assert cli.main(list(map(str, arguments))) == code
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err and there() == before
    line = captured.err.splitlines()[-1]
    assert line.startswith("sottovoce: ")
    return line.removeprefix("sottovoce: ")


def refused(match: str, call: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return the line of the UserError that a call raises."""
    with pytest.raises(UserError, match=match) as caught:
        call(*arguments, **named)
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()
    return str(caught.value)
