"""What the one vector of a user (channel `statistic`) gives away, to a server that asks as it should or as it likes.

A release z of PrivUnit has one of two densities given the vector v behind it, high where z lies in the cap of v, so the
likelihood of every candidate is exact: a posterior over known texts and labels, or over the values of an attribute of
public texts, is the best guess there is under that prior.

A server that asks honestly wants means: principal components of public text, simplex codes, the cap that is best for
means. A client answers whatever else it is asked under the same ε, so the adversary may choose the maps, the codes and
the cap for its question (`for_texts`, `for_members`, `for_value`, `for_label`): by simulation on public text, where it
draws what users would release. For a label of two values that is constant features and a cap of half the sphere, which
is randomized response, and attains what ε allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from mechanisms.privunit import PrivUnit
from mechanisms.projection import project, statistic_vectors
from mechanisms.streams import SimulationStreams
from server.training.statistic_head import simplex_codes
from sottovoce.adversary.estimators.chosen import PENALTIES, Matrices, telling
from sottovoce.adversary.estimators.likelihood import log_likelihood_of_means
from sottovoce.adversary.estimators.presence import embedding_evidence

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Numbers of features that are tried, and masses of the cap, which with ε say its probability.
_FEATURES = (16, 64, 128)
_MASSES = (0.5, 0.1, 0.02, 0.004, 0.0008, 0.00016)
#: Public rows for each feature, at least; records, and labels, that a question is tried on.
_ROWS_PER_FEATURE, _TRIED, _LABELS = 4, 200, 4000
#: Candidates of a posterior, at most.
_POOL = 24_000


@dataclass(frozen=True, eq=False)
class VectorQuestion:
    """What a statistic is asked for by: maps mean (m,) and m1 (m, d), codes (K, c), float32, and the mechanism."""

    mean: NDArray[np.float32]
    m1: NDArray[np.float32]
    codes: NDArray[np.float32]
    mechanism: Any

    def vectors(self, embeddings: NDArray[Any], labels: IntArray) -> FloatArray:
        """The vector (n, D) of each record: embeddings (n, m), labels (n,)."""
        return statistic_vectors(project(embeddings, self.mean, self.m1), labels, self.codes)

    def drawn(self, vectors: FloatArray, *, seed: int, stage: str) -> FloatArray:
        """What users of these vectors (n, D) would release."""
        rows = np.arange(len(vectors), dtype=np.int64)
        streams = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage=stage, channel="statistic")
        found: FloatArray = self.mechanism.sample(vectors, rng=streams)
        return found


@dataclass(frozen=True, eq=False)
class Pool:
    """Public records that may stand behind a release, each as likely as the others: embeddings (p, m), labels (p,), -1
    where the adversary does not know one, and the value of each (p,), which is to be guessed; None: the label."""

    embeddings: NDArray[Any]
    labels: IntArray
    values: IntArray | None = None

    def candidates(self, classes: int) -> tuple[NDArray[Any], IntArray, IntArray]:
        """Embeddings, labels and values (q,); a record of unknown label once with each."""
        at_most = _POOL // classes
        embeddings, labels = self.embeddings[:at_most], self.labels[:at_most]
        each = np.where(labels[:, None] < 0, True, labels[:, None] == np.arange(classes))
        rows, of = np.nonzero(each)
        return embeddings[rows], of, of if self.values is None else self.values[:at_most][rows]


def guessed(question: VectorQuestion, released: FloatArray, pool: Pool, values: int) -> IntArray:
    """The likeliest value of each release (n, D), of so many values, under the pool: (n,)."""
    embeddings, labels, of = pool.candidates(len(question.codes))
    evidence = log_likelihood_of_means(question.mechanism, released, question.vectors(embeddings, labels))
    # a release is in few caps, whose shares of a value's records are what counts
    found = np.full((len(released), values), -np.inf)
    for value in range(values):
        mine = of == value
        if mine.any():
            found[:, value] = logsumexp(evidence[:, mine], axis=1)
    return found.argmax(axis=1)


def matching(question: VectorQuestion, released: FloatArray, means: FloatArray) -> FloatArray:
    """How likely each release (n, D) is under each known mean (p, D) of a user's vectors: log-likelihoods (n, p)."""
    return log_likelihood_of_means(question.mechanism, released, means)


# --- questions of the server's choice


def for_texts(embeddings: NDArray[Any], epsilon: float, *, classes: int, among: int, seed: int) -> VectorQuestion:
    """To tell which of so many known texts and labels a vector is of: whitened public text, by which the caps of
    different texts overlap least."""
    rng = np.random.default_rng([seed, 12])
    rows = rng.permutation(len(embeddings))[:among]
    labels = rng.integers(classes, size=len(rows))

    def success(question: VectorQuestion) -> float:
        vectors = question.vectors(embeddings[rows], labels)
        evidence = matching(question, question.drawn(vectors, seed=seed, stage="attack-choice"), vectors)
        best = evidence == evidence.max(axis=1, keepdims=True)
        return float((np.diagonal(best) / best.sum(axis=1)).mean())

    return _best(_options(_whitened(embeddings), simplex_codes(classes), epsilon), success)


def for_members(embeddings: NDArray[Any], epsilon: float, *, classes: int, crowd: int, seed: int) -> VectorQuestion:
    """To tell whether a known record is among the vectors of a crowd."""
    rng = np.random.default_rng([seed, 13])
    order = rng.permutation(len(embeddings))
    members, others = order[: len(order) // 2], order[len(order) // 2 :]
    labels = rng.integers(classes, size=len(embeddings))
    present = np.resize(members, crowd)
    members, others = members[:_TRIED], others[:_TRIED]

    def success(question: VectorQuestion) -> float:
        z = question.drawn(question.vectors(embeddings[present], labels[present]), seed=seed, stage="attack-choice")
        known = question.vectors(embeddings[np.r_[members, others]], labels[np.r_[members, others]])
        population = question.vectors(embeddings[others], labels[others])
        evidence = embedding_evidence(question.mechanism, z, known, population)
        inside, outside = evidence[: len(members), None], evidence[None, len(members) :]
        return float((inside > outside).mean() + 0.5 * (inside == outside).mean())

    return _best(_options(_whitened(embeddings), simplex_codes(classes), epsilon), success)


def for_value(pool: Pool, values: int, epsilon: float, *, classes: int, seed: int) -> VectorQuestion:
    """To tell a value of the text: ridge regression on which value it has, all labels of one code."""
    assert pool.values is not None
    same = np.ones((classes, 1), np.float32)
    order = np.random.default_rng([seed, 14]).permutation(len(pool.embeddings))
    learnt, tried = order[: len(order) // 2], order[len(order) // 2 :][:_TRIED]

    def maps(rows: IntArray) -> list[Matrices]:
        return [telling(pool.embeddings[rows], pool.values[rows], values, penalty) for penalty in PENALTIES]  # type: ignore[index]

    half = Pool(pool.embeddings[learnt], np.zeros(len(learnt), np.int64), pool.values[learnt])

    def success(question: VectorQuestion) -> float:
        vectors = question.vectors(pool.embeddings[tried], np.zeros(len(tried), np.int64))
        released = question.drawn(vectors, seed=seed, stage="attack-choice")
        assert pool.values is not None
        return float((guessed(question, released, half, values) == pool.values[tried]).mean())

    options = list(_options(maps(learnt), same, epsilon))
    best = _best(options, success)
    which = next(i for i, question in enumerate(options) if question is best)
    return list(_options(maps(order), same, epsilon))[which]  # the same question, learned on all public text


def for_label(embeddings: NDArray[Any], epsilon: float, *, classes: int, seed: int) -> VectorQuestion:
    """To tell the label: features that are the same of every text."""
    m = embeddings.shape[1]
    far = 1e4 * max(1.0, float(np.abs(embeddings).max()))
    mean = np.zeros(m, np.float32)
    mean[0] = -far
    labels = np.random.default_rng([seed, 15]).integers(classes, size=_LABELS)
    rows = np.resize(embeddings, (_LABELS, m))
    pool = Pool(embeddings[:1], np.full(1, -1, np.int64))

    def success(question: VectorQuestion) -> float:
        released = question.drawn(question.vectors(rows, labels), seed=seed, stage="attack-choice")
        return float((guessed(question, released, pool, classes) == labels).mean())

    return _best(_options([(mean, np.eye(m, 2, dtype=np.float32))], simplex_codes(classes), epsilon), success)


def _options(
    maps: Iterable[Matrices], codes: NDArray[np.float32], epsilon: float
) -> Iterable[VectorQuestion]:
    for mean, m1 in maps:
        size = codes.shape[1] * (m1.shape[1] + 1)
        yield VectorQuestion(mean, m1, codes, PrivUnit(size, epsilon))
        for mass in _MASSES:
            probability = min(float(expit(epsilon + logit(mass))), 1 - 1e-9)
            yield VectorQuestion(mean, m1, codes, PrivUnit(size, epsilon, probability))


def _best(options: Iterable[VectorQuestion], success: Callable[[VectorQuestion], float]) -> VectorQuestion:
    tried: Sequence[tuple[float, VectorQuestion]] = [(success(question), question) for question in options]
    return max(tried, key=lambda one: one[0])[1]


def _whitened(embeddings: NDArray[Any]) -> list[Matrices]:
    h = np.asarray(embeddings, np.float64)
    mean = h.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(h - mean, rowvar=False))
    order = np.argsort(-variances)
    most = min(h.shape[1], max(2, len(h) // _ROWS_PER_FEATURE))
    sizes = sorted({min(d, most) for d in _FEATURES})
    scaled = directions[:, order] / np.sqrt(np.maximum(variances[order], 1e-6 * variances.max()))
    scaled /= np.linalg.norm(scaled, axis=0).max()
    return [(mean.astype(np.float32), scaled[:, :d].astype(np.float32)) for d in sizes]
