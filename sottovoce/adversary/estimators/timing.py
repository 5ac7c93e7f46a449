"""Does the time of an answer tell which of two texts it is about? A test that is exact whatever the noise.

Answers come in pairs, one about each of two texts, that which comes first drawn by a coin. If an answer's time does not
depend on the text, then in each pair it is a coin whether the answer about the second text took longer, however noisy
the machine is, whatever drifts, and whatever else the time depends on. So the number of such pairs is binomial, and the
test of signs alarms with probability alpha at most. It sees *that* answers differ, not by how much: medians say that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """Of `pairs` pairs whose times differ, in `longer` the second text's answer took longer. chance: the probability of
    a share that far from one half, if times do not depend on texts. apart: the median of the second text's time less
    the first's, and noise: the median of how far pairs are from it, in the unit of the times."""

    pairs: int
    longer: int
    chance: float
    apart: float
    noise: float

    @classmethod
    def of(cls, first: FloatArray, second: FloatArray) -> Told:
        """From times (n,) of answers about two texts, pair by pair. ValueError where there is no pair."""
        if len(first) != len(second) or not len(first):
            raise ValueError("timing: needs pairs of times")
        difference = np.asarray(second, dtype=np.float64) - first
        pairs, longer = int((difference != 0).sum()), int((difference > 0).sum())
        chance = float(binomtest(longer, pairs, 0.5).pvalue) if pairs else 1.0
        apart = float(np.median(difference))
        return cls(pairs, longer, chance, apart, float(np.median(np.abs(difference - apart))))

    @property
    def share(self) -> float:
        """Of pairs in which the second text's answer took longer; one half where no times differ."""
        return self.longer / self.pairs if self.pairs else 0.5
