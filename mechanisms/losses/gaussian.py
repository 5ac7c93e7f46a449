"""Loss of Gaussian noise: itself Gaussian, N(r²/2, r²) with r = distance/σ (Balle and Wang 2018, Lemma 3).

**Blanket.** For inputs x of one length and any dimension m take ω = N(0, σ²I). With t = <w, x>/(σ|x|) and r = |x|/σ,
log U = r·t - r²/2, where t ~ N(0, 1) under ω, N(r, 1) under x and N(-r, 1) under -x. U has one law for every x and
rises in t, so the antipodal pair dominates (`mechanisms.losses.sphere`). U has no positive lower bound, so γ =
0, and only `accounting.truncated` makes a bound of these cells.

**A sum over a Poisson sample, of data sets that differ in one record's value: the worst pair (proved).** Each record is
in the sample with probability q. The output is the sum of vectors of length
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
from scipy.special import log_ndtr

from mechanisms.arrays import FloatArray
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.losses.quadrature import log_difference, mirrored_edges

#: Cells within `_REACH` standard deviations, and the reach of all but the two outermost cells.
_CELLS, _REACH, _FAR = 4096, 12.0, 37.0
#: Cells along a line, which reach `_REACH` standard deviations beyond either input.
_LINE = 1536


@lru_cache(maxsize=64)
def gaussian_loss(ratio: float) -> LossCells:
    """Return cells of N(0, 1) against N(r, 1), r = ratio >= 0.

    In units of r the loss is z ~ N(r/2, 1) under x and N(-r/2, 1) under x'. Distance d <= D is bounded by distance D:
    δ(ε) rises with r (Balle and Wang 2018, Theorem 8; the loss at d is a post-processing of that at D, by added noise).

    Raises:
        ValueError: The ratio is not a finite number of at least 0.
    """
    if not (0 <= ratio < math.inf):
        raise ValueError(f"gaussian loss: ratio must be a finite number of at least 0, got {ratio}")
    if ratio == 0:
        return no_loss()
    near = np.linspace(ratio / 2 - _REACH, ratio / 2 + _REACH, _CELLS + 1)
    far = np.linspace(ratio / 2 - _FAR, ratio / 2 + _FAR, 256)
    grid = mirrored_edges(np.concatenate([near, far]), ratio / 2 + _FAR)
    edges = np.concatenate([[-np.inf], grid, [np.inf]])
    return LossCells(
        low=ratio * edges[:-1],
        high=ratio * edges[1:],
        log_p=log_masses(edges - ratio / 2),
        log_q=log_masses(edges + ratio / 2),
    )


@lru_cache(maxsize=8)
def line(ratio: float) -> BlanketCells:
    """Return blanket cells, with γ = 0, of the antipodal pair of N(x, σ²I) over N(0, σ²I), in any dimension.

    ratio > 0 is |x|/σ, with one |x| for all inputs. The two outermost cells have no end.
    """
    half = np.linspace(0.0, ratio + _REACH, _LINE // 2)
    edges = np.concatenate([[-np.inf], -half[:0:-1], half, [np.inf]])
    log_u = ratio * edges - ratio**2 / 2
    return BlanketCells.mirrored(-math.inf, log_masses(edges), log_masses(edges - ratio), log_u[:-1], log_u[1:])


def log_masses(z: FloatArray) -> FloatArray:
    """Return log masses of N(0, 1) between rising edges, each from the tail that is small there."""
    lower = log_difference(log_ndtr(z[1:]), log_ndtr(z[:-1]))
    upper = log_difference(log_ndtr(-z[:-1]), log_ndtr(-z[1:]))
    return np.where(z[:-1] > 0, upper, lower)


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
