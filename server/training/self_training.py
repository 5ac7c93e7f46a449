"""What a model has learnt from users labels public text, on which the encoder is trained anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from server.maps import Maps

#: Of the encoder's training on such labels.
EPOCHS, RATE = 3, 3e-5


def pseudo_labels(
    maps: Maps, embeddings: NDArray[Any], labels: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """How likely each class is of each public text, (n, K), from its embedding (n, m): the head's posterior.

    labels: (n,), -1 where they are not public; where one is, it is what is likely.
    """
    likely: NDArray[np.float64] = softmax(maps.logits(maps.project(embeddings)), axis=1)
    if labels is not None:
        known = labels >= 0
        likely[known] = np.eye(maps.classes)[labels[known]]
    return likely
