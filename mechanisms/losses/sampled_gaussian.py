"""Loss of a Gaussian sum over a Poisson sample of records, of data sets that differ in one record's value.

**The worst pair (proved).** Each record is in the sample with probability q. The output is the sum of vectors of length
C at most, plus N(0, σ²C²) in each coordinate. One record is *replaced*: its vector is g in one data set and g' in the
other. Given the rest, and in units of C, the outputs are P = (1 - q)·N(0, σ²) + q·N(g, σ²), and Q likewise with g'. For
every α >= 0

    sup_E P(E) - α·Q(E) = E (q·U - α·q·V - c)₊,   U = exp(<g, x>/σ² - |g|²/2σ²), V likewise with g', x ~ N(0, σ²),

c = (α - 1)(1 - q): the price of a spread option on two log-normal martingales whose logarithms have covariances
|g|²/σ², |g'|²/σ² and <g, g'>/σ². h(u, v) = (q·u - α·q·v - c)₊ is convex, and its mixed second derivative is -α·q² times
a positive measure. Along any path of covariances S the price changes by
½·S₁₁'·E[U²h_uu] + ½·S₂₂'·E[V²h_vv] + S₁₂'·E[UV·h_uv]. So it rises as <g, g'> falls: the worst vectors are opposite. For
opposite vectors it rises with the length of either, since S₁₁ and S₂₂ rise and S₁₂ falls. The worst pair is g = -g',
both of length C, for all α at once, so it dominates adaptively composed steps as well (Zhu, Dong and Wang 2022, Theorem
10).

It is not the pair of *added or removed* records, (1 - q)·N(0) + q·N(1) against N(0), which accountants take by default:
without sampling that is a distance of C, and this one 2C.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from mechanisms.arrays import FloatArray
from mechanisms.losses.gaussian import log_masses
from mechanisms.losses.loss import LossCells
from mechanisms.losses.quadrature import mirrored_edges

#: Cells within `_REACH` standard deviations of the means, and the reach of all but the two outermost cells.
_CELLS, _REACH, _FAR = 4096, 12.0, 37.0
#: Smallest q. Masses under the two hypotheses differ by a share of q, and a smaller q leaves too few digits of float64.
_RAREST = 1e-6
#: Least and most noise whose squares and inverses float64 holds.
_NOISE = 1e-100, 1e100


@lru_cache(maxsize=256)
def replaced_loss(noise: float, rate: float) -> LossCells:
    """Return cells of one step: N(0, noise²) on the sum of vectors of length 1, one of them replaced.

    Each vector is sampled with probability `rate`. Mirroring the outputs exchanges the pair, so one direction serves
    for both. The loss rises with the output x: with a = e^(-1/2σ²) and t = x/σ² it is
    log((1 - q) + q·a·e^t) - log((1 - q) + q·a·e^-t).

    Raises:
        ValueError: noise is not within `_NOISE`, or rate not from `_RAREST` to 1.
    """
    if not _NOISE[0] <= noise <= _NOISE[1]:
        raise ValueError(f"sampled gaussian: noise must be from {_NOISE[0]:g} to {_NOISE[1]:g}, got {noise:g}")
    if not _RAREST <= rate <= 1:
        raise ValueError(f"sampled gaussian: rate must be from {_RAREST:g} to 1, got {rate}")
    center = 1 / noise
    near = np.linspace(-center - _REACH, center + _REACH, 2 * _CELLS + 1)
    far = np.linspace(-center - _FAR, center + _FAR, 512)
    edges = np.concatenate([[-np.inf], mirrored_edges(np.concatenate([near, far]), center + _FAR), [np.inf]])
    loss = _mixed(edges / noise, noise, rate) - _mixed(-edges / noise, noise, rate)
    above, below = log_masses(edges - center), log_masses(edges + center)
    rest = math.log1p(-rate) + log_masses(edges) if rate < 1 else np.full(len(edges) - 1, -np.inf)
    return LossCells(
        low=loss[:-1],
        high=loss[1:],
        log_p=np.logaddexp(rest, math.log(rate) + above),
        log_q=np.logaddexp(rest, math.log(rate) + below),
    )


def _mixed(t: FloatArray, noise: float, rate: float) -> FloatArray:
    """Return log((1 - q) + q·e^(t - 1/2σ²))."""
    rest = math.log1p(-rate) if rate < 1 else -math.inf
    return np.logaddexp(rest, math.log(rate) + t - 0.5 / noise**2)
