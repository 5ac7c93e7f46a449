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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.beam import Candidates
from sottovoce.adversary.estimators.sequences import LEAST, Table, ends

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Words that the chain knows, at most: the most frequent.
STATES = 4096
#: Probabilities of a state at a place that are held at once.
_ENTRIES = 2**23


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
    out = np.full(released.shape, NOTHING, dtype=np.int64)
    can = chain.states < table.channel.size
    for rows, ahead, behind, _ in _read(chain, table, released):
        best = chain.states[can][(ahead * behind)[:, :, can].argmax(axis=2)]
        out[rows] = np.where(released[rows] == NOTHING, NOTHING, best)
    return out


def candidates(chain: Chain, table: Table, released: IntArray, count: int) -> Candidates:
    """The `count` likeliest words of each place, as `guessed` sees them, for who knows more than a chain."""
    count = min(count, len(chain.states))
    shape = (*released.shape, count)
    words, logs, rest = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    for rows, ahead, behind, seen in _read(chain, table, released):
        posterior = ahead * behind
        top = np.argpartition(-posterior, count - 1, axis=2)[:, :, :count]
        top = np.take_along_axis(top, np.argsort(-np.take_along_axis(posterior, top, axis=2), axis=2), axis=2)
        words[rows] = chain.states[top]
        with np.errstate(divide="ignore"):
            logs[rows] = np.log(np.stack([seen(i) for i in range(released.shape[1])], axis=1)[_own(top)])
            rest[rows] = np.log(np.maximum(behind[_own(top)], np.exp(LEAST)))
    return Candidates(words, np.maximum(logs, LEAST), rest, ends(released))


def _own(top: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    n, length, _ = top.shape
    return np.arange(n)[:, None, None], np.arange(length)[None, :, None], top


def _read(
    chain: Chain, table: Table, released: IntArray
) -> Iterator[tuple[slice, FloatArray, FloatArray, Callable[[int], FloatArray]]]:
    """Some rows; of each place (n, L, s) what the places up to it say of its word, and those behind it, each up to a
    factor of the place; and what a place alone says, (n, s). A place where no word was released says nothing."""
    rows, columns = table.of_words(chain.states), table.of_releases(released)
    likely = np.exp(table.logs[rows].T.astype(np.float64))  # (c + 2, s)
    likely[-2:] = 1.0
    length = released.shape[1]
    size = max(1, _ENTRIES // (len(chain.states) * max(1, length)))
    for at in range(0, len(released), size):
        here = columns[at : at + size]

        def seen(i: int, here: IntArray = here) -> FloatArray:
            return likely[here[:, i]]

        ahead = np.empty((len(here), length, len(chain.states)))
        behind = np.ones_like(ahead)
        weights = np.tile(chain.first, (len(here), 1))
        for i in range(length):
            ahead[:, i] = _scaled(weights * seen(i))
            weights = chain.forward(ahead[:, i])
        for i in reversed(range(1, length)):
            behind[:, i - 1] = chain.backward(_scaled(behind[:, i] * seen(i)))
        yield slice(at, at + len(here)), ahead, behind, seen


def _scaled(weights: FloatArray) -> FloatArray:
    """Rows that add to 1; of one whose words are all impossible, all alike."""
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1 / weights.shape[1])
