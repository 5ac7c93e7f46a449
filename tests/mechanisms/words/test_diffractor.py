"""1-Diffractor over 200 words: its lists by another program, its law by adding up noise, its guarantee on all pairs.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers
whose privacy parameter is 2/3 or 3/2 of the right one.
"""

import itertools
import math

import numpy as np
import pytest

from mechanisms.vocabulary import Vocabulary
from mechanisms.words import nearest
from mechanisms.words.diffractor import Diffractor, _geometric
from mechanisms.words.word_lists import word_lists
from tests.support.words import ALL, WORDS, fits, largest_ratio, streams, sums_to_one, vocabulary


@pytest.mark.parametrize(("size", "width"), [(300, 7), (60, 5), (700, 16), (2, 3)])
def test_each_word_is_followed_by_the_nearest_that_is_left(size, width, monkeypatch):
    words = vocabulary(size, width)
    squares = ((words.vectors[:, None].astype(np.float64) - words.vectors[None]) ** 2).sum(axis=2)
    order, place = word_lists(words, 2, 5)
    for row, where in zip(order, place, strict=True):
        left = np.ones(size, bool)
        for word, then in itertools.pairwise(row):
            left[word] = False
            assert then == np.where(left, squares[word], np.inf).argmin()
        np.testing.assert_array_equal(where[row], np.arange(size))
        assert where[-1] == where[((words.vectors - words.points[-1]) ** 2).sum(axis=1).argmin()]
    monkeypatch.setattr(nearest, "_SCORES", 5000)
    again = Vocabulary(words.words, words.vectors.copy(), words.counts)  # equal, and remembered by nobody
    word_lists.cache_clear()
    np.testing.assert_array_equal(word_lists(again, 2, 5)[0], order)


def test_neighbours_are_those_of_sorting_and_only_sure_ones():
    rng = np.random.default_rng(3)  # in tens that float32 cannot tell apart
    vectors = np.repeat(rng.normal(size=(40, 50)), 10, axis=0) * (1 + 1e-7 * rng.normal(size=(400, 50)))
    words = Vocabulary(tuple(map(str, range(400))), vectors.astype(np.float32))
    squares = ((words.vectors[:, None].astype(np.float64) - words.vectors[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    order = np.argsort(squares, axis=1, kind="stable")
    found = nearest.neighbours(words, 25)
    given = found != np.arange(400)[:, None]
    assert np.all(found[given] == order[:, :25][given]) and 9 <= given.sum(axis=1).min() < 25
    assert np.all(given[:, :-1] >= given[:, 1:])


def by_adding(mechanism):
    """Probabilities from the definition: the noise's masses, one by one, put where they fall."""
    size, alpha = len(mechanism.vocabulary), math.exp(-mechanism.epsilon)
    table = np.zeros((size + 1, size))
    noise = np.arange(-2 * size, 2 * size + 1)
    masses = (1 - alpha) / (1 + alpha) * alpha ** np.abs(noise)
    masses[[0, -1]] += (1 - masses.sum()) / 2
    for order, place in zip(mechanism.order, mechanism.place, strict=True):
        for x in range(size + 1):
            np.add.at(table[x], order[np.clip(place[x] + noise, 0, size - 1)], masses / mechanism.lists)
    return table


@pytest.mark.parametrize(("epsilon", "lists"), [(0.05, 1), (0.5, 3), (3.0, 2)])
def test_the_law_by_another_derivation(epsilon, lists):
    mechanism = Diffractor(epsilon, WORDS, lists)
    table = mechanism.log_probs(ALL)
    assert sums_to_one(table)
    np.testing.assert_allclose(np.exp(table), by_adding(mechanism), rtol=0, atol=1e-12)
    y = ALL % 200
    np.testing.assert_allclose(mechanism.log_prob(y, ALL), table[ALL, y], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("epsilon", "lists"), [(0.05, 1), (0.5, 3), (3.0, 2), (1000.0, 3)])
def test_all_pairs_keep_the_guarantee_of_places(epsilon, lists):
    mechanism = Diffractor(epsilon, WORDS, lists)
    ratio, apart = largest_ratio(mechanism.log_probs(ALL)), mechanism.distances(ALL, ALL)
    assert np.all(ratio <= epsilon * apart + 1e-9)
    assert apart.max() == mechanism.guarantee.diameter == 199
    assert apart[3, 8] == max(abs(int(place[3]) - int(place[8])) for place in mechanism.place)
    assert ratio.max() == pytest.approx(mechanism.guarantee.worst_case() if lists == 1 else ratio.max())
    assert mechanism.guarantee.exposes == () and mechanism.privacy_loss(2.0).epsilon(0.0) == pytest.approx(2 * epsilon)


@pytest.mark.parametrize(("epsilon", "lists", "x"), [(0.05, 1, 5), (0.5, 3, 200), (2.0, 2, 100), (0.3, 1, "first")])
def test_draws_fit_the_law(epsilon, lists, x):
    n = 40_000
    mechanism = Diffractor(epsilon, WORDS, lists)
    word = int(mechanism.order[0, 0]) if x == "first" else x
    draws = mechanism.sample(np.full(n, word), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert fits(draws, Diffractor(epsilon * factor, WORDS, lists).log_probs(np.array([word]))[0]) == right
    if lists == 3:  # and one list is not several
        assert not fits(draws, Diffractor(epsilon, WORDS, 1).log_probs(np.array([word]))[0])


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 1.0, 30.0, 1000.0])
def test_the_noise_is_the_inverse_of_its_distribution(epsilon):
    """Between the ends, to the last bits: at a share of 1e-9 beside an end it falls on its right side."""
    alpha, k = math.exp(-epsilon), np.arange(-30, 30)
    with np.errstate(divide="ignore"):
        whole = np.where(k < 0, np.exp(epsilon * k) / (1 + alpha), 1 - np.exp(-epsilon * (k + 1)) / (1 + alpha))
    inside = (whole > 1e-6) & (whole < 1 - 1e-6)
    for share, step in ((1 - 1e-9, 0), (1 + 1e-9, 1)):
        np.testing.assert_array_equal(_geometric(whole[inside] * share, epsilon), k[inside] + step)
    ends = _geometric(np.array([2.0**-53, 1 - 2.0**-53]), epsilon)
    assert ends[0] <= 0 <= ends[1] and np.isfinite(ends).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Diffractor(0.0, WORDS), "diffractor: epsilon must be from 1e-06"),
        (lambda: Diffractor(1.0, WORDS, lists=0), "diffractor: lists must be from 1 to 64"),
        (lambda: Diffractor(1.0, WORDS, seed=-1), "diffractor: seed must be from 0"),
        (lambda: Diffractor(1.0, WORDS).privacy_loss(200.0), "diffractor: .*distance"),
        (lambda: Diffractor(1.0, WORDS).log_probs(np.array([-1])), "diffractor: .*NOTHING"),
    ],
)
def test_mistakes_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
