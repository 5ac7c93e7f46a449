"""What the site adds to the pages, where MkDocs itself need not be; `make docs` fails at a link that leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import sottovoce
from tests.support.paths import ROOT
from tests.support.programs import program


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return program("site_pages")


def test_every_page_has_its_place(pages: ModuleType) -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    notebooks = {f"{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    pages_here = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "papers").glob("*.md")]
    there = {path.name for path in pages_here} | {*pages.OUTSIDE.values()} | notebooks
    assert sorted(re.findall(r"[\w-]+\.md", nav)) == sorted(there | {pages.EXPERIMENTS, "reference.md"})


def test_every_public_name_is_in_the_reference(pages: ModuleType) -> None:
    shown = re.findall(r"^::: (?:\w+\.)+(\w+)$", "\n".join(pages.reference()), re.MULTILINE)
    assert sorted(shown) == sottovoce.__all__


def test_every_bundled_experiment_is_shown(pages: ModuleType) -> None:
    shown = re.findall(r"^## (\S+)$", "\n".join(pages.experiments()), re.MULTILINE)
    assert sorted(shown) == sorted(path.stem for path in (ROOT / "simulations" / "experiments").glob("*.toml"))


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("docs/manual.md#sources", "manual.md#sources"),
        ("docs/figures/what-leaves.svg", "figures/what-leaves.svg"),
        ("../CONTRIBUTING.md", "contributing.md"),
        ("../simulations/experiments", "experiments.md"),
        ("docs/notebooks/first-study.ipynb", "first-study.md"),
        ("crowds.md", "crowds.md"),
        ("#studies", "#studies"),
        ("https://flower.ai", "https://flower.ai"),
    ],
)
def test_where_a_link_leads_on_the_site(link: str, there: str, pages: ModuleType) -> None:
    assert pages.moved(link) == there


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda page: page.name)
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    """As GitHub and the site name headings: lower case, spaces to dashes, punctuation left out."""
    for file, place in re.findall(r"\]\(([\w/.-]*\.md)?#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        text = (page.parent / file).read_text(encoding="utf-8") if file else page.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        names = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
        assert place in names, f"{file}#{place}"
