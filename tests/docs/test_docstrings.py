"""Docstrings of the packages say what a thing is or does, in the form that every reader expects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

#: Folders whose public docstrings are checked.
FOLDERS = ("benchmarks", "client", "mechanisms", "server", "simulations", "sottovoce")
#: First words of noun clauses and fragments, which need a second reading.
REFUSED = ("What", "Who", "Whether", "Where", "How", "Of", "So")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: Documented, name: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the docstring of a module, class or function, and of the public names inside it."""
    yield name, ast.get_docstring(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
            yield from public(inner, f"{name}: {inner.name}")


def faults(root: Path) -> Iterator[str]:
    """Yield the public docstrings that start with a refused word, and the modules that have none."""
    for path in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        module = path.relative_to(root).as_posix()
        for name, text in public(ast.parse(path.read_text(encoding="utf-8")), module):
            first = re.match(r"\w+", text or "")
            if first and first[0] in REFUSED:
                yield f"{name}: starts with {first[0]}"
            if not text and name == module:
                yield f"{name}: has no docstring"


def test_no_public_docstring_starts_with_a_noun_clause() -> None:
    assert list(faults(ROOT)) == []


def test_a_fault_is_found(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    inside = '"""Right."""\nclass A:\n    """{} it is."""\n    def f(self):\n        """{} many."""\n'
    (tmp_path / "server" / "a.py").write_text(inside.format("What", "How"))
    (tmp_path / "server" / "b.py").write_text('"""Right."""\ndef _f():\n    """What nobody sees."""\n')
    (tmp_path / "sottovoce" / "c.py").write_text("x = 1\n")
    (tmp_path / "benchmarks" / "d.py").write_text('"""Some of these, and Of those."""\n')
    assert list(faults(tmp_path)) == [
        "server/a.py: A: starts with What",
        "server/a.py: A: f: starts with How",
        "sottovoce/c.py: has no docstring",
    ]
