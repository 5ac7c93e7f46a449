"""The words of a sanitized text with a language model for a prior: posterior probabilities, by search or by sampling.

Pr[words | release] is proportional to Pr[words]·Π_i Pr[released_i | word_i]: a language model gives the first factor,
the mechanism the second. What is asked for is the likeliest word *in each place*, so not one best text is looked for,
but the weight of every word in every place.

**A causal model** is searched along the text (`causal`). A beam holds what the model knows of the words so far, its
states; ways that lead to one state are one. Each state is tried with each candidate of the next place, and the `width`
heaviest are kept, each weighed also by what the rest of the release says of its last word (an estimate, which decides
what is kept and nothing else). Back along the ways that were kept, every word gets the weight of all of them that pass
through it. Where nothing is cut off, these are the exact posterior probabilities.

**A masked model** has no direction to search in: it knows each word given all others. Drawing the words of a text in
turn, each given the rest and its own release, is Gibbs sampling (Geman and Geman 1984) of the same posterior
(`masked`); a word's weight is the mean over the sweeps of the probability that it was drawn with. Where the model's
conditionals are those of one law of texts, this tends to the exact posterior; where words hang together closely, slowly
so.
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
    """What may stand in each place of n texts of L places, K words each: words (n, L, K), likeliest first, each once;
    logs: (n, L, K) log Pr[released | word], -inf where there are fewer words; behind: (n, L, K) log of what the rest of
    the release says of the word, up to a constant in each place, by any estimate. ends: (n,) where each text ends."""

    words: IntArray
    logs: FloatArray
    behind: FloatArray
    ends: IntArray

    def best(self, weights: FloatArray, unknown: int) -> IntArray:
        """The heaviest word of each place but the unknown one, (n, L); NOTHING behind the ends."""
        can = np.where((self.words != unknown) & np.isfinite(self.logs), weights, -1.0)
        words = np.take_along_axis(self.words, can.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
        inside = np.arange(self.words.shape[1]) < self.ends[:, None]
        return np.where(inside & (can.max(axis=2) >= 0), words, NOTHING)


class Causal(Protocol):
    """A language model from left to right; a state is a whole number of all that it knows, the last word too."""

    @property
    def start(self) -> int: ...
    def log_probs(self, states: IntArray, words: IntArray) -> FloatArray:
        """(b,) states, (k,) words -> (b, k)."""
    def after(self, states: IntArray, words: IntArray) -> IntArray:
        """(b,) states, (k,) words -> (b, k) states."""


class Masked(Protocol):
    """A language model of one word given all others."""

    def log_probs(self, texts: IntArray, place: int, words: IntArray) -> FloatArray:
        """Texts (n, L), whose word in `place` is left aside, and words (n, k) -> (n, k), up to a constant of a text."""


def causal(model: Causal, found: Candidates, width: int) -> FloatArray:
    """The weight of each candidate, (n, L, K), up to a factor in each place; 0 behind the ends."""
    out = np.zeros(found.logs.shape)
    for row, end in enumerate(found.ends):
        out[row, :end] = _searched(model, found.words[row, :end], found.logs[row, :end], found.behind[row, :end], width)
    return out


def _searched(model: Causal, words: IntArray, logs: FloatArray, behind: FloatArray, width: int) -> FloatArray:
    """Of one text, (L, K)."""
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
    """The weight of each candidate, (n, L, K), as of `causal`. begin: (n, L) words to begin with. sweeps: over all
    places, before which `skip` more do not count."""
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
