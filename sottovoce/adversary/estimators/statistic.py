"""Attacks on a user vector (channel `statistic`), by an honest or a malicious server.

Given the vector v behind it, a release z of PrivUnit has one of two densities: high where z lies in the cap of v. So
the likelihood of every candidate is exact. A posterior over known texts and labels, or over an attribute's values of
public texts, is the best guess under that prior.

An honest server wants means: it uses principal components of public text, simplex codes, and the best cap for means. A
client answers any other request under the same ε. So the adversary may choose the maps, the codes and the cap for its
own goal (`for_value`, `for_label`). It chooses by simulation of releases on public text.
For a label of two values, the choice is constant features and a cap of half the sphere. This is randomized response,
and attains the bound of ε.
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

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Masses of the cap to try; a mass and ε determine the cap's probability.
_MASSES = (0.5, 0.1, 0.02, 0.004, 0.0008, 0.00016)
#: Records, and labels, that a request is tried on.
_TRIED, _LABELS = 200, 4000
#: Most candidates of a posterior.
_POOL = 24_000


@dataclass(frozen=True, eq=False)
class VectorQuestion:
    """Request for user vectors.

    Args:
        mean: Vector (m,) of the maps, float32.
        m1: Matrix (m, d) of the maps, float32.
        codes: Codes of labels (K, c), float32.
        mechanism: Mechanism of the vectors.
        clip: C, at which users' means are clipped.
    """

    mean: NDArray[np.float32]
    m1: NDArray[np.float32]
    codes: NDArray[np.float32]
    mechanism: Any
    clip: float = 1.0

    def vectors(self, embeddings: NDArray[Any], labels: IntArray) -> FloatArray:
        """Return the vector (n, D) of each record, from embeddings (n, m) and labels (n,)."""
        return statistic_vectors(project(embeddings, self.mean, self.m1), labels, self.codes)

    def drawn(self, vectors: FloatArray, *, seed: int, stage: str) -> FloatArray:
        """Return simulated releases of user vectors (n, D)."""
        rows = np.arange(len(vectors), dtype=np.int64)
        streams = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage=stage, channel="statistic")
        result: FloatArray = self.mechanism.sample(vectors, rng=streams)
        return result


@dataclass(frozen=True, eq=False)
class Pool:
    """Public records that may stand behind a release, each equally likely.

    Args:
        embeddings: Embeddings (p, m).
        labels: Labels (p,), -1 where the adversary does not know one.
        values: Value (p,) to guess for each; None for the label.
    """

    embeddings: NDArray[Any]
    labels: IntArray
    values: IntArray | None = None

    def candidates(self, classes: int) -> tuple[NDArray[Any], IntArray, IntArray]:
        """Return embeddings, labels and values (q,); a record of unknown label occurs once with each label."""
        at_most = _POOL // classes
        embeddings, labels = self.embeddings[:at_most], self.labels[:at_most]
        mask = np.where(labels[:, None] < 0, True, labels[:, None] == np.arange(classes))
        rows, candidate_labels = np.nonzero(mask)
        return (
            embeddings[rows],
            candidate_labels,
            candidate_labels if self.values is None else self.values[:at_most][rows],
        )


def guessed(question: VectorQuestion, released: FloatArray, pool: Pool, values: int) -> IntArray:
    """Return the likeliest value behind each release of a user of one record, (n,).

    Args:
        question: Request of the releases.
        released: Releases (n, D).
        pool: Public records.
        values: Number of values.
    """
    embeddings, labels, candidate_values = pool.candidates(len(question.codes))
    evidence = log_likelihood_of_means(
        question.mechanism, released, question.vectors(embeddings, labels), question.clip
    )
    # a release is in few caps; their shares of a value's records count
    result = np.full((len(released), values), -np.inf)
    for value in np.unique(candidate_values):
        result[:, value] = logsumexp(evidence[:, candidate_values == value], axis=1)
    return result.argmax(axis=1)


# --- requests of a malicious server


def for_value(pool: Pool, values: int, epsilon: float, *, classes: int, seed: int) -> VectorQuestion:
    """Return the request that reveals a value of the text best.

    It is ridge regression on the value, with one code for all labels.

    Args:
        pool: Public records with values.
        values: Number of values.
        epsilon: ε of the releases.
        classes: K.
        seed: Seed of all random choices.
    """
    assert pool.values is not None
    codes = np.ones((classes, 1), np.float32)
    order = np.random.default_rng([seed, 14]).permutation(len(pool.embeddings))
    fit_rows, test_rows = order[: len(order) // 2], order[len(order) // 2 :][:_TRIED]

    def maps(rows: IntArray) -> list[Matrices]:
        return [telling(pool.embeddings[rows], pool.values[rows], values, penalty) for penalty in PENALTIES]  # type: ignore[index]

    half = Pool(pool.embeddings[fit_rows], np.zeros(len(fit_rows), np.int64), pool.values[fit_rows])

    def success(question: VectorQuestion) -> float:
        vectors = question.vectors(pool.embeddings[test_rows], np.zeros(len(test_rows), np.int64))
        releases = question.drawn(vectors, seed=seed, stage="attack-choice")
        assert pool.values is not None
        return float((guessed(question, releases, half, values) == pool.values[test_rows]).mean())

    options = list(_options(maps(fit_rows), codes, epsilon))
    best = _best(options, success)
    number = next(i for i, question in enumerate(options) if question is best)
    return list(_options(maps(order), codes, epsilon))[number]  # the same request, learned on all public text


def for_label(embeddings: NDArray[Any], epsilon: float, *, classes: int, seed: int) -> VectorQuestion:
    """Return the request that reveals the label best: features that are equal for every text.

    Args:
        embeddings: Embeddings of public texts.
        epsilon: ε of the releases.
        classes: K.
        seed: Seed of all random choices.
    """
    m = embeddings.shape[1]
    distance = 1e4 * max(1.0, float(np.abs(embeddings).max()))
    mean = np.zeros(m, np.float32)
    mean[0] = -distance
    labels = np.random.default_rng([seed, 15]).integers(classes, size=_LABELS)
    rows = np.resize(embeddings, (_LABELS, m))
    pool = Pool(embeddings[:1], np.full(1, -1, np.int64))

    def success(question: VectorQuestion) -> float:
        releases = question.drawn(question.vectors(rows, labels), seed=seed, stage="attack-choice")
        return float((guessed(question, releases, pool, classes) == labels).mean())

    return _best(_options([(mean, np.eye(m, 2, dtype=np.float32))], simplex_codes(classes), epsilon), success)


def _options(maps: Iterable[Matrices], codes: NDArray[np.float32], epsilon: float) -> Iterable[VectorQuestion]:
    for mean, m1 in maps:
        size = codes.shape[1] * (m1.shape[1] + 1)
        yield VectorQuestion(mean, m1, codes, PrivUnit(size, epsilon))
        for mass in _MASSES:
            probability = min(float(expit(epsilon + logit(mass))), 1 - 1e-9)
            yield VectorQuestion(mean, m1, codes, PrivUnit(size, epsilon, probability))


def _best(options: Iterable[VectorQuestion], success: Callable[[VectorQuestion], float]) -> VectorQuestion:
    entries: Sequence[tuple[float, VectorQuestion]] = [(success(question), question) for question in options]
    return max(entries, key=lambda entry: entry[0])[1]
