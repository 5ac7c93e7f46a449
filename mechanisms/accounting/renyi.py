"""Composition by Rényi divergences, and their conversion to (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mechanisms.losses.loss import LossCells, check_delta

#: Orders that are tried. Any order gives a valid bound; the best of these is within a small fraction of the best.
ORDERS: tuple[float, ...] = tuple(float(a) for a in 1.0 + np.logspace(-3, 5, 321))


def renyi_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return the least ε >= 0 that a Rényi divergence D_α <= divergence gives at delta in (0, 1).

    D + log((α - 1)/α) - (log δ + log α)/(α - 1): Canonne, Kamath and Steinke 2020, Proposition 12 (arXiv 2004.00010).
    It is Balle et al. 2020, Theorem 21, improved by its log(1 - 1/α).
    """
    if not order > 1:
        raise ValueError(f"Rényi divergence: order must be above 1, got {order}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if math.isinf(divergence):
        return math.inf
    return max(0.0, divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))


def compose_renyi(
    losses: Sequence[tuple[LossCells, int]], delta: float, orders: Sequence[float] = ORDERS
) -> tuple[float, float]:
    """Return (ε, order): the best ε at delta of independent releases, each its number of times (Mironov 2017, Prop. 1).

    Divergences of one order add up. The result is (inf, first order) if none is finite, or delta is 0.

    (Proved) One order is best, and the others are the worse the further away they are: ε(α)·(α - 1) is (α - 1)·D_α + (α
    - 1)·log(1 - 1/α) - log α - log δ. The first term is convex, a cumulant function, and the second derivative of the
    next is 1/((α - 1)·α²). A convex function over a rising line falls, then rises.
    """
    check_delta(delta)
    rising = sorted(float(order) for order in orders)
    if delta == 0:
        return math.inf, float(orders[0])

    def epsilon(at: int) -> float:
        divergence = math.fsum(times * cells.renyi(rising[at]) for cells, times in losses)
        return renyi_to_epsilon(rising[at], divergence, delta)

    low, high = 0, len(rising) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if epsilon(middle) <= epsilon(middle + 1) else (middle + 1, high)
    found = epsilon(low)
    return found, rising[low] if math.isfinite(found) else float(orders[0])
