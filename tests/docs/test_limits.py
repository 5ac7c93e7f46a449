"""Limits: 800 lines a file, but data; 100 lines a function beside its docstring; 15 files that know `Experiment`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FILE, FUNCTION = 800, 100
#: Most files outside tests that name the class `Experiment`; others take its sections, or the setup of an arm.
KNOWN = 17
FOLDERS = ("client", "server", "mechanisms", "simulations", "sottovoce", "benchmarks", "tests", "docs")


def too_long(root: Path) -> Iterator[str]:
    """What is over a limit, as FILE, or FILE: FUNCTION."""
    for path in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > FILE:
            yield name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines(node) > FUNCTION:
                yield f"{name}: {node.name}"


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of a function from its name to its end, its docstring left out."""
    assert function.end_lineno is not None
    words = function.body[0]
    documented = ast.get_docstring(function) is not None and words.end_lineno is not None
    return function.end_lineno - function.lineno + 1 - (words.end_lineno - words.lineno + 1 if documented else 0)


def test_nothing_is_over_the_limits() -> None:
    assert list(too_long(ROOT)) == []


def test_what_is_over_them_is_found(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    body = '    """' + "About it.\n" * 110 + '    """\n' + "    x = 1\n" * (FUNCTION - 1)
    (tmp_path / "client" / "short.py").write_text(f"def just_short_enough():\n{body}")
    (tmp_path / "client" / "long.py").write_text(f"class A:\n    pass\n\n\nasync def too_long():\n{body}    y = 2\n")
    (tmp_path / "server" / "many.py").write_text("x = 1\n" * (FILE + 1))
    (tmp_path / "server" / "few.py").write_text("x = 1\n" * FILE)
    assert list(too_long(tmp_path)) == ["client/long.py: too_long", "server/many.py"]


def naming(root: Path, name: str) -> Iterator[str]:
    """Files outside tests whose code, but for strings and comments, names a class."""
    for path in sorted(file for folder in FOLDERS if folder != "tests" for file in (root / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(
            name in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", ""))
            for node in ast.walk(tree)
        ):
            yield path.relative_to(root).as_posix()


def test_few_files_know_the_whole_experiment() -> None:
    found = list(naming(ROOT, "Experiment"))
    assert "simulations/experiment/experiment.py" in found and len(found) <= KNOWN, found


def test_files_that_name_a_class_are_found(tmp_path: Path) -> None:
    texts = (
        "from a import A\n",
        "import a\n\nx = a.A()\n",
        "class A: ...\n",
        "def f(a: A) -> None: ...\n",
        "'A'  # A\n",
    )
    for i, text in enumerate(texts):
        folder = tmp_path / FOLDERS[i % 3]
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.py").write_text(text)
    assert list(naming(tmp_path, "A")) == ["client/0.py", "client/3.py", "mechanisms/2.py", "server/1.py"]
