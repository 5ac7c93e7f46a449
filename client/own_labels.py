"""Correction of a downloaded model by the labels that a user already has. Nothing of it leaves the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Labels that count as found where the model expected them, spread evenly over the classes. Flat between 2 and 8
#: (POPQUORN, annotators of 33 labels).
PSEUDO_COUNTS = 4.0


def own_label_correction(labelled: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    """Return what to add to the model's logits, (..., K), for texts of a user.

    It is the logarithm of how often the user's labels name a class, over how often the model expects the class on the
    same texts. Where the user's classes have other shares than those of the population that the model learnt, and texts
    of a class are alike, this is Bayes' rule with the user's shares (Saerens, Latinne and Decaestecker 2002). A user
    without labels gets 0.

    Args:
        labelled: Number of the user's labels of each class (..., K).
        expected: Sum of the model's probabilities over the same texts (..., K).
    """
    even = PSEUDO_COUNTS / np.shape(labelled)[-1]
    correction: NDArray[np.float64] = np.log((labelled + even) / (expected + even))
    return correction
