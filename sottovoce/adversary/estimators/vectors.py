"""Attacks on embeddings and user vectors by the exact density, for requests of an honest or a malicious server.

Given the vector behind it, the density of a release is known. So the likelihood of every candidate is exact. A
posterior over known texts and labels, or over an attribute's values of public texts, is the best guess under that
prior.

An honest server wants to train: it uses principal components of public text, simplex codes, and the best cap for means.
A client answers any other request under the same ε. So the adversary may choose the maps, the codes and the cap for its
own goal (`for_value`, `for_label`). The maps are learned from public text for the value. They have a coordinate for
each value. Or they place the values around a circle, where noise confuses them less and two coordinates suffice.
Simulation on other public text chooses among them. For a label of two values, the choice is constant features and a cap
of half the sphere. This is randomized response, and attains the bound of ε.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from mechanisms.privunit import PrivUnit
from mechanisms.projection import project, statistic_vectors
from mechanisms.streams import SimulationStreams
from server.training.statistic_head import simplex_codes
from sottovoce.adversary.estimators.likelihood import log_likelihood_of_means

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Matrices = tuple[NDArray[np.float32], NDArray[np.float32]]

#: Ridge penalties for maps that separate values, in mean eigenvalues.
_PENALTIES = (0.03, 0.3, 3.0, 30.0)
#: Masses of the cap to try; a mass and ε determine the cap's probability.
_MASSES = (0.5, 0.1, 0.02, 0.004, 0.0008, 0.00016)
#: Public texts, and labels, that a request is tried on.
_TRIED, _LABELS = 400, 4000
#: Most candidates of a posterior.
_POOL = 24_000


@dataclass(frozen=True, eq=False)
class Question:
    """Request for embeddings, or for user vectors if it has codes of labels.

    Args:
        mean: Vector (m,) of the maps, float32.
        m1: Matrix (m, d) of the maps, float32.
        mechanism: Mechanism of the releases.
        codes: Codes of labels (K, c), float32; None for embeddings.
        clip: C, at which users' means are clipped.
    """

    mean: NDArray[np.float32]
    m1: NDArray[np.float32]
    mechanism: Any
    codes: NDArray[np.float32] | None = None
    clip: float = 1.0

    def vectors(self, embeddings: NDArray[Any], labels: IntArray) -> FloatArray:
        """Return the vector (n, D) of each record, from embeddings (n, m) and labels (n,), which embeddings ignore."""
        points = project(embeddings, self.mean, self.m1)
        return points if self.codes is None else statistic_vectors(points, labels, self.codes)

    def drawn(self, vectors: FloatArray, *, seed: int, stage: str) -> FloatArray:
        """Return simulated releases of vectors (n, D), on the public quantizer."""
        rows = np.arange(len(vectors), dtype=np.int64)
        channel = "embedding" if self.codes is None else "statistic"
        streams = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage=stage, channel=channel)
        y: FloatArray = self.mechanism.sample(vectors, rng=streams)
        grid = self.mechanism.grid
        return y if grid is None else grid.decode(grid.encode(y))


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


def guessed(question: Question, released: FloatArray, pool: Pool, values: int) -> IntArray:
    """Return the likeliest value behind each release of a user of one record, (n,).

    Args:
        question: Request of the releases.
        released: Releases (n, D).
        pool: Public records.
        values: Number of values.

    Raises:
        ValueError: The mechanism's density is not known.
    """
    embeddings, labels, candidate_values = pool.candidates(1 if question.codes is None else len(question.codes))
    evidence = log_likelihood_of_means(
        question.mechanism, released, question.vectors(embeddings, labels), question.clip
    )
    # a release is in few caps; their shares of a value's records count
    result = np.full((len(released), values), -np.inf)
    for value in np.unique(candidate_values):
        result[:, value] = logsumexp(evidence[:, candidate_values == value], axis=1)
    return result.argmax(axis=1)


# --- requests of a malicious server


def for_value(pool: Pool, count: int, questions: Callable[[Matrices], Sequence[Question]], *, seed: int) -> Question:
    """Return the request that reveals a value of the text best.

    Args:
        pool: Public records with values. Labels of embeddings are all 0.
        count: Number of values.
        questions: Function from maps to requests under them.
        seed: Seed of all random choices.

    Raises:
        ValueError: The mechanism's density is not known.
    """
    assert pool.values is not None
    values, no_labels = pool.values, np.zeros(len(pool.embeddings), np.int64)
    order = np.random.default_rng([seed, 14]).permutation(len(pool.embeddings))
    fit_rows, test_rows = order[: len(order) // 2], order[len(order) // 2 :][:_TRIED]
    half = Pool(pool.embeddings[fit_rows], no_labels[fit_rows], values[fit_rows])

    def options(rows: IntArray) -> list[Question]:
        maps = _arranged(pool.embeddings[rows], values[rows], count)
        return [question for item in maps for question in questions(item)]

    def success(question: Question) -> float:
        vectors = question.vectors(pool.embeddings[test_rows], no_labels[test_rows])
        releases = question.drawn(vectors, seed=seed, stage="attack-choice")
        return float((guessed(question, releases, half, count) == values[test_rows]).mean())

    successes = [success(question) for question in options(fit_rows)]
    return options(order)[int(np.argmax(successes))]  # the same request, learned on all public text


def for_label(embeddings: NDArray[Any], epsilon: float, *, classes: int, seed: int) -> Question:
    """Return the request that reveals the label best: features that are equal for every text."""
    m = embeddings.shape[1]
    mean = np.zeros(m, np.float32)
    mean[0] = -1e4 * max(1.0, float(np.abs(embeddings).max()))
    labels = np.random.default_rng([seed, 15]).integers(classes, size=_LABELS)
    rows = np.resize(embeddings, (_LABELS, m))
    pool = Pool(embeddings[:1], np.full(1, -1, np.int64))

    def success(question: Question) -> float:
        releases = question.drawn(question.vectors(rows, labels), seed=seed, stage="attack-choice")
        return float((guessed(question, releases, pool, classes) == labels).mean())

    return max(of_caps((mean, np.eye(m, 2, dtype=np.float32)), simplex_codes(classes), epsilon), key=success)


def of_caps(maps: Matrices, codes: NDArray[np.float32], epsilon: float) -> list[Question]:
    """Return requests for user vectors under some maps, with the cap that is best for means, and with others."""
    size = codes.shape[1] * (maps[1].shape[1] + 1)
    probabilities = [min(float(expit(epsilon + logit(mass))), 1 - 1e-9) for mass in _MASSES]
    mechanisms = [PrivUnit(size, epsilon), *(PrivUnit(size, epsilon, p) for p in probabilities)]
    return [Question(*maps, mechanism, codes) for mechanism in mechanisms]


def _arranged(embeddings: NDArray[Any], values: IntArray, count: int) -> list[Matrices]:
    results = []
    angles = 2 * np.pi * np.arange(count) / count
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    for penalty in _PENALTIES:
        mean, m1 = _telling(embeddings, values, count, penalty)
        results.append((mean, m1))
        if count > 2:
            results.append((mean, (m1 @ circle).astype(np.float32)))
    return results


def _telling(embeddings: NDArray[Any], values: IntArray, count: int, penalty: float) -> Matrices:
    """Return maps to a coordinate for each value, by least squares; rare values weigh as much as frequent ones.

    For two values there is one coordinate, and one that is 0.

    Args:
        embeddings: Embeddings (p, m) of public texts.
        values: Their values (p,).
        count: Number of values.
        penalty: Ridge penalty, in mean eigenvalues.
    """
    h = np.asarray(embeddings, np.float64)
    mean = h.mean(axis=0)
    deviations = h - mean
    target = np.eye(count)[values]
    target = (target - target.mean(axis=0)) / np.maximum(target.mean(axis=0), 1e-3)
    covariance = deviations.T @ deviations / len(h)
    ridge = penalty * np.trace(covariance) / len(covariance)
    m1 = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), deviations.T @ target / len(h))
    if count == 2:
        m1[:, 0] = 0.0
    m1 /= np.linalg.norm(m1, axis=0).max()
    return mean.astype(np.float32), m1.astype(np.float32)
