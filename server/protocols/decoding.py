"""Decoding of releases to numbers, and likelihoods of released labels. This is post-processing and costs no privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import decoded as vectors
from mechanisms.messages.release import Release
from mechanisms.projection import softmax
from server.training.statistic_head import mean_noise


def decoded(mechanism: Mechanism, release: Release) -> NDArray[np.float64]:
    """Return released embeddings (n, m') as numbers."""
    return vectors(mechanism, release.values)


def statistic_mean(mechanism: Mechanism, release: Release) -> tuple[NDArray[np.float64], float]:
    """Return the debiased mean (D,) of released user vectors, and the variance of its noise in each coordinate.

    There is at least one vector.
    """
    s = release.values
    noise = mean_noise(mechanism, users=len(s))
    if np.isinf(noise):
        return np.zeros(s.shape[1]), noise
    if hasattr(mechanism, "decoded_mean"):
        return mechanism.decoded_mean(s), noise
    return decoded_statistics(mechanism, release).mean(axis=0), noise


def decoded_statistics(mechanism: Mechanism, release: Release) -> NDArray[np.float64]:
    """Return released user vectors (n, D) as numbers; the mechanism must have a quantizer."""
    assert mechanism.grid is not None
    return mechanism.grid.decode(release.values)


def log_transition(
    label: Mechanism, y: NDArray[np.int64], *, classes: int, z: NDArray[np.float64] | None = None, prior: Any = None
) -> NDArray[np.float64]:
    """Return log P[released label y | true class c] for each row and class, (n, K).

    It is public, because y and z were released. A label in clear has no noise, so its values are zeros.

    Args:
        label: Mechanism of the labels.
        y: Released labels (n,).
        classes: K.
        z: Released embeddings (n, m'), from which the prior is computed.
        prior: (weights, bias), for a mechanism that needs one.
    """
    log_prob: Any = getattr(label, "log_prob", None)
    columns, extra = [], {}
    if prior is not None:
        assert z is not None
        extra = {"prior": softmax(z, *prior)}
    for c in range(classes):
        truth = np.full(len(y), c, np.int64)
        columns.append(np.zeros(len(y)) if isinstance(label, Identity) else log_prob(y, truth, **extra))
    return np.stack(columns, axis=1)
