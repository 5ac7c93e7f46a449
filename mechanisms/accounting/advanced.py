"""Composition of (ε, δ) without loss distributions: Dwork and Roth's theorem, and the optimal composition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from mechanisms import checks
from mechanisms.losses.loss import LossCells, check_delta

FloatArray = NDArray[np.float64]

#: Most atoms of the optimal composition of unlike releases. Above it, the closed bound is used.
_ATOMS = 2**20
#: Eight units in the last place of 1.
_ROUNDED = 2.0**-50


def advanced_epsilon(epsilon: float, times: int, slack: float) -> float:
    """Return ε' = sqrt(2k·ln(1/δ'))·ε + kε(e^ε - 1): k-fold composition of (ε, δ) is (ε', kδ + δ')-private.

    Source: Dwork and Roth 2014, Theorem 3.20 (Dwork, Rothblum and Vadhan 2010).

    Args:
        epsilon: ε in nats, at least 0.
        times: k, at least 1.
        slack: δ' in (0, 1).

    Raises:
        ValueError: An argument is out of range.
    """
    _check(epsilon, times)
    if not 0 < slack < 1:
        raise ValueError(f"advanced composition: slack must be in (0, 1), got {slack}")
    if epsilon > 500:
        return math.inf
    return math.sqrt(2 * times * -math.log(slack)) * epsilon + times * epsilon * math.expm1(epsilon)


def optimal_epsilon(releases: Sequence[tuple[float, int]], slack: float) -> float:
    """Return the least ε' such that the releases are (ε', 1 - (1 - slack)·Π(1 - δ_i)^k_i)-private.

    Release i is (ε_i, δ_i)-private and made k_i times. The answer is exact for equal ε (Kairouz, Oh and Viswanath 2015,
    Theorem 3.3) and for few unlike ones (the exact form of Theorem 3.5; Murtagh and Vadhan 2016, Theorem 1.5). For many
    unlike ones it is the closed bound of Theorem 3.5.

    Args:
        releases: Pairs (ε_i, k_i).
        slack: In [0, 1).
    """
    check_delta(slack)
    merged: dict[float, int] = {}
    for epsilon, times in releases:
        _check(epsilon, times)
        merged[epsilon] = merged.get(epsilon, 0) + times
    total = math.fsum(e * k for e, k in merged.items())
    if math.isinf(total) or slack == 0:
        return total
    groups = sorted(merged.items())
    if math.prod(k + 1 for _, k in groups) <= _ATOMS:
        # the logs of masses are rounded by 8·u of each of their terms; this goes to the safe side
        rounded = _ROUNDED * math.fsum(float(gammaln(k + 1)) + k + 1000 for _, k in groups)
        return min(total, binary_responses(groups).epsilon(slack * (1 - rounded)))
    mean = math.fsum(k * e * math.tanh(e / 2) for e, k in groups)
    square = math.fsum(k * e * e for e, k in groups)
    spread = min(-math.log(slack), math.log(math.e + math.sqrt(square) / slack))
    return min(total, mean + math.sqrt(2 * square * spread))


def binary_responses(groups: Sequence[tuple[float, int]]) -> LossCells:
    """Return the exact loss of binary randomized responses: atoms Σ(k_i - 2j_i)ε_i, with j_i lies of group i.

    Response i has ε_i and is given k_i times. The loss dominates every composition of ε_i-private releases. It has
    Π(k_i + 1) atoms.
    """
    loss, log_p, log_q = np.zeros(1), np.zeros(1), np.zeros(1)
    for epsilon, times in groups:
        lies = np.arange(times + 1.0)
        choose = gammaln(times + 1) - gammaln(lies + 1) - gammaln(times - lies + 1)
        base = choose - times * math.log1p(math.exp(-epsilon))
        loss = np.add.outer(loss, (times - 2 * lies) * epsilon).ravel()
        log_p = np.add.outer(log_p, base - lies * epsilon).ravel()
        log_q = np.add.outer(log_q, base - (times - lies) * epsilon).ravel()
    off = float(logsumexp(log_p))  # masses add up to 1, except for the rounding of large logarithms
    log_p, log_q = log_p - off, log_q - off
    return LossCells(low=loss, high=loss, log_p=log_p, log_q=log_q)


def _check(epsilon: float, times: int) -> None:
    if not epsilon >= 0:
        raise ValueError(f"composition: epsilon must be at least 0, got {epsilon}")
    checks.times("composition", times)
