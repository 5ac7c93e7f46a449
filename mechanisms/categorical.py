"""Sampler of every mechanism whose output is a choice: inverse CDF from log-weights, exact near the ends of intervals.

In float64 the end of a choice's interval is off by a few roundings, and the uniform is the midpoint of a cell 2^-52
wide. A uniform that close to an end may pick the neighbour: once in 10^15 draws for a label, once in 10^7 for a word.
Over many users that exceeds the room in δ.

**Theorem.** Let T be the sum of K weights w_j = e^(a_j - max a), and u = 2^-53.

- Computed ends are within (K + 40)·u·T of the exact ones. K additions round by u·T each. An exponential is off by 8·u
  of itself, and by u·|a_j - max a| of itself for its argument. The latter make Σ w_j·|a_j - max a|·u <= log K·u·T
  together, as the entropy of w/T is at most log K <= 25.
- The computed T is off by as much, and so is its product with the uniform. The uniform's cell reaches u·T further.
- So if the product is not within (2K + 100)·u·T of an end, every point of the cell picks what float64 picked.
- Otherwise the uniform is refined to 2^-104, and the ends are computed to 50 digits.

A choice then has the law of exact arithmetic on uniforms of 104 bits, whatever the input: each of the K - 1 inner ends
is off by one cell of 2^-104 at most, and by less than 10^-40. Certain choices, and a source's other draws, do not
depend on the further digits.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.streams import FINE, Points

_UNIT = 2.0**-53
_DIGITS = 50


def sample(log_weights: FloatArray, uniforms: FloatArray | Points) -> IntArray:
    """Draw one choice for each row.

    Args:
        log_weights: (n, K), not normalized. A weight of -inf is never chosen; every row needs a finite one.
        uniforms: (n,) in (0, 1), or `Points` (n, 1), with which draws are exact.

    Returns:
        (n,) int64. Exactness: `numeric_delta` of plain uniforms, `exact_delta` of points.
    """
    points = uniforms if isinstance(uniforms, Points) else None
    u = uniforms.u[:, 0] if isinstance(uniforms, Points) else uniforms
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    edges = np.cumsum(weights, axis=1)
    # u·total may round up to the total, which would point behind the last choice
    target = np.minimum(u * edges[:, -1], np.nextafter(edges[:, -1], 0.0))
    choice: IntArray = np.count_nonzero(edges <= target[:, None], axis=1).astype(np.int64)
    if points is not None:
        rows = np.arange(len(choice))
        doubt = (2 * edges.shape[1] + 100) * _UNIT * edges[:, -1]
        after = edges[rows, choice] - target
        before = np.where(choice > 0, target - edges[rows, choice - 1], np.inf)
        for row in np.flatnonzero(~(np.minimum(before, after) > doubt)):
            choice[row] = _settled(log_weights[row], points, int(row))
    return choice


def sample_alike(log_weights: FloatArray, points: Points, off: float, exact: Callable[[], FloatArray]) -> IntArray:
    """Draw one choice for each point from one law, by log-weights that are near those of the law.

    If log-weights are within a of those of the law, the odds s/(1 - s) of a share s = Σ_{j<k} w_j/T of the total are
    within e^(±2a) of the law's, so that s is off by at most tanh(a/2) <= a/2. So a draw is certain if its point is a·T
    farther from an end than in the theorem.

    Args:
        log_weights: (K,), not normalized, some finite. They are overwritten.
        points: (n, 1).
        off: a, of all log-weights but for a common constant.
        exact: Function that returns the log-weights (K,) of the law.

    Returns:
        (n,) int64. Exactness: `exact_delta`.
    """
    log_weights -= log_weights.max()
    edges = np.cumsum(np.exp(log_weights, out=log_weights))
    target = np.minimum(points.u[:, 0] * edges[-1], np.nextafter(edges[-1], 0.0))
    choice: IntArray = edges.searchsorted(target, side="right")
    doubt = ((2 * len(edges) + 100) * _UNIT + off) * edges[-1]
    near = np.minimum(np.where(choice > 0, target - edges[choice - 1], np.inf), edges[choice] - target)
    unsure = np.flatnonzero(~(near > doubt))
    law = exact() if len(unsure) else log_weights
    for row in unsure:
        choice[row] = _settled(law, points, int(row))
    return choice


def _settled(log_weights: FloatArray, points: Points, row: int) -> int:
    """Choose by one uniform of 104 bits, in decimals."""
    with localcontext(Context(prec=_DIGITS)):
        values, which = np.unique(log_weights, return_inverse=True)
        top = Decimal(float(values[-1]))
        distinct = [(Decimal(float(v)) - top).exp() if np.isfinite(v) else Decimal(0) for v in values]
        weights = [distinct[at] for at in which]
        remainder = points.fine(row) * sum(weights, Decimal(0))
        last = 0
        for at, weight in enumerate(weights):
            if weight:
                last = at
                if remainder < weight:
                    break
            remainder -= weight
        return last


def log_normalize(log_weights: FloatArray) -> FloatArray:
    """Return log probabilities of log-weights, (n, K) -> (n, K)."""
    shifted = log_weights - log_weights.max(axis=1, keepdims=True)
    normal: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normal


def numeric_delta(choices: int) -> float:
    """Bound the total-variation distance of `sample` on plain lattice uniforms from the exact distribution.

    Each of the K - 1 inner edges, as a share of the total, is off by at most (K + 6)·2^-53 (K rounded additions, the
    exponentials, the product with u). The lattice cell that contains it, of mass 2^-52, may fall on either side.
    """
    return (choices - 1) * (choices + 8) * 2.0**-53


def exact_delta(choices: int) -> float:
    """Bound the total-variation distance of `sample` on `Points` from the exact distribution: see the module."""
    return (choices - 1) * FINE * (1 + 2.0**-20)
