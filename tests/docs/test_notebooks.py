"""The notebooks run as they stand, with the output they were kept with, but for digits that depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.programs import program
from tests.support.studies import run_in_process

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder; a study runs in this process: that it does on Ray, the examples of api.md show."""
    run_in_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, here: None) -> None:
    notebooks = program("notebooks")
    cells = [(notebooks.output(cell), now) for cell, now in notebooks.run(notebooks.load(path))]
    assert len(cells) >= 3 and all(bool(kept) == bool(now) for kept, now in cells)
    if path.stem != "first-study":  # whose last digits are those of the machine's arithmetic
        assert [now for _, now in cells] == [kept for kept, _ in cells]
