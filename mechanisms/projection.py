"""Computations that client and server must repeat to the last bit, whatever the size of the batch.

A client maps its embedding before it sanitizes. The server trains and scores maps as clients will apply them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray

_CHUNK = 4096

#: Least share of a user vector's squared length for its constant, whose mean gives the frequencies of classes. A liar
#: may give the constant the whole length, and so counts as one over the root of the share honest users there: a small
#: share lets liars move a model's threshold far. SST-2, 20,000 users, ε = 3, 48 features, five seeds: under the
#: strongest attack on the threshold 3 and 10 % of liars cost .032 and .353 of accuracy with a share of 1/49, and .012
#: and .069 with .1. Without liars .1 costs .001 ± .002, and .25 .002 ± .003.
LEAST_CONSTANT = 0.1


def project(embeddings: NDArray[np.floating[Any]], mean: NDArray[np.float32], m1: NDArray[np.float32]) -> FloatArray:
    """Map embeddings (n, m) to unit rows (n, m') in float64: centred, mapped, normalized.

    A row that has no direction (zero, or not finite) becomes the first basis vector.
    """
    out = np.empty((len(embeddings), m1.shape[1]))
    for start in range(0, len(out), _CHUNK):
        rows = slice(start, start + _CHUNK)
        centred = embeddings[rows].astype(np.float64) - mean.astype(np.float64)
        mapped = _product(centred, m1.astype(np.float64))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            norm = np.sqrt(_sum(mapped * mapped))
            unit = mapped / norm
        unit[:, ~(np.isfinite(norm) & (norm > 0))] = np.eye(len(unit), 1)
        out[rows] = unit.T
    return out


def constant_share(d: int) -> float:
    """Return w, the share of a user vector's squared length for its constant beside d features.

    It is as large as the mean share of a coordinate, 1/(d + 1), and LEAST_CONSTANT at least.
    """
    return max(LEAST_CONSTANT, 1 / (d + 1))


def statistic_vectors(x: FloatArray, labels: IntArray, codes: NDArray[np.float32]) -> FloatArray:
    """Return code(label) ⊗ [√(1 - w)·x, √w] of each record, (n, c·(d + 1)) float64, unit rows.

    w is the share of the constant (`constant_share`). Coordinates run over the code first: those of its first entry,
    then those of its second. A mean of such vectors relates features to labels and, by its constant coordinates, gives
    the frequency of each label.

    Args:
        x: Unit rows (n, d).
        labels: (n,) of 0..K-1.
        codes: (K, c) of unit length.
    """
    d = x.shape[1]
    share = constant_share(d)
    exact = codes.astype(np.float64)
    exact /= np.sqrt(_sum(exact.T * exact.T))[:, None]
    features = np.empty((len(x), d + 1))
    np.multiply(x, np.sqrt(1 - share), out=features[:, :d])
    features[:, d] = np.sqrt(share)
    return (exact[labels][:, :, None] * features[:, None, :]).reshape(len(x), -1)


def user_means(vectors: FloatArray, starts: IntArray) -> FloatArray:
    """Return means over runs of rows, (n, D) -> (u, D).

    Run i is rows starts[i] to starts[i + 1], none empty, u + 1 starts. Rows are added in their order, so a user's mean
    does not depend on the other users of the array.
    """
    sums: FloatArray = np.add.reduceat(vectors, starts[:-1], axis=0)
    return sums / np.diff(starts)[:, None]


def signed_directions(means: FloatArray, uniforms: FloatArray, clip: float = 1.0) -> FloatArray:
    """Draw a unit vector for each mean (n, D) of length r, whose expectation is the mean over C, clipped to length 1.

    It is the direction of the mean with probability (1 + min(1, r/C))/2, else the opposite one. A mean without a
    direction gets the first basis vector as its direction. C times the vector's expectation is the mean itself where
    r <= C.

    Theorem: whatever C > 0 and the mean, the result is a unit vector, and a mechanism that is ε-LDP on unit vectors is
    ε-LDP on means. Proof: given the uniforms, which do not depend on the data, the release of a mean is that of one of
    two unit vectors; a mixture of outputs whose densities are within e^ε of each other is within e^ε of any other such
    mixture. So ε covers all records of a user, however many, and C moves no guarantee. C itself is sent in clear and is
    charged to nobody: it must be a function of public data and earlier releases.

    Why C < 1: a mean of m records has r ≈ √(1/m + (1 - 1/m)·|E x|²) for single vectors x. A coin of (1 + r)/2 hardly
    tells it from its opposite, one of (1 + r/C)/2 does, and the noise of an average of users falls by C² (localize,
    then measure; for the rate of n·m records under ε of a user see Kent, Berrett and Yu, arXiv 2405.11923, and Zhao et
    al., arXiv 2405.17079).

    Args:
        means: Means (n, D).
        uniforms: (n,), uniform on [0, 1).
        clip: C, public, above 0 and at most 1.
    """
    lengths = np.minimum(np.sqrt(np.einsum("ij,ij->i", means, means)), 1.0)
    nowhere = lengths < 1e-12
    unit = means / np.where(nowhere, 1.0, lengths)[:, None]
    unit[nowhere] = np.eye(1, means.shape[1])
    unit /= np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
    right = (1.0 + np.minimum(lengths / clip, 1.0)) / 2
    directions: FloatArray = np.where(uniforms < right, 1.0, -1.0)[:, None] * unit
    return directions


def linear_classes(x: FloatArray, w: NDArray[np.float32], b: NDArray[np.float32]) -> IntArray:
    """Return the class of each row, the first of the largest of x @ w + b: (n, m'), (m', K), (K,) to (n,) of 0..K-1."""
    logits = _product(x, w.astype(np.float64)) + b.astype(np.float64)[:, None]
    classes: IntArray = logits.argmax(axis=0)
    return classes


def softmax(z: FloatArray, w: NDArray[np.float32], b: NDArray[np.float32]) -> FloatArray:
    """Return the softmax of z @ w + b by rows: (n, m'), (m', K), (K,) to (n, K) float64, each row summing to 1."""
    logits = _product(z, w.astype(np.float64)) + b.astype(np.float64)[:, None]
    weights = np.exp(logits - logits.max(axis=0))
    return np.ascontiguousarray((weights / _sum(weights)).T)


def _product(x: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return (x @ matrix).T, shape (k, n), whose bits do not depend on the number of rows of x.

    A BLAS product sums in an order that depends on its shape, so a cohort and a single user would differ in their last
    bits. Adding term by term fixes the order. The long axis lies inside, so it is fast enough.
    """
    columns = np.ascontiguousarray(x.T)
    total = np.zeros((matrix.shape[1], len(x)))
    with np.errstate(over="ignore", invalid="ignore"):
        for column, weights in zip(columns, matrix, strict=True):
            total += weights[:, None] * column[None, :]
    return total


def _sum(terms: FloatArray) -> FloatArray:
    """Return the sum over the first axis, in order, whatever the length of the second."""
    total = np.zeros(terms.shape[1])
    for term in terms:
        total += term
    return total
