"""Code that handles channels asks questions and domains, and compares few names: those that files and wires hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

from mechanisms.messages.questions import LISTED
from tests.support.paths import ROOT

PACKAGES = ("mechanisms", "client", "server", "simulations", "sottovoce")
NAMES = frozenset(kind.channel for kind in LISTED)
MOST = 25
#: Methods that look a channel up by its name.
_BY_NAME = ("mechanism", "payload_form", "channel", "digest", "named")


def places(root: Path, lines: Callable[[ast.AST], Iterator[int]], packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """Return FILE:LINE of every line that a search of syntax trees finds in the packages, each once."""
    found = []
    for path in sorted(file for package in packages for file in (root / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(root).as_posix()}:{line}" for line in sorted(set(lines(tree)))]
    return found


def compares(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare something with a channel's name, or look a channel up by it."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BY_NAME:
            parts = node.args[:1]
        if any(_names(part) & NAMES for part in parts):
            assert isinstance(node, ast.expr | ast.pattern)
            yield node.lineno


def _names(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return {name for each in node.elts for name in _names(each)}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_few_lines_compare_a_channels_name() -> None:
    found = places(ROOT, compares)
    assert len(found) <= MOST, "\n".join(found)


def test_a_line_that_compares_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    lines = (
        'a = channel == "text"',
        'b = channel in ("label", "statistic")',
        'c = request.mechanism("answer")',
        'd = {"label"} & names',
        'e = channel != "vector"',
        'f = {"text": 1}',
        "g = request.question(TextQuestion)",
    )
    (tmp_path / "client" / "some.py").write_text("\n".join(lines))
    assert places(tmp_path, compares, ("client",)) == [f"client/some.py:{i}" for i in (1, 2, 3, 4)]
