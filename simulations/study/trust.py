"""Whom a user of an arm has to trust, for which ε. Reads lines of results as `simulations.study.report` does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

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


def central(arm: Arm) -> tuple[float | None, str]:
    """The central ε of an arm's training user, and who has to be trusted for it: "the server" with everything, "the
    shuffler" not to say who sent what, "nobody" where there is no central ε, or the worst case is all that is said."""
    trusted = (arm.get("budget") or {}).get("central_epsilon")
    if trusted is not None or arm.get("reference"):
        return trusted, "the server"
    shuffled = next((rung for rung in arm.get("ladder") or [] if rung["rung"] == "shuffled"), None)
    epsilon = None if shuffled is None else shuffled["epsilon"]
    if not isinstance(epsilon, int | float) or not math.isfinite(epsilon):
        return None, "nobody"
    return epsilon, "the shuffler"
