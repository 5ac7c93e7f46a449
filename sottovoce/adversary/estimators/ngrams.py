"""A causal language model of words that public text alone teaches: trigrams, interpolated after Kneser and Ney (1995).

    Pr[w | u, v] = (c(u,v,w) - D)+ / c(u,v) + D·n(u,v)/c(u,v) · Pr[w | v]

with c the counts in public text, n(u,v) how many different words follow u, v, and D = n1/(n1 + 2·n2) of how many
trigrams were seen once and twice (Ney, Essen and Kneser 1994). Pr[w | v] is the same of bigrams, counted once for each
different word before them, and Pr[w] of words; what that leaves goes to the words that public text does not hold.
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
    """What one order says: keys (k,) rising, of a context and the word behind it, and their discounted shares; contexts
    (c,) rising, and what each leaves to the order below, 1 where it was never seen."""

    keys: IntArray
    shares: FloatArray
    contexts: IntArray
    left: FloatArray

    @classmethod
    def of(cls, contexts: IntArray, words: IntArray, counts: FloatArray, size: int) -> _Order:
        """From distinct pairs of a context and a word, and how often each counts."""
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = float(once / (once + 2 * twice)) if once and twice else 0.5
        known, of = np.unique(contexts, return_inverse=True)
        total = np.bincount(of, weights=counts, minlength=len(known))
        kinds = np.bincount(of, minlength=len(known))
        keys = contexts * size + words
        order = np.argsort(keys)
        return cls(keys[order], ((counts - discount) / total[of])[order], known, discount * kinds / total)

    def share(self, contexts: IntArray, words: IntArray, size: int) -> FloatArray:
        """(b,) contexts and (k,) words -> (b, k)."""
        return _at(self.keys, self.shares, contexts[:, None] * size + words, 0.0)

    def leaves(self, contexts: IntArray) -> FloatArray:
        return _at(self.contexts, self.left, contexts, 1.0)


@dataclass(frozen=True, eq=False)
class Trigrams:
    """Of words 0..V, V the unknown one. A state is a number that stands for the two words before."""

    size: int
    words: FloatArray
    two: _Order
    three: _Order

    @classmethod
    def fitted(cls, texts: IntArray, elsewhere: FloatArray) -> Trigrams:
        """From public texts (p, L) of word numbers, NOTHING behind their ends. elsewhere: (V + 1,) how frequent words
        are that these do not hold, above 0 where they may stand at all."""
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
        """The state before the first word."""
        return self.size**2 - 1  # the mark of the beginning, twice

    def log_probs(self, states: IntArray, words: IntArray) -> FloatArray:
        """(b,) states and (k,) words -> (b, k) log Pr[word | state], -inf where a word may not stand at all."""
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
        """The states (b, k) that words (k,) make of states (b,)."""
        return (states % self.size)[:, None] * self.size + words


def _at(keys: IntArray, values: FloatArray, asked: IntArray, otherwise: float) -> FloatArray:
    """The values at keys, which rise; `otherwise` where there is none."""
    if not len(keys):
        return np.full(asked.shape, otherwise)
    at = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[at] == asked, values[at], otherwise)
