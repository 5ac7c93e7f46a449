"""Choice of the mechanism that counts classes with the least variance, for a local ε or a central one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from scipy.special import ndtri

from mechanisms import checks
from mechanisms.accounting.planner import Target, plan
from mechanisms.mechanism import CountMechanism, share_variance
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.subset_selection import SubsetSelection, prime

#: Share of a central ε that a plan leaves unused, so that a ladder, which computes on another grid, never shows more.
_MARGIN = 1e-3
#: Share of the error probability of intervals that is left for the normal approximation and the estimated variance.
_RESERVED = 0.2


def quantile(confidence: float, classes: int) -> float:
    """Return the half width, in standard errors, of K normal intervals that hold together (Bonferroni)."""
    return -float(ndtri((1 - confidence) * (1 - _RESERVED) / (2 * classes)))


def variance(mechanism: CountMechanism) -> float:
    """Return the mean variance of the classes' shares times the number of users, where all classes are as frequent."""
    return float(share_variance(mechanism.hit, mechanism.miss, 1 / mechanism.classes))


def of_local(classes: int, epsilon: float) -> CountMechanism:
    """Return the mechanism of least variance at a local ε above 0; randomized response where two are equal."""
    known: list[CountMechanism] = [RandomizedAnswer(epsilon, classes), SubsetSelection(epsilon, classes)]
    return min(known, key=variance)


@lru_cache(maxsize=64)
def of_central(classes: int, target: Target) -> CountMechanism | None:
    """Return the mechanism of least variance whose release fits a central budget, or None if none fits.

    Randomized response is tried first, then sets of two, four and more classes as long as the variance falls: larger
    sets have a larger local ε under the same central one, and hold fewer of the true classes.

    Args:
        classes: K.
        target: The budget. Its users are those of one crowd, or None without a shuffler.
    """
    target = replace(target, epsilon=target.epsilon * (1 - _MARGIN))
    if target.users is None and target.records * target.stages == 1:
        return of_local(classes, target.epsilon)
    best = _planned(partial(RandomizedAnswer, classes=classes), target)
    size = 2
    while size <= prime(classes) // 2:
        found = _planned(partial(SubsetSelection, classes=classes, subset=size), target)
        if found is None or (best is not None and variance(found) >= variance(best)):
            break
        best, size = found, 2 * size
    return best


def of_change(classes: int, *, users: int, change: float, power: float, confidence: float = 0.95) -> CountMechanism:
    """Return the mechanism of least ε by which a change of a class's share is found between two counts.

    A change is found if its interval, one of K that hold together, excludes 0. Each count draws anew, so the variances
    of both add up; they are taken where all classes are as frequent, and this one then grows.

    Args:
        classes: K.
        users: Users delivered in each count.
        change: Change of the share.
        power: Probability with which it is found.
        confidence: Probability that all intervals hold together.

    Raises:
        ValueError: An argument is out of range.
    """
    for name, value in (("change", change), ("power", power), ("confidence", confidence)):
        if not 0 < checks.real("counts", name, value, 0, 1) < 1:
            raise ValueError(f"counts: {name} must be above 0 and below 1, got {value:g}")
    needed = change / (quantile(confidence, classes) + float(ndtri(power)))
    low, high = 1e-3, 40.0  # where nothing is random any more
    while high - low > 1e-3:
        middle = (low + high) / 2
        short = math.sqrt(_of_both(of_local(classes, middle), change) / users) > needed
        low, high = (middle, high) if short else (low, middle)
    return of_local(classes, high)


def _of_both(mechanism: CountMechanism, change: float) -> float:
    """Return the variance of a change from a share of 1/K, times the number of users."""
    shares = (1 / mechanism.classes, min(1.0, 1 / mechanism.classes + change))
    return float(sum(share_variance(mechanism.hit, mechanism.miss, share) for share in shares))


def _planned(build: Callable[[float], CountMechanism], target: Target) -> CountMechanism | None:
    epsilon = plan(lambda each: [build(each)], target)
    return None if epsilon is None else build(epsilon)
