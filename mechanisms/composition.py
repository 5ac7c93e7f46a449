"""Basic composition of unlike guarantees, for the budget of a whole record."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mechanisms.guarantee import Guarantee


@dataclass(frozen=True)
class Budget:
    """(ε, δ) of a composition, the unit that it protects, and its assumptions. Budgets add up.

    Attributes:
        epsilon: ε in nats.
        delta: δ.
        unit: Protected unit.
        assumptions: Conditions under which the statement holds.
        sampler_delta: Total variation between the samplers' draws and the stated mechanisms, all releases together
            (their numeric_delta). It stands beside delta and not in it: an observer sees the stated mechanism except
            with this probability. (Inside one (ε, δ) it would count (1 + e^ε) times, which is useless at a large ε.)
    """

    epsilon: float
    delta: float
    unit: str
    assumptions: tuple[str, ...]
    sampler_delta: float = 0.0

    def __add__(self, other: Budget) -> Budget:
        """Return the budget of both, spent independently on the same unit. Units that differ make a record."""
        return Budget(
            epsilon=self.epsilon + other.epsilon,
            delta=min(1.0, self.delta + other.delta),
            unit=self.unit if self.unit == other.unit else "record",
            assumptions=tuple(dict.fromkeys(self.assumptions + other.assumptions)),
            sampler_delta=min(1.0, self.sampler_delta + other.sampler_delta),
        )


def assumptions_of(guarantees: Iterable[Guarantee], *how: str) -> tuple[str, ...]:
    """Return the assumptions of a composition in words, each once. `how` are those of the way of composing."""
    inputs = (f"inputs: {g.inputs}" for g in guarantees if g.inputs != "all")
    always = ("mechanisms draw independently", "neighbours: any two inputs (local model)")
    return tuple(dict.fromkeys((*always, *how, *inputs)))


def compose_basic(guarantees: Iterable[Guarantee], *, delta: float = 0.0) -> Budget:
    """Return the sum of worst cases (Du et al. 2023, Theorem 3; Dwork and Roth 2014, Theorem 3.16 for δ > 0).

    Theorem 3 composes an ε1·d embedding with an ε2 label to ε1·d + ε2. Its worst case over all pairs of records is the
    sum of the two worst cases, whatever the metrics.

    Args:
        guarantees: Guarantees of the releases.
        delta: δ that each mechanism that needs one (Gaussian) may spend. Pure mechanisms spend none.
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
    """Return the composed loss bound in words: "10·d_angular + 2" for an embedding's ε = 10 and a label's ε = 2.

    Terms of one metric are added. A discrete distance is 0 or 1 and counts as 1. Gaussian noise bounds no loss (only at
    δ > 0) and makes the statement "inf".
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
