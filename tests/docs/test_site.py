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
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {*pages.OUTSIDE.values(), pages.EXPERIMENTS, pages.COMMANDS, pages.REFERENCE}
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == sorted(there | notebooks | made)


def test_every_public_name_is_in_the_reference(pages: ModuleType) -> None:
    shown = re.findall(r"^::: (?:\w+\.)+(\w+)$", "\n".join(pages.reference()), re.MULTILINE)
    assert sorted(shown) == sottovoce.__all__


def test_every_bundled_experiment_is_shown(pages: ModuleType) -> None:
    shown = re.findall(r"^## (\S+)$", "\n".join(pages.experiments()), re.MULTILINE)
    assert sorted(shown) == sorted(path.stem for path in (ROOT / "simulations" / "experiments").glob("*.toml"))


def test_every_command_is_in_the_reference(pages: ModuleType) -> None:
    shown = re.findall(r"^## (.+)$", "\n".join(pages.commands()), re.MULTILINE)
    assert {"sottovoce demo", "sottovoce text sanitize", "sottovoce deploy keys make"} <= set(shown)
    assert not any(" dev " in name for name in shown)


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("index.md", "docs/start/concepts.md#the-parties", "start/concepts.md#the-parties"),
        ("index.md", "docs/figures/what-leaves.svg", "figures/what-leaves.svg"),
        ("contributing.md", "docs/explanation/architecture.md", "explanation/architecture.md"),
        ("how-to/scale.md", "../../CONTRIBUTING.md", "../contributing.md"),
        ("how-to/experiments.md", "../../simulations/experiments", "../experiments.md"),
        ("how-to/own-mechanism.md", "../notebooks/own-mechanism.ipynb", "../own-mechanism.md"),
        ("how-to/scale.md", "deploy.md", "deploy.md"),
        ("index.md", "#install", "#install"),
        ("index.md", "https://flower.ai", "https://flower.ai"),
    ],
)
def test_where_a_link_leads_on_the_site(page: str, link: str, there: str, pages: ModuleType) -> None:
    assert pages.moved(link, page) == there


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name)
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    """As GitHub and the site name headings: lower case, spaces to dashes, punctuation left out."""
    for file, place in re.findall(r"\]\(([\w/.-]*\.md)?#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        text = (page.parent / file).read_text(encoding="utf-8") if file else page.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        names = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
        assert place in names, f"{file}#{place}"
