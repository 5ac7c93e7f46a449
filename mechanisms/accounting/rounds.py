"""Several shuffled rounds: the privacy profile of the blanket or, where it says more, of the truncated one, composed
as a privacy loss distribution.

Any upper bound of δ(ε) that is itself a profile (convex in e^ε) has a dominating pair, and dominating pairs compose
(Zhu, Dong and Wang 2022, Theorem 10 and Proposition 12). The profile is evaluated on a grid of ε, made convex from
above, and joined by straight lines in e^ε ("connect the dots"): pessimistic throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.blanket import blanket_delta, blanket_epsilon
from mechanisms.accounting.pld import dp_accounting
from mechanisms.accounting.truncated import TruncatedBlanket, best_truncation
from mechanisms.losses.blanket_cells import BlanketCells

FloatArray = NDArray[np.float64]

#: Grid points of ε on either side of 0.
_POINTS = 96
_SHARE = 1e-2


def profile(cells: BlanketCells, n: int, epsilons: Sequence[float], *, slack: float = 1e-12) -> FloatArray:
    """δ of the blanket bound for n users at each ε >= 0, upper bounds, made falling: (J,) -> (J,)."""
    order = np.argsort(epsilons)
    deltas = np.array([blanket_delta(cells, n, float(epsilons[at]), slack=slack) for at in order])
    result = np.empty(len(deltas))
    result[order] = np.minimum.accumulate(deltas)
    return result


def rounds_epsilon(rounds: Sequence[tuple[BlanketCells, int, int]], delta: float) -> float | None:
    """ε at δ of shuffled rounds: (cells, users delivered, how many such rounds) each. None: some do not amplify.

    ValueError naming the extra where dp-accounting is not installed.
    """
    total = sum(count for _, _, count in rounds)
    if total < 1:
        raise ValueError("rounds: need at least one shuffled round")
    composed: Any = None
    for cells, n, count in rounds:
        part = _distribution(cells, n, delta * _SHARE / total)
        if part is None:
            return None
        part = part if count == 1 else part.self_compose(count, delta * 1e-6)
        composed = part if composed is None else composed.compose(part, delta * 1e-6)
    return float(composed.get_epsilon_for_delta(delta))


def _distribution(cells: BlanketCells, n: int, smallest: float) -> Any:
    """A pessimistic dp-accounting distribution of one round, whose δ is followed down to `smallest`."""
    privacy_loss_distribution, pld_pmf = dp_accounting()
    top = blanket_epsilon(cells, n, smallest)
    cut = best_truncation(cells, n, smallest)
    if cut is None or (top is not None and top <= cut.epsilon):
        if top is None:
            return None
        cut = TruncatedBlanket(cells, 0.0, top)
    step = cut.epsilon / _POINTS if cut.epsilon > 0 else 1e-6
    grid: FloatArray = step * np.arange(_POINTS + 1, dtype=np.float64)
    price = np.array([cut.price(n, float(epsilon)) for epsilon in grid])
    plain = profile(cut.cells, n, grid.tolist(), slack=smallest * 3e-3)
    deltas = convex_majorant(grid, np.minimum.accumulate(plain + price))
    # symmetric pair: δ(-ε) = 1 - e^(-ε) + e^(-ε)·δ(ε)
    negative = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * deltas[:0:-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        step, np.arange(-_POINTS, _POINTS + 1), np.concatenate([negative, deltas])
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def convex_majorant(epsilons: FloatArray, deltas: FloatArray) -> FloatArray:
    """Raise δ (J,) where needed, from the largest ε down, so that it is convex in e^ε (J,)."""
    t, result = np.exp(epsilons), deltas.copy()
    for at in range(len(t) - 3, -1, -1):
        slope = (result[at + 1] - result[at + 2]) / (t[at + 1] - t[at + 2])
        result[at] = max(result[at], result[at + 1] + slope * (t[at] - t[at + 1]))
    return result
