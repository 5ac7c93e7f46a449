"""Inferences of a server from a release, with the mechanism's distribution and public sentences alone.

All results come from releases and public data. The truth serves only to score a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from client.draw import draw
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import (
    EmbeddingQuestion,
    LabelQuestion,
    MappedQuestion,
    Projection,
    Question,
    VectorQuestion,
)
from mechanisms.projection import statistic_vectors
from mechanisms.streams import SecureStreams
from mechanisms.words.text import TextMechanism
from sottovoce.adversary.estimators import allowed
from sottovoce.adversary.estimators.channel import Channel, Table
from sottovoce.adversary.estimators.tokens import bound, unigram
from sottovoce.adversary.estimators.vectors import log_likelihood, log_likelihood_of_means
from sottovoce.explore.world import POOL, World

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Lines of a displayed list.
SHOWN = 8


@dataclass(frozen=True, eq=False)
class Truth:
    """Sentence with its label, known on the device, and used here to score guesses.

    Args:
        text: The sentence.
        label: Its label.
        embedding: Its embedding (1, m).
    """

    text: str
    label: int
    embedding: NDArray[np.float32]


def limit(mechanism: Any, frequencies: FloatArray, *, beside: float = 0.0) -> float:
    """Return the bound on right guesses among values of these frequencies, by `adversary.estimators.allowed`.

    Args:
        mechanism: Mechanism of the release.
        frequencies: Frequency of each value.
        beside: Pure ε of other releases that the guess may use, added to each point of the curve (basic composition).
    """
    points = _curve(mechanism)
    return allowed.guess(points + np.array([beside, 0.0]) if len(points) else points, frequencies)


@lru_cache(maxsize=512)
def _curve(mechanism: Any) -> FloatArray:
    return allowed.curve(mechanism)


# --- sentences


def candidates(world: World, question: MappedQuestion, truth: Truth) -> FloatArray:
    """Return the points or vectors of the sentences that may be behind a release, the true one first.

    Args:
        world: Public data.
        question: Question that the release answers.
        truth: True sentence.

    Returns:
        (POOL, m') for an embedding; (K·POOL, D) for a user vector, sentence by sentence with each label.
    """
    points = question.projection.apply(np.concatenate([truth.embedding, world.embeddings[: POOL - 1]]))
    if not isinstance(question, VectorQuestion):
        return points
    labels = np.tile(np.arange(question.classes), len(points))
    return statistic_vectors(np.repeat(points, question.classes, axis=0), labels, question.codes)


def shares(logs: FloatArray) -> FloatArray:
    """Return posterior probabilities (n, p) of equally likely alternatives, from log-likelihoods (n, p)."""
    result: FloatArray = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    return result


def of_vector(world: World, question: MappedQuestion, payload: NDArray[Any], truth: Truth) -> dict[str, Any]:
    """Return the inferences from a released embedding or user vector: its sentence and its label.

    Args:
        world: Public data.
        question: Question that the release answers.
        payload: Released row.
        truth: True sentence.
    """
    mechanism: Any = question.mechanism
    z = question.decode(payload[None])
    per = question.classes if isinstance(question, VectorQuestion) else 1  # in a user vector a sentence has any label
    likelihood = log_likelihood_of_means if isinstance(question, VectorQuestion) else log_likelihood
    posterior = shares(likelihood(mechanism, z, candidates(world, question, truth)))[0].reshape(-1, per)
    sentences = posterior.sum(axis=1)
    texts = [truth.text, *world.texts[: POOL - 1]]
    order = np.argsort(-sentences, kind="stable")[:SHOWN]
    rows = [{"text": texts[i][:300], "share": float(sentences[i]), "mine": bool(i == 0)} for i in order]
    entries: dict[str, Any] = {
        "sentences": {
            "pool": len(texts),
            "listed": rows,
            "own": float(sentences[0]),
            "prior": 1 / len(texts),
            "rank": int((sentences > sentences[0] * (1 + 1e-9)).sum()) + 1,
            "alike": int(np.isclose(sentences, sentences[0], rtol=1e-9, atol=0).sum()) - 1,
            "limit": limit(mechanism, np.full(len(texts), 1 / len(texts))),
        }
    }
    if isinstance(question, VectorQuestion):
        labels = posterior.sum(axis=0)
        entries["label"] = _values(
            world.classes, labels, np.full(per, 1 / per), limit(mechanism, np.full(per, 1 / per)), truth.label
        )
    if isinstance(question, EmbeddingQuestion):
        entries |= _class(world, question, z)
    return entries


def _class(world: World, question: EmbeddingQuestion, z: FloatArray) -> dict[str, Any]:
    """Return a guess of the class, from public sentences of known ones."""
    mechanism, count = question.mechanism, len(world.classes)
    weights = shares(log_likelihood(mechanism, z, question.projection.apply(world.embeddings)))[0]
    prior = np.bincount(world.labels, minlength=count) / len(world.labels)
    posterior = np.bincount(world.labels, weights, count)
    details = parameters(mechanism)
    scale = f"σ = {details['sigma']:.3g}" if "sigma" in details else f"ε = {details['epsilon']:g}"
    return {
        "label": _values(world.classes, posterior, prior, limit(mechanism, prior), None),
        "by": f"{details['mechanism']}, {scale}",
        "public": len(world.texts),
    }


def of_label(world: World, question: LabelQuestion, payload: NDArray[Any], truth: Truth) -> dict[str, Any]:
    """Return the inference of the true class from a randomized one.

    Args:
        world: Public data.
        question: Question that the release answers.
        payload: Released class.
        truth: True sentence.
    """
    mechanism: Any = question.mechanism
    prior = np.bincount(world.labels, minlength=len(world.classes)) / len(world.labels)
    x = np.arange(len(world.classes))
    with np.errstate(divide="ignore"):
        logs = mechanism.log_prob(np.full(len(x), int(payload)), x) + np.log(prior)
    return _values(world.classes, shares(logs[None])[0], prior, limit(mechanism, prior), truth.label)


def _values(
    names: tuple[str, ...], after: NDArray[Any], before: NDArray[Any], most: float, truth: int | None
) -> dict[str, Any]:
    order = np.argsort(-after, kind="stable")[:SHOWN]
    rows = [
        {"name": names[i], "share": float(after[i]), "prior": float(before[i]), "mine": bool(i == truth)} for i in order
    ]
    return {"listed": rows, "prior": float(before.max()), "limit": most}


# --- words


@lru_cache(maxsize=8)
def word_limit(text: TextMechanism) -> float:
    """Return the bound on right guesses of a word from one released word, by the distances of all pairs of words."""
    return bound(text, unigram(text.vocabulary))


def draws_behind(text: TextMechanism, words: int | None = None) -> int | None:
    """Return the draws of each word behind an estimated distribution; None if the distribution is exact.

    Args:
        text: Text mechanism.
        words: Number of words to look up; None for all.
    """
    channel = Channel(text, words=words)
    return None if channel.exact else channel.draws


def alternatives(text: TextMechanism, word_ids: list[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the likeliest outputs of each word, with their probabilities.

    Args:
        text: Text mechanism.
        word_ids: Numbers of the words.
    """
    if not word_ids:
        return {}
    words, result = text.vocabulary.words, {}
    rows = np.exp(Channel(text, words=len(word_ids)).log_probs(np.array(word_ids)))
    for word_id, row in zip(word_ids, rows, strict=True):
        order = np.argsort(-row, kind="stable")[:SHOWN]
        result[word_id] = [{"word": words[i], "probability": float(row[i])} for i in order if row[i] > 0]
    return result


def of_words(text: TextMechanism, released: IntArray) -> dict[str, Any]:
    """Return the likeliest originals of each released word, by public frequencies and by every pair of words.

    Args:
        text: Text mechanism.
        released: Numbers of the released words.
    """
    words, frequencies = text.vocabulary.words, unigram(text.vocabulary)
    table = Table.of(Channel(text), np.arange(len(text.vocabulary)), released)
    with np.errstate(divide="ignore"):
        posterior = shares(table.logs[:-1, :-2].T.astype(np.float64) + np.log(frequencies))
    order = np.argsort(-posterior[:, :-1], axis=1, kind="stable")[:, :3]
    rows = {
        int(y): [{"word": words[i], "share": float(row[i])} for i in best]
        for y, row, best in zip(table.outputs, posterior, order, strict=True)
    }
    return {
        "guesses": [rows[y] for y in released.tolist()],
        "draws": draws_behind(text),
        "limit": word_limit(text),
    }


# --- simulated releases


@dataclass(frozen=True)
class _Record:
    """The true sentence, as a question reads records: every row is the same."""

    truth: Truth

    def texts(self, rows: IntArray) -> list[Any]:
        """Return the sentence for each row."""
        return [self.truth.text] * len(rows)

    def labels(self, rows: IntArray) -> IntArray:
        """Return its label for each row."""
        return np.full(len(rows), self.truth.label, np.int64)

    def embeddings(self, rows: IntArray, projection: Projection) -> NDArray[np.float32]:
        """Return its embedding for each row."""
        return np.repeat(self.truth.embedding, len(rows), axis=0)


def others(question: Question, truth: Truth, count: int, *, stage: str) -> NDArray[Any]:
    """Return simulated releases, in wire format; they are not charged and never leave.

    Args:
        question: Question that the release answers.
        truth: True sentence.
        count: Number of draws.
        stage: Stage of the request.
    """
    rows = np.arange(count, dtype=np.int64)
    values = question.values(_Record(truth), rows, np.arange(count + 1))
    return draw(question, values, rows, np.zeros_like(rows), stage=stage, streams=SecureStreams())


def own_point(question: MappedQuestion, truth: Truth) -> FloatArray:
    """Return the true unit vector, which stays on the device."""
    point = question.projection.apply(truth.embedding)
    if isinstance(question, VectorQuestion):
        point = statistic_vectors(point, np.array([truth.label]), question.codes)
    first: FloatArray = point[0]
    return first
