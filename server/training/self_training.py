"""Self-training: a model labels public text, and the encoder is trained on these labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from server.maps import Maps

#: Learning rate of the encoder on such labels.
RATE = 3e-5


def pseudo_labels(maps: Maps, embeddings: NDArray[Any], labels: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Return the probability of each class for each public text, (n, K): the head's posterior.

    Args:
        maps: Maps and head.
        embeddings: Embeddings (n, m) of public texts.
        labels: Public labels (n,), -1 where there is none. A public label has probability 1.
    """
    likely: NDArray[np.float64] = softmax(maps.logits(maps.project(embeddings)), axis=1)
    if labels is not None:
        known = labels >= 0
        likely[known] = np.eye(maps.classes)[labels[known]]
    return likely
