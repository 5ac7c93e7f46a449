"""Numbers as tables for people show them: what does not apply is "–", infinity "∞"."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def plain(value: Any) -> str:
    """The text of a value."""
    return "–" if value is None else str(value)


def share(value: Any) -> str:
    """A share to three digits."""
    return f"{value:.3f}" if is_finite(value) else "–"


def count(value: Any) -> str:
    """A whole number with its thousands set apart."""
    return f"{value:,.0f}" if is_finite(value) else "–"


def epsilon(value: Any) -> str:
    """An ε to four digits."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.4g}"


def is_finite(value: Any) -> bool:
    """Whether there is a number, and a finite one; "inf", as JSON has it, is none."""
    return isinstance(value, Real) and math.isfinite(value)
