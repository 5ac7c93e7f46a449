"""No file of code has more than 800 lines, but data, and no function more than 100 beside its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FILE, FUNCTION = 800, 100
FOLDERS = ("client", "server", "mechanisms", "simulations", "sottovoce", "benchmarks", "tests", "docs")
#: Files that are tables of words.
DATA = ("simulations/corpora/fragments.py",)


def too_long(root: Path) -> Iterator[str]:
    """What is over a limit, as FILE, or FILE: FUNCTION."""
    for path in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > FILE and name not in DATA:
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
    for name in DATA:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) > FILE, f"{name}: is no exception any more"


def test_what_is_over_them_is_found(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    body = '    """' + "About it.\n" * 110 + '    """\n' + "    x = 1\n" * (FUNCTION - 1)
    (tmp_path / "client" / "short.py").write_text(f"def just_short_enough():\n{body}")
    (tmp_path / "client" / "long.py").write_text(f"class A:\n    pass\n\n\nasync def too_long():\n{body}    y = 2\n")
    (tmp_path / "server" / "many.py").write_text("x = 1\n" * (FILE + 1))
    (tmp_path / "server" / "few.py").write_text("x = 1\n" * FILE)
    assert list(too_long(tmp_path)) == ["client/long.py: too_long", "server/many.py"]
