"""Which success is above what a theorem allows, and how sure: exact intervals, and one error rate for a whole run.

Success is Σ w_i·x_i / Σ w_i of n texts (users, records) whose x_i lie between 0 and 1. Where all weigh the same and x_i
is a guess, right or wrong, its tail is the binomial one (Clopper and Pearson 1934; also for guesses that are not alike
likely to be right: Hoeffding 1956). Else, with a_i = w_i / max w and c their mean, success is s only with a probability
of at most exp(-n·KL(c·s, c·b)) where the mean is b < s: for e^(λ·a·x) <= 1 + a·x·(e^λ - 1), of which the geometric mean
over i is below the arithmetic one, and Chernoff's choice of λ. No sample needs to be large for either.

A row *alarms* where its success would be reached with a probability below FAMILY, divided by the rows that have a bound
(Bonferroni), if its theorem were true. So a run of a sound mechanism alarms at all with probability FAMILY at most.

x_i are taken for independent, given the texts. Rows of a linkage share the releases that they choose from, and the
weights of F1 hold words that are guessed: for these two the level is approximate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy.optimize import brentq
from scipy.special import betainc, rel_entr

from simulations.analysis.attack_results import FAMILY
from sottovoce.adversary.estimators.audit import high, low

#: Of the intervals that stand beside results, each by itself.
LEVEL = 0.95


def beyond(success: float, observations: int, weight: float, bound: float) -> float:
    """At most the probability of this success or a larger one, if its mean is at most `bound`. observations: n; weight:
    c, 1 where all weigh the same and each is right or wrong."""
    if success <= bound:
        return 1.0
    if bound <= 0:
        return 0.0
    if _counts(success, observations, weight):
        right = round(success * observations)
        return float(betainc(right, observations - right + 1, bound))  # of so many or more, binomial
    return math.exp(-observations * _apart(success * weight, bound * weight))


def interval(success: float, observations: int, weight: float, level: float = LEVEL) -> tuple[float, float]:
    """From the smallest to the largest mean of which this success is no surprise, with (1 - level)/2 on each side."""
    side = (1 - level) / 2
    if _counts(success, observations, weight):
        right = round(success * observations)
        return float(low(right, observations, side)), float(high(right, observations, side))
    return _lowest(success, observations, weight, side), 1 - _lowest(1 - success, observations, weight, side)


def judged(entries: Sequence[dict[str, Any]], family: float = FAMILY) -> list[dict[str, Any]]:
    """The entries, each with its `interval`, and with `alarm` where its success is above `bound` beyond chance."""
    bounded = [e for e in entries if e["bound"] is not None and e["bound"] < 1]
    found = []
    for e in entries:
        seen = e["success"], e["observations"], e["weight"]
        alarm = any(e is one for one in bounded) and beyond(*seen, e["bound"]) < family / len(bounded)
        found.append(e | {"interval": list(interval(*seen)), "alarm": alarm})
    return found


def _counts(success: float, observations: int, weight: float) -> bool:
    """Whether all weigh the same, and are right or wrong."""
    right = success * observations
    return weight == 1 and abs(right - round(right)) < 1e-6


def _apart(s: float, b: float) -> float:
    """KL of coins of s and b."""
    return float(rel_entr(s, b) + rel_entr(1 - s, 1 - b))


def _lowest(success: float, observations: int, weight: float, side: float) -> float:
    s, most = success * weight, -math.log(side) / observations
    if s <= 0:
        return 0.0
    if _apart(s, s * 1e-12) < most:
        return 0.0
    return float(brentq(lambda b: _apart(s, b) - most, s * 1e-12, s)) / weight
