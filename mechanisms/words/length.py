"""Number of tokens of a text, released with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points

MAX_TOKENS = 4096


@dataclass(frozen=True)
class Length:
    """A number of tokens y in 0..L with probability proportional to exp(-ε|x - y|/2): ε·|x - x'|-LDP.

    The exponential mechanism with the distance as its score, as SanText (Yue et al. 2021, Theorem 1) on the integers:
    exp(ε|x - x'|/2) bounds the ratio of the weights by the triangle inequality, and that of their sums again.

    Attributes:
        epsilon: ε for each token of difference, 0..1000.
        tokens: L, 1..4096.
    """

    epsilon: float
    tokens: int

    name: ClassVar[str] = "length"
    channel: ClassVar[str] = "text"
    grid: ClassVar[None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "tokens", checks.integer(self.name, "tokens", self.tokens, 1, MAX_TOKENS))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=float(self.tokens),
            protects="sequence",
            numeric_delta=categorical.exact_delta(self.tokens + 1),
        )

    def _weights(self, x: IntArray) -> FloatArray:
        weights: FloatArray = -self.epsilon / 2 * np.abs(x[:, None] - np.arange(self.tokens + 1)[None])
        return weights

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each length, (n,) in 0..L -> (n,) int64; one uniform a row."""
        x = checks.labels(self.name, x, self.tokens + 1)
        return categorical.sample(self._weights(x), Points.drawn(rng, x.shape, 1))

    def log_prob(self, y: IntArray, x: IntArray) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,)."""
        table = categorical.log_normalize(self._weights(np.asarray(x)))
        chosen: FloatArray = table[np.arange(len(table)), np.asarray(y)]
        return chosen

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two lengths at most `distance` apart (None: any): pure ε·distance-LDP."""
        apart = checked_distance(self.name, distance, float(self.tokens))
        return pure_loss(self.epsilon * apart)
