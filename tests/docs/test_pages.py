"""Pages name files, functions, tests and headings that exist, and the site has all of them in its navigation."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest

import sottovoce
from simulations.experiment.schema import keys
from simulations.experiment.toml import document
from sottovoce.cli.main import main
from tests.support.paths import ROOT, program

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: `folder/file.py`, or `folder/file.py: function` or `folder/file.py: Class.method`.
_PLACE = re.compile(r"`([\w/.-]+/[\w.-]*|\w+\.(?:py|md|toml|cff))(?::\s+([A-Za-z_][\w.]*))?`")
_DECIMAL = re.compile(r"(?<![\d.])0?\.\d{2,}")
#: pfl-research has an environment of its own.
BENCHMARKS = {file.stem for file in (ROOT / "benchmarks").glob("[a-z]*.py")} - {"pfl_peer"}


def has(path: str, name: str) -> bool:
    """Whether a file has a function, class or constant of that name, or a class and a method of `Class.method`."""
    text = (ROOT / path).read_text(encoding="utf-8")
    forms = (rf"^(?: *(?:def|class) {part}\b|{part}(?::| =))" for part in name.split("."))
    return all(re.search(form, text, re.MULTILINE) for form in forms)


@pytest.mark.parametrize(("page", "least"), [("docs/explanation/architecture.md", 30), ("CONTRIBUTING.md", 15)])
def test_every_file_and_function_that_a_page_names_exists(page: str, least: int) -> None:
    places = [(match[1], match[2]) for match in _PLACE.finditer((ROOT / page).read_text(encoding="utf-8"))]
    assert len(places) >= least, "the page's places do not match the pattern"
    assert not [path for path, _ in places if not (ROOT / path).exists()]
    assert not [f"{path}: {name}" for path, name in places if name is not None and not has(path, name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(page: Path) -> None:
    """GitHub and the site name headings alike: lower case, spaces to dashes, punctuation left out."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, place = link.partition("#")
        target = page.parent / file if file else page
        assert link.startswith("http") or target.exists(), link
        if place and target.suffix == ".md" and not link.startswith("http"):
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
            assert place in known, link


def test_the_map_of_the_house_is_that_of_the_imports() -> None:
    house = program("house")
    drawn = unescape((ROOT / "docs" / "figures" / "house.svg").read_text(encoding="utf-8"))
    assert house.words(house.imports()) in drawn, "the rooms or their imports are others now: run `make house`"


# --- the site; `make docs` fails at a link that leads nowhere


def test_every_page_name_and_experiment_is_on_the_site() -> None:
    pages = program("site_pages")
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    notebooks = {f"{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {*pages.OUTSIDE.values(), pages.EXPERIMENTS, pages.COMMANDS, pages.REFERENCE, pages.KEYS}
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == sorted(written | notebooks | made)
    shown = re.findall(r"^::: (?:\w+\.)+(\w+)$", "\n".join(pages.reference()), re.MULTILINE)
    assert sorted(shown) == sottovoce.__all__
    shown = re.findall(r"^## (\S+)$", "\n".join(pages.experiments()), re.MULTILINE)
    assert sorted(shown) == sorted(path.stem for path in (ROOT / "simulations" / "experiments").glob("*.toml"))
    assert re.findall(r"^\| `(.+?)` \|", "\n".join(pages.keys()), re.MULTILINE) == [name for name, *_ in keys()]


def measured(page: Path) -> list[str]:
    """Return the line above each table that has a column of numbers, or numbers in half of its rows."""
    lines, result = page.read_text(encoding="utf-8").split("\n"), []
    for at in (i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")):
        rows = list(takewhile(lambda line: line.startswith("|"), lines[at + 2 :]))
        if "---:" in lines[at + 1] or 2 * sum(bool(_DECIMAL.search(row)) for row in rows) >= len(rows):
            result.append(lines[at - 2])
    return result


def test_every_measured_table_is_in_the_manifest_and_the_other_way_round() -> None:
    results = program("results")
    pages = [page for page in PAGES if page.name == "README.md" or page.parent != ROOT]
    shown = [(f"{page.relative_to(ROOT)}".removeprefix("docs/"), line) for page in pages for line in measured(page)]
    assert len(shown) > 20, "tables are not found any more"
    assert sorted(shown) == sorted((table.page, results.marker(table.name)) for table in results.manifest().values())


def test_a_table_of_sweeps_names_their_arms_and_its_page_has_its_cells() -> None:
    """Or a day of runs would end in a line about a name."""
    results = program("results")
    for table in results.manifest().values():
        assert bool(table.hand) != bool(table.sweeps), table.name
        arms = [{arm["name"] for arm in document(sweep["experiment"])["arm"]} for sweep in table.sweeps]
        means = [{(arm, split): 0.5 for arm in known for split in results.SPLITS} for known in arms]
        if table.sweeps:
            page = (ROOT / "docs" / table.page).read_text(encoding="utf-8")
            now = results.replaced(page, table.name, results.lines(table, means))
            assert re.sub(r"0\.\d{3}", "0.500", page) == re.sub(r"0\.\d{3}", "0.500", now), table.name


# --- benchmarks and audits


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_a_benchmark_can_be_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")


def test_no_attack_of_the_results_is_above_its_bound() -> None:
    page = (ROOT / "docs" / "results" / "adversary.md").read_text(encoding="utf-8")
    pairs = re.findall(r"^\|.*ε = \d+ \| \.\d+ \| (\.\d+) \| (\.\d+) \|", page, re.MULTILINE)
    assert len(pairs) >= 4 and not [pair for pair in pairs if float(pair[0]) > float(pair[1])]


def test_an_adapter_answers_and_what_fell_falls_again(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = f"{sys.executable} {ROOT / 'audits' / 'adapters' / 'of_papers.py'} santext-workers"
    assert main(["audit", "--command", adapter, "--draws", "12000", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["violated"]
