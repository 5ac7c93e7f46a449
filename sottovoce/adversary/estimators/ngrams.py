"""Causal language model of words from public text alone: interpolated trigrams after Kneser and Ney (1995).

  Pr[w | u, v] = (c(u,v,w) - D)+ / c(u,v) + D·n(u,v)/c(u,v) · Pr[w | v]

c are counts in public text, and n(u,v) is the number of different words that follow u, v. D = n1/(n1 + 2·n2), with the
numbers of trigrams seen once and twice (Ney, Essen and Kneser 1994). Pr[w | v] is the same for bigrams, counted once
for each different word before them, and Pr[w] for words. The rest goes to words outside public text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Order:
    """Discounted shares of one order.

    keys (k,) are in rising order, of a context and the word behind it; shares (k,) are theirs. contexts (c,) are in
    rising order; left (c,) is what each leaves to the order below, 1 for an unseen context.
    """

    keys: IntArray
    shares: FloatArray
    contexts: IntArray
    left: FloatArray

    @classmethod
    def of(cls, contexts: IntArray, words: IntArray, counts: FloatArray, size: int) -> _Order:
        """Return an order from distinct pairs of a context and a word, and their counts."""
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = float(once / (once + 2 * twice)) if once and twice else 0.5
        known, of = np.unique(contexts, return_inverse=True)
        total = np.bincount(of, weights=counts, minlength=len(known))
        kinds = np.bincount(of, minlength=len(known))
        keys = contexts * size + words
        order = np.argsort(keys)
        return cls(keys[order], ((counts - discount) / total[of])[order], known, discount * kinds / total)

    def share(self, contexts: IntArray, words: IntArray, size: int) -> FloatArray:
        """Return the shares (b, k) of words (k,) after contexts (b,)."""
        return _at(self.keys, self.shares, contexts[:, None] * size + words, 0.0)

    def leaves(self, contexts: IntArray) -> FloatArray:
        """Return what each context leaves to the order below."""
        return _at(self.contexts, self.left, contexts, 1.0)


@dataclass(frozen=True, eq=False)
class Trigrams:
    """Trigram model of words 0..V, V the unknown one. A state is a number for the two words before.

    Args:
        size: Number of words with the mark of the beginning.
        words: Shares of words.
        two: Order of bigrams.
        three: Order of trigrams.
    """

    size: int
    words: FloatArray
    two: _Order
    three: _Order

    @classmethod
    def fitted(cls, texts: IntArray, elsewhere: FloatArray) -> Trigrams:
        """Return the model of public texts.

        Args:
            texts: Word numbers (p, L), NOTHING behind their ends.
            elsewhere: Frequency (V + 1,) of words outside these texts, above 0 for words that may occur.
        """
        begin, size = len(elsewhere), len(elsewhere) + 1
        padded = np.pad(texts, ((0, 0), (2, 0)), constant_values=begin)
        u, v, w = (padded[:, i : i + texts.shape[1]].ravel() for i in range(3))
        there = (w != NOTHING) & (v != NOTHING) & (u != NOTHING)
        triples, counts = np.unique((u[there] * size + v[there]) * size + w[there], return_counts=True)
        three = _Order.of(triples // size, triples % size, counts.astype(np.float64), size)
        pairs, before = np.unique(triples % size**2, return_counts=True)
        two = _Order.of(pairs // size, pairs % size, before.astype(np.float64), size)
        kinds = np.bincount(pairs % size, minlength=len(elsewhere))[: len(elsewhere)].astype(np.float64)
        seen = max(1, int((kinds > 0).sum()))
        words = kinds + 0.5 * seen * elsewhere / elsewhere.sum() - 0.5 * (kinds > 0)
        return cls(size, words / words.sum(), two, three)

    @property
    def start(self) -> int:
        """Return the state before the first word."""
        return self.size**2 - 1  # the mark of the beginning, twice

    def log_probs(self, states: IntArray, words: IntArray) -> FloatArray:
        """Return log Pr[word | state], (b, k), of states (b,) and words (k,); -inf for a word that may not occur."""
        before, of = np.unique(states % self.size, return_inverse=True)
        below = self.two.share(before, words, self.size) + self.two.leaves(before)[:, None] * self.words[words]
        left = self.three.leaves(states)
        found = left[:, None] * below[of]
        seen = left < 1
        found[seen] += self.three.share(states[seen], words, self.size)
        with np.errstate(divide="ignore"):
            logs: FloatArray = np.log(found)
        return logs

    def after(self, states: IntArray, words: IntArray) -> IntArray:
        """Return the states (b, k) that words (k,) make of states (b,)."""
        return (states % self.size)[:, None] * self.size + words


def _at(keys: IntArray, values: FloatArray, asked: IntArray, otherwise: float) -> FloatArray:
    """Return the values at keys, which rise; `otherwise` where there is none."""
    if not len(keys):
        return np.full(asked.shape, otherwise)
    at = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[at] == asked, values[at], otherwise)
