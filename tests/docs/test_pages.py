"""Pages name files, functions, tests and headings that exist, and the site has all of them in its navigation."""

from __future__ import annotations

import ast
import json
import re
import sys
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest

import sottovoce
from simulations.experiment.schema import keys
from sottovoce.cli.main import main
from tests.support.paths import ROOT
from tests.support.programs import program

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: `folder/file.py`, or `folder/file.py: function` or `folder/file.py: Class.method`.
_PLACE = re.compile(r"`([\w/.-]+/[\w.-]*|\w+\.(?:py|md|toml|cff))(?::\s+([A-Za-z_][\w.]*))?`")
#: pfl-research has an environment of its own.
BENCHMARKS = {file.stem for file in (ROOT / "benchmarks").glob("[a-z]*.py")} - {"pfl_peer"}


def names(path: str) -> set[str]:
    """Return functions, classes, methods as `Class.method`, and constants of a file."""
    result: set[str] = set()
    for statement in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            result.add(statement.name)
        if isinstance(statement, ast.ClassDef):
            methods = (member.name for member in statement.body if isinstance(member, ast.FunctionDef))
            result |= {f"{statement.name}.{method}" for method in methods}
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            result |= {target.id for target in targets if isinstance(target, ast.Name)}
    return result


@pytest.mark.parametrize(("page", "least"), [("docs/explanation/architecture.md", 30), ("CONTRIBUTING.md", 15)])
def test_every_file_and_function_that_a_page_names_exists(page: str, least: int) -> None:
    places = [(match[1], match[2]) for match in _PLACE.finditer((ROOT / page).read_text(encoding="utf-8"))]
    assert len(places) >= least, "the page's places do not match the pattern"
    assert not [path for path, _ in places if not (ROOT / path).exists()]
    assert not [f"{path}: {name}" for path, name in places if name is not None and name not in names(path)]


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


@pytest.mark.parametrize(
    ("page", "link", "target"),
    [
        ("index.md", "docs/start/concepts.md#the-parties", "start/concepts.md#the-parties"),
        ("contributing.md", "docs/explanation/architecture.md", "explanation/architecture.md"),
        ("how-to/experiments.md", "../../simulations/experiments", "../experiments.md"),
        ("how-to/experiments.md", "../../simulations/experiment/sections.py", "../reference/experiment.md"),
        ("index.md", "#install", "#install"),
    ],
)
def test_where_a_link_leads_on_the_site(page: str, link: str, target: str) -> None:
    assert program("site_pages").moved(link, page) == target


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
