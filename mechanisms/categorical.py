"""The one sampler of every mechanism whose output is a choice: inverse CDF from log-weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def sample(log_weights: FloatArray, uniforms: FloatArray) -> NDArray[np.int64]:
    """One choice for each row: log-weights (n, K), not normalized, and uniforms (n,) in (0, 1) -> (n,) int64.

    A weight of -inf is never chosen; every row needs a finite one. See `numeric_delta` for its exactness.
    """
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    edges = np.cumsum(weights, axis=1)
    # u·total may round up to the total, which would point behind the last choice
    target = np.minimum(uniforms * edges[:, -1], np.nextafter(edges[:, -1], 0.0))
    choice: NDArray[np.int64] = np.count_nonzero(edges <= target[:, None], axis=1).astype(np.int64)
    return choice


def log_normalize(log_weights: FloatArray) -> FloatArray:
    """Log probabilities of log-weights, (n, K) -> (n, K)."""
    shifted = log_weights - log_weights.max(axis=1, keepdims=True)
    normal: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normal


def numeric_delta(choices: int) -> float:
    """Bound on the total-variation distance of `sample` on lattice uniforms from the exact distribution.

    Each of the K - 1 inner edges, as a share of the total, is off by at most (K + 6)·2^-53 (K rounded
    additions, the exponentials, the product with u); the lattice cell that contains it, of mass 2^-52, may
    fall on either side.
    """
    return (choices - 1) * (choices + 8) * 2.0**-53
