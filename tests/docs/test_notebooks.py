"""The notebooks run as they stand, and say what they were kept saying, where that does not depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT
from tests.support.programs import program
from tests.support.studies import run_in_process

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    return program("notebooks")


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


def said(notebooks: ModuleType, path: Path) -> list[tuple[str, str]]:
    """Of each cell of code: what it was kept saying, and what it says now."""
    return [(notebooks.output(cell), now) for cell, now in notebooks.run(notebooks.load(path))]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, notebooks: ModuleType, here: None) -> None:
    cells = said(notebooks, path)
    assert len(cells) >= 3 and all(bool(kept) == bool(now) for kept, now in cells)
    if path.stem != "first-study":  # whose last digits are those of the machine's arithmetic
        assert [now for _, now in cells] == [kept for kept, _ in cells]


def test_a_cell_that_fails_or_says_something_else_is_noticed(notebooks: ModuleType) -> None:
    cell = {"cell_type": "code", "source": ["print(1)\n", "2 + 2"], "outputs": []}
    assert [now for _, now in notebooks.run({"cells": [cell]})] == ["1\n4\n"]
    with pytest.raises(NameError):
        list(notebooks.run({"cells": [cell | {"source": ["nothing"]}]}))


def test_a_page_of_a_notebook_shows_cells_and_what_they_said(notebooks: ModuleType) -> None:
    page = "\n".join(notebooks.page(ROOT / "docs" / "notebooks" / "what-a-protocol-costs.ipynb"))
    assert page.startswith("# What a protocol costs") and "```python\n" in page and "```text\n" in page
