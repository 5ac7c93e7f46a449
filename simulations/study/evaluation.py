"""The only place where the truth meets what the server guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulations.experiment.result import Score
from simulations.shuffler.shuffle import Origin


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


def score(guesses: NDArray[np.int64], truth: NDArray[np.int64], *, sentences: int) -> Score:
    """Accuracy of guesses (n,) against truth (n,). ValueError where there are none or the lengths differ."""
    if len(guesses) != len(truth) or not len(truth):
        raise ValueError(f"cannot score {len(guesses)} guesses against {len(truth)} labels")
    accuracy = float(np.mean(guesses == truth))
    return Score(accuracy, math.sqrt(accuracy * (1 - accuracy) / sentences))


def chance(labels: NDArray[np.int64]) -> float:
    """Accuracy of always guessing the most frequent label."""
    return float(np.bincount(labels).max() / len(labels))
