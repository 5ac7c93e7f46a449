"""A folder for somebody who has just come, whose studies run in this process; other tests show them on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.newcomers import Newcomer
from tests.support.studies import run_in_process
from tests.support.tiny_models import tiny_bert


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Newcomer:
    """With a model of two layers in `bert`."""
    home = tmp_path / "home"
    tiny_bert(home / "bert")
    run_in_process(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(home)
    return Newcomer(home)
