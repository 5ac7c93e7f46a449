"""Exact confidence intervals of success, and alarms above a theorem's bound with one error rate for a whole run.

Success is Σ w_i·x_i / Σ w_i of n texts (users, records) whose x_i lie between 0 and 1. If all weights are equal and x_i
is a right or wrong guess, its tail is the binomial one (Clopper and Pearson 1934). It holds also for guesses with
different probabilities (Hoeffding 1956). Otherwise let a_i = w_i / max w and c their mean. If the mean is b < s,
success is s with probability at most exp(-n·KL(c·s, c·b)). This follows from e^(λ·a·x) <= 1 + a·x·(e^λ - 1), whose
geometric mean over i is below the arithmetic one, with Chernoff's choice of λ. Neither bound needs a large sample.

A row *alarms* if its success, under its theorem, would have a probability below FAMILY, divided by the rows that have a
bound (Bonferroni). So a run of a sound mechanism alarms at all with probability at most FAMILY.

The x_i are assumed independent, given the texts. Rows of a linkage share the releases that they choose from, and the
weights of F1 include guessed words. For these two the level is approximate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy.optimize import brentq
from scipy.special import betainc, rel_entr

from simulations.analysis.attack_results import FAMILY
from sottovoce.adversary.estimators.audit import high, low

#: Confidence level of the intervals beside results, each by itself.
LEVEL = 0.95


def beyond(success: float, observations: int, weight: float, bound: float) -> float:
    """Return an upper bound of the probability of this success or a larger one, if its mean is at most `bound`.

    Args:
        success: Success of the attack.
        observations: n.
        weight: c; 1 if all weights are equal and each guess is right or wrong.
        bound: Bound of the theorem.
    """
    if success <= bound:
        return 1.0
    if bound <= 0:
        return 0.0
    if _counts(success, observations, weight):
        right = round(success * observations)
        return float(betainc(right, observations - right + 1, bound))  # binomial probability of at least as many
    return math.exp(-observations * _apart(success * weight, bound * weight))


def interval(success: float, observations: int, weight: float, level: float = LEVEL) -> tuple[float, float]:
    """Return the smallest and the largest mean that fit this success, with (1 - level)/2 on each side.

    Args:
        success: Success of the attack.
        observations: n.
        weight: c; 1 if all weights are equal and each guess is right or wrong.
        level: Confidence level.
    """
    side = (1 - level) / 2
    if _counts(success, observations, weight):
        right = round(success * observations)
        return float(low(right, observations, side)), float(high(right, observations, side))
    return _lowest(success, observations, weight, side), 1 - _lowest(1 - success, observations, weight, side)


def judged(entries: Sequence[dict[str, Any]], family: float = FAMILY) -> list[dict[str, Any]]:
    """Return the entries, each with its `interval`, and with `alarm` if its success is above `bound` beyond chance.

    Args:
        entries: Entries of attacks.
        family: Error rate of the whole run.
    """
    bounded = [e for e in entries if e["bound"] is not None and e["bound"] < 1]
    results = []
    for e in entries:
        counts = e["success"], e["observations"], e["weight"]
        alarm = any(e is item for item in bounded) and beyond(*counts, e["bound"]) < family / len(bounded)
        results.append(e | {"interval": list(interval(*counts)), "alarm": alarm})
    return results


def _counts(success: float, observations: int, weight: float) -> bool:
    """Return True if all weights are equal, and guesses are right or wrong."""
    right = success * observations
    return weight == 1 and abs(right - round(right)) < 1e-6


def _apart(s: float, b: float) -> float:
    """Return the KL divergence of coins of s and b."""
    return float(rel_entr(s, b) + rel_entr(1 - s, 1 - b))


def _lowest(success: float, observations: int, weight: float, side: float) -> float:
    s, limit = success * weight, -math.log(side) / observations
    if s <= 0:
        return 0.0
    if _apart(s, s * 1e-12) < limit:
        return 0.0
    return float(brentq(lambda b: _apart(s, b) - limit, s * 1e-12, s)) / weight
