"""Exponential mechanism over the distances of a vocabulary: the sampler of SanText and related mechanisms.

Pr[y | x] is proportional to exp(-ε·d(x, y)/2), y one of the outputs (Yue et al. 2021, equation 1).

**Loss (proved).** For inputs x, x': the weights of y differ by at most exp(ε·d(x, x')/2) by the triangle inequality,
and so do the sums of the weights over the outputs: ε·d(x, x') together. Nothing else is required. Outputs may be a part
of the words, inputs may lie anywhere (the unknown word), and words may lie at the same place.

**Draws** are grouped by word: one row of weights serves all its tokens, and no array of the size of inputs times
outputs is held. The distances of many words come from one matrix product, whose last bits depend on the machine and on
the other words. They only decide which draws are certain: the law is that of the distances of `Geometry.row`, whose
bits depend on neither, and a draw that the difference may change is settled by these
(`mechanisms.categorical.sample_alike`). So a word gives the same draw alone and among thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from mechanisms import categorical
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.streams import Points
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.distances import Geometry, blocks, geometry

_DOUBLE = 2.0**-53


@dataclass(frozen=True, eq=False)
class Exponential:
    """Draws from exp(-ε·d(x, y)/2) over the outputs y of a geometry, for x any row of its points.

    Attributes:
        geometry: Distances.
        epsilon: ε, at least 0.
    """

    geometry: Geometry
    epsilon: float

    @property
    def numeric_epsilon(self) -> float:
        """Return the addition of the arithmetic to the loss of any pair: four times the error of a log-weight.

        Two are for the weights of two inputs, two for their sums. Half of it bounds the difference of two log-weights
        of one output by distances that are both within `Geometry.error`.
        """
        far = 2 * math.sqrt(self.geometry.largest)
        return 2 * self.epsilon * (self.geometry.error + far * 4 * _DOUBLE) + 16 * _DOUBLE

    @property
    def numeric_delta(self) -> float:
        """Bound the total-variation distance of a draw from the exact distribution of the log-weights."""
        return categorical.exact_delta(len(self.geometry.outputs))

    def sample(self, x: IntArray, points: Points) -> IntArray:
        """Draw one output for each row number, (n,) and (n, 1) -> (n,) int64, one of `outputs`."""
        words, back = np.unique(x, return_inverse=True)
        order = np.argsort(back, kind="stable")
        tokens = iter(np.split(order, np.cumsum(np.bincount(back))[:-1]))
        drawn, off = np.empty(len(x), dtype=np.int64), self.numeric_epsilon / 2
        for block in blocks(words, self.geometry):
            for word, weights in zip(block, self.log_weights(block), strict=True):
                rows = next(tokens)
                drawn[rows] = categorical.sample_alike(weights, points[rows], off, partial(self._settling, word))
        return self.geometry.outputs[drawn]

    def log_weights(self, x: IntArray) -> FloatArray:
        """Return -ε·d/2 to every output, (n,) -> (n, K)."""
        weights = self.geometry.distances(x)
        weights *= -self.epsilon / 2
        return weights

    def log_probs(self, x: IntArray) -> FloatArray:
        """Return the log probability of every output, (n,) -> (n, K)."""
        return categorical.log_normalize(self.log_weights(x))

    def _settling(self, x: np.int64) -> FloatArray:
        """Return the log-weights (K,) of the law of row x."""
        return -self.epsilon / 2 * self.geometry.row(x)


@lru_cache(maxsize=4)
def exponential(vocabulary: Vocabulary, epsilon: float, outputs: bytes | None = None) -> Exponential:
    """Return the cached sampler from the words of a vocabulary (and the unknown one) to all of them, or to `outputs`.

    `outputs` are the bytes of word ids, int64, rising.
    """
    return Exponential(geometry(vocabulary, outputs), epsilon)
