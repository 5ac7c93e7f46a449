"""Which two releases come from the same text: what a server can match that receives them without their senders.

For two releases y, y' whose tokens are drawn one by one, and inputs of prior π, the evidence that both come from one
input, against two independent ones, is the log-likelihood ratio

    Σ_i log( Σ_x π(x)·Pr[y_i | x]·Pr[y'_i | x] ) - log q(y_i) - log q(y'_i),   q(y) = Σ_x π(x)·Pr[y | x],

over the places i where both have a word, and the same for their lengths. By the lemma of Neyman and Pearson no test is
better where tokens are independent draws from π.

**What the theorem allows.** Let E bound the loss of a whole text. Among n releases in random order, one of which comes
from the text that a given release came from, it is found with probability at most 1/(1 + (n - 1)·e^(-2E)): to exchange
two of them changes the inputs of two releases, hence the likelihood by at most e^(2E), so that no place's posterior is
above e^(2E) times another's (`bound`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from mechanisms.identity import Identity
from mechanisms.vocabulary import NOTHING
from mechanisms.words.text import TextMechanism
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.likelihood import log_likelihood, posterior
from sottovoce.adversary.estimators.sequences import ends

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Probabilities below this count as this.
_LEAST = 1e-300


def scores(channel: Channel, prior: FloatArray, first: IntArray, second: IntArray) -> FloatArray:
    """The evidence for each pair of releases, (n, L) and (m, L) numbers -> (n, m). prior: (V + 1,)."""
    evidence = Evidence(prior, first, second)
    for x, y, logs in channel.blocks(np.flatnonzero(prior > 0)):
        evidence.add(x, y, logs)
    return evidence.scores(channel.text)


class Evidence:
    """What `scores` adds up, for those who go through a channel's inputs anyway: `add` each block of inputs once.

    It holds a sum for each pair of releases and each place that has a word in both: L·n·m numbers at most.
    """

    def __init__(self, prior: FloatArray, first: IntArray, second: IntArray) -> None:
        self._prior, self._first, self._second = prior, first, second
        outputs = np.unique(np.concatenate([first.ravel(), second.ravel()]))
        self._outputs = outputs[outputs != NOTHING]
        self._single = np.zeros(len(self._outputs))
        # of each place: the rows that have a word there, and which of the outputs it is
        self._places = []
        for i in range(first.shape[1]):
            rows = [np.flatnonzero(part[:, i] != NOTHING) for part in (first, second)]
            a, b = (np.searchsorted(self._outputs, part[at, i]) for part, at in zip((first, second), rows, strict=True))
            if len(a) and len(b):
                self._places.append((rows, a, b, np.zeros((len(a), len(b)))))

    def add(self, x: IntArray, y: IntArray, logs: FloatArray) -> None:
        """Some inputs (k,), outputs (c,), rising, and their log-probabilities (k, c), all others having none."""
        here = np.flatnonzero(np.isin(self._outputs, y, assume_unique=True))
        if not len(here):
            return
        likely = np.exp(logs[:, np.searchsorted(y, self._outputs[here])])
        weighted = likely * self._prior[x][:, None]
        self._single[here] += weighted.sum(axis=0)
        if len(here) == len(self._outputs):
            for _, a, b, joint in self._places:
                joint += weighted[:, a].T @ likely[:, b]
            return
        pairs = weighted.T @ likely  # a few outputs, at few places
        place = np.full(len(self._outputs), -1)
        place[here] = np.arange(len(here))
        for _, a, b, joint in self._places:
            rows, columns = np.flatnonzero(place[a] >= 0), np.flatnonzero(place[b] >= 0)
            if len(rows) and len(columns):
                joint[np.ix_(rows, columns)] += pairs[np.ix_(place[a[rows]], place[b[columns]])]

    def scores(self, text: TextMechanism) -> FloatArray:
        """The evidence for each pair, (n, m), when every input has been added."""
        lengths = _length_evidence(text)
        found = np.zeros((len(self._first), len(self._second)))
        for side in text.slices:
            found += lengths[ends(self._first[:, side])[:, None], ends(self._second[:, side])[None, :]]
        single = np.log(np.maximum(self._single, _LEAST))
        for (first, second), a, b, joint in self._places:
            part = np.log(np.maximum(joint, _LEAST)) - single[a][:, None] - single[b][None]
            found[np.ix_(first, second)] += part
        return found


def same_source(mechanism: Any, pool: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    """The evidence that two released embeddings come from one input, (n, m') and (k, m') -> (n, k): as above, with the
    unit rows `pool` (p, m') of public texts, all alike likely, in place of the words; without noise, their inner
    product. ValueError where the mechanism's density is not known."""
    if isinstance(mechanism, Identity):
        return first @ second.T
    one, other = (posterior(mechanism, released, pool) for released in (first, second))
    evidence: FloatArray = np.log(np.maximum(one @ other.T, _LEAST))
    return evidence


def text_and_embedding(mechanism: Any, pool: FloatArray, read: FloatArray, released: FloatArray) -> FloatArray:
    """The evidence that a sanitized text and a released embedding (k, m') come from one input, (n, k). read: (n, m')
    unit rows, what the public encoder and maps make of the sanitized texts: taken for the embedding that was drawn
    from, against a public text's. ValueError as `same_source`."""
    if isinstance(mechanism, Identity):
        return read @ released.T
    near = log_likelihood(mechanism, released, read).T
    evidence: FloatArray = near - logsumexp(log_likelihood(mechanism, released, pool), axis=1)[None]
    return evidence


def bound(text: TextMechanism, candidates: int) -> float:
    """The largest probability of finding the one release among so many that the theorem allows."""
    loss = text.guarantee.worst_case()
    return 1.0 if loss == math.inf else 1 / (1 + (candidates - 1) * math.exp(-2 * min(loss, 350.0)))


def _length_evidence(text: TextMechanism) -> FloatArray:
    """Of one side, (L + 1, L + 1), all lengths being alike in advance."""
    count = text.tokens + 1
    if text.lengths is None:
        return np.where(np.eye(count, dtype=bool), math.log(count), math.log(_LEAST))
    x, y = np.repeat(np.arange(count), count), np.tile(np.arange(count), count)
    likely = np.exp(text.lengths.log_prob(y, x)).reshape(count, count)
    joint, single = likely.T @ likely / count, likely.mean(axis=0)
    evidence: FloatArray = np.log(np.maximum(joint, _LEAST)) - np.log(np.maximum(np.outer(single, single), _LEAST))
    return evidence
