"""Mahalanobis over 200 words in the plane, whose law is summed over a fine grid of noisy vectors.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers whose
privacy parameter is 2/3 or 3/2 of the right one. The grid has cells of .015, small beside the noise and the distances
of words: sums are off by less than 1e-4 (a grid twice as fine says so).
"""

import math
from functools import lru_cache

import numpy as np
import pytest
from scipy.linalg import sqrtm

from mechanisms.vocabulary import Vocabulary
from mechanisms.words.madlib import Madlib
from mechanisms.words.mahalanobis import Mahalanobis
from tests.support.words import fits, streams, vocabulary

EPSILON, LAM = 6.0, 0.9
STEP, REACH = 0.015, 5.4


@lru_cache(maxsize=1)
def plane():
    """200 words within the square of side 4, twice as wide as they are high: lambda matters."""
    vectors = np.random.default_rng(8).uniform(-2, 2, (200, 2)).astype(np.float32)
    vectors[:, 1] *= 0.3
    return Vocabulary(tuple(f"w{i}" for i in range(200)), vectors)


@lru_cache(maxsize=1)
def grid():
    """Points of the grid (k, 2), and for each its nearest word (k,)."""
    axis = np.arange(-REACH, REACH, STEP)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    words = np.empty(len(points), dtype=np.int64)
    for at in range(0, len(points), 2**14):
        part = slice(at, at + 2**14)
        apart = np.hypot(*(points[part].T[:, :, None] - plane().vectors.T[:, None].astype(np.float64)))
        words[part] = apart.argmin(axis=1)
    return points, words


def shape(lam):
    """λ·Σ + (1 - λ)·I by NumPy's covariance, and its symmetric root's inverse."""
    covariance = np.cov(plane().vectors.astype(np.float64), rowvar=False)
    whole = lam * covariance * 2 / np.trace(covariance) + (1 - lam) * np.eye(2)
    return np.linalg.inv(np.real(sqrtm(whole))), math.sqrt(np.linalg.det(whole))


def apart(lam):
    whitened = plane().points.astype(np.float64) @ shape(lam)[0]
    return np.linalg.norm(whitened[:, None] - whitened[None], axis=2)


def law(x, epsilon, lam, every=1):
    """Masses of the outputs of word x, (200,); from every so many points in either direction."""
    side = round(len(grid()[0]) ** 0.5)
    points, words = (a.reshape(side, side, -1)[::every, ::every].reshape(-1, a.size // side**2) for a in grid())
    inverse, root_determinant = shape(lam)
    far = np.hypot(*((points - plane().points[x].astype(np.float64)) @ inverse).T)
    mass = epsilon**2 / (2 * math.pi * root_determinant) * np.exp(-epsilon * far) * (STEP * every) ** 2
    return np.bincount(words[:, 0], mass, 200)


def test_the_sums_are_those_of_a_law():
    for lam in (0.0, LAM):
        assert abs(law(3, EPSILON, lam).sum() - 1) < 1e-3


@pytest.mark.parametrize("x", [0, 77, 200])
def test_draws_fit_the_law(x):
    n = 30_000
    draws = Mahalanobis(EPSILON, plane(), LAM).sample(np.full(n, x), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        masses = law(x, EPSILON * factor, LAM)
        assert fits(draws, np.log(np.maximum(masses / masses.sum(), 1e-12))) == right, factor
    other = law(x, EPSILON, 0.5)  # and another shape of the noise is another law
    assert not fits(draws, np.log(np.maximum(other / other.sum(), 1e-12)))


@pytest.mark.parametrize("lam", [LAM, 0.0])
def test_all_pairs_keep_the_metric_guarantee(lam):
    """All inputs on one (coarser) grid, so that sums of their masses keep what the densities keep: to the last bits."""
    table = np.array([law(x, EPSILON, lam, every=4) for x in range(201)])
    far, logs = apart(lam), np.log(np.maximum(table, 1e-300))
    ratio = np.max([np.where(table[:, y] > 0, logs[:, None, y] - logs[None, :, y], 0.0) for y in range(200)], axis=0)
    assert np.all(ratio <= EPSILON * far + 1e-9)
    assert (ratio / np.maximum(EPSILON * far, 1e-9)).max() > 0.95  # and of no smaller ε
    mechanism = Mahalanobis(EPSILON, plane(), lam)
    assert mechanism.guarantee.exposes == () and mechanism.guarantee.epsilon == EPSILON


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("make", [plane, vocabulary], ids=["plane", "16 dimensions"])
def test_distances_are_the_mahalanobis_ones_from_above(lam, make):
    words = make()
    mechanism = Mahalanobis(2.0, words, lam)
    covariance = np.cov(words.vectors.astype(np.float64), rowvar=False)
    width = len(covariance)
    inverse = np.linalg.inv(lam * covariance * width / np.trace(covariance) + (1 - lam) * np.eye(width))
    points = words.points.astype(np.float64)
    difference = points[:, None] - points[None]
    exact = np.sqrt(np.einsum("ijk,kl,ijl->ij", difference, inverse, difference))
    every = np.arange(len(points))
    found = mechanism.distances(every, every)
    assert np.all(found >= exact * (1 - 1e-12)) and np.all(found <= exact + 1e-6 * exact.max())
    assert exact.max() <= mechanism.guarantee.diameter <= exact.max() * (1 + 1e-6)
    assert mechanism.guarantee.numeric_epsilon < 1e-9
    np.testing.assert_allclose(mechanism.root @ mechanism.root.T @ inverse, np.eye(width), rtol=0, atol=1e-9)


def test_without_covariance_it_is_madlib():
    words, n = vocabulary(), 3000
    x = np.arange(n) % 201
    plain = Madlib(4.0, words).sample(x, rng=streams(n))
    np.testing.assert_array_equal((Mahalanobis(4.0, words, 0.0).sample(x, rng=streams(n)) == plain).mean(), 1.0)
    assert Mahalanobis(4.0, words, 0.0).guarantee.worst_case() == pytest.approx(
        Madlib(4.0, words).guarantee.worst_case(), rel=1e-6
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mahalanobis(0.0, plane()), "mahalanobis: epsilon must be from 1e-06"),
        (lambda: Mahalanobis(1.0, plane(), lam=1.0), "mahalanobis: lam must be from 0 to 0.99"),
        (lambda: Mahalanobis(1.0, plane(), lam=-0.1), "mahalanobis: lam"),
        (lambda: Mahalanobis(1.0, Vocabulary(("a", "b"), np.ones((2, 3), np.float32))), "mahalanobis: .* all equal"),
        (lambda: Mahalanobis(1.0, Vocabulary(("a", "b"), np.ones((2, 1), np.float32))), "mahalanobis: .* 2 to 1024"),
        (lambda: Mahalanobis(1.0, plane()).privacy_loss(1e3), "mahalanobis: .*distance"),
    ],
)
def test_mistakes_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
