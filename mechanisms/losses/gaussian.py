"""Loss of Gaussian noise: itself Gaussian, N(r²/2, r²) with r = distance/σ (Balle and Wang 2018, Lemma 3).

**Blanket.** For inputs x of one length and any dimension m take ω = N(0, σ²I). With t = <w, x>/(σ|x|) and r = |x|/σ,
log U = r·t - r²/2, where t ~ N(0, 1) under ω, N(r, 1) under x and N(-r, 1) under -x. U has one law for every x and
rises in t, so the antipodal pair dominates (`mechanisms.losses.sphere`). U has no positive lower bound, so γ =
0, and only `accounting.truncated` makes a bound of these cells.
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
    log_v = log_u[::-1]
    return BlanketCells(
        log_gamma=-math.inf,
        log_w=log_masses(edges),
        log_p=log_masses(edges - ratio),
        log_q=log_masses(edges + ratio),
        log_u_low=log_u[:-1],
        log_u_high=log_u[1:],
        log_v_low=log_v[1:],
        log_v_high=log_v[:-1],
    )


def log_masses(z: FloatArray) -> FloatArray:
    """Return log masses of N(0, 1) between rising edges, each from the tail that is small there."""
    lower = log_difference(log_ndtr(z[1:]), log_ndtr(z[:-1]))
    upper = log_difference(log_ndtr(-z[:-1]), log_ndtr(-z[1:]))
    return np.where(z[:-1] > 0, upper, lower)
