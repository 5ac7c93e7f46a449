"""Every measured table of the pages is in docs/tables.toml, and those made from sweeps have the manifest's cells."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from simulations.experiment.toml import document
from tests.support.paths import ROOT
from tests.support.programs import program

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
_RIGHT, _DECIMAL = re.compile(r"---:"), re.compile(r"(?<![\d.])0?\.\d{2,}")


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return program("results")


def measured(text: str) -> list[str]:
    """Return the line above each table that has a column of numbers, or numbers in half of its rows."""
    lines, result = text.split("\n"), []
    for at in (i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")):
        end = next((i for i in range(at, len(lines)) if not lines[i].startswith("|")), len(lines))
        rows = lines[at + 2 : end]
        if _RIGHT.search(lines[at + 1]) or 2 * sum(bool(_DECIMAL.search(row)) for row in rows) >= len(rows):
            result.append(lines[at - 2])
    return result


def test_every_measured_table_is_in_the_manifest_and_the_other_way_round(results: ModuleType) -> None:
    tables = results.manifest()
    shown = [
        (page.relative_to(ROOT).as_posix().removeprefix("docs/"), line)
        for page in PAGES
        for line in measured(page.read_text(encoding="utf-8"))
    ]
    assert len(shown) > 20, "tables are not found any more"
    assert sorted(shown) == sorted((table.page, results.marker(table.name)) for table in tables.values())


def test_a_table_of_sweeps_names_their_arms_and_its_page_has_its_cells(results: ModuleType) -> None:
    """Or a day of runs would end in a line about a name."""
    for table in results.manifest().values():
        assert bool(table.hand) != bool(table.sweeps), table.name
        arms = [{arm["name"] for arm in document(sweep["experiment"])["arm"]} for sweep in table.sweeps]
        means = [{(arm, split): 0.5 for arm in known for split in results.SPLITS} for known in arms]
        if table.sweeps:
            page = (ROOT / "docs" / table.page).read_text(encoding="utf-8")
            now = results.replaced(page, table.name, results.lines(table, means))
            assert re.sub(r"0\.\d{3}", "0.500", page) == re.sub(r"0\.\d{3}", "0.500", now), table.name
