"""Total budget of several independent releases of one user: basic, advanced, Rényi, or exact composition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mechanisms import checks
from mechanisms.accounting import advanced, pld, renyi
from mechanisms.composition import Budget, assumptions_of
from mechanisms.losses.loss import LossCells, check_delta
from mechanisms.mechanism import Mechanism

METHODS = ("least", "pld", "basic", "advanced", "renyi")
#: Share of ε below which a δ is not worth spending: worst cases of pure mechanisms hold at δ = 0.
_WORTH = 1e-6
#: Words of a budget's assumptions for each method.
_HOW = {
    "basic": "worst cases added",
    "advanced": "advanced composition (Dwork and Roth 2014; Kairouz, Oh and Viswanath 2015)",
    "renyi": "Rényi composition (Mironov 2017; Canonne, Kamath and Steinke 2020)",
    "pld": "exact composition of loss distributions, discretized to the safe side",
}


def compose(mechanisms: Sequence[tuple[Mechanism, int]], *, delta: float, method: str = "least") -> Budget:
    """Return the (ε, δ) of releases over stages, channels and records of a user.

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
        method: Bound on ε. No method returns more than "basic", and the assumptions name the one that gave the ε.

            - least: the least that is proved, over all methods.
            - basic: worst cases added. Gaussian releases get an equal share of delta each, pure mechanisms none.
            - advanced: the best of Dwork and Roth 2014, Theorem 3.20, and Kairouz, Oh and Viswanath 2015. One half of
              delta goes to Gaussian releases, if there are any.
            - renyi: Rényi divergences added, at the best order.
            - pld: loss distributions convolved.

    Raises:
        ValueError: A delta, number or method is out of range, the list is empty, or a mechanism has no loss.
    """
    check_delta(delta)
    if method not in METHODS:
        raise ValueError(f"composition: method {method!r} is not one of {', '.join(METHODS)}")
    releases = _grouped(mechanisms)
    guarantees = [(mechanism.guarantee, times) for mechanism, times in releases]
    noisy = sum(times for guarantee, times in guarantees if guarantee.sigma is not None)
    # worst cases include the numeric ε; the code below adds it separately
    numeric = math.fsum(times * g.numeric_epsilon for g, times in guarantees)

    def worst(share: float) -> list[tuple[float, int]]:
        each = share / noisy if noisy else 0.0
        return [
            (g.worst_case(each if g.sigma is not None else 0.0) - g.numeric_epsilon, times) for g, times in guarantees
        ]

    epsilon, spent, how = math.fsum(e * times for e, times in worst(delta)), delta if noisy else 0.0, "basic"
    protected = all(g.sigma is not None or not math.isinf(g.worst_case()) for g, _ in guarantees)
    worth = 1.0 if noisy else 1 - _WORTH
    for other in METHODS[1:] if method == "least" else (method,):
        if protected and other != "basic":
            better = _bound(releases, worst, delta, noisy, other)
            if better < epsilon * worth:
                epsilon, spent, how, worth = better, delta, other, 1.0
    units = {g.protects for g, _ in guarantees}
    return Budget(
        epsilon=epsilon + numeric,
        # densities off by e^(±numeric) raise a δ by that factor
        delta=min(1.0, spent * math.exp(numeric)),
        unit=units.pop() if len(units) == 1 else "record",
        assumptions=assumptions_of((g for g, _ in guarantees), _HOW[how]),
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
    return sorted(counts.items(), key=lambda item: repr(item[0]))


def _bound(
    releases: list[tuple[Mechanism, int]],
    worst: Callable[[float], list[tuple[float, int]]],
    delta: float,
    noisy: int,
    method: str,
) -> float:
    """Return ε of protected releases at delta by a method other than basic, or inf if it has no answer."""
    if delta == 0:
        return math.inf
    if method == "advanced":
        share = delta / 2 if noisy else 0.0
        parts = worst(share)
        best = advanced.optimal_epsilon(parts, delta - share)
        if len({epsilon for epsilon, _ in parts}) == 1:
            times = sum(times for _, times in parts)
            best = min(best, advanced.advanced_epsilon(parts[0][0], times, delta - share))
        return best
    losses: list[tuple[LossCells, int]] = [(mechanism.privacy_loss(), times) for mechanism, times in releases]
    if method == "renyi":
        return renyi.compose_renyi(losses, delta)[0]
    return pld.compose(losses, tail=min(1e-15, delta * 1e-6)).epsilon(delta)
