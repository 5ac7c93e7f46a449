"""Guesses of a sanitized text's words from all released words together: the channel and a Markov chain of words.

A guess from one released word ignores the other words of the text. Here a text is a Markov chain of words, learned on
public text, and a release is that chain seen through the channel. The forward-backward recursion gives, for each place,
the word of largest posterior probability given the *whole* release. If texts were such a chain and the channel exact,
no guess would be right more often (it is the Bayes estimate of each word).

**The chain.** Pr[w | v] = (c(v, w) + t(v)·p(w)) / (c(v) + t(v)). c are counts in public text, and t(v) is the number of
different words that follow v (Witten and Bell 1991). p are the frequencies of words. In the same way, they leave one in
N + t for words outside public text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.channel import Table

#: Number of words that the chain knows: the most frequent.
STATES = 4096
#: Probabilities of a state at a place that are held at once.
_ENTRIES = 2**23


@dataclass(frozen=True, eq=False)
class Chain:
    """Markov chain of words.

    Args:
        states: Words (s,), in rising order.
        share: Frequency of each word, (s,).
        first: Frequency as the first word of a text, (s,).
        follow: Counted part of Pr[w | v], sparse (s, s).
        left: Probability (s,) that each v leaves for `share`. The rows add to 1.
    """

    states: IntArray
    share: FloatArray
    first: FloatArray
    follow: Any
    left: FloatArray

    @classmethod
    def fitted(cls, texts: IntArray, elsewhere: FloatArray) -> Chain:
        """Return the chain of public texts, word numbers (p, L), NOTHING where there is none.

        Words outside these texts have frequencies `elsewhere`, (V + 1,), above 0 for words that may occur.
        """
        presence = texts != NOTHING
        counts = np.bincount(texts[presence], minlength=len(elsewhere)).astype(np.float64)
        kinds = int((counts > 0).sum())
        share = (counts + max(1, kinds) * elsewhere / elsewhere.sum()) / (counts.sum() + max(1, kinds))
        states = np.sort(np.argsort(-share, kind="stable")[: min(STATES, int((share > 0).sum()))])
        share = share[states] / share[states].sum()
        place = np.full(len(elsewhere), -1)
        place[states] = np.arange(len(states))
        states_of_texts = np.where(presence, place[texts], -1)
        predecessors, successors = states_of_texts[:, :-1].ravel(), states_of_texts[:, 1:].ravel()
        mask = (predecessors >= 0) & (successors >= 0)
        ones = np.ones(int(mask.sum()))
        follow: Any = csr_array((ones, (predecessors[mask], successors[mask])), shape=(len(states), len(states)))
        follow.sum_duplicates()
        total, successor_counts = follow.sum(axis=1), np.diff(follow.indptr).astype(np.float64)
        weight = total + np.maximum(successor_counts, 1.0)
        first = np.bincount(states_of_texts[:, 0][states_of_texts[:, 0] >= 0], minlength=len(states)).astype(np.float64)
        openings = max(1, int((first > 0).sum()))
        return cls(
            states,
            share,
            (first + openings * share) / (first.sum() + openings),
            csr_array(follow * (1 / weight)[:, None]),
            np.maximum(successor_counts, 1.0) / weight,
        )

    def forward(self, weights: FloatArray) -> FloatArray:
        """Return the weights (n, s) of the words in the next place, from those in one place."""
        return (self.follow.T @ weights.T).T + (weights @ self.left)[:, None] * self.share

    def backward(self, weights: FloatArray) -> FloatArray:
        """Return the backward weights (n, s) of the place before, from those of one place."""
        return (self.follow @ weights.T).T + np.outer(weights @ self.share, self.left)


def guessed(chain: Chain, table: Table, released: IntArray) -> IntArray:
    """Return the likeliest word behind each released word given its whole text, (n, L); NOTHING for no word.

    The unknown word is never guessed. The table has the chain's states and the releases.
    """
    result = np.full(released.shape, NOTHING, dtype=np.int64)
    mask = chain.states < table.channel.size
    rows, columns = table.of_words(chain.states), table.of_releases(released)
    likelihood = np.exp(table.logs[rows].T.astype(np.float64))  # (c + 2, s)
    likelihood[-2:] = 1.0  # a place without a released word says nothing
    length = released.shape[1]
    size = max(1, _ENTRIES // (len(chain.states) * max(1, length)))
    for at in range(0, len(released), size):
        block, shown = columns[at : at + size], released[at : at + size] != NOTHING
        # weights up to a factor of the place
        forward = np.empty((len(block), length, len(chain.states)))
        backward = np.ones_like(forward)
        weights = np.tile(chain.first, (len(block), 1))
        for i in range(length):
            forward[:, i] = _scaled(weights * likelihood[block[:, i]])
            weights = chain.forward(forward[:, i])
        for i in reversed(range(1, length)):
            backward[:, i - 1] = chain.backward(_scaled(backward[:, i] * likelihood[block[:, i]]))
        best = chain.states[mask][(forward * backward)[:, :, mask].argmax(axis=2)]
        result[at : at + size] = np.where(shown, best, NOTHING)
    return result


def _scaled(weights: FloatArray) -> FloatArray:
    """Return rows scaled to add to 1; a row without possible words becomes uniform."""
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1 / weights.shape[1])
