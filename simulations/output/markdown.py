"""Markdown tables of the attacks and the audit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table without a final line end; "|" in a cell is escaped."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Return three digits, ∞, or an empty text for None."""
    if value is None:
        return ""
    return "∞" if math.isinf(value) else f"{value:.3g}"
