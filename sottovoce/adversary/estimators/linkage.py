"""Linkage of two releases of the same text, by a server that receives releases without their senders.

Let y, y' be two releases whose tokens are drawn one by one, and π the prior of inputs. The evidence for one common
input, against two independent ones, is the log-likelihood ratio

  Σ_i log( Σ_x π(x)·Pr[y_i | x]·Pr[y'_i | x] ) - log q(y_i) - log q(y'_i),   q(y) = Σ_x π(x)·Pr[y | x],

over the places i where both have a word, and the same for their lengths. By the lemma of Neyman and Pearson, no test is
better if tokens are independent draws from π.

**Bound of the theorem.** Let E bound the loss of a whole text. Among n releases in random order, one comes from the
same text as a given release. An attack finds it with probability at most 1/(1 + (n - 1)·e^(-2E)). To exchange two of
them changes the inputs of two releases, and so the likelihood by at most e^(2E). So no place's posterior is above
e^(2E) times another's (`bound`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING
from mechanisms.words.text import TextMechanism
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.sequences import ends

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Least probability; smaller ones count as this.
_LEAST = 1e-300


def scores(channel: Channel, prior: FloatArray, first: IntArray, second: IntArray) -> FloatArray:
    """Return the evidence for each pair of releases, (n, m).

    Args:
        channel: Channel of a token.
        prior: Prior (V + 1,) of words.
        first: Releases (n, L).
        second: Releases (m, L).
    """
    evidence = Evidence(prior, first, second)
    for x, y, logs in channel.blocks(np.flatnonzero(prior > 0)):
        evidence.add(x, y, logs)
    return evidence.scores(channel.text)


class Evidence:
    """Sums behind `scores`, for callers that go through a channel's inputs anyway: `add` each block of inputs once.

    It holds a sum for each pair of releases and each place that has a word in both: L·n·m numbers at most.
    """

    def __init__(self, prior: FloatArray, first: IntArray, second: IntArray) -> None:
        self._prior, self._first, self._second = prior, first, second
        outputs = np.unique(np.concatenate([first.ravel(), second.ravel()]))
        self._outputs = outputs[outputs != NOTHING]
        self._single = np.zeros(len(self._outputs))
        # for each place: the rows that have a word there, and its number among the outputs
        self._places = []
        for i in range(first.shape[1]):
            rows = [np.flatnonzero(part[:, i] != NOTHING) for part in (first, second)]
            a, b = (np.searchsorted(self._outputs, part[at, i]) for part, at in zip((first, second), rows, strict=True))
            if len(a) and len(b):
                self._places.append((rows, a, b, np.zeros((len(a), len(b)))))

    def add(self, x: IntArray, y: IntArray, logs: FloatArray) -> None:
        """Add a block of inputs.

        Args:
            x: Inputs (k,).
            y: Outputs (c,), in rising order; other outputs have probability 0.
            logs: Log-probabilities (k, c).
        """
        output_columns = np.flatnonzero(np.isin(self._outputs, y, assume_unique=True))
        if not len(output_columns):
            return
        likelihood = np.exp(logs[:, np.searchsorted(y, self._outputs[output_columns])])
        weights = likelihood * self._prior[x][:, None]
        self._single[output_columns] += weights.sum(axis=0)
        if len(output_columns) == len(self._outputs):
            for _, a, b, joint in self._places:
                joint += weights[:, a].T @ likelihood[:, b]
            return
        pairs = weights.T @ likelihood  # a few outputs, at few places
        place = np.full(len(self._outputs), -1)
        place[output_columns] = np.arange(len(output_columns))
        for _, a, b, joint in self._places:
            rows, columns = np.flatnonzero(place[a] >= 0), np.flatnonzero(place[b] >= 0)
            if len(rows) and len(columns):
                joint[np.ix_(rows, columns)] += pairs[np.ix_(place[a[rows]], place[b[columns]])]

    def scores(self, text: TextMechanism) -> FloatArray:
        """Return the evidence for each pair, (n, m), after every input was added."""
        lengths = _length_evidence(text)
        result = np.zeros((len(self._first), len(self._second)))
        for side in text.slices:
            result += lengths[ends(self._first[:, side])[:, None], ends(self._second[:, side])[None, :]]
        single = np.log(np.maximum(self._single, _LEAST))
        for (first, second), a, b, joint in self._places:
            part = np.log(np.maximum(joint, _LEAST)) - single[a][:, None] - single[b][None]
            result[np.ix_(first, second)] += part
        return result


def bound(text: TextMechanism, candidates: int) -> float:
    """Return the largest probability, by the theorem, of finding the one release among several candidates."""
    loss = text.guarantee.worst_case()
    return 1.0 if loss == math.inf else 1 / (1 + (candidates - 1) * math.exp(-2 * min(loss, 350.0)))


def _length_evidence(text: TextMechanism) -> FloatArray:
    """Return the evidence of one side's lengths, (L + 1, L + 1), with all lengths equally likely in advance."""
    count = text.tokens + 1
    if text.lengths is None:
        return np.where(np.eye(count, dtype=bool), math.log(count), math.log(_LEAST))
    x, y = np.repeat(np.arange(count), count), np.tile(np.arange(count), count)
    likelihood = np.exp(text.lengths.log_prob(y, x)).reshape(count, count)
    joint, single = likelihood.T @ likelihood / count, likelihood.mean(axis=0)
    evidence: FloatArray = np.log(np.maximum(joint, _LEAST)) - np.log(np.maximum(np.outer(single, single), _LEAST))
    return evidence
