"""MADLIB, its syntax-guided form and Mahalanobis: exact neighbours, exact draws, and what is and is not promised.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds, and must reject 2/3 and 3/2 of the ε.
Masses of outputs in the plane are computed without any sampling: along each of 4,000 directions the distances to the
words are compared exactly, the radius by its distribution function; the sum over directions is off by less than 1e-5.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.special import gammainc, logsumexp

from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words import madlib, nearest
from mechanisms.words.madlib import Madlib
from mechanisms.words.madlib_syntax import MadlibSyntax
from mechanisms.words.mahalanobis import Mahalanobis
from tests.support.words import fits, streams, vocabulary

ANGLES = 4000


def tagged(size, width, seed=0, tags=4):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(size, width)).astype(np.float32)
    return Vocabulary(tuple(f"w{i}" for i in range(size)), vectors, tags=rng.integers(0, tags, size).astype(np.int8))


PLANE = replace(tagged(7, 2, seed=4), tags=np.array([0, 0, 1, 1, 0, 1, 2], np.int8))


def draws(mechanism, word, n=40_000):
    return mechanism.sample(np.full(n, word), rng=streams(n, seed=word + 1))


def fits_masses(outputs, masses):
    """`fits`, of masses that are summed over a grid."""
    return fits(outputs, np.log(np.maximum(masses / masses.sum(), 1e-12)))


def first_alike(distances, own, words, k):
    """The published rule, by sorting: (..., V) distances -> (...)."""
    order = np.argsort(distances, axis=-1, kind="stable")[..., :k]
    alike = words.tags[order] == own
    found = np.take_along_axis(order, alike.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(alike.any(axis=-1), found, order[..., 0])


def plane_masses(words, word, epsilon, rule, root=None):
    """Mass of each output under Laplace noise in the plane, times `root`; rule: distances (..., V) -> (...) outputs.

    From x in direction u the squared distance to word j is c_j + 2r·b_j and r²: two words are equally far at one r at
    most. Between two such radii the order of the words, and so the output, is constant.
    """
    points = words.points.astype(np.float64)
    vectors = words.vectors.astype(np.float64)
    angle = 2 * np.pi * (np.arange(ANGLES) + 0.5) / ANGLES
    u = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ (np.eye(2) if root is None else root.T)
    apart = points[word] - vectors
    c, b = (apart**2).sum(axis=1), u @ apart.T
    i, j = np.triu_indices(len(vectors), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -(c[i] - c[j]) / (2 * (b[:, i] - b[:, j]))
    crossing = np.where(np.isfinite(crossing) & (crossing > 0), crossing, 0.0)
    edges = np.sort(np.hstack([np.zeros((ANGLES, 1)), crossing, np.full((ANGLES, 1), 1e4)]), axis=1)
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    output = rule(c + 2 * middle[..., None] * b[:, None])
    mass = np.diff(gammainc(2, epsilon * edges), axis=1) / ANGLES
    return np.bincount(output.reshape(-1), weights=mass.reshape(-1), minlength=len(vectors))


def nearest_rule(distances):
    return distances.argmin(axis=-1)


def test_the_nearest_word_is_exact_whatever_the_company_and_the_memory(monkeypatch):
    words = tagged(300, 7)
    words = replace(words, vectors=np.vstack([words.vectors[:-1], words.vectors[5:6]]))  # 5 and 299 at one place
    points = np.random.default_rng(2).normal(size=(2000, 7)) * np.repeat([0.3, 3.0, 1e6, 1e30], 500)[:, None]
    distances = ((points[:, None] - words.vectors.astype(np.float64)) ** 2).sum(axis=2)
    whole = nearest.nearest(points, words)
    usual = slice(0, 1000)  # beyond, float64 no longer tells the squares apart
    np.testing.assert_array_equal(whole[usual], distances[usual].argmin(axis=1))
    assert 299 not in whole
    np.testing.assert_array_equal([nearest.nearest(p[None], words)[0] for p in points], whole)
    monkeypatch.setattr(nearest, "_SCORES", 1000)
    np.testing.assert_array_equal(nearest.nearest(points, words), whole)


def test_near_ties_that_single_precision_gets_wrong_are_decided_exactly():
    rng = np.random.default_rng(3)
    base = rng.normal(size=(40, 50))
    vectors = (np.repeat(base, 10, axis=0) * (1 + 1e-7 * rng.normal(size=(400, 50)))).astype(np.float32)
    words = Vocabulary(tuple(map(str, range(400))), vectors)
    points = rng.normal(size=(500, 50)) * 2
    exact = ((points[:, None] - vectors.astype(np.float64)) ** 2).sum(axis=2).argmin(axis=1)
    single = points.astype(np.float32) @ vectors.T - (vectors**2).sum(axis=1) / 2
    assert (single.argmax(axis=1) != exact).mean() > 0.2
    np.testing.assert_array_equal(nearest.nearest(points, words), exact)


@pytest.mark.parametrize("k", [1, 5, 10_000])
def test_the_first_of_the_tag_among_k_is_that_of_sorting(k):
    words = replace(tagged(120, 5), tags=np.repeat([0, 1, 4], [100, 19, 1]).astype(np.int8))
    points = np.random.default_rng(5).normal(size=(900, 5)) * 2
    own = np.random.default_rng(6).choice([-1, 0, 1, 3, 4, 12], 900)
    distances = ((points[:, None] - words.vectors.astype(np.float64)) ** 2).sum(axis=2)
    wanted = first_alike(distances, own[:, None], words, k)
    np.testing.assert_array_equal(nearest.nearest_alike(points, own, k, words), wanted)
    with pytest.raises(ValueError, match="no tags"):
        nearest.nearest_alike(points, own, k, replace(words, tags=None))


@pytest.mark.parametrize("epsilon", [2.0])
def test_draws_in_the_plane_fit_the_masses_of_the_cells(epsilon):
    for word in (0, 3, PLANE.unknown):
        outputs = draws(Madlib(epsilon, PLANE), word)
        for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
            masses = plane_masses(PLANE, word, epsilon * factor, nearest_rule)
            assert masses.sum() == pytest.approx(1, abs=1e-9)
            assert fits_masses(outputs, masses) == right, (word, factor)


def paper_masses(words, word, epsilon, k):
    own = -1 if word == words.unknown else words.tags[word]
    return plane_masses(words, word, epsilon, lambda d: first_alike(d, own, words, k))


@pytest.mark.parametrize("k", [1, 3])
def test_guided_draws_in_the_plane_fit_the_published_rule(k):
    for word in (0, 3, 6, PLANE.unknown):
        outputs = draws(MadlibSyntax(2.0, PLANE, k=k, mode="paper"), word)
        assert fits_masses(outputs, paper_masses(PLANE, word, 2.0, k)), word
        if k < 7 and word != 6:  # alone with its tag in a pool of everything, a word always stays
            assert not fits_masses(outputs, paper_masses(PLANE, word, 2.0 * 2 / 3, k))
            assert not fits_masses(outputs, paper_masses(PLANE, word, 2.0 * 3 / 2, k))
    if k == 1:
        np.testing.assert_array_equal(
            draws(MadlibSyntax(2.0, PLANE, k=1, mode="paper"), 0), draws(Madlib(2.0, PLANE), 0)
        )


def formula(mechanism, x):
    """Log probabilities from the definition, in another way than the mechanism's: (n, V)."""
    words = mechanism.vocabulary
    points = words.points.astype(np.float64)
    apart = np.sqrt(((points[x][:, None] - words.vectors.astype(np.float64)) ** 2).sum(axis=2))
    tags = np.append(words.tags, 100)
    score = apart + mechanism.penalty * (tags[x][:, None] != words.tags)
    weights = -mechanism.epsilon * score / 2
    return weights - logsumexp(weights, axis=1, keepdims=True)


@pytest.mark.parametrize("penalty", [0.5])
def test_repaired_draws_fit_their_probabilities(penalty):
    words = tagged(60, 8, seed=9)
    for word in (0, 17, words.unknown):
        outputs = draws(MadlibSyntax(2.0, words, penalty=penalty), word, 60_000)
        for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
            mechanism = MadlibSyntax(2.0 * factor, words, penalty=penalty)
            assert fits(outputs, formula(mechanism, np.array([word]))[0]) == right, (word, factor)
        if word != words.unknown:  # the unknown word's penalty is the same for every output
            other = MadlibSyntax(2.0, words, penalty=penalty * 3 / 2)
            assert not fits(outputs, formula(other, np.array([word]))[0])


def nearly_one_place(count=60, far=61, apart=8e-4):
    """A word, `count` others of another tag nearly at its place, and `far` of a third tag on the other side."""
    points = np.array([[1, 0]] + [[1 + apart, 0]] * count + [[-1, 0]] * far, np.float32)
    tags = np.array([0] + [1] * count + [2] * far, np.int8)
    return Vocabulary(tuple(f"w{i}" for i in range(len(points))), points, tags=tags)


@pytest.mark.parametrize(("epsilon", "penalty"), [(2.0, 1.0), (1000.0, 0.004)])
def test_nearly_equal_vectors_of_two_tags_pay_the_penalty_once(epsilon, penalty):
    words = nearly_one_place()
    mechanism, everything = MadlibSyntax(epsilon, words, penalty=penalty), np.arange(len(words) + 1)
    table = mechanism.log_probs(everything)
    np.testing.assert_allclose(table, formula(mechanism, everything), rtol=1e-9, atol=1e-9)
    bound = epsilon * mechanism.distances(everything, everything) + mechanism.guarantee.numeric_epsilon
    assert ((table[:, None] - table[None]).max(axis=2) <= bound + 1e-9).all()
    for word in (0, 1, words.unknown):
        assert fits(draws(mechanism, word, 60_000), formula(mechanism, np.array([word]))[0]), word


WIDE = tagged(300, 20, seed=11)
ALL = [Madlib(2.0, WIDE), MadlibSyntax(2.0, WIDE, k=5, mode="paper"), MadlibSyntax(1.0, WIDE, penalty=2.0)]


@pytest.mark.parametrize("mechanism", ALL, ids=["madlib", "paper", "repaired"])
def test_draws_are_the_same_bits_in_any_memory(mechanism, monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 301, (80, 9))
    x[np.arange(9)[None] >= rng.integers(0, 10, 80)[:, None]] = NOTHING
    whole = mechanism.sample(x, rng=streams(80))
    assert whole.dtype == np.int64 and ((whole == NOTHING) == (x == NOTHING)).all() and whole.max() < 300
    assert (whole != x).mean() > 0.2
    column = mechanism.sample(x[:, 0], rng=streams(80))
    np.testing.assert_array_equal(column, whole[:, 0])
    monkeypatch.setattr(nearest, "_SCORES", 2000)
    for tokens in (1, 100, 500):
        monkeypatch.setattr(madlib, "_TOKENS", tokens)
        np.testing.assert_array_equal(mechanism.sample(x, rng=streams(80)), whole)


OVAL = replace(PLANE, vectors=PLANE.vectors * np.float32([1.5, 0.4]))


def root_of(words, lam):
    """The symmetric root of λ·Σ + (1 - λ)·I, by NumPy's covariance; the mechanism takes another."""
    covariance = np.cov(words.vectors.astype(np.float64), rowvar=False)
    width = len(covariance)
    return np.real(sqrtm(lam * covariance * width / np.trace(covariance) + (1 - lam) * np.eye(width)))


@pytest.mark.parametrize("word", [1, OVAL.unknown])
def test_mahalanobis_draws_fit_the_masses_of_the_cells(word):
    outputs = draws(Mahalanobis(2.0, OVAL, 0.9), word)
    for factor, lam, right in ((1, 0.9, True), (2 / 3, 0.9, False), (3 / 2, 0.9, False), (1, 0.5, False)):
        masses = plane_masses(OVAL, word, 2.0 * factor, nearest_rule, root_of(OVAL, lam))
        assert fits_masses(outputs, masses) == right, (factor, lam)


@pytest.mark.parametrize("lam", [0.0, 0.99])
@pytest.mark.parametrize("words", [OVAL, vocabulary()], ids=["plane", "16 dimensions"])
def test_distances_are_the_mahalanobis_ones_from_above(lam, words):
    mechanism, root = Mahalanobis(2.0, words, lam), root_of(words, lam)
    whitened = words.points.astype(np.float64) @ np.linalg.inv(root)
    exact, every = np.linalg.norm(whitened[:, None] - whitened[None], axis=2), np.arange(len(whitened))
    found = mechanism.distances(every, every)
    assert np.all(found >= exact * (1 - 1e-12)) and np.all(found <= exact + 1e-6 * exact.max())
    assert exact.max() <= mechanism.guarantee.diameter <= exact.max() * (1 + 1e-6)
    assert mechanism.guarantee.numeric_epsilon < 1e-9
    np.testing.assert_allclose(mechanism.root @ mechanism.root.T, root @ root.T, rtol=0, atol=1e-9)
