"""Guesses of a text's words from its sanitized words, one token at a time, and linkage, with bounds on any guess.

The adversary knows the vocabulary, the mechanism, and a prior over words (public counts). It sees the released word y
and guesses x. Three figures describe the result, each for tokens of frequencies f:

- **Success of a guess.** A guess g(y) is right with probability Σ_y f(g(y))·Pr[y | g(y)].
- **Success of the best guess**: Σ_y max_x f(x)·Pr[y | x], for the guess that maximizes the posterior. No attack on
  single tokens, published or not, does better on tokens of these frequencies (`decode`).
- **Bound of the theorem**, for any mechanism that satisfies it (`bound`).

**Bound from ε-LDP (proved, and attained).** Let m(y) = min_x Pr[y | x], Y_x the outputs at which x is guessed, m_x =
m(Y_x), M = Σ_x m_x, and a_x = Pr[Y_x | x] the success on x. ε-LDP gives a_x <= e^ε·m_x. Probabilities of x add to one,
so a_x <= 1 - (M - m_x). The largest Σ_x f(x)·a_x under both is a linear programme. For given M, f(x)·a_x has slope
f(x)·e^ε in m_x until x is full, at m_x = (1 - M)/(e^ε - 1), and slope f(x) after it. So the most frequent words are
filled first. As M varies, the optimum is linear between the points where exactly k of them are full, which are M =
k/(e^ε - 1 + k):

  success <= max_k  e^ε·F_k / (e^ε + k - 1),   F_k the sum of the k largest frequencies.

k-ary randomized response on the k most frequent words (any other word answers uniformly) attains it. It is below min(1,
e^ε·max f), and k = 1 is the guess of the most frequent word.

**Bound from metric LDP (proved).** Let ℓ(x, x') be the loss that the theorem allows. Then Pr[Y_x | x'] >= a_x·e^(-ℓ(x,
x')), and Σ_x Pr[Y_x | x'] <= 1 for each x'. Averaged over x' by f: Σ_x a_x·Z_x <= 1 with Z_x = Σ_x' f(x')·e^(-ℓ(x,
x')). So

  success = Σ_x f(x)·a_x <= c + Σ_x max(0, f(x) - c·Z_x)   for every c >= 0;

the least value over c is the bound. It is linear between the points c = f(x)/Z_x.

**Exposure.** Words that may be passed through (kept kinds, CusText+'s stop words, SanText+'s frequent ones) count as
guessed. If a group or a tag is exposed, each bound holds inside each group, for its frequencies, and the bounds are
added (of metric LDP: c·F + Σ, F the sum of the group's frequencies). For a mechanism that exposes more, it is 1.

**Linkage** of two releases of the same text, by a server that receives releases without their senders. Let y, y' be two
releases whose tokens are drawn one by one, and π the prior of inputs. The evidence for one common
input, against two independent ones, is the log-likelihood ratio

  Σ_i log( Σ_x π(x)·Pr[y_i | x]·Pr[y'_i | x] ) - log q(y_i) - log q(y'_i),   q(y) = Σ_x π(x)·Pr[y | x],

over the places i where both have a word, and the same for their lengths. By the lemma of Neyman and Pearson, no test is
better if tokens are independent draws from π.

**Bound of linkage (proved).** Let E bound the loss of a whole text. Among n releases in random order, one comes from
the same text as a given release. An attack finds it with probability at most 1/(1 + (n - 1)·e^(-2E)). To exchange two
of them changes the inputs of two releases, and so the likelihood by at most e^(2E). So no place's posterior is above
e^(2E) times another's (`link_bound`).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.guarantee import Guarantee
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.custext import CusTextPlus
from mechanisms.words.distances import metric_distances
from mechanisms.words.santext import SanTextPlus
from mechanisms.words.text import TextMechanism
from sottovoce.adversary.estimators.channel import Channel, ends

log = logging.getLogger(__name__)


#: Rows of distances held at once.
_ROWS = 256
#: Exposures whose inputs `bound` can separate.
_KNOWN = {"unknown-words", "stop-words", "frequent-words", "group", "tag"}


def unigram(vocabulary: Vocabulary, *, unknown: float = 0.0) -> FloatArray:
    """Return a prior over inputs, (V + 1,): public counts + 1, or equal weights without counts."""
    size = len(vocabulary)
    counts = np.zeros(size) if vocabulary.counts is None else vocabulary.counts.astype(np.float64)
    weights = counts + 1.0
    return np.append((1 - unknown) * weights / weights.sum(), unknown)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Best guesses (p, V) for every output, under each of p priors, as numbers of words.

    `likely` is Pr[y | guess], (p, V), `best` Σ_y max_x prior(x)·Pr[y | x], (p,), and `unchanged` Pr[y | y], (V,).
    """

    guesses: IntArray
    likely: FloatArray
    best: FloatArray
    unchanged: FloatArray

    def expected(self, frequencies: FloatArray) -> float:
        """Return the success of the guesses under the first prior, on tokens of frequencies (V + 1,)."""
        return float(frequencies[self.guesses[0]] @ self.likely[0])


def decode(channel: Channel, priors: FloatArray) -> Decoded:
    """Return the guess of largest posterior for every output, in one pass over all inputs.

    Priors (p, V + 1) are at least 0; inputs without any are left out. An output that no input gives is guessed to be
    itself.
    """
    size = channel.size
    score = np.full((len(priors), size), -np.inf)
    guesses = np.tile(np.arange(size), (len(priors), 1))
    likelihood = np.zeros((len(priors), size))
    diagonal = np.zeros(size)
    inputs, count = np.flatnonzero((priors > 0).any(axis=0)), 0
    with np.errstate(divide="ignore"):
        logs = np.log(priors)
    for x, y, table in channel.blocks(inputs):
        columns = np.arange(len(y))
        columns_of_x = np.searchsorted(y, x).clip(max=len(y) - 1)
        rows = np.flatnonzero(y[columns_of_x] == x)
        diagonal[x[rows]] = np.exp(table[rows, columns_of_x[rows]])
        for p, prior in enumerate(logs):
            support = np.flatnonzero(prior[x] > -np.inf)
            if not len(support):
                continue
            joint = (table if len(support) == len(x) else table[support]) + prior[x[support]][:, None]
            at = joint.argmax(axis=0)
            value = joint[at, columns]
            better = value > score[p, y]
            score[p, y[better]] = value[better]
            guesses[p, y[better]] = x[support][at[better]]
            likelihood[p, y[better]] = np.exp(table[support[at[better]], columns[better]])
        if count // 4096 != (count + len(x)) // 4096:
            log.info(f"{count + len(x):,} of {len(inputs):,} words")
        count += len(x)
    return Decoded(guesses, likelihood, np.exp(score).sum(axis=1), diagonal)


def guessed(released: IntArray, guesses: IntArray) -> IntArray:
    """Return the guess for each released word (n, L), NOTHING where there is none, from those of all outputs (V,)."""
    mask = released != NOTHING
    return np.where(mask, guesses[np.where(mask, released, 0)], NOTHING)


# --- bounds of the theorem


def bound(text: TextMechanism, frequencies: FloatArray, *, releases: int = 1) -> float:
    """Return the largest success of any guess from one released word that the theorem allows.

    This module's docstring has the proof. If a mechanism protects the "sequence", each of its draws reads the whole
    text, and the word's ε is that of all draws of a text together.

    Args:
        text: Text mechanism.
        frequencies: Frequencies (V + 1,) of tokens; they add to 1.
        releases: Number of releases of the same text; losses add.
    """
    word: Any = text.word
    guarantee: Guarantee = word.guarantee
    theorem = replace(
        guarantee,
        epsilon=guarantee.epsilon * releases,
        offset=guarantee.offset * releases,
        numeric_epsilon=guarantee.numeric_epsilon * releases,
        numeric_delta=guarantee.numeric_delta * releases,
    )
    if not set(theorem.exposes) <= _KNOWN or theorem.epsilon == math.inf:
        return 1.0
    mask = text.kept.copy()
    if isinstance(word, CusTextPlus):
        mask |= text.vocabulary.kinds["stop_words"]
    if isinstance(word, SanTextPlus) and word.keeps:
        mask |= ~word.sensitive
    parts = _parts(word, theorem)
    hidden = np.flatnonzero(~mask & (frequencies > 0))
    allowed = float(frequencies[mask].sum())
    order = hidden[np.argsort(parts[hidden], kind="stable")]
    edges = np.flatnonzero(np.diff(parts[order])) + 1
    for members in np.split(order, edges) if len(order) else ():
        f = frequencies[members]
        if theorem.metric == "discrete":
            times = text.tokens if theorem.protects == "sequence" else 1
            allowed += randomized(f, (theorem.epsilon + theorem.offset + theorem.numeric_epsilon) * times)
        else:
            worst = theorem.epsilon * theorem.diameter + theorem.offset + theorem.numeric_epsilon
            allowed += min(randomized(f, worst), metric(f, _overlap(word, theorem, members, f)))
    return min(1.0, allowed + theorem.numeric_delta)


def randomized(f: FloatArray, epsilon: float) -> float:
    """Return max_k e^ε·F_k/(e^ε + k - 1): the largest success under ε-LDP, for frequencies f that need not add to 1."""
    sums = np.cumsum(np.sort(f)[::-1])
    weights = (np.arange(1, len(f) + 1) - 1) * math.exp(-min(epsilon, 700.0))
    return float((sums / (1 + weights)).max())


def metric(f: FloatArray, z: FloatArray) -> float:
    """Return min_c c·Σf + Σ max(0, f - c·z): the largest success that z, (n,) above 0, allows."""
    ratio = f / z
    order = np.argsort(-ratio)
    above_f, above_z = np.cumsum(f[order]), np.cumsum(z[order])
    c = ratio[order]
    values = c * f.sum() + above_f - c * above_z
    return float(min(f.sum(), values.min()))


def _parts(word: Any, theorem: Guarantee) -> IntArray:
    """Return a number for each input, (V + 1,); the theorem covers inputs of the same number together."""
    size = len(word.vocabulary)
    if "group" in theorem.exposes:
        return word.mapping.group
    if "tag" in theorem.exposes:
        return np.append(np.asarray(word.vocabulary.tags, dtype=np.int64), -1)
    return np.zeros(size + 1, dtype=np.int64)


def _overlap(word: Any, theorem: Guarantee, members: IntArray, f: FloatArray) -> FloatArray:
    """Return Z of the inputs `members`, (n,) of frequencies f."""
    z = np.empty(len(members))
    for at in range(0, len(members), _ROWS):
        rows = np.arange(at, min(at + _ROWS, len(members)))
        distances = metric_distances(word, members[rows], members)
        loss = theorem.epsilon * distances + theorem.offset + theorem.numeric_epsilon
        loss[np.arange(len(rows)), rows] = 0.0
        z[rows] = np.exp(-loss) @ f
    return z


# --- linkage of two releases of one text


#: Least probability; smaller ones count as this.
_LEAST = 1e-300


def link_evidence(channel: Channel, prior: FloatArray, first: IntArray, second: IntArray) -> FloatArray:
    """Return the evidence (n, m) for each pair of releases (n, L) and (m, L), with a prior (V + 1,) of words."""
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


def link_bound(text: TextMechanism, candidates: int) -> float:
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
    return np.log(np.maximum(joint, _LEAST)) - np.log(np.maximum(np.outer(single, single), _LEAST))
