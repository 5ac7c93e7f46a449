"""Likelihood-ratio attack on single records (LiRA; Carlini et al. 2022, algorithm 1, online).

The paper is "Membership inference attacks from first principles". The adversary trains shadow models, each on a random
half of the target records. For every record it fits one Gaussian to the logit-scaled confidence of the models trained
on it, and one to that of the others. The evidence is the log-likelihood ratio of the attacked model's confidence. With
few models, all records share the variances, as in the paper.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Least number of shadow models, two with and two without a record: a Gaussian needs a width.
LEAST = 4
#: Number of models from which each record has its own variances (Carlini et al. 2022, section VI-B).
OWN_VARIANCE = 64
#: Least standard deviation; smaller ones count as this.
_NARROW = 1e-6


def scaled(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """Return log(p_y / (1 - p_y)) of log-probabilities (n, K) and labels (n,), without cancellation."""
    rows = np.arange(len(labels))
    rest = log_p.astype(np.float64, copy=True)
    rest[rows, labels] = -np.inf
    result: FloatArray = log_p[rows, labels] - np.logaddexp.reduce(rest, axis=1)
    return result


def halves(records: int, models: int, *, rng: np.random.Generator) -> BoolArray:
    """Return the records that each shadow model is trained on, (models, records).

    Models come in pairs that halve the records, so every record is in half of them.

    Args:
        records: Number of records.
        models: Number of shadow models.
        rng: Generator of the halves.

    Raises:
        ValueError: The number of models is odd or below LEAST.
    """
    if models < LEAST or models % 2:
        raise ValueError(f"lira: an even number of shadow models is needed, at least {LEAST}; got {models}")
    inside = np.zeros((models, records), dtype=bool)
    for pair in range(0, models, 2):
        inside[pair, rng.permutation(records)[: records // 2]] = True
        inside[pair + 1] = ~inside[pair]
    return inside


def evidence(attacked: FloatArray, shadows: FloatArray, inside: BoolArray) -> FloatArray:
    """Return the log-likelihood ratio for each record, (n,); above 0 the guess is "member".

    Args:
        attacked: Scaled confidences (n,) of the attacked model.
        shadows: Scaled confidences (S, n) of the shadow models.
        inside: Whether each model was trained on each record, (S, n); S/2 of them for each record.
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
