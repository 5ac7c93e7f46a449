"""Mahalanobis and Vickrey over 200 words in the plane, whose law is summed over a fine grid of noisy vectors.

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
from mechanisms.words.nearest import nearest_two
from mechanisms.words.vickrey import Vickrey
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
    """Points of the grid (k, 2), and for each its two nearest words and their distances: (k, 2) and (k, 2)."""
    axis = np.arange(-REACH, REACH, STEP)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    words, near = np.empty((len(points), 2), dtype=np.int64), np.empty((len(points), 2))
    for at in range(0, len(points), 2**14):
        part = slice(at, at + 2**14)
        apart = np.hypot(*(points[part].T[:, :, None] - plane().vectors.T[:, None].astype(np.float64)))
        two = np.argpartition(apart, (0, 1), axis=1)[:, :2]
        words[part], near[part] = two, np.take_along_axis(apart, two, axis=1)
    return points, words, near


def shape(lam):
    """λ·Σ + (1 - λ)·I by NumPy's covariance, and its symmetric root's inverse."""
    covariance = np.cov(plane().vectors.astype(np.float64), rowvar=False)
    whole = lam * covariance * 2 / np.trace(covariance) + (1 - lam) * np.eye(2)
    return np.linalg.inv(np.real(sqrtm(whole))), math.sqrt(np.linalg.det(whole))


def apart(lam):
    whitened = plane().points.astype(np.float64) @ shape(lam)[0]
    return np.linalg.norm(whitened[:, None] - whitened[None], axis=2)


def law(x, epsilon, lam, t=0.0, every=1):
    """Masses of the outputs of word x, (200,); from every so many points in either direction."""
    side = round(len(grid()[0]) ** 0.5)
    points, words, near = (a.reshape(side, side, 2)[::every, ::every].reshape(-1, 2) for a in grid())
    inverse, root_determinant = shape(lam)
    far = np.hypot(*((points - plane().points[x].astype(np.float64)) @ inverse).T)
    mass = epsilon**2 / (2 * math.pi * root_determinant) * np.exp(-epsilon * far) * (STEP * every) ** 2
    first = np.ones(len(points)) if t == 0 else (1 - t) * near[:, 1] / (t * near[:, 0] + (1 - t) * near[:, 1])
    return sum(np.bincount(words[:, i], w * mass, 200) for i, w in enumerate((first, 1 - first)))


def test_the_sums_are_those_of_a_law():
    for lam in (0.0, LAM):
        assert abs(law(3, EPSILON, lam).sum() - 1) < 1e-3


@pytest.mark.parametrize("x", [0, 77, 200])
@pytest.mark.parametrize(("lam", "t"), [(LAM, None), (0.0, 0.5), (0.0, 1.0), (LAM, 0.3)])
def test_draws_fit_the_law(lam, t, x):
    n = 30_000

    def made(epsilon):
        return Mahalanobis(epsilon, plane(), lam) if t is None else Vickrey(epsilon, plane(), t, lam)

    draws = made(EPSILON).sample(np.full(n, x), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        masses = law(x, EPSILON * factor, lam, t or 0.0)
        assert fits(draws, np.log(np.maximum(masses / masses.sum(), 1e-12))) == right, factor
    other = law(x, EPSILON, 0.5, t or 0.0)  # and another shape of the noise is another law
    assert not fits(draws, np.log(np.maximum(other / other.sum(), 1e-12)))


@pytest.mark.parametrize(("lam", "t"), [(LAM, 0.0), (0.0, 0.5), (LAM, 1.0)])
def test_all_pairs_keep_the_metric_guarantee(lam, t):
    """All inputs on one (coarser) grid, so that sums of their masses keep what the densities keep: to the last bits."""
    table = np.array([law(x, EPSILON, lam, t, every=4) for x in range(201)])
    far, logs = apart(lam), np.log(np.maximum(table, 1e-300))
    ratio = np.max([np.where(table[:, y] > 0, logs[:, None, y] - logs[None, :, y], 0.0) for y in range(200)], axis=0)
    assert np.all(ratio <= EPSILON * far + 1e-9)
    assert (ratio / np.maximum(EPSILON * far, 1e-9)).max() > 0.95  # and of no smaller ε
    mechanism = Vickrey(EPSILON, plane(), t, lam)
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
    assert Vickrey(2.0, words, 0.5, lam).guarantee.diameter == mechanism.guarantee.diameter
    np.testing.assert_allclose(mechanism.root @ mechanism.root.T @ inverse, np.eye(width), rtol=0, atol=1e-9)


def test_without_covariance_and_without_a_second_word_both_are_madlib():
    words, n = vocabulary(), 3000
    x = np.arange(n) % 201
    plain = Madlib(4.0, words).sample(x, rng=streams(n))
    np.testing.assert_array_equal((Mahalanobis(4.0, words, 0.0).sample(x, rng=streams(n)) == plain).mean(), 1.0)
    # a row of Vickrey's uniforms has one more, so the same noise is that of one row
    alone = Vickrey(4.0, words, t=0.0).sample(x[:, None][:1], rng=streams(1))
    np.testing.assert_array_equal(alone[0, 0], plain[0])
    assert Mahalanobis(4.0, words, 0.0).guarantee.worst_case() == pytest.approx(
        Madlib(4.0, words).guarantee.worst_case(), rel=1e-6
    )


def test_the_two_nearest_are_those_of_sorting_in_any_memory(monkeypatch):
    words = vocabulary(300, 7)  # the first and the last lie at one place
    points = np.random.default_rng(2).normal(size=(900, 7)) * np.repeat([0.3, 3.0, 100.0], 300)[:, None]
    squares = ((points[:, None] - words.vectors.astype(np.float64)) ** 2).sum(axis=2)
    order = np.argsort(squares, axis=1, kind="stable")
    for scores in (2**24, 1000):
        monkeypatch.setattr("mechanisms.words.nearest._SCORES", scores)
        first, second = nearest_two(points, words)
        np.testing.assert_array_equal(first, order[:, 0])
        np.testing.assert_array_equal(second, order[:, 1])


def test_near_ties_of_the_second_that_single_precision_gets_wrong_are_decided_exactly():
    rng = np.random.default_rng(3)
    vectors = (np.repeat(rng.normal(size=(40, 50)), 10, axis=0) * (1 + 1e-7 * rng.normal(size=(400, 50)))).astype(
        np.float32
    )
    words = Vocabulary(tuple(map(str, range(400))), vectors)
    points = rng.normal(size=(200, 50)) * 2
    order = np.argsort(((points[:, None] - vectors.astype(np.float64)) ** 2).sum(axis=2), axis=1, kind="stable")
    first, second = nearest_two(points, words)
    np.testing.assert_array_equal(np.stack([first, second], axis=1), order[:, :2])


def test_a_program_that_leaves_the_private_word_out_shows_which_it_is_not():
    """What is not offered: an output that is impossible for one input, and likely for its neighbour."""
    far = np.linalg.norm(plane().vectors[:, None] - plane().vectors[None], axis=2)
    np.fill_diagonal(far, np.inf)
    word, n = int(far.min(axis=1).argmin()), 2000
    near = int(far[word].argmin())
    of_word, of_near = (Vickrey(20.0, plane(), 0.5).sample(np.full(n, x), rng=streams(n)) for x in (word, near))
    assert (of_word == word).mean() > 0.2
    left_out = of_word[of_word != word]
    assert len(left_out) and not (left_out == word).any() and (of_near == word).mean() > 0.2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mahalanobis(0.0, plane()), "mahalanobis: epsilon must be from 1e-06"),
        (lambda: Mahalanobis(1.0, plane(), lam=1.0), "mahalanobis: lam must be from 0 to 0.99"),
        (lambda: Vickrey(1.0, plane(), t=1.5), "vickrey: t must be from 0 to 1"),
        (lambda: Vickrey(1.0, plane(), lam=-0.1), "vickrey: lam"),
        (lambda: Mahalanobis(1.0, Vocabulary(("a", "b"), np.ones((2, 3), np.float32))), "mahalanobis: .* all equal"),
        (lambda: Vickrey(1.0, Vocabulary(("a", "b"), np.ones((2, 1), np.float32))), "vickrey: .* 2 to 1024"),
        (lambda: Mahalanobis(1.0, plane()).privacy_loss(1e3), "mahalanobis: .*distance"),
    ],
)
def test_mistakes_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
