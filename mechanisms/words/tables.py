"""Bases of the mechanisms of a text's words, and the two baselines: every word kept, and every word replaced by any."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.decimals import precise
from mechanisms.guarantee import Guarantee, unprotected
from mechanisms.losses.loss import LossCells, no_loss, unbounded_loss
from mechanisms.mechanism import Uniforms
from mechanisms.streams import FINE, LATTICE, Points
from mechanisms.vocabulary import NOTHING, Vocabulary

#: Rows of probabilities held at once.
_ROWS = 64


class OfWords:
    """Base of the mechanisms of a text's words."""

    vocabulary: Vocabulary

    name: ClassVar[str]
    channel: ClassVar[str] = "text"
    grid: ClassVar[None] = None
    reads: ClassVar[tuple[str, ...]] = ()

    def _drawn(
        self, x: NDArray[Any], count: int, draw: Callable[[IntArray, Points], IntArray], *, rng: Uniforms
    ) -> IntArray:
        """Return draw(words, points) for the words that are there, (k,) and (k, count) -> (k,); NOTHING stays NOTHING.

        (n,) or (n, L) word ids -> same shape. Every place takes `count` uniforms, with a word or without: the draws of
        a text do not depend on the end of another.

        Raises:
            ValueError: An id is out of range.
        """
        x = checks.word_ids(self.name, x, self.vocabulary)
        points = Points.drawn(rng, x.shape, count)
        flat = x.ravel()
        mask = flat != NOTHING
        out = np.full(flat.shape, NOTHING)
        out[mask] = draw(flat[mask], points[mask])
        return out.reshape(x.shape)


class Tabled(OfWords):
    """Base of those whose probabilities are known: a class states `log_probs`."""

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V)."""
        raise NotImplementedError

    def log_prob(self, y: NDArray[Any], x: NDArray[Any]) -> FloatArray:
        """Return the log probability of y given x, (n,) and (n,) -> (n,), a few distinct words at a time."""
        y = np.asarray(y)
        distinct_ids, back = np.unique(checks.word_id_row(self.name, x, self.vocabulary), return_inverse=True)
        order = np.argsort(back, kind="stable")
        starts = np.searchsorted(back[order], np.arange(0, len(distinct_ids) + _ROWS, _ROWS))
        out = np.empty(len(back))
        for at, start, stop in zip(range(0, len(distinct_ids), _ROWS), starts[:-1], starts[1:], strict=False):
            table, part = self.log_probs(distinct_ids[at : at + _ROWS]), order[start:stop]
            out[part] = table[back[part] - at, y[part]]
        return out


@dataclass(frozen=True)
class Verbatim(OfWords):
    """Mechanism without protection: `identity` on the channel of texts. Unknown words have no id and are left out."""

    vocabulary: Vocabulary

    name: ClassVar[str] = "identity"

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee of no protection."""
        return unprotected("discrete", "token", 1.0)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss: unbounded for any two words that differ."""
        return unbounded_loss() if checks.differs(self.name, distance) else no_loss()

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Return the word ids themselves, NOTHING for the unknown word; no uniform is drawn."""
        x = checks.word_ids(self.name, x, self.vocabulary)
        return np.where(x == self.vocabulary.unknown, NOTHING, x)


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
