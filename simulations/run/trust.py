"""Parties that a user of an arm must trust, and the ε under that trust."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from server.card import PAYERS, Price, price_of
from simulations.experiment.result import ArmResult, arms_of
from simulations.output.numbers import epsilon as shown
from simulations.output.numbers import is_finite

#: Columns and footnote of a table in which some party is trusted.
COLUMNS = ("central ε", "trusts")
NOTE = (
    "Central ε: of data sets that differ in all that one user has (replaced; δ is in results.json), if whom the user "
    "trusts is honest: the server, which sees all and adds the noise, or the shuffler. Worst case ε trusts nobody."
)

#: What two inputs of a rung's neighbours have in common because it was declared public.
_PUBLIC = re.compile(r"(?:the same|that agree in) (.+?) \(public\)")

UNPROTECTED = "not private: a reference, or some ε of what its users send is infinite."


def anybody(arms: Iterable[ArmResult]) -> bool:
    """Return True if users of some arm trust the server, so that a table must say so."""
    return any(arm.budget.central_epsilon is not None for arm in arms)


def local(*runs: ArmResult) -> float | None:
    """Return the ε of a training user who trusts nobody, over all of their releases, records and labels.

    It is the worst case of the theorems, or at the ladder's δ if there is none (Gaussian noise). Of one arm in several
    runs it is the largest. None if the user must trust somebody, releases nothing, or has an unknown number of records.
    """
    found = [_local(arm) for arm in runs]
    known = [epsilon for epsilon in found if epsilon is not None]
    return max(known) if len(known) == len(found) else None


def central(*runs: ArmResult) -> tuple[float | None, str]:
    """Return the central ε of a training user, and the party that must be trusted for it.

    "the server" is trusted with all data, "the shuffler" with hiding the senders. "nobody" stands for no central ε
    beyond the worst case. Of one arm in several runs it is the largest, and None if one run has none.
    """
    return max(map(_central, runs), key=lambda said: math.inf if said[0] is None else said[0])


def asking(*runs: ArmResult) -> float | None:
    """Return the ε of a test user who trusts nobody, over all of their releases.

    None if no test user is queried, for a reference, or if the number of releases is unknown. Of one arm in several
    runs it is the largest.
    """
    found = [None if arm.reference else _price(arm, PAYERS["test_ladder"]) for arm in runs]
    known = [price.epsilon for price in found if price is not None and is_finite(price.epsilon)]
    return max(known) if len(known) == len(found) else None


def several(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line on users who pay for several records, which a table's columns of one release do not show.

    There is none if every user has one record. `runs` have the same arms, one run for each seed.
    """
    said = []
    for same in zip(*map(arms_of, runs), strict=True):
        if (found := _of_several(*same)) and not unprotected(*same):
            said.append(f"{same[0].name}: {found}")
    if not said:
        return []
    return [f"Columns of ε are of one release. For all of one user's records, at most: {'; '.join(said)}."]


def _of_several(*runs: ArmResult) -> str:
    """Return who of an arm's users pays for several records, and how much: "ε = 200 (a test user)".

    "" if every user has one record, or one release for all of them. Of one arm in several runs it is the largest.
    """
    found = []
    for whose in PAYERS.values():
        prices = [price for arm in runs if _several(arm, whose) and (price := _price(arm, whose)) is not None]
        if prices:
            most = max(prices, key=lambda price: math.inf if price.epsilon is None else price.epsilon)
            at = f" at δ = {most.delta:.3g}" if most.delta and is_finite(most.epsilon) else ""
            found.append(f"{'not known' if most.epsilon is None else f'ε = {shown(most.epsilon)}{at}'} (a {whose})")
    return ", ".join(found)


def _several(arm: ArmResult, whose: str) -> bool:
    """Return True if one user of a ladder pays more than for one record, or an unknown amount."""
    rungs = {rung["rung"]: rung for rung in arm.ladders[whose] or []}
    record, user = rungs.get("record"), rungs.get("user")
    if record is None or user is None or record["epsilon"] is None:
        return False
    # both worst cases are infinite under Gaussian noise
    return bool(user["epsilon"] is None or any(user[of] != record[of] for of in ("epsilon", "worst_case")))


def metric(*runs: ArmResult) -> float | None:
    """Return the ε for one unit of the metric, of a training user's release.

    None for a reference, or if there is none. Of one arm in several runs it is the largest.
    """
    found = [None if arm.reference else arm.budget.metric_epsilon for arm in runs]
    known = [epsilon for epsilon in found if epsilon is not None and is_finite(epsilon)]
    return max(known) if len(known) == len(found) else None


def unprotected(*runs: ArmResult) -> bool:
    """Return True if some release of an arm's users is unprotected, in any of its runs.

    That is a reference, or an infinite ε in training, of labels (unless they are declared public), or in inference.
    """
    budgets = [arm.budget for arm in runs]
    each = (epsilon for it in budgets for epsilon in (it.worst_case_epsilon, it.label_epsilon, it.asking_epsilon))
    return any(arm.reference for arm in runs) or math.inf in each


def public_labels(arm: ArmResult) -> bool:
    """Return True if users send their labels in clear, declared public."""
    return arm.budget.public_label


def agreed(rungs: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """Return what all data of two users must have in common for the ladder's ε to hold; between others it is ∞."""
    user = next((rung for rung in rungs or [] if rung["rung"] == "user"), None)
    return [] if user is None else _PUBLIC.findall(user.get("neighbours", ""))


def conditions(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for arms whose worst case holds only between inputs that agree in what was declared public.

    `runs` have the same arms, one run for each seed.
    """
    named: dict[str, list[str]] = {}
    for same in zip(*map(arms_of, runs), strict=True):
        if said := _agreed(*same):
            named.setdefault(" and ".join(said), []).append(same[0].name)
    return [
        f"{'; '.join(names)}: worst-case ε is between data that agree in {said}, declared public; others have ∞."
        for said, names in named.items()
    ]


def conditional(arm: ArmResult) -> bool:
    """Return True if an arm's worst case holds only between inputs that agree in what was declared public."""
    return bool(_agreed(arm))


def _agreed(*runs: ArmResult) -> dict[str, None]:
    """Return what these inputs of one arm's runs agree in, in words; nothing for an arm that is not private."""
    if unprotected(*runs):
        return {}
    return dict.fromkeys(each for arm in runs for each in agreed(arm.ladder) + agreed(arm.test_ladder))


def marked(*runs: ArmResult) -> str:
    """Return the name of one arm, with the notes that a legend must have."""
    said = ["labels public"] if public_labels(runs[0]) else []
    said += ["not private"] if unprotected(*runs) else []
    return runs[0].name + (f" ({', '.join(said)})" if said else "")


def _price(arm: ArmResult, whose: str) -> Price | None:
    return price_of(arm.ladders[whose], whose)


def _local(arm: ArmResult) -> float | None:
    if arm.budget.simulated_epsilon is not None:
        return arm.budget.simulated_epsilon
    price = None if arm.reference else _price(arm, PAYERS["ladder"])
    return None if price is None or not is_finite(price.epsilon) else price.epsilon


def _central(arm: ArmResult) -> tuple[float | None, str]:
    budget = arm.budget
    if budget.simulated_epsilon is not None:
        return budget.central_epsilon, "the shuffler"
    if budget.central_epsilon is not None or arm.reference:
        return budget.central_epsilon, "the server"
    shuffled = next((rung for rung in arm.ladder or [] if rung["rung"] == "shuffled"), None)
    epsilon = None if shuffled is None else shuffled["epsilon"]
    return (epsilon, "the shuffler") if is_finite(epsilon) else (None, "nobody")
