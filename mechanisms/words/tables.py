"""Base of the mechanisms of a text's words: draws where there is a word, and lookups in tables of probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points
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
