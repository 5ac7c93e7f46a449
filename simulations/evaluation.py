"""The only place where the truth meets what the server guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.maps import Maps
from simulations.shuffler import Origin


@dataclass(frozen=True)
class Truth:
    """Labels (n,) of the records that were asked about, by (user, record); users[i] holds records[i]."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]
    labels: NDArray[np.int64]

    def of(self, origin: Origin) -> NDArray[np.int64]:
        """The labels of a shuffled batch's rows, in its order; -1 for a record that nobody was asked about, which
        a hostile client may have made up."""
        keys = zip(self.users.tolist(), self.records.tolist(), strict=True)
        known = dict(zip(keys, self.labels.tolist(), strict=True))
        asked = zip(origin.users.tolist(), origin.records.tolist(), strict=True)
        return np.array([known.get(key, -1) for key in asked], dtype=np.int64)


@dataclass(frozen=True)
class Score:
    """Share of right guesses and its standard error.

    The error is binomial over `sentences` distinct sentences: one sanitized several times is still one sentence.
    """

    accuracy: float
    error: float


def score(guesses: NDArray[np.int64], truth: NDArray[np.int64], *, sentences: int) -> Score:
    """Accuracy of guesses (n,) against truth (n,). ValueError where there are none or the lengths differ."""
    if len(guesses) != len(truth) or not len(truth):
        raise ValueError(f"cannot score {len(guesses)} guesses against {len(truth)} labels")
    accuracy = float(np.mean(guesses == truth))
    return Score(accuracy, math.sqrt(accuracy * (1 - accuracy) / sentences))


def clean_score(maps: Maps, embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> Score:
    """Accuracy of a user who runs the last step on the device, so that nothing leaves: no noise at inference."""
    return score(maps.predict(maps.project(embeddings)), labels, sentences=len(labels))


def chance(labels: NDArray[np.int64]) -> float:
    """Accuracy of always guessing the most frequent label."""
    return float(np.bincount(labels).max() / len(labels))
