"""Distances between inputs, and the largest distance each can take on the domain a mechanism accepts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Largest distance between two points of the unit sphere, by metric.
SPHERE_DIAMETER = {"angular": math.pi, "euclidean": 2.0}


def angular(x: FloatArray, y: FloatArray) -> FloatArray:
    """Angle between unit vectors, rows of x and y, shape (n, m) -> (n,), in radians.

    Uses 2·atan2(|x-y|, |x+y|) (Kahan), which keeps full precision at 0 and π, where arccos loses half of it.
    """
    angle: FloatArray = 2.0 * np.arctan2(np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1))
    return angle


def euclidean(x: FloatArray, y: FloatArray) -> FloatArray:
    """Euclidean distance of rows, shape (n, m) -> (n,)."""
    distance: FloatArray = np.linalg.norm(x - y, axis=-1)
    return distance


def discrete(x: NDArray[Any], y: NDArray[Any]) -> FloatArray:
    """0 where equal and 1 where not: values (n,), or rows of them (n, m), -> (n,)."""
    unlike = np.asarray(x) != np.asarray(y)
    differs: FloatArray = unlike.any(axis=tuple(range(1, unlike.ndim))).astype(np.float64)
    return differs


DISTANCES = {"angular": angular, "euclidean": euclidean, "discrete": discrete}
