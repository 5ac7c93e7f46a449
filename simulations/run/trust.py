"""Whom a user of an arm has to trust, for which ε. Reads lines of results as `simulations.run.report` does."""

from __future__ import annotations

import math
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

UNPROTECTED = "not private: a reference, or some ε of what its users send is infinite."


def anybody(arms: Iterable[Arm]) -> bool:
    """Whether users of some arm trust the server, so that a table has to say so."""
    return any((arm.get("budget") or {}).get("central_epsilon") is not None for arm in arms)


def local(*runs: Arm) -> float | None:
    """The ε of an arm's training user who trusts nobody: of all they release, of every record and their labels; None
    where they have to trust somebody, release nothing, or nobody knows how many records they have. The theorems' worst
    case, or at the ladder's δ where that has none, as of Gaussian noise. Of one arm in several runs, the dearest's."""
    found = [_local(arm) for arm in runs]
    known = [epsilon for epsilon in found if epsilon is not None]
    return max(known) if len(known) == len(found) else None


def central(*runs: Arm) -> tuple[float | None, str]:
    """The central ε of an arm's training user, and who has to be trusted for it: "the server" with everything, "the
    shuffler" not to say who sent what, "nobody" where there is no central ε, or the worst case is all that is said. Of
    one arm in several runs, the dearest's: what one of them has none of, is promised in none."""
    return max(map(_central, runs), key=lambda said: math.inf if said[0] is None else said[0])


def metric(*runs: Arm) -> float | None:
    """The ε of one unit of the metric that an arm's training users' release is private in; None of a reference, and
    where there is none. Of one arm in several runs, the dearest's."""
    found = [None if arm.get("reference") else (arm.get("budget") or {}).get("metric_epsilon") for arm in runs]
    known = [float(epsilon) for epsilon in found if is_finite(epsilon)]
    return max(known) if len(known) == len(found) else None


def unprotected(*runs: Arm) -> bool:
    """Whether nothing, or not everything, that an arm's users release is protected, in any of its runs: a reference, or
    an infinite ε of what they teach, of their labels (unless these are declared public), or of what they ask."""
    budgets = [arm.get("budget") or {} for arm in runs]
    each = (budget.get(f"{name}_epsilon") for budget in budgets for name in ("worst_case", "label", "asking"))
    return any(arm.get("reference") for arm in runs) or any(float(epsilon or 0) == math.inf for epsilon in each)


def public_labels(arm: Arm) -> bool:
    """Whether users send their labels in clear, declared public."""
    return bool((arm.get("budget") or {}).get("public_label"))


def marked(*runs: Arm) -> str:
    """The name of one arm, with what a legend must say of it."""
    said = ["labels public"] if public_labels(runs[0]) else []
    said += ["not private"] if unprotected(*runs) else []
    return runs[0]["name"] + (f" ({', '.join(said)})" if said else "")


def _local(arm: Arm) -> float | None:
    budget = arm.get("budget") or {}
    if budget.get("simulated_epsilon") is not None:
        return float(budget["simulated_epsilon"])
    user = _rung(arm, "user")
    if arm.get("reference") or user is None:
        return None
    return next((float(epsilon) for epsilon in (user["worst_case"], user["epsilon"]) if is_finite(epsilon)), None)


def _central(arm: Arm) -> tuple[float | None, str]:
    budget = arm.get("budget") or {}
    if budget.get("simulated_epsilon") is not None:
        return budget["central_epsilon"], "the shuffler"
    if budget.get("central_epsilon") is not None or arm.get("reference"):
        return budget.get("central_epsilon"), "the server"
    shuffled = _rung(arm, "shuffled")
    epsilon = None if shuffled is None else shuffled["epsilon"]
    return (epsilon, "the shuffler") if is_finite(epsilon) else (None, "nobody")


def _rung(arm: Arm, name: str) -> Mapping[str, Any] | None:
    return next((rung for rung in arm.get("ladder") or [] if rung["rung"] == name), None)
