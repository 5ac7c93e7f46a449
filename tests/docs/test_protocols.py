"""Code that handles protocols asks their declarations, and compares few names: those that results and files hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from server.protocols import PROTOCOLS
from tests.docs.test_channels import places
from tests.support.paths import ROOT

MOST = 25
#: Names under which files import a protocol of their own choice: PUBLIC_ONLY for "public-only".
CONSTANTS = frozenset(name.upper().replace("-", "_") for name in PROTOCOLS)


def compares(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare something with a protocol or its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            if not any(_is_mode(part) for part in parts) and any(_names_protocol(part) for part in parts):
                yield node.lineno
        elif isinstance(node, ast.MatchValue) and _names_protocol(node.value):
            yield node.value.lineno


def _is_mode(node: ast.expr) -> bool:
    """Text mechanisms have a mode, one of whose values is "paper"."""
    return getattr(node, "attr", getattr(node, "id", "")) == "mode"


def _names_protocol(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names_protocol, node.elts))
    if isinstance(node, ast.Attribute) and node.attr == "name":
        node = node.value
    return (isinstance(node, ast.Constant) and node.value in PROTOCOLS) or (
        isinstance(node, ast.Name) and node.id in CONSTANTS
    )


def test_few_lines_compare_a_protocols_name() -> None:
    found = places(ROOT, compares)
    assert len(found) <= MOST, "\n".join(found)


def test_a_line_that_compares_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    lines = (
        'a = way == "paper"',
        'b = way in ("statistics", "release-once")',
        "c = arm.way != PUBLIC_ONLY.name",
        "d = protocol is STATISTICS",
        'e = mode == "paper"',
        'f = {"statistics": 1}',
        "g = protocol.releases_text",
    )
    (tmp_path / "client" / "some.py").write_text("\n".join(lines))
    assert places(tmp_path, compares, ("client",)) == [f"client/some.py:{i}" for i in (1, 2, 3, 4)]
