"""Number formats of tables for people: a value that does not apply is "–", infinity is "∞"."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def plain(value: Any) -> str:
    """Return the text of a value."""
    return "–" if value is None else str(value)


def share(value: Any, error: Any = None, *, signed: bool = False) -> str:
    """Return a share to three digits, ± its standard error if that is known. `signed` shows a plus too."""
    if not is_finite(value):
        return "–"
    return f"{value:{'+' if signed else ''}.3f}" + (f" ± {error:.3f}" if is_finite(error) else "")


def count(value: Any) -> str:
    """Return a whole number with thousands separators."""
    return f"{value:,.0f}" if is_finite(value) else "–"


def epsilon(value: Any) -> str:
    """Return an ε to four digits."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.4g}"


def is_finite(value: Any) -> bool:
    """Return True for a finite number; "inf", as JSON has it, is none."""
    return isinstance(value, Real) and math.isfinite(value)
