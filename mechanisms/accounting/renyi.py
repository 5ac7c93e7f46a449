"""Composition by Rényi divergences, and their conversion to (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mechanisms.losses.loss import LossCells, check_delta

#: The orders tried. Any order gives a valid bound; the best of these is within a small fraction of the best.
ORDERS: tuple[float, ...] = tuple(float(a) for a in 1.0 + np.logspace(-3, 5, 321))


def renyi_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """Least ε >= 0 that a Rényi divergence D_α <= divergence gives at delta in (0, 1).

    D + log((α - 1)/α) - (log δ + log α)/(α - 1): Canonne, Kamath and Steinke 2020, Proposition 12 (arXiv
    2004.00010); the same as Balle et al. 2020, Theorem 21, improved by its log(1 - 1/α).
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
    """(ε, order): the best ε at delta of independent releases, each its number of times (Mironov 2017, Prop. 1).

    Divergences of one order add up. (inf, first order) where none is finite, or delta is 0.
    """
    check_delta(delta)
    best = (math.inf, float(orders[0]))
    if delta == 0:
        return best
    for order in orders:
        divergence = math.fsum(times * cells.renyi(order) for cells, times in losses)
        best = min(best, (renyi_to_epsilon(order, divergence, delta), float(order)))
    return best
