"""Whom a user of an arm has to trust, for which ε. Reads lines of results as `simulations.study.report` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simulations.output.numbers import is_finite

Arm = Mapping[str, Any]

#: Columns of a table in which somebody is trusted, and its footnote.
COLUMNS = ("central ε", "trusts")
NOTE = (
    "Central ε: of data sets that differ in all that one user has (replaced; δ is in results.json), if whom the user "
    "trusts is honest: the server, which sees all and adds the noise, or the shuffler. Worst case ε trusts nobody."
)


def anybody(arms: Iterable[Arm]) -> bool:
    """Whether users of some arm trust the server, so that a table has to say so."""
    return any((arm.get("budget") or {}).get("central_epsilon") is not None for arm in arms)


def local(arm: Arm) -> float | None:
    """The worst-case ε of an arm's training user who trusts nobody: of all they release, a label too; None where they
    have to trust somebody, or release nothing."""
    budget = arm.get("budget") or {}
    if budget.get("simulated_epsilon") is not None:
        return float(budget["simulated_epsilon"])
    worst = budget.get("worst_case_epsilon")
    if arm.get("reference") or not is_finite(worst):
        return None
    return float(worst) + float(budget.get("label_epsilon") or 0.0)


def central(arm: Arm) -> tuple[float | None, str]:
    """The central ε of an arm's training user, and who has to be trusted for it: "the server" with everything, "the
    shuffler" not to say who sent what, "nobody" where there is no central ε, or the worst case is all that is said."""
    budget = arm.get("budget") or {}
    if budget.get("simulated_epsilon") is not None:
        return budget["central_epsilon"], "the shuffler"
    if budget.get("central_epsilon") is not None or arm.get("reference"):
        return budget.get("central_epsilon"), "the server"
    shuffled = next((rung for rung in arm.get("ladder") or [] if rung["rung"] == "shuffled"), None)
    epsilon = None if shuffled is None else shuffled["epsilon"]
    return (epsilon, "the shuffler") if isinstance(epsilon, int | float) and is_finite(epsilon) else (None, "nobody")
