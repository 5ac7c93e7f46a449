"""Distances between inputs, and the largest distance of each on the domain that a mechanism accepts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray

#: Largest distance between two points of the unit sphere, by metric.
SPHERE_DIAMETER = {"angular": math.pi, "euclidean": 2.0}


def angular(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the angle between unit vectors, rows of x and y, (n, m) -> (n,), in radians.

    It is 2·atan2(|x-y|, |x+y|) (Kahan), which keeps full precision at 0 and π, where arccos loses half of it.
    """
    angle: FloatArray = 2.0 * np.arctan2(np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1))
    return angle


def euclidean(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the Euclidean distance of rows, (n, m) -> (n,)."""
    distance: FloatArray = np.linalg.norm(x - y, axis=-1)
    return distance


def discrete(x: NDArray[Any], y: NDArray[Any]) -> FloatArray:
    """Return 0 where equal and 1 where not: values (n,), or rows of them (n, m), -> (n,)."""
    unlike = np.asarray(x) != np.asarray(y)
    differs: FloatArray = unlike.any(axis=tuple(range(1, unlike.ndim))).astype(np.float64)
    return differs


DISTANCES = {"angular": angular, "euclidean": euclidean, "discrete": discrete}
