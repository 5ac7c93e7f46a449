"""Attacks that guess an attribute of a text's author or subject from its sanitized words, or from vectors.

**Through the channel.** Public texts give the frequency of each word in texts of a value, Pr[w | a], and of their
lengths, Pr[m | a]. The mechanism gives the probabilities of released words, Pr[y | w], and lengths, Pr[l | m]. So Pr[y
| a] = Σ_w Pr[w | a]·Pr[y | w] is known, and the guess is the value of largest posterior probability

  Pr[a]·Σ_m Pr[m | a]·Pr[l | m]·Π_{i < min(l, m)} Pr[y_i | a]·Π_{m <= i < l} Pr[y_i | the unknown word].

The last factor is for places behind the text's end, which a longer drawn length fills up. If words were independent of
each other and of the length in texts of one value, no guess would be right more often.

**Without that distribution**, because words are not drawn one by one, or as a check, a release is *read* in several
ways (`View`). For each way, a learner guesses from what it has read of public texts. The way with the best guesses on
held-out public texts counts (`most_promising`). A *static* adversary reads public texts as they were written. An
*adaptive* one rewrites them first with the same mechanism and parameters (Mattern et al. 2022; Meisenbacher et al.
2024, section 5.2). It may still learn on the written texts if that guesses rewritten texts better: it knows more, so it
should not guess worse.

**From vectors** (`by_network`): the attack of Song and Raghunathan 2020 (section 3.3), as Du et al. 2023 (section 4.4)
use it. A network of three layers learns on the vectors of auxiliary texts with known attributes, and guesses the
attribute of other texts. A static adversary learns on vectors without noise, an adaptive one on vectors with the
mechanism's own noise, drawn afresh in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.neural_network import MLPClassifier

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.channel import LEAST, Table, ends

#: learner(auxiliary (d, p, k), labels (p,), seen (n, k), classes=, seed=) -> guesses (n,): as `by_network`.
Learner = Callable[..., IntArray]
#: Share of public texts on which ways of reading are compared, and a network's epochs.
_HELD_OUT = 0.2
_HIDDEN, _BATCH, _DECAY = 128, 64, 1e-2
_EPOCHS = 60


# --- through the channel


def through_channel(table: Table, texts: IntArray, values: IntArray, count: int, released: IntArray) -> IntArray:
    """Return the likeliest value behind each release (n, L), (n,).

    The table has the words of public texts (p, L), whose values are (p,), `count` in all, and the released words.
    """
    probs = np.exp(table.logs.astype(np.float64))[:, : len(table.outputs) + 1]  # the last column: no word in a place
    laws = np.log(np.maximum(by_value(table, texts, values, count) @ probs[:-1], 1e-300))
    unknown = table.logs[table.of_words(np.array([table.channel.size]))[0], : probs.shape[1]].astype(np.float64)
    columns = np.where(released == NOTHING, len(table.outputs), table.of_releases(released))
    evidence = np.zeros((count, len(released)))
    for side in table.sides:
        end, longest = ends(released[:, side]), side.stop - side.start
        places = table.length(end, np.arange(longest + 1))
        if table.channel.text.lengths is None:  # nothing is filled up, and other words may follow the last one shown
            places = np.where(np.arange(longest + 1) >= end[:, None], 0.0, LEAST)
            end, unknown = np.full_like(end, longest), np.zeros_like(unknown)
        evidence += _of_side(laws, unknown, columns[:, side], end, places, _lengths(texts[:, side], values, count))
    return _likeliest(evidence, values, count)


def as_written(table: Table, texts: IntArray, values: IntArray, count: int, seen: IntArray) -> IntArray:
    """Return the likeliest value for each text (n, L), with its words as written: the attack without noise.

    Words outside the table are unknown. Other arguments are those of `through_channel`.
    """
    laws = np.log(np.maximum(by_value(table, texts, values, count), 1e-300))
    columns = np.where(seen == NOTHING, 0, table.of_words(seen))
    evidence = (laws[:, columns] * (seen != NOTHING)).sum(axis=2)
    for side in table.sides:
        evidence += _lengths(texts[:, side], values, count)[:, ends(seen[:, side])]
    return _likeliest(evidence, values, count)


def _of_side(
    laws: FloatArray, unknown: FloatArray, columns: IntArray, end: IntArray, places: FloatArray, lengths: FloatArray
) -> FloatArray:
    """Return log Pr[release | value] of one text each, (count, n).

    laws (count, c) and unknown (c,) are log-probabilities of the outputs. columns (n, L) are the outputs. Behind end
    (n,), nothing is drawn. places (n, L + 1) is log Pr[release's length | m], lengths (count, L + 1) is log Pr[m |
    value].
    """
    words = _running(laws[:, columns])
    fillers = _running(unknown[columns])
    lengths_of_words = np.minimum(np.arange(lengths.shape[1]), end[:, None])
    padding = np.take_along_axis(fillers, end[:, None], axis=1) - np.take_along_axis(fillers, lengths_of_words, axis=1)
    log_probs = np.take_along_axis(
        words, np.broadcast_to(lengths_of_words, (len(laws), *lengths_of_words.shape)), axis=2
    )
    return logsumexp(log_probs + padding + places + lengths[:, None], axis=2)


def _running(logs: FloatArray) -> FloatArray:
    """Return the sums of the first 0, 1, ... values: (..., L) -> (..., L + 1)."""
    return np.concatenate([np.zeros((*logs.shape[:-1], 1)), np.cumsum(logs, axis=-1)], axis=-1)


def _lengths(texts: IntArray, values: IntArray, count: int) -> FloatArray:
    """Return log Pr[length | value], (count, L + 1).

    One text's weight goes to the lengths of all texts, and within it one text's weight goes to unseen lengths.
    """
    longest = texts.shape[1]
    counts = np.zeros((count, longest + 1))
    np.add.at(counts, (values, ends(texts)), 1.0)
    share = (counts.sum(axis=0) + 1.0 / (longest + 1)) / (len(texts) + 1)
    return np.log((counts + share) / (counts.sum(axis=1, keepdims=True) + 1))


def by_value(table: Table, texts: IntArray, values: IntArray, count: int) -> FloatArray:
    """Return Pr[w | a] of the table's words, (count, k); see `_smoothed`."""
    rows = table.of_words(texts)
    counts = np.zeros((count, len(table.inputs) + 1))
    np.add.at(counts, (np.repeat(values, texts.shape[1]), rows.ravel()), 1.0)
    return _smoothed(counts[:, :-1])  # without places that have no word


def _smoothed(counts: FloatArray) -> FloatArray:
    """Return probabilities (count, k) of words in texts of a value, from counts (count, k).

    One in N + t is left for words outside texts of the value, t the number of different words in them (Witten and Bell
    1991).
    """
    share = (counts.sum(axis=0) + 1.0) / (counts.sum() + counts.shape[1])
    distinct = np.maximum((counts > 0).sum(axis=1), 1)[:, None]
    return (counts + distinct * share) / (counts.sum(axis=1, keepdims=True) + distinct)


def _likeliest(evidence: FloatArray, values: IntArray, count: int) -> IntArray:
    """Return the likeliest value of each column of log evidence (count, n)."""
    prior = (np.bincount(values, minlength=count) + 1.0) / (len(values) + count)
    return (evidence + np.log(prior)[:, None]).argmax(axis=0)


# --- by learning from readings of texts


@dataclass(frozen=True, eq=False)
class View:
    """One way to read texts, and the learner that guesses from what is read.

    Readings are `auxiliary`, (d, p, k), of d draws for each of p public texts, to learn on; `seen`, (n, k), of the
    attacked texts; and `looks_like`, (c, p, k), of c draws of the public texts in the form of the attacked ones, as far
    as the adversary knows it.
    """

    name: str
    learner: Learner
    auxiliary: NDArray[Any]
    seen: NDArray[Any]
    looks_like: NDArray[Any]

    def learnt(self, labels: IntArray, *, classes: int, seed: int) -> IntArray:
        """Return the guesses (n,) after learning on all public texts, of labels (p,)."""
        return self.learner(self.auxiliary, labels, self.seen, classes=classes, seed=seed)

    def right(self, labels: IntArray, held: IntArray, *, classes: int, seed: int) -> float:
        """Return the share of right guesses on held-out public texts, rows (h,), after learning on all others."""
        fit_rows = np.setdiff1d(np.arange(len(labels)), held)
        test_features = self.looks_like[:, held].reshape(-1, self.looks_like.shape[2])
        guesses = self.learner(self.auxiliary[:, fit_rows], labels[fit_rows], test_features, classes=classes, seed=seed)
        return float((guesses == np.tile(labels[held], len(self.looks_like))).mean())


def most_promising(views: Sequence[View], labels: IntArray, *, classes: int, seed: int) -> tuple[str, IntArray]:
    """Return the name and the guesses of the view with the best guesses on a held-out fifth of the public texts.

    The choice ignores the attacked texts, so trying several views does not bias the result.
    """
    order = np.random.default_rng([seed, 10]).permutation(len(labels))
    fold = np.sort(order[: int(len(labels) * _HELD_OUT)])
    best = max(views, key=lambda view: view.right(labels, fold, classes=classes, seed=seed))
    return best.name, best.learnt(labels, classes=classes, seed=seed)


def by_words(auxiliary: IntArray, labels: IntArray, seen: IntArray, *, classes: int, seed: int) -> IntArray:
    """Return guesses (n,) by naive Bayes of texts' words as they are read: numbers (d, p, L), and (n, L) of attacked.

    Words outside the public texts say nothing.
    """
    del seed  # nothing is drawn
    vocabulary, at = np.unique(auxiliary[auxiliary != NOTHING], return_inverse=True)
    draws, _, places = auxiliary.shape
    values = np.tile(np.repeat(labels, places), draws).reshape(auxiliary.shape)[auxiliary != NOTHING]
    counts = np.zeros((classes, len(vocabulary) + 1))
    np.add.at(counts, (values, at), 1.0)
    laws = np.log(_smoothed(counts[:, :-1]))
    column = np.searchsorted(vocabulary, seen).clip(max=max(0, len(vocabulary) - 1))
    mask = (seen != NOTHING) & (vocabulary[column] == seen)
    return _likeliest((laws[:, column] * mask).sum(axis=2), labels, classes)


def by_network(auxiliary: NDArray[Any], labels: IntArray, seen: NDArray[Any], *, classes: int, seed: int) -> IntArray:
    """Return the guessed class for each attacked vector, (n,).

    Auxiliary vectors are (d, p, k), d draws for each of p texts of classes (p,); epochs use the draws in turn. Attacked
    vectors are (n, k). The network is that of the epoch with the best guesses on a held-out fifth of the texts. No
    global generator is used.
    """
    texts = auxiliary.shape[1]
    order = np.random.default_rng([seed, 9]).permutation(texts)
    fold, fit_rows = order[: int(texts * _HELD_OUT)], order[int(texts * _HELD_OUT) :]
    middle, spread = auxiliary.mean(axis=(0, 1)), auxiliary.std(axis=(0, 1)) + 1e-9
    x, attacked = ((values - middle) / spread for values in (auxiliary, seen))
    network = MLPClassifier((_HIDDEN, _HIDDEN), batch_size=min(_BATCH, len(fit_rows)), alpha=_DECAY, random_state=seed)
    best, guesses = -1.0, np.zeros(len(seen), np.int64)
    for epoch in range(_EPOCHS):
        network.partial_fit(x[epoch % len(x)][fit_rows], labels[fit_rows], classes=np.arange(classes))
        right = float(np.mean([network.score(draw[fold], labels[fold]) for draw in x]))
        if right > best:
            best, guesses = right, network.predict(attacked)
    return guesses
