"""Distances of words, by the metric of a mechanism's guarantee."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.exponential import Geometry

_ROWS = 512


def metric_distances(mechanism: Any, x: IntArray, y: IntArray) -> FloatArray:
    """Return the distances that multiply the guarantee's ε, word ids (n,) and (k,) -> (n, k).

    Ids may include the unknown word's. The distances are the word mechanism's own `distances(x, y)`, or the Euclidean
    distances of the vectors.
    """
    own = getattr(mechanism, "distances", None)
    apart: FloatArray = distances(mechanism.vocabulary, x, y) if own is None else own(x, y)
    return apart


def distances(vocabulary: Vocabulary, x: IntArray, y: IntArray) -> FloatArray:
    """Return Euclidean distances, word ids (n,) and (k,) -> (n, k), read-only."""
    return _geometry(vocabulary, np.asarray(y, dtype=np.int64).tobytes()).distances(x)


@lru_cache(maxsize=4)
def _geometry(vocabulary: Vocabulary, outputs: bytes) -> Geometry:
    return Geometry(vocabulary.points, np.frombuffer(outputs, dtype=np.int64))


@lru_cache(maxsize=16)
def diameter(vocabulary: Vocabulary) -> float:
    """Return the largest Euclidean distance of any two of the V + 1 points, rounded up: never below the true value.

    It is exact to 1e-9 of the largest distance from the centre. Points are taken by falling distance r from the mean.
    Two can be apart by no more than r_i + r_j, which ends the search long before all pairs are seen, unless all points
    lie on one sphere. The result is cached.
    """
    return largest_distance(vocabulary.points)


def largest_distance(points: NDArray[np.float32]) -> float:
    """Return the largest distance of points (n, m) float32: see `diameter`."""
    centre = points.mean(axis=0, dtype=np.float64)
    radii = np.concatenate([_radii(points[at : at + _ROWS], centre) for at in range(0, len(points), _ROWS)])
    order = np.argsort(-radii, kind="stable")
    radii, squares = radii[order], radii[order] ** 2
    # Inner products are off by (m + 10)·2^-24, or ·2^-53, of |x|² + |y|² at most: float32 finds the blocks that may
    # hold a larger distance, float64 measures those.
    width = points.shape[1] + 10
    rough, exact = (width * unit * 2 * squares[0] * (1 + 2.0**-10) for unit in (2.0**-24, 2.0**-53))
    centred = np.empty_like(points)
    for at in range(0, len(points), _ROWS):
        centred[at : at + _ROWS] = points[order[at : at + _ROWS]] - centre
    best = 0.0  # squared, from above
    for at in range(0, len(points), _ROWS):
        if 4 * squares[at] * (1 + 2.0**-20) <= best:
            break
        for to in range(at, len(points), _ROWS):
            if (radii[at] + radii[to]) ** 2 * (1 + 2.0**-20) <= best:
                break
            product = centred[at : at + _ROWS] @ centred[to : to + _ROWS].T
            if squares[at] + squares[to] - 2 * float(product.min()) + rough <= best:
                continue
            sums = squares[at : at + _ROWS, None] + squares[None, to : to + _ROWS]
            rows, columns = (points[order[first : first + _ROWS]] - centre for first in (at, to))
            best = max(best, float((sums - 2 * (rows @ columns.T)).max()) + exact)
    return math.sqrt(best) * (1 + 2.0**-40)


def _radii(points: NDArray[np.float32], centre: FloatArray) -> FloatArray:
    rows = points - centre
    radii: FloatArray = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return radii
