"""Posterior probabilities of a sanitized text's words with a language model as the prior, by search or by sampling.

Pr[words | release] is proportional to Pr[words]·Π_i Pr[released_i | word_i]. A language model gives the first factor,
the mechanism the second. The result is the likeliest word *in each place*. So the search is not for one best text, but
for the weight of every word in every place.

**A causal model** is searched along the text (`causal`). A beam holds the states of the model, which summarize the
words so far. Paths that lead to one state are merged. Each state is tried with each candidate of the next place, and
the `width` heaviest are kept. Their weights include an estimate of what the rest of the release says about the last
word; this estimate decides only which states are kept. Then, back along the kept paths, every word gets the weight of
all paths through it. If nothing is cut off, these are the exact posterior probabilities.

**A masked model** has no direction to search in: it knows each word given all others. Gibbs sampling (Geman and Geman
1984) of the same posterior draws the words of a text in turn, each given the rest and its own release (`masked`). A
word's weight is the mean, over the sweeps, of the probability with which it was drawn. If the model's conditionals
belong to one distribution of texts, this tends to the exact posterior. It is slow where words depend closely on each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidate words for each place of n texts, L places and K words each.

    Args:
        words: Words (n, L, K), likeliest first, each once.
        logs: log Pr[released | word], (n, L, K); -inf where there are fewer words.
        behind: Log of what the rest of the release says about the word, (n, L, K), by any estimate, up to a constant in
            each place.
        ends: End of each text, (n,).
    """

    words: IntArray
    logs: FloatArray
    behind: FloatArray
    ends: IntArray

    def best(self, weights: FloatArray, unknown: int) -> IntArray:
        """Return the heaviest word of each place, (n, L); NOTHING behind the ends.

        Args:
            weights: Weights (n, L, K).
            unknown: Number of the unknown word, which is never returned.
        """
        can = np.where((self.words != unknown) & np.isfinite(self.logs), weights, -1.0)
        words = np.take_along_axis(self.words, can.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
        inside = np.arange(self.words.shape[1]) < self.ends[:, None]
        return np.where(inside & (can.max(axis=2) >= 0), words, NOTHING)


class Causal(Protocol):
    """Language model from left to right.

    A state is a whole number that stands for the words so far, with the last word.
    """

    @property
    def start(self) -> int:
        """Return the state before the first word."""
        ...

    def log_probs(self, states: IntArray, words: IntArray) -> FloatArray:
        """Return log-probabilities (b, k) of words (k,) after states (b,)."""

    def after(self, states: IntArray, words: IntArray) -> IntArray:
        """Return the states (b, k) that words (k,) make of states (b,)."""


class Masked(Protocol):
    """Language model of one word given all others."""

    def log_probs(self, texts: IntArray, place: int, words: IntArray) -> FloatArray:
        """Return log-probabilities (n, k) of words in one place of texts, up to a constant of a text.

        Args:
            texts: Texts (n, L); their word in `place` is ignored.
            place: Place of the word.
            words: Words (n, k).
        """


def causal(model: Causal, found: Candidates, width: int) -> FloatArray:
    """Return the weight of each candidate, (n, L, K), up to a factor in each place; 0 behind the ends.

    Args:
        model: Language model.
        found: Candidates.
        width: Number of states in the beam.
    """
    out = np.zeros(found.logs.shape)
    for row, end in enumerate(found.ends):
        out[row, :end] = _searched(model, found.words[row, :end], found.logs[row, :end], found.behind[row, :end], width)
    return out


def _searched(model: Causal, words: IntArray, logs: FloatArray, behind: FloatArray, width: int) -> FloatArray:
    """Return the weights (L, K) of one text."""
    states, weight = np.array([model.start], dtype=np.int64), np.zeros(1)
    steps = []
    for i in range(len(words)):
        there = np.flatnonzero(np.isfinite(logs[i]))
        step = model.log_probs(states, words[i, there]) + logs[i, there]
        total = (weight[:, None] + step).ravel()
        after = model.after(states, words[i, there]).ravel()
        keys, first, to = np.unique(after, return_index=True, return_inverse=True)
        together = np.log(np.bincount(to.ravel(), np.exp(total - total.max())) + 1e-300)
        column = there[first % len(there)]
        kept = np.argsort(-(together + behind[i, column]), kind="stable")[:width]
        place = np.full(len(keys), -1)
        place[kept] = np.arange(len(kept))
        steps.append((np.exp(step - step.max()), place[to.ravel()].reshape(step.shape), together[kept], column[kept]))
        states, weight = keys[kept], together[kept]
    out, back = np.zeros(logs.shape), np.ones(len(states))
    for i in reversed(range(len(words))):
        step, to, together, column = steps[i]
        np.add.at(out[i], column, np.exp(together) * back)
        back = (step * np.where(to >= 0, back[to], 0.0)).sum(axis=1)
        back = back / back.max() if back.max() > 0 else np.ones(len(back))
    return out


def masked(
    model: Masked, found: Candidates, begin: IntArray, *, sweeps: int, skip: int = 0, rng: np.random.Generator
) -> FloatArray:
    """Return the weight of each candidate, (n, L, K), as `causal` does.

    Args:
        model: Language model.
        found: Candidates.
        begin: Words (n, L) to begin with.
        sweeps: Number of sweeps over all places.
        skip: Sweeps before these, which do not count.
        rng: Generator of the draws.
    """
    texts, out = begin.copy(), np.zeros(found.logs.shape)
    for sweep in range(skip + sweeps):
        for i in range(texts.shape[1]):
            rows = np.flatnonzero(found.ends > i)
            if not len(rows):
                break
            words = found.words[rows, i]
            logs = model.log_probs(texts[rows], i, words) + found.logs[rows, i]
            share = np.exp(logs - logs.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            if sweep >= skip:
                out[rows, i] += share
            below = np.cumsum(share, axis=1) < rng.random(len(rows))[:, None]
            texts[rows, i] = words[np.arange(len(rows)), below.sum(axis=1).clip(max=words.shape[1] - 1)]
    return out
