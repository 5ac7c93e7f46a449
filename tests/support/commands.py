"""Commands that fail: one line on stderr, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

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
