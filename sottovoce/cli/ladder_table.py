"""Ladder as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEGEND = (
    "",
    "ε at δ: least that is proved, from exact loss distributions; worst case: the theorems alone, δ = 0. –: there is",
    "nothing of the kind, or no amplification is shown. Numbers are rounded to the nearest; --json has all digits.",
)


def table(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line a rung: name, ε at δ, δ, worst case, and the neighbours or the reason for a missing number."""
    lines = [f"  {'rung':<10} {'ε at δ':>9}  {'δ':<9} {'worst case':>10}  what it is about"]
    for r in rungs:
        about = r["neighbours"]
        if r["epsilon"] is None:
            about = r["assumption"].partition(" (")[0]
        elif r["unprotected"]:
            about = f"UNPROTECTED: {', '.join(r['unprotected'])}"
        elif r["statement"]:
            about += f"; loss ≤ {r['statement']}"
        elif r["crowd"] is not None:
            about += f"; in a crowd of {r['crowd']:,}"
        delta = "–" if r["epsilon"] is None else f"{r['delta']:.3g}"
        numbers = f"{number(r['epsilon']):>9}  {delta:<9} {number(r['worst_case']):>10}"
        lines.append(f"  {r['rung']:<10} {numbers}  {about}")
    return lines


def assumptions(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the assumptions of each rung with a number, one line each; for unprotected rungs, the reason."""
    own = [r for r in rungs if r["epsilon"] is not None and (r["epsilon"] != "inf" or r["unprotected"] == [r["rung"]])]
    return [f"  {r['rung']}: {r['assumption']}" for r in own]


def number(value: Any) -> str:
    """Return a number with four digits, or two decimals from 100 on; – if there is none."""
    if value is None:
        return "–"
    if value in ("inf", float("inf")):
        return "∞"
    return f"{value:,.2f}" if value >= 100 else f"{value:.4g}"
