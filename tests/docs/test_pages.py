"""What pages say of files and functions is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: Pages that lead people through the code, and how many places each names at least.
PAGES = {"docs/explanation/architecture.md": 30, "CONTRIBUTING.md": 15}
#: Most words of the map: half of what it had when the rooms were built.
MAP = 496
#: `folder/file.py`, or `folder/file.py: function` or `folder/file.py: Class.method`.
_PLACE = re.compile(r"`([\w/.-]+/[\w.-]*|\w+\.(?:py|md|toml|cff))(?::\s+([A-Za-z_][\w.]*))?`")


def places(page: str) -> list[tuple[str, str | None]]:
    return [(found[1], found[2]) for found in _PLACE.finditer((ROOT / page).read_text(encoding="utf-8"))]


def names(path: str) -> set[str]:
    """Functions, classes, methods and constants of a file, as `Class.method`; and those that it imports."""
    found: set[str] = set()
    for statement in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found.add(statement.name)
        if isinstance(statement, ast.ClassDef):
            found |= {f"{statement.name}.{each.name}" for each in statement.body if isinstance(each, ast.FunctionDef)}
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_function_that_a_page_names_is_there(page: str) -> None:
    named = places(page)
    assert len(named) >= PAGES[page], "the page's places are not found any more; look at the pattern"
    gone = [path for path, _ in named if not (ROOT / path).exists()]
    assert not gone
    gone = [f"{path}: {name}" for path, name in named if name is not None and name not in names(path)]
    assert not gone


def test_the_map_is_short() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MAP and len(re.findall(r"^\d+\. ", text, re.M)) <= 12


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")]
    files = [link.partition("#")[0] for link in links]
    assert not [name for name in files if name and not (page.parent / name).exists()]


def test_every_test_that_the_threats_name_is_there() -> None:
    """A row of the table names its test by path: one that is gone, renamed or moved would be a promise."""
    text = (ROOT / "docs" / "explanation" / "threats.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) >= 60 and len(named) == len(re.findall(r"\btest_\w+`", text)), "each is named by path"
    there = {path: names(path) if (ROOT / path).is_file() else set() for path, _ in named}
    assert not [f"{path}::{name}" for path, name in named if name not in there[path]]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    tables = [row for row in rows if row.count("|") == 5 and not row.startswith("| attack |")]
    assert len(tables) >= 30 and all("`tests/" in row for row in tables), "every threat has a test"
