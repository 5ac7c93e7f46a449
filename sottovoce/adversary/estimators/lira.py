"""The likelihood-ratio attack on single records (Carlini et al. 2022, "Membership inference attacks from first
principles", algorithm 1, online).

The adversary trains shadow models on training sets of its own, of which each holds a random half of the records that
it asks about. For every record it fits a Gaussian to the logit-scaled confidence of the models that were trained on it,
and one to that of the others; the evidence is the log-likelihood ratio of what the attacked model says. With few models
the variances are common to all records, as there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Shadow models with and without a record, two of each at least: Gaussians have a width.
LEAST = 4
#: From so many models on, each record has variances of its own (Carlini et al. 2022, section VI-B).
OWN_VARIANCE = 64
#: Standard deviations below this count as this.
_NARROW = 1e-6


def scaled(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """log(p_y / (1 - p_y)) of log-probabilities (n, K) and labels (n,), without cancellation."""
    rows = np.arange(len(labels))
    rest = log_p.astype(np.float64, copy=True)
    rest[rows, labels] = -np.inf
    found: FloatArray = log_p[rows, labels] - np.logaddexp.reduce(rest, axis=1)
    return found


def halves(records: int, models: int, *, rng: np.random.Generator) -> BoolArray:
    """(models, records): which records each shadow model is trained on. Models come in pairs that halve the records, so
    every record is in half of them. ValueError unless their number is even and at least LEAST."""
    if models < LEAST or models % 2:
        raise ValueError(f"lira: an even number of shadow models is needed, at least {LEAST}; got {models}")
    inside = np.zeros((models, records), dtype=bool)
    for pair in range(0, models, 2):
        inside[pair, rng.permutation(records)[: records // 2]] = True
        inside[pair + 1] = ~inside[pair]
    return inside


def evidence(attacked: FloatArray, shadows: FloatArray, inside: BoolArray) -> FloatArray:
    """The log-likelihood ratio for each record, (n,); above 0 the guess is "member".

    attacked: (n,) scaled confidences of the attacked model; shadows: (S, n) those of the shadow models; inside: (S, n),
    whether the model was trained on the record, by each S/2.
    """
    ratio = np.zeros(len(attacked))
    for sign, where in ((1.0, inside), (-1.0, ~inside)):
        count = where.sum(axis=0)
        mean = np.where(where, shadows, 0.0).sum(axis=0) / count
        variance = np.where(where, (shadows - mean) ** 2, 0.0).sum(axis=0) / (count - 1)
        if len(shadows) < OWN_VARIANCE:
            variance = np.full_like(variance, variance.mean())
        deviation = np.maximum(np.sqrt(variance), _NARROW)
        ratio -= sign * (0.5 * ((attacked - mean) / deviation) ** 2 + np.log(deviation))
    return ratio
