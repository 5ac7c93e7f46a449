"""Prices that the users of an arm pay, their conditions, and the parties that users must trust."""

from __future__ import annotations

import math
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
    "trusts is honest: the server, which sees all and adds the noise, or the shuffler. The other ε trust nobody."
)
#: Columns of what users pay, by whose they are, and their footnote.
PAID = {PAYERS["ladder"]: "ε, training", PAYERS["test_ladder"]: "ε, inference"}
PAID_NOTE = (
    "ε: of all that one user releases over the whole run, trusting nobody, in the worst case (δ = 0 where none is "
    "said). Training: of a user whose data train the model; inference: of a user who sends requests to it. –: such "
    "users release nothing."
)
#: Mark of an ε that holds only between data that agree in something public.
CONDITION_MARK = "‡"

UNPROTECTED = "not private: a reference, or some ε of what its users send is infinite."


def anybody(arms: Iterable[ArmResult]) -> bool:
    """Return True if users of some arm trust the server, so that a table must say so."""
    return any(arm.budget.central_epsilon is not None for arm in arms)


def paid(whose: str, *runs: ArmResult) -> Price | None:
    """Return the price of all that a user releases over a whole run, trusting nobody; None if there is no such user.

    Of one arm in several runs it is the largest.

    Args:
        whose: The user, of PAYERS.
        runs: Results of one arm.
    """
    results = [price for arm in runs if (price := _paid(arm, whose)) is not None]
    return max(results, key=lambda price: math.inf if price.epsilon is None else price.epsilon, default=None)


def columns(arms: Sequence[Sequence[ArmResult]]) -> dict[str, list[str]]:
    """Return the columns of what users pay, by their headings: a cell for each arm, of its results over runs.

    A cell has ε, its δ, and the mark of a condition, which `conditions` states. The column of inference is left out if
    no arm's users send requests.
    """
    prices = {heading: [paid(whose, *same) for same in arms] for whose, heading in PAID.items()}
    training = PAID[PAYERS["ladder"]]
    return {
        heading: [cell(price) for price in item]
        for heading, item in prices.items()
        if heading == training or any(price is not None for price in item)
    }


def central_columns(arms: Sequence[Sequence[ArmResult]]) -> dict[str, list[str]]:
    """Return the columns of central ε and whom it trusts, by COLUMNS, as `columns` does."""
    results = [central(*same) for same in arms]
    public_of = [price.public if (price := paid(PAYERS["ladder"], *same)) is not None else () for same in arms]
    cells = [
        shown(epsilon) + mark(agreed if epsilon is not None else ())
        for (epsilon, _), agreed in zip(results, public_of, strict=True)
    ]
    return dict(zip(COLUMNS, (cells, [whom for _, whom in results]), strict=True))


def cell(price: Price | None) -> str:
    """Return a price in short: "151.8 ‡"."""
    if price is None or price.epsilon is None:
        return shown(None) if price is None else "not known"
    delta = f" (δ {price.delta:.3g})" if price.delta else ""
    return shown(price.epsilon) + delta + mark(price.public)


def mark(public: Sequence[str]) -> str:
    """Return the mark of an ε that holds only between data that agree in what is public; "" for any other."""
    return f" {CONDITION_MARK}" if public else ""


def local(*runs: ArmResult, whose: str = PAYERS["ladder"]) -> float | None:
    """Return the ε of a user who trusts nobody, over all of their releases, records and labels.

    It is the worst case of the theorems, or at the ladder's δ if there is none (Gaussian noise). Of one arm in several
    runs it is the largest. None if the user must trust somebody, releases nothing, or has an unknown number of records
    or releases. It holds between data that agree in `public`.

    Args:
        runs: Results of one arm.
        whose: The user, of PAYERS.
    """
    prices = [None if arm.reference else _paid(arm, whose) for arm in runs]
    epsilons = [price.epsilon for price in prices if price and price.epsilon is not None and is_finite(price.epsilon)]
    return max(epsilons) if len(epsilons) == len(prices) else None


def central(*runs: ArmResult) -> tuple[float | None, str]:
    """Return the central ε of a training user, and the party that must be trusted for it.

    "the server" is trusted with all data, "the shuffler" with hiding the senders. "nobody" stands for no central ε
    beyond the worst case. Of one arm in several runs it is the largest, and None if one run has none. It holds between
    data that agree in `public`.
    """
    return max(map(_central, runs), key=lambda pair: math.inf if pair[0] is None else pair[0])


def unprotected(*runs: ArmResult) -> bool:
    """Return True if some release of an arm's users is unprotected, in any of its runs.

    That is a reference, or an infinite ε in training, of labels (unless they are declared public), or in inference.
    """
    budgets = [arm.budget for arm in runs]
    epsilons = (epsilon for it in budgets for epsilon in (it.worst_case_epsilon, it.label_epsilon, it.asking_epsilon))
    return any(arm.reference for arm in runs) or math.inf in epsilons


def public(*runs: ArmResult) -> tuple[str, ...]:
    """Return what two users' data must have in common for an arm's ε to hold, because it is declared public."""
    prices = [price for arm in runs for whose in PAYERS.values() if (price := _paid(arm, whose)) is not None]
    return tuple(dict.fromkeys(name for price in prices for name in price.public))


def conditions(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for arms whose ε holds only between data that agree in what is declared public.

    `runs` have the same arms, one run for each seed.
    """
    named: dict[str, list[str]] = {}
    for same in zip(*map(arms_of, runs), strict=True):
        if agreed := public(*same):
            named.setdefault(" and ".join(agreed), []).append(same[0].name)
    return [
        f"{CONDITION_MARK} {'; '.join(names)}: ε is between data that agree in {agreed}, declared public; between "
        "others it is ∞."
        for agreed, names in named.items()
    ]


def marked(*runs: ArmResult) -> str:
    """Return the name of one arm, with the notes that a legend must have."""
    result = public(*runs)
    lines = [f"{' and '.join(result)} public"] if result else []
    lines += ["not private"] if unprotected(*runs) else []
    return runs[0].name + (f" ({', '.join(lines)})" if lines else "")


def _paid(arm: ArmResult, whose: str) -> Price | None:
    if arm.ladders[whose] is None and whose == PAYERS["ladder"] and unprotected(arm):
        return Price(math.inf, whose=whose)
    return price_of(arm.ladders[whose], whose)


def _central(arm: ArmResult) -> tuple[float | None, str]:
    budget = arm.budget
    if budget.central_epsilon is not None or arm.reference:
        return budget.central_epsilon, "the server"
    shuffled = next((rung for rung in arm.ladder or [] if rung["rung"] == "shuffled"), None)
    epsilon = None if shuffled is None else shuffled["epsilon"]
    return (epsilon, "the shuffler") if is_finite(epsilon) else (None, "nobody")
