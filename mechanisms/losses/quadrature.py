"""Masses of cells by Gauss-Legendre quadrature with positive integrands, in log space: no cancellation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betainc, logsumexp

from mechanisms.arrays import FloatArray


@lru_cache(maxsize=16)
def gauss_legendre(nodes: int) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights on [0, 1], (nodes,) each."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, w / 2


def log_panel_masses(log_density: Callable[[FloatArray], FloatArray], edges: FloatArray, nodes: int = 8) -> FloatArray:
    """Return log integrals of exp(log_density) between edges (J + 1,), rising -> (J,)."""
    x, w = gauss_legendre(nodes)
    width = np.diff(edges)
    points = edges[:-1, None] + width[:, None] * x
    values = log_density(points.ravel()).reshape(points.shape)
    with np.errstate(divide="ignore"):
        masses: FloatArray = logsumexp(values, axis=1, b=w) + np.log(width)
    return masses


def log_difference(larger: FloatArray, smaller: FloatArray) -> FloatArray:
    """Return log(e^larger - e^smaller), elementwise, larger >= smaller; -inf where they are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: FloatArray = larger + np.log(-np.expm1(smaller - larger))
    return np.where(np.isneginf(larger), -np.inf, result)


def mirrored_edges(points: FloatArray, reach: float) -> FloatArray:
    """Return rising edges from -reach to reach through the points and their negatives.

    They are their own mirror image to the last bit. `points` have any shape and lie within [-reach, reach]. Those
    closer than 1e-12·reach to the one before are dropped.
    """
    offset = np.unique(np.abs(np.concatenate([points, [0.0, reach]])))
    offset = offset[np.concatenate([[True], np.diff(offset) > 1e-12 * reach])]
    offset[-1] = reach
    return np.concatenate([-offset[:0:-1], offset])


def beta_tails(a: float, x: FloatArray, rest: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Pr[B <= x] and Pr[B > x] for B ~ Beta(a, a), each to its own relative precision; rest = 1 - x is given."""
    small = betainc(a, a, np.clip(np.minimum(x, rest), 0.0, 0.5))
    low = x <= rest
    return np.where(low, small, 1.0 - small), np.where(low, 1.0 - small, small)
