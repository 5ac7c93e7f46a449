"""Exhaustive contracts of the finite word mechanisms over 200 words: SanText, CusText and their kin.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers
whose privacy parameter is 2/3 or 3/2 of the right one.
"""

import math
import pickle

import mpmath
import numpy as np
import pytest

from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.custext import CusText, CusTextImportance, CusTextPlus, mapping
from mechanisms.words.distances import Geometry, diameter, largest_distance
from mechanisms.words.exponential import exponential
from mechanisms.words.santext import SanText, SanTextPlus, Tem
from mechanisms.words.tables import RandomSubstitution
from mechanisms.words.text import TextMechanism
from tests.support.words import (
    ALL,
    APART,
    WORDS,
    fits,
    largest_ratio,
    streams,
    sums_to_one,
    vocabulary,
)


@pytest.mark.parametrize("epsilon", [3.0])
def test_santext_probabilities_by_another_derivation(epsilon):
    """The quotient of Yue et al., equation 1, in 30 digits, one sum at a time."""
    table = SanText(epsilon, WORDS).log_probs(np.array([0, 17, 200]))
    with mpmath.workdps(30):
        for row, x in zip(table, (0, 17, 200), strict=True):
            vectors = [[mpmath.mpf(float(v)) for v in point] for point in WORDS.points]
            apart = [mpmath.sqrt(sum((a - b) ** 2 for a, b in zip(vectors[x], y, strict=True))) for y in vectors]
            weights = [mpmath.exp(-mpmath.mpf(epsilon) * d / 2) for d in apart[:-1]]
            exact = [float(mpmath.log(w / sum(weights))) for w in weights]
            np.testing.assert_allclose(row, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("epsilon", "x"), [(2.0, 5), (10.0, 200), (0.0, 3), (1000.0, 0)])
def test_santext_draws_fit_their_probabilities(epsilon, x):
    """At ε = 0 uniform; at 1000 the word itself, or the other one at its place."""
    draws = SanText(epsilon, WORDS).sample(np.full(50_000, x), rng=streams(50_000))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        if factor == 1 or 0 < epsilon < 1000:
            assert fits(draws, SanText(epsilon * factor, WORDS).log_probs(np.array([x]))[0]) == right
    assert epsilon < 1000 or set(draws) == {0, 199}


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_distances_are_within_their_stated_error(shift):
    words = vocabulary(300, 40, seed=2, shift=shift)
    geometry = Geometry(words.points, np.arange(0, 300, 2))
    exact = words.points.astype(np.longdouble)
    exact = np.sqrt(((exact[:, None] - exact[None, :300:2]) ** 2).sum(axis=2))
    every = np.arange(301)
    for found in (geometry.distances(every), np.array([geometry.row(x) for x in every])):
        assert np.abs(found - exact).max() <= geometry.error < 1e-9
        assert np.all(found[every[:300:2], np.arange(150)] == 0)


def test_sensitive_words_are_the_rarest_and_ties_go_to_the_later_number():
    words = Vocabulary(tuple("abcde"), np.eye(5, dtype=np.float32), np.array([3, 1, 3, 9, 3]))
    for w, expected in ((0.2, [1]), (0.4, [1, 4]), (0.6, [1, 2, 4]), (0.8, [0, 1, 2, 4]), (0.01, [1])):
        chosen = np.flatnonzero(SanTextPlus(1.0, words, w=w).sensitive)
        np.testing.assert_array_equal(chosen, [*expected, 5])
    assert SanTextPlus(1.0, words, w=1.0).guarantee.exposes == ()
    token = SanTextPlus(1.0, words, w=0.4, p=0.3)
    assert token.guarantee.offset == pytest.approx(math.log(1 / 0.3))
    assert TextMechanism(token, tokens=3, length="kept").guarantee.offset == pytest.approx(3 * math.log(1 / 0.3))
    with pytest.raises(ValueError, match="public corpus"):
        SanTextPlus(1.0, vocabulary(counts=False))
    for wrong in ({"w": 0.0}, {"p": 0.0}, {"w": 1.5}, {"p": math.nan}):
        with pytest.raises(ValueError, match=r"santext\+"):
            SanTextPlus(1.0, words, **wrong)


@pytest.mark.parametrize("x", [3, 150, 200])
def test_santext_plus_draws_fit_their_probabilities(x):
    n = 100_000
    draws = SanTextPlus(3.0, WORDS, w=0.5).sample(np.full(n, x), rng=streams(n))
    frequent = x == 3
    for epsilon, p, right in (
        (3.0, 0.3, True),
        (2.0, 0.3, False),
        (4.5, 0.3, False),
        (3.0, 0.2, not frequent),
        (3.0, 0.45, not frequent),
    ):
        assert fits(draws, SanTextPlus(epsilon, WORDS, w=0.5, p=p).log_probs(np.array([x]))[0]) == right


def greedy(words, k, similarity):
    """Chen et al., Algorithm 1, word by word: the group of each word as a set, and of each its scores."""
    vectors = [[float(v) for v in row] for row in words.points]

    def near(a, b):
        if similarity == "euclidean":
            return -math.dist(vectors[a], vectors[b])
        dot = sum(p * q for p, q in zip(vectors[a], vectors[b], strict=True))
        return dot / math.hypot(*vectors[a]) / math.hypot(*vectors[b])

    left, groups = list(range(len(words))), []
    while left:
        x = left[0]
        others = sorted(left[1:], key=lambda y: (-near(x, y), y))
        groups.append({x, *others[: k - 1]})
        left = [y for y in left if y not in groups[-1]]
    return groups, near


@pytest.mark.parametrize(("similarity", "k"), [("euclidean", 7), ("cosine", 20), ("euclidean", 250)])
def test_the_mapping_and_its_scores_by_another_derivation(k, similarity):
    groups, near = greedy(WORDS, k, similarity)
    made = mapping(WORDS, k, similarity)
    assert [set(row[row != NOTHING].tolist()) for row in made.members] == groups
    epsilon = 2.0
    table = CusText(epsilon, WORDS, k, similarity).log_probs(ALL[:-1])
    for x in (0, 42, 199, int(made.members[-1, 0])):
        group = sorted(next(g for g in groups if x in g))
        values = [near(x, y) for y in group]
        span = max(values) - min(values)
        weights = [math.exp(epsilon / 2 * ((v - min(values)) / span if span else 1)) for v in values]
        expected = np.full(200, -np.inf)
        expected[group] = np.log(np.array(weights) / sum(weights))
        np.testing.assert_allclose(np.exp(table[x]), np.exp(expected), rtol=0, atol=1e-6)  # arccos-like loss at 1


def test_the_unknown_word_has_the_group_whose_centre_is_nearest():
    made = mapping(WORDS, 20, "euclidean")
    centres = np.stack([WORDS.vectors[row].mean(axis=0) for row in made.members])
    assert made.group[-1] == np.argmin(np.linalg.norm(centres - WORDS.points[-1], axis=1))


@pytest.mark.parametrize("kind", [CusText, CusTextPlus])
@pytest.mark.parametrize("x", [60, 200])
def test_custext_draws_fit_their_probabilities(kind, x):
    n = 50_000
    draws = kind(3.0, WORDS, 20).sample(np.full(n, x), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert fits(draws, kind(3.0 * factor, WORDS, 20).log_probs(np.array([x]))[0]) == right
    plus, stop = CusTextPlus(2.0, WORDS, 20), np.flatnonzero(WORDS.kinds["stop_words"])
    np.testing.assert_array_equal(plus.sample(stop, rng=streams(len(stop))), stop)
    np.testing.assert_array_equal(np.exp(plus.log_probs(stop)), np.eye(201)[stop, :200])
    assert plus.guarantee.exposes == ("stop-words", "group")


LARGE = vocabulary(5000, 24, seed=4)


def read(mechanism, shape, seed=0):
    return {name: np.random.default_rng(seed).random(shape) for name in mechanism.reads}


@pytest.mark.parametrize(
    "mechanism", [SanTextPlus(3.0, LARGE), CusTextImportance(3.0, 9.0, LARGE, strategy="conservative", k=7)]
)
def test_a_text_alone_is_drawn_as_in_a_cohort_of_thousands(mechanism):
    """Over several blocks of words and of columns, bit for bit."""
    n = 2000
    x = np.random.default_rng(1).integers(0, 5001, (n, 6))
    x[:, 4:] = np.where(np.arange(n)[:, None] % 3 > 0, NOTHING, x[:, 4:])
    more = read(mechanism, x.shape)
    whole = mechanism.sample(x, rng=streams(n), **more)
    np.testing.assert_array_equal(whole == NOTHING, x == NOTHING)
    assert whole.max() < 5000
    exponential.cache_clear()
    for at in (0, 1, 777, 1999):
        alone = mechanism.sample(
            x[at : at + 1], rng=streams(1, offset=at), **{k: v[at : at + 1] for k, v in more.items()}
        )
        np.testing.assert_array_equal(alone[0], whole[at])
    column = mechanism.sample(x[:, 0], rng=streams(n), **{k: v[:, 0] for k, v in more.items()})
    assert column.shape == (n,)
    assert len(pickle.dumps(mechanism)) < 2 * len(pickle.dumps(LARGE))  # no table travels with a mechanism


def test_random_substitution_is_uniform_and_tells_nothing():
    n = 50_000
    mechanism = RandomSubstitution(WORDS)
    assert fits(mechanism.sample(np.arange(n) % 201, rng=streams(n)), np.full(200, -math.log(200)))
    assert mechanism.guarantee.worst_case() == 0 == largest_ratio(mechanism.log_probs(ALL)).max()


def spread(kind, n=1500, dim=12):
    rng = np.random.default_rng(6)
    points = rng.normal(size=(n, dim))
    if kind == "sphere":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    elif kind == "outlier":
        points[5] *= 100
    elif kind == "far from zero":
        points = points * 0.01 + 50
    elif kind == "one place":
        points[:] = points[0]
    return points.astype(np.float32)


@pytest.mark.parametrize("kind", ["cloud", "sphere", "far from zero", "one place"])
def test_the_diameter_is_the_largest_of_all_distances_from_above(kind):
    points = spread(kind)
    exact = points.astype(np.longdouble)
    largest = max(float(np.sqrt(((exact - row) ** 2).sum(axis=1)).max()) for row in exact)
    found = largest_distance(points)
    assert largest <= found <= largest * (1 + 1e-9) + 1e-6
    words = Vocabulary(tuple(map(str, range(len(points)))), points)
    assert diameter(words) >= found * (1 - 1e-9)


def test_importance_draws_fit_their_probabilities():
    n = 30_000
    x, weights = np.tile([60, 61, 200], (n, 1)), np.tile([0.1, 0.7, 0.2], (n, 1))
    y = CusTextImportance(1.5, 6.0, WORDS, share=0.3).sample(x, rng=streams(n), importance=weights)
    for column, epsilon in enumerate((6.0, 1.5, 6.0)):
        for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
            expected = CusText(epsilon * factor, WORDS).log_probs(x[0, [column]])[0]
            assert fits(y[:, column], expected) == right


def test_which_tokens_are_chosen():
    x = np.array([[1, 2, 3, 4, NOTHING], [5, 5, 6, NOTHING, NOTHING], [NOTHING] * 5])
    weights = np.array([[0.1, 0.9, 0.9, 0.2, np.nan], [0.0, 3.0, 1.0, 9.0, 9.0], [0] * 5], dtype=float)

    def chosen(**more):
        return CusTextImportance(1.0, 2.0, WORDS, **more).chosen(x, weights).astype(int).tolist()

    assert chosen(share=0.25) == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0] * 5]  # ties: the earlier
    assert chosen(share=0.3, which="bottom") == [[1, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0] * 5]
    assert chosen(share=0.25, strategy="conservative") == [[0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
    assert chosen(share=0.0) == [[0] * 5] * 3
    assert chosen(share=1.0) == (x != NOTHING).astype(int).tolist()
    mechanism = CusTextImportance(1.0, 2.0, WORDS)
    for wrong in (weights[:, :4], np.full((3, 5), np.nan), np.full((3, 5), "a")):
        with pytest.raises(ValueError, match="importance"):
            mechanism.sample(x, rng=streams(3), importance=wrong)
    with pytest.raises(ValueError, match="strategy must be aggressive or conservative, got 'bold'"):
        CusTextImportance(1.0, 2.0, WORDS, strategy="bold")


CASES = [(3.0, None), (0.5, 3.0), (1000.0, 1.0)]


def published(epsilon, gamma, bottom):
    """Log probabilities by Algorithm 1: of the words within γ and of ⊥ first, then of the words beyond, uniformly.

    bottom: the logarithm in the score of ⊥, of (words, words within γ).
    """
    apart, table = APART[:, :200], np.full((201, 200), -np.inf)
    for x in range(201):
        near = apart[x] <= gamma
        rest = int((~near).sum())
        scores = np.append(-apart[x][near], -gamma + 2 * bottom(200, 200 - rest) / epsilon if rest else -np.inf)
        first = np.exp((scores - scores.max()) * epsilon / 2)
        with np.errstate(divide="ignore"):
            first = np.log(first / first.sum())
        table[x, near] = first[:-1]
        if rest:
            table[x, ~near] = first[-1] - math.log(rest)
    return table


@pytest.mark.parametrize(("epsilon", "gamma"), CASES)
def test_the_law_is_that_of_the_published_two_steps(epsilon, gamma):
    mechanism = Tem(epsilon, WORDS, gamma)
    table = mechanism.log_probs(ALL)
    expected = published(epsilon, mechanism.radius, lambda words, near: math.log(words - near))
    assert sums_to_one(table)
    np.testing.assert_allclose(table, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("epsilon", "beta"), [(0.7, 0.2), (20.0, 1e-9)])
def test_the_chosen_radius_is_left_with_probability_beta_at_most(epsilon, beta):
    mechanism = Tem(epsilon, WORDS, beta=beta)
    beyond = np.where(APART[:200, :200] > mechanism.radius, np.exp(mechanism.log_probs(np.arange(200))), 0).sum(axis=1)
    assert beyond.max() <= beta
    assert mechanism.guarantee.worst_case() <= 2 * math.log((1 - beta) * 199 / beta) + 1e-6
    smaller = Tem(epsilon, WORDS, gamma=mechanism.radius / 3)
    beyond = np.where(APART[:200, :200] > smaller.radius, np.exp(smaller.log_probs(np.arange(200))), 0).sum(axis=1)
    assert beyond.max() > beta


@pytest.mark.parametrize(("epsilon", "gamma", "x"), [(2.0, 4.0, 200), (8.0, None, 100)])
def test_draws_fit_their_probabilities(epsilon, gamma, x):
    n = 40_000
    draws = Tem(epsilon, WORDS, gamma).sample(np.full(n, x), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert fits(draws, Tem(epsilon * factor, WORDS, gamma).log_probs(np.array([x]))[0]) == right
