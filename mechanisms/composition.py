"""Basic composition of unlike guarantees: what a whole record costs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mechanisms.guarantee import Guarantee


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) of a composition, the unit it protects, and the assumptions it rests on. They add up.

    sampler_delta: total variation between what the samplers draw and what the statement is about, all releases
    together (their numeric_delta). It stands beside delta and not in it: an observer sees the stated mechanism but
    with this probability. (Inside one (ε, δ) it would count (1 + e^ε) times, which says nothing at a large ε.)
    """

    epsilon: float
    delta: float
    unit: str
    assumptions: tuple[str, ...]
    sampler_delta: float = 0.0

    def __add__(self, other: Budget) -> Budget:
        """Both spent on the same unit, independently. Units that differ make a record."""
        return Budget(
            epsilon=self.epsilon + other.epsilon,
            delta=min(1.0, self.delta + other.delta),
            unit=self.unit if self.unit == other.unit else "record",
            assumptions=tuple(dict.fromkeys(self.assumptions + other.assumptions)),
            sampler_delta=min(1.0, self.sampler_delta + other.sampler_delta),
        )


def assumptions_of(guarantees: Iterable[Guarantee], *how: str) -> tuple[str, ...]:
    """What a composition of these rests on, in words, each once. how: what more the way of composing them does."""
    inputs = (f"inputs: {g.inputs}" for g in guarantees if g.inputs != "all")
    always = ("mechanisms draw independently", "neighbours: any two inputs (local model)")
    return tuple(dict.fromkeys((*always, *how, *inputs)))


def compose_basic(guarantees: Iterable[Guarantee], *, delta: float = 0.0) -> Budget:
    """Worst cases added (Du et al. 2023, Theorem 3; Dwork and Roth 2014, Theorem 3.16 for δ > 0).

    Theorem 3 composes an ε1·d embedding with an ε2 label to ε1·d + ε2; its worst case over all pairs of
    records is the sum of the two worst cases, whatever the metrics. delta: what each mechanism that needs one
    (Gaussian) may spend; pure mechanisms spend none.
    """
    total = Budget(0.0, 0.0, "", ())
    for guarantee in guarantees:
        spent = delta if guarantee.sigma is not None else 0.0
        part = Budget(
            epsilon=guarantee.worst_case(spent),
            delta=min(1.0, spent),
            unit=guarantee.protects,
            assumptions=assumptions_of([guarantee]),
            sampler_delta=min(1.0, guarantee.numeric_delta),
        )
        total = total + part if total.unit else part
    return total if total.unit else Budget(0.0, 0.0, "record", ())


def metric_statement(guarantees: Iterable[Guarantee]) -> str:
    """The composed loss bound in words: "10·d_angular + 2" for an embedding's ε = 10 and a label's ε = 2.

    Terms of one metric are added; a discrete distance is 0 or 1 and counts as 1. Gaussian noise promises no
    bound on the loss (only at δ > 0) and makes the statement "inf".
    """
    rates: dict[str, float] = {}
    constant = 0.0
    for guarantee in guarantees:
        constant += guarantee.offset
        if guarantee.metric == "discrete":
            constant += guarantee.epsilon
        else:
            rates[guarantee.metric] = rates.get(guarantee.metric, 0.0) + guarantee.epsilon
    if math.isinf(constant) or any(math.isinf(rate) for rate in rates.values()):
        return "inf"
    terms = [f"{rate:g}·d_{metric}" for metric, rate in sorted(rates.items()) if rate]
    if constant or not terms:
        terms.append(f"{constant:g}")
    return " + ".join(terms)
