"""The words of a sanitized text from all of its released words together: the channel, and which words follow which.

A guess from one released word leaves aside what the others of the text say. Here texts are taken for a Markov chain of
words, learned on public text, and the releases for what its steps gave through the channel: of each place the word of
largest posterior probability given the *whole* release, by the forward-backward recursion. If texts were such a chain
and the channel's law exact, no guess would be right more often (it is the Bayes estimate of each word).

**The chain.** Pr[w | v] = (c(v, w) + t(v)·p(w)) / (c(v) + t(v)), with c the counts in public text, t(v) how many
different words follow v (Witten and Bell 1991), and p the frequencies of words, of which one in N + t is left for words
that public text does not hold, in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mechanisms.vocabulary import NOTHING
from server.attacks.sequences import Table

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Words that the chain knows, at most: the most frequent.
STATES = 4096
#: Probabilities of a state at a place that are held at once.
_ENTRIES = 2**24


@dataclass(frozen=True, eq=False)
class Chain:
    """states: (s,) words, rising. share: (s,) how frequent each is. first: (s,) as the first of a text. follow: (s, s),
    sparse, what is counted of Pr[w | v]; left: (s,) what each v leaves for `share`. The rows add to 1."""

    states: IntArray
    share: FloatArray
    first: FloatArray
    follow: Any
    left: FloatArray

    @classmethod
    def fitted(cls, texts: IntArray, elsewhere: FloatArray) -> Chain:
        """From public texts (p, L) of word numbers, NOTHING where there is none. elsewhere: (V + 1,) how frequent words
        are that these do not hold, above 0 where they may stand at all."""
        there = texts != NOTHING
        counts = np.bincount(texts[there], minlength=len(elsewhere)).astype(np.float64)
        kinds = int((counts > 0).sum())
        share = (counts + max(1, kinds) * elsewhere / elsewhere.sum()) / (counts.sum() + max(1, kinds))
        states = np.sort(np.argsort(-share, kind="stable")[: min(STATES, int((share > 0).sum()))])
        share = share[states] / share[states].sum()
        place = np.full(len(elsewhere), -1)
        place[states] = np.arange(len(states))
        known = np.where(there, place[texts], -1)
        before, after = known[:, :-1].ravel(), known[:, 1:].ravel()
        both = (before >= 0) & (after >= 0)
        ones = np.ones(int(both.sum()))
        follow: Any = csr_array((ones, (before[both], after[both])), shape=(len(states), len(states)))
        follow.sum_duplicates()
        total, different = follow.sum(axis=1), np.diff(follow.indptr).astype(np.float64)
        weight = total + np.maximum(different, 1.0)
        first = np.bincount(known[:, 0][known[:, 0] >= 0], minlength=len(states)).astype(np.float64)
        openings = max(1, int((first > 0).sum()))
        return cls(
            states, share, (first + openings * share) / (first.sum() + openings),
            csr_array(follow * (1 / weight)[:, None]), np.maximum(different, 1.0) / weight,
        )  # fmt: skip

    def forward(self, weights: FloatArray) -> FloatArray:
        """(n, s) weights of the words in one place -> those in the next."""
        found: FloatArray = (self.follow.T @ weights.T).T + (weights @ self.left)[:, None] * self.share
        return found

    def backward(self, weights: FloatArray) -> FloatArray:
        """(n, s) what each word of one place says of what is behind -> the same of the place before it."""
        found: FloatArray = (self.follow @ weights.T).T + np.outer(weights @ self.share, self.left)
        return found


def guessed(chain: Chain, table: Table, released: IntArray) -> IntArray:
    """The likeliest word behind each released one given all of its text, (n, L) -> (n, L); NOTHING for no word.
    table: of the chain's states and the releases. The unknown word is never guessed."""
    rows, columns = table.of_words(chain.states), table.of_releases(released)
    out = np.full(released.shape, NOTHING, dtype=np.int64)
    likely = np.exp(table.logs[rows].T.astype(np.float64))  # (c + 2, s)
    can = chain.states < table.channel.size
    size = max(1, _ENTRIES // (len(chain.states) * max(1, released.shape[1])))
    for at in range(0, len(released), size):
        posterior = _posterior(chain, likely, columns[at : at + size])
        best = chain.states[can][posterior[:, :, can].argmax(axis=2)]
        out[at : at + size] = np.where(released[at : at + size] == NOTHING, NOTHING, best)
    return out


def _posterior(chain: Chain, likely: FloatArray, columns: IntArray) -> FloatArray:
    """(n, L, s), up to a factor of each place. A place where no word was released says nothing."""
    n, length = columns.shape
    silent = likely.shape[0] - 2
    ahead = np.empty((n, length, len(chain.states)))
    here = np.tile(chain.first, (n, 1))
    for i in range(length):
        seen = np.where((columns[:, i] >= silent)[:, None], 1.0, likely[columns[:, i]])
        ahead[:, i] = _scaled(here * seen)
        here = chain.forward(ahead[:, i])
    behind = np.ones((n, len(chain.states)))
    for i in reversed(range(length)):
        ahead[:, i] *= behind
        seen = np.where((columns[:, i] >= silent)[:, None], 1.0, likely[columns[:, i]])
        behind = chain.backward(_scaled(behind * seen))
    return ahead


def _scaled(weights: FloatArray) -> FloatArray:
    """Rows that add to 1; of one whose words are all impossible, all alike."""
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1 / weights.shape[1])
