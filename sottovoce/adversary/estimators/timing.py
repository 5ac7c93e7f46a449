"""Exact test of whether the time of an answer reveals which of two texts it is about.

Answers come in pairs, one about each of two texts, in an order drawn by a coin. If an answer's time does not depend on
the text, the second text's answer takes longer in half of the pairs. This holds however noisy the machine is, whatever
drifts, and whatever else the time depends on. So the number of such pairs is binomial, and the sign test alarms with
probability at most alpha. It shows *that* answers differ, not by how much; medians show that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """Result of the test.

    Args:
        pairs: Number of pairs whose times differ.
        longer: Pairs in which the second text's answer took longer.
        chance: Probability of a share that far from one half, if times do not depend on texts.
        apart: Median of the second text's time less the first's, in the unit of the times.
        noise: Median distance of pairs from `apart`, in the unit of the times.
    """

    pairs: int
    longer: int
    chance: float
    apart: float
    noise: float

    @classmethod
    def of(cls, first: FloatArray, second: FloatArray) -> Told:
        """Test times (n,) of answers about two texts, pair by pair.

        Raises:
            ValueError: There is no pair.
        """
        if len(first) != len(second) or not len(first):
            raise ValueError("timing: needs pairs of times")
        difference = np.asarray(second, dtype=np.float64) - first
        pairs, longer = int((difference != 0).sum()), int((difference > 0).sum())
        chance = float(binomtest(longer, pairs, 0.5).pvalue) if pairs else 1.0
        apart = float(np.median(difference))
        return cls(pairs, longer, chance, apart, float(np.median(np.abs(difference - apart))))

    @property
    def share(self) -> float:
        """Return the share of pairs in which the second text's answer took longer; one half if no times differ."""
        return self.longer / self.pairs if self.pairs else 0.5
