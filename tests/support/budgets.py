"""What the budget's commands answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sottovoce.cli import main as cli


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert cli.main(["budget", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    return json.loads(captured.out)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["budget", *arguments]) == 0
    return capsys.readouterr().out


def rung(rungs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [r for r in rungs if r["rung"] == name]
    return found
