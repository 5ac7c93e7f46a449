"""Total budget of several independent releases of one user, by basic or by exact composition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mechanisms import checks
from mechanisms.accounting import pld
from mechanisms.losses.loss import LossCells, check_delta
from mechanisms.mechanism import Mechanism

#: Share of ε below which a δ is not worth spending: worst cases of pure mechanisms hold at δ = 0.
_WORTH = 1e-6
#: Words of a budget's assumptions.
_ALWAYS = "mechanisms draw independently", "neighbours: any two inputs (local model)"
_BASIC = "worst cases added"
_EXACT = "exact composition of loss distributions, discretized to the safe side"


@dataclass(frozen=True)
class Budget:
    """(ε, δ) of a composition, the unit that it protects, and its assumptions.

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


def compose(mechanisms: Sequence[tuple[Mechanism, int]], *, delta: float, declared: Iterable[str] = ()) -> Budget:
    """Return the (ε, δ) of releases over stages, channels and records of a user.

    ε is the least of two: worst cases added, where Gaussian releases get an equal share of delta each and pure
    mechanisms none; and loss distributions convolved. The assumptions name the one that gave it.

    The worst cases of the mechanisms are composed, so unlike metrics never add up as numbers of unlike units. The
    releases draw independently. Their number and their mechanisms are fixed in advance. The input of each may be chosen
    in the light of the releases before: the loss distributions are those of worst pairs, which dominate adaptively
    (Zhu, Dong and Wang 2022, Theorem 10). If ε, δ or the number of releases are chosen in that way too, use
    `mechanisms.accounting.privacy_filter`: this is then no theorem about the actual releases.

    The answer's ε includes each release's numeric ε. `Budget.sampler_delta` holds their numeric δ, the probability that
    an output is not that of the theorem's mechanism. ε is inf if one mechanism is unprotected. Units that differ make a
    record. The order of the list does not matter, and n at once equals n one by one.

    Args:
        mechanisms: Each mechanism with its number of releases.
        delta: δ that the whole composition may spend, in [0, 1). At 0 only pure mechanisms have a finite ε.
        declared: Exposures that are declared public (`Guarantee.given`).

    Raises:
        ValueError: A delta or number is out of range, the list is empty, or a mechanism has no loss.
    """
    check_delta(delta)
    releases = _grouped(mechanisms)
    guarantees = [(mechanism.guarantee.given(declared), times) for mechanism, times in releases]
    noisy = sum(times for guarantee, times in guarantees if guarantee.sigma is not None)
    # worst cases include the numeric ε; the code below adds it separately
    numeric = math.fsum(times * g.numeric_epsilon for g, times in guarantees)
    share = delta / noisy if noisy else 0.0
    worst = (
        times * (g.worst_case(share if g.sigma is not None else 0.0) - g.numeric_epsilon) for g, times in guarantees
    )
    epsilon, spent, how = math.fsum(worst), delta if noisy else 0.0, _BASIC
    protected = all(g.sigma is not None or not math.isinf(g.worst_case()) for g, _ in guarantees)
    if protected and delta > 0:
        losses: list[tuple[LossCells, int]] = [(mechanism.privacy_loss(), times) for mechanism, times in releases]
        exact = pld.compose(losses, tail=min(1e-15, delta * 1e-6)).epsilon(delta)
        if exact < epsilon * (1.0 if noisy else 1 - _WORTH):
            epsilon, spent, how = exact, delta, _EXACT
    units = {g.protects for g, _ in guarantees}
    inputs = (f"inputs: {g.inputs}" for g, _ in guarantees if g.inputs != "all")
    return Budget(
        epsilon=epsilon + numeric,
        # densities off by e^(±numeric) raise a δ by that factor
        delta=min(1.0, spent * math.exp(numeric)),
        unit=units.pop() if len(units) == 1 else "record",
        assumptions=tuple(dict.fromkeys((*_ALWAYS, how, *inputs))),
        sampler_delta=min(1.0, math.fsum(times * g.numeric_delta for g, times in guarantees)),
    )


def _grouped(mechanisms: Sequence[tuple[Mechanism, int]]) -> list[tuple[Mechanism, int]]:
    """Return each mechanism once, with its number of releases, in an order that does not depend on the list's."""
    if not mechanisms:
        raise ValueError("composition: nothing to compose; give at least one mechanism")
    counts: dict[Mechanism, int] = {}
    for mechanism, times in mechanisms:
        if not hasattr(mechanism, "privacy_loss"):
            raise ValueError(f"composition: {getattr(mechanism, 'name', mechanism)!r} has no loss distribution")
        counts[mechanism] = counts.get(mechanism, 0) + checks.times("composition", times)
    return sorted(counts.items(), key=lambda item: f"{item[0].name} {item[0].guarantee}")
