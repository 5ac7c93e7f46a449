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

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.losses.sphere import log_radial_ratio
from mechanisms.messages.questions import EmbeddingQuestion, Projection, VectorQuestion
from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from mechanisms.quantizer import SPHERE
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.streams import SimulationStreams
from server.training.statistic_head import simplex_codes

Matrices = tuple[NDArray[np.float32], NDArray[np.float32]]
Question = EmbeddingQuestion | VectorQuestion

#: Ridge penalties for maps that separate values, in mean eigenvalues.
_PENALTIES = (0.03, 0.3, 3.0, 30.0)
#: Masses of the cap to try; a mass and ε determine the cap's probability.
_MASSES = (0.5, 0.1, 0.02, 0.004, 0.0008, 0.00016)
#: Public texts, and labels, that a request is tried on.
_TRIED, _LABELS = 400, 4000
#: Most candidates of a posterior.
_POOL = 24_000


def inputs(question: Question, embeddings: NDArray[Any], labels: IntArray) -> FloatArray:
    """Return the vector (n, D) of each record, from embeddings (n, m) and labels (n,), which embeddings ignore."""
    points = question.projection.apply(embeddings)
    return statistic_vectors(points, labels, question.codes) if isinstance(question, VectorQuestion) else points


def drawn(question: Question, vectors: FloatArray, *, seed: int, stage: str) -> FloatArray:
    """Return simulated releases of vectors (n, D), on the public quantizer."""
    rows = np.arange(len(vectors), dtype=np.int64)
    streams = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage=stage, channel=question.channel)
    return question.decode(question.sampled(vectors, streams))


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
    """Return the likeliest of several values behind each release (n, D) of a user of one record, (n,).

    Raises:
        ValueError: The mechanism's density is not known.
    """
    # an embedding ignores the label
    classes = question.classes if isinstance(question, VectorQuestion) else 1
    embeddings, labels, candidate_values = pool.candidates(classes)
    candidates = inputs(question, embeddings, labels)
    evidence = log_likelihood_of_means(question.mechanism, released, candidates, question.clip)
    # a release is in few caps; their shares of a value's records count
    result = np.full((len(released), values), -np.inf)
    for value in np.unique(candidate_values):
        result[:, value] = logsumexp(evidence[:, candidate_values == value], axis=1)
    return result.argmax(axis=1)


# --- requests of a malicious server


def for_value(honest: Question, pool: Pool, count: int, *, seed: int) -> Question:
    """Return the request like an honest one that reveals a value of the text best.

    Args:
        honest: Honest request.
        pool: Public records with values. Labels of embeddings are all 0.
        count: Number of values.
        seed: Seed of all random choices.

    Raises:
        ValueError: The mechanism's density is not known, or there are more values than maps may have coordinates.
    """
    assert pool.values is not None
    values, no_labels = pool.values, np.zeros(len(pool.embeddings), np.int64)
    order = np.random.default_rng([seed, 14]).permutation(len(pool.embeddings))
    fit_rows, test_rows = order[: len(order) // 2], order[len(order) // 2 :][:_TRIED]
    half = Pool(pool.embeddings[fit_rows], no_labels[fit_rows], values[fit_rows])

    def options(rows: IntArray) -> list[Question]:
        maps = _arranged(pool.embeddings[rows], values[rows], count)
        return [question for item in maps for question in _requests(honest, item)]

    def success(question: Question) -> float:
        vectors = inputs(question, pool.embeddings[test_rows], no_labels[test_rows])
        releases = drawn(question, vectors, seed=seed, stage="attack-choice")
        return float((guessed(question, releases, half, count) == values[test_rows]).mean())

    successes = [success(question) for question in options(fit_rows)]
    return options(order)[int(np.argmax(successes))]  # the same request, learned on all public text


def for_label(honest: VectorQuestion, embeddings: NDArray[Any], *, seed: int) -> Question:
    """Return the request like an honest one that reveals the label best: features that are equal for every text."""
    m, classes = embeddings.shape[1], honest.classes
    mean = np.zeros(m, np.float32)
    mean[0] = -1e4 * max(1.0, float(np.abs(embeddings).max()))
    labels = np.random.default_rng([seed, 15]).integers(classes, size=_LABELS)
    rows = np.resize(embeddings, (_LABELS, m))
    pool = Pool(embeddings[:1], np.full(1, -1, np.int64))

    def success(question: Question) -> float:
        releases = drawn(question, inputs(question, rows, labels), seed=seed, stage="attack-choice")
        return float((guessed(question, releases, pool, classes) == labels).mean())

    return max(_requests(honest, (mean, np.eye(m, 2, dtype=np.float32)), simplex_codes(classes)), key=success)


def _requests(honest: Question, maps: Matrices, codes: NDArray[np.float32] | None = None) -> list[Question]:
    """Return requests like an honest one under other maps.

    For user vectors they have other codes, one for all labels if none are given, and the cap that is best for means, or
    others.
    """
    projection = Projection(honest.projection.encoder, *maps)
    if isinstance(honest, EmbeddingQuestion):
        spec = {name: value for name, value in honest.spec.items() if name not in ("dim", "size")}
        return [replace(honest, spec=spec, projection=projection)]
    mechanism: Any = honest.mechanism
    spec = {"mechanism": mechanism.name, "epsilon": mechanism.epsilon}
    probabilities = [min(float(expit(mechanism.epsilon + logit(mass))), 1 - 1e-9) for mass in _MASSES]
    caps: list[dict[str, float]] = [{}, *({"cap_probability": p} for p in probabilities)]
    codes = np.ones((honest.classes, 1), np.float32) if codes is None else codes
    return [VectorQuestion(spec | cap, projection=projection, codes=codes) for cap in caps]


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

    For two values there is one coordinate, and one that is 0. Embeddings (p, m) of public texts have values (p,). The
    ridge penalty is in mean eigenvalues.
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


# --- densities


#: Angles at which the density of normalized planar Laplace noise is computed; it is smooth between them.
_ANGLES = 2048


def log_likelihood(mechanism: Any, released: FloatArray, candidates: FloatArray) -> FloatArray:
    """Return log p(z | x) for each release and candidate, (n, p), up to a constant of the mechanism.

    Releases are (n, m'), candidates unit rows (p, m'). Without noise, the candidate of largest inner product has all
    the likelihood.

    Raises:
        ValueError: The mechanism's density is not known.
    """
    products = released @ candidates.T
    if isinstance(mechanism, Identity):
        return np.where(products == products.max(axis=1, keepdims=True), 0.0, -np.inf)
    if isinstance(mechanism, Purkayastha):
        return -mechanism.epsilon * _angles(released, products)
    if isinstance(mechanism, PlanarLaplace) and mechanism.normalize:
        if mechanism.epsilon == 0:
            return np.zeros(products.shape)
        grid = np.linspace(0, np.pi, _ANGLES)
        density = log_radial_ratio(mechanism.dim, mechanism.epsilon, grid)
        return np.interp(_angles(released, products), grid, density)
    if isinstance(mechanism, PrivUnit):
        high, low = _densities(mechanism)
        return np.where(products >= mechanism.threshold * _lengths(released), high, low)
    square = np.maximum(np.square(released).sum(axis=1)[:, None] + 1 - 2 * products, 0)  # candidates have length 1
    if isinstance(mechanism, PlanarLaplace):
        return -mechanism.epsilon * np.sqrt(square)
    if isinstance(mechanism, Gaussian):
        return -square / (2 * mechanism.sigma**2)
    raise ValueError(f"{mechanism.name}: its density is not known here")


def log_likelihood_of_means(mechanism: Any, released: FloatArray, means: FloatArray, clip: float = 1.0) -> FloatArray:
    """Return log p(z | mean) for each released user vector and candidate mean, (n, p), up to a constant.

    A mean of length r is released as its direction with probability (1 + min(1, r/C))/2, otherwise as the opposite one.
    Without noise, the nearest candidate has all the likelihood: minus the distance in steps of the quantizer. Releases
    are (n, D), means (p, D) of length at most 1. The request clips means at C.
    """
    if isinstance(mechanism, Identity):
        square = (released**2).sum(axis=1)[:, None] + (means**2).sum(axis=1) - 2 * released @ means.T
        return -np.sqrt(np.maximum(square, 0.0)) / SPHERE.step
    length = np.sqrt(np.square(means).sum(axis=1))
    unit = means / np.maximum(length, 1e-12)[:, None]
    forward = log_likelihood(mechanism, released, unit)
    r = np.minimum(length / clip, 1.0)
    if (r > 1 - 1e-9).all():
        return forward
    with np.errstate(divide="ignore"):
        opposite = log_likelihood(mechanism, released, -unit) + np.log((1 - r) / 2)
    return np.logaddexp(forward + np.log((1 + r) / 2), opposite)


def _densities(mechanism: PrivUnit) -> tuple[float, float]:
    """Return the logs of both values of the density, relative to the uniform one: in the cap, and outside it."""
    p, log_mass = mechanism.cap_probability, mechanism.log_mass
    assert p is not None
    with np.errstate(divide="ignore"):
        return float(np.log(p) - log_mass), float(np.log1p(-p) - np.log1p(-np.exp(log_mass)))


def _angles(released: FloatArray, products: FloatArray) -> FloatArray:
    return np.arccos(np.clip(products / _lengths(released), -1, 1))


def _lengths(released: FloatArray) -> FloatArray:
    """Return the lengths (n, 1), near 1: the public quantizer changes the length of a release a little."""
    return np.sqrt(np.square(released).sum(axis=1))[:, None]
