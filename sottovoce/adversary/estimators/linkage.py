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
from sottovoce.adversary.estimators.channel import Channel, ends

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
    outputs = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    outputs = outputs[outputs != NOTHING]
    single = np.zeros(len(outputs))
    # for each place: the rows that have a word there, and its number among the outputs
    places = []
    for i in range(first.shape[1]):
        rows = [np.flatnonzero(part[:, i] != NOTHING) for part in (first, second)]
        a, b = (np.searchsorted(outputs, part[at, i]) for part, at in zip((first, second), rows, strict=True))
        if len(a) and len(b):
            places.append((rows, a, b, np.zeros((len(a), len(b)))))
    for x, y, logs in channel.blocks(np.flatnonzero(prior > 0)):
        columns = np.flatnonzero(np.isin(outputs, y, assume_unique=True))
        likelihood = np.exp(logs[:, np.searchsorted(y, outputs[columns])])
        weights = likelihood * prior[x][:, None]
        single[columns] += weights.sum(axis=0)
        place = np.full(len(outputs), -1)
        place[columns] = np.arange(len(columns))
        for _, a, b, joint in places:
            rows_a, rows_b = np.flatnonzero(place[a] >= 0), np.flatnonzero(place[b] >= 0)
            joint[np.ix_(rows_a, rows_b)] += weights[:, place[a[rows_a]]].T @ likelihood[:, place[b[rows_b]]]
    lengths, log_single = _length_evidence(channel.text), np.log(np.maximum(single, _LEAST))
    result = np.zeros((len(first), len(second)))
    for side in channel.text.slices:
        result += lengths[ends(first[:, side])[:, None], ends(second[:, side])[None, :]]
    for (rows_a, rows_b), a, b, joint in places:
        part = np.log(np.maximum(joint, _LEAST)) - log_single[a][:, None] - log_single[b][None]
        result[np.ix_(rows_a, rows_b)] += part
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
