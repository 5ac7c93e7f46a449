"""TEM over 200 words: its law by the published two steps, its guarantee on all pairs, its draws.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers
whose privacy parameter is 2/3 or 3/2 of the right one.
"""

import math

import numpy as np
import pytest

from mechanisms.words.distances import diameter
from mechanisms.words.santext import SanText
from mechanisms.words.tem import Tem
from tests.support.words import ALL, APART, WORDS, fits, largest_ratio, streams, sums_to_one

CASES = [(3.0, 2.0), (3.0, None), (0.5, 3.0), (1000.0, 1.0), (2.0, 0.0)]


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


@pytest.mark.parametrize(("epsilon", "gamma"), CASES)
def test_all_pairs_keep_the_truncated_metric_guarantee(epsilon, gamma):
    mechanism = Tem(epsilon, WORDS, gamma)
    cut = np.minimum(APART, mechanism.radius)
    np.testing.assert_allclose(mechanism.distances(ALL, ALL), cut, rtol=0, atol=1e-9)
    ratio = largest_ratio(mechanism.log_probs(ALL))
    assert np.all(ratio <= epsilon * cut + mechanism.guarantee.numeric_epsilon + 1e-9)
    assert mechanism.guarantee.exposes == () and mechanism.guarantee.inputs == "all"
    assert mechanism.guarantee.diameter == min(diameter(WORDS), mechanism.radius)
    assert ratio.max() <= mechanism.guarantee.worst_case() + 1e-9
    assert mechanism.privacy_loss(diameter(WORDS)).epsilon(0.0) == mechanism.privacy_loss().epsilon(0.0)
    if gamma != 0:  # and it is no smaller guarantee's
        assert ratio.max() > 0.5 * mechanism.guarantee.worst_case()


def test_the_weight_that_a_program_in_use_gives_to_the_rest_breaks_the_theorem():
    wrong = largest_ratio(published(0.5, 3.0, lambda words, near: math.log(words / near)))
    assert (wrong - 0.5 * APART).max() > 2


@pytest.mark.parametrize(("epsilon", "beta"), [(3.0, 0.001), (0.7, 0.2), (20.0, 1e-9)])
def test_the_chosen_radius_is_left_with_probability_beta_at_most(epsilon, beta):
    mechanism = Tem(epsilon, WORDS, beta=beta)
    beyond = np.where(APART[:200, :200] > mechanism.radius, np.exp(mechanism.log_probs(np.arange(200))), 0).sum(axis=1)
    assert beyond.max() <= beta
    assert mechanism.guarantee.worst_case() <= 2 * math.log((1 - beta) * 199 / beta) + 1e-6
    smaller = Tem(epsilon, WORDS, gamma=mechanism.radius / 3)
    beyond = np.where(APART[:200, :200] > smaller.radius, np.exp(smaller.log_probs(np.arange(200))), 0).sum(axis=1)
    assert beyond.max() > beta


@pytest.mark.parametrize(("epsilon", "gamma", "x"), [(3.0, 2.0, 5), (2.0, 4.0, 200), (8.0, None, 100)])
def test_draws_fit_their_probabilities(epsilon, gamma, x):
    n = 40_000
    draws = Tem(epsilon, WORDS, gamma).sample(np.full(n, x), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert fits(draws, Tem(epsilon * factor, WORDS, gamma).log_probs(np.array([x]))[0]) == right


@pytest.mark.parametrize(("epsilon", "gamma"), [(0.5, 3.0), (3.0, 4.0), (40.0, 5.0)])
def test_proposals_of_the_cut_distances_cover_the_weights(epsilon, gamma):
    """The two facts that make the fast path exact (see test_words), on every pair of words."""
    sampler = Tem(epsilon, WORDS, gamma)._draws
    for rows in np.split(np.arange(201), [128]):
        held, places = sampler._proposals(rows)
        offsets = held.offsets[places, None]
        weights = np.exp(-epsilon / 2 * (sampler.geometry.distances(rows) - offsets)) * (1 - 2.0**-20)
        proposed = held.weights[places, :200].astype(np.float64)
        assert np.all((weights <= proposed) | (weights < 1e-37))
        low = (proposed <= sampler._far) & (proposed > 1.2e-38)
        assert np.all(weights[low] >= (1 - 2.0**-6) * proposed[low])


def test_at_its_ends_it_is_uniform_and_santext():
    np.testing.assert_allclose(Tem(3.0, WORDS, 0.0).log_probs(ALL), -math.log(200), rtol=0, atol=1e-12)
    whole = Tem(3.0, WORDS, gamma=diameter(WORDS))
    np.testing.assert_allclose(whole.log_probs(ALL), SanText(3.0, WORDS).log_probs(ALL), rtol=0, atol=1e-12)
    assert whole.guarantee.worst_case() == pytest.approx(SanText(3.0, WORDS).guarantee.worst_case())
