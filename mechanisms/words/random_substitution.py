"""Random substitution of any word by any other: the baseline that protects everything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.decimals import precise
from mechanisms.guarantee import Guarantee
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.mechanism import Uniforms
from mechanisms.streams import FINE, LATTICE, Points
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.tables import Tabled


@dataclass(frozen=True)
class RandomSubstitution(Tabled):
    """Every token becomes a word drawn uniformly from the vocabulary: 0-LDP (the baseline of Yue et al. 2021)."""

    vocabulary: Vocabulary

    name: ClassVar[str] = "random"

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        delta = len(self.vocabulary) * FINE  # V - 1 ends, off by one point of the uniform each
        return Guarantee(epsilon=0.0, metric="discrete", diameter=1.0, protects="token", numeric_delta=delta)

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one word for each word id, (n,) or (n, L) -> same shape; one uniform each."""
        return self._drawn(x, 1, self._substitutes, rng=rng)

    def _substitutes(self, x: IntArray, points: Points) -> IntArray:
        size = len(self.vocabulary)
        scaled = points.u[:, 0] * size
        drawn = np.minimum(scaled, size - 1).astype(np.int64)
        with precise():  # where half a cell of the uniform, or the product's rounding, reaches another word
            for row in np.flatnonzero(np.abs(scaled - np.rint(scaled)) <= size * LATTICE):
                drawn[row] = int(points.fine(int(row)) * size)
        return drawn

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V)."""
        return np.full((len(x), len(self.vocabulary)), -math.log(len(self.vocabulary)))

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return no loss."""
        checks.differs(self.name, distance)
        return no_loss()
