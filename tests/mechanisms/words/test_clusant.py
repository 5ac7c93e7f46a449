"""CluSanT over 200 words: its clusters, its law in two steps, its guarantee on all pairs, and what it repairs.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers
whose privacy parameter is 2/3 or 3/2 of the right one.
"""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from mechanisms.vocabulary import NOTHING
from mechanisms.words.clusant import CluSanT
from mechanisms.words.santext import SanText
from tests.support.words import ALL, APART, POINTS, WORDS, fits, largest_ratio, streams, sums_to_one

CASES = [(0.5, 7, 1.0), (3.0, 20, 0.5), (40.0, 3, 2.0), (2.0, 150, 1.0), (2.0, 1, 1.0), (0.0, 7, 1.0)]


def clusters_of(mechanism):
    return [row[row != NOTHING] for row in mechanism.members]


def width(group):
    return APART[np.ix_(group, group)].max()


def by_hand(mechanism):
    """Log probabilities from the definition."""
    table, groups = np.full((201, 200), -np.inf), clusters_of(mechanism)
    centres = np.array([POINTS[g].mean(axis=0) for g in groups])
    own = POINTS.copy()  # the unknown word's stays
    for group, centre in zip(groups, centres, strict=True):
        own[group] = centre
    first = -mechanism.epsilon * mechanism.scale / 2 * np.linalg.norm(centres - own[:, None], axis=2)
    first -= logsumexp(first, axis=1, keepdims=True)
    for i, group in enumerate(groups):
        weights = -mechanism.epsilon / 2 * APART[:, group] / (width(group) or np.inf)
        table[:, group] = first[:, [i]] + weights - logsumexp(weights, axis=1, keepdims=True)
    return table


@pytest.mark.parametrize("clusters", [1, 3, 7, 200])
def test_clusters_are_of_equal_size_and_each_is_what_was_nearest_to_one_of_its_words(clusters):
    groups = clusters_of(CluSanT(1.0, WORDS, clusters))
    np.testing.assert_array_equal(np.sort(np.concatenate(groups)), np.arange(200))
    assert {len(g) for g in groups} <= {200 // clusters, 200 // clusters + 1}
    left = np.arange(200)
    for group in groups:
        others = np.setdiff1d(left, group)
        reach = APART[np.ix_(group, group)].max(axis=1)
        beyond = APART[np.ix_(group, others)].min(axis=1, initial=np.inf)
        assert (reach <= beyond + 1e-9).any()
        left = others
    other = clusters_of(CluSanT(1.0, WORDS, clusters, seed=1))
    assert clusters in (1, 200) or any(not np.array_equal(a, b) for a, b in zip(groups, other, strict=True))


@pytest.mark.parametrize(("epsilon", "clusters", "scale"), CASES)
def test_the_law_and_the_guarantee_on_all_pairs(epsilon, clusters, scale):
    mechanism = CluSanT(epsilon, WORDS, clusters, scale)
    table = mechanism.log_probs(ALL)
    assert sums_to_one(table)
    np.testing.assert_allclose(table, by_hand(mechanism), rtol=0, atol=1e-9)
    apart, ratio = mechanism.distances(ALL, ALL), largest_ratio(table)
    assert apart.max() <= mechanism.guarantee.diameter <= apart.max() + 1
    assert np.all(ratio <= epsilon * apart + mechanism.guarantee.numeric_epsilon + 1e-9)
    assert mechanism.guarantee.exposes == () and mechanism.guarantee.numeric_epsilon < 1e-9
    assert mechanism.privacy_loss().epsilon(0.0) == pytest.approx(mechanism.guarantee.worst_case())
    if epsilon:  # and of no smaller ε
        assert (ratio / np.maximum(epsilon * apart, 1e-9)).max() > 0.4


@pytest.mark.parametrize("clusters", [1, 2, 40])
def test_the_second_step_costs_epsilon_at_most_and_more_where_widths_are_halved(clusters):
    """The first step says nothing at K = 0."""
    mechanism = CluSanT(5.0, WORDS, clusters, scale=0.0)
    assert largest_ratio(mechanism.log_probs(ALL)).max() <= 5.0 + 1e-9
    assert mechanism.guarantee.worst_case() == pytest.approx(5.0)
    assert largest_ratio(by_hand(CluSanT(10.0, WORDS, clusters, scale=0.0))).max() > 5.0


def test_one_cluster_is_santext_over_the_diameter():
    mechanism = CluSanT(2.0, WORDS, 1)
    same = SanText(2.0 / width(np.arange(200)), WORDS)
    np.testing.assert_allclose(mechanism.log_probs(ALL), same.log_probs(ALL), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("epsilon", "clusters", "x"), [(3.0, 7, 5), (4.0, 30, 200), (5.0, 12, 100)])
def test_draws_fit_their_probabilities(epsilon, clusters, x):
    n = 30_000
    draws = CluSanT(epsilon, WORDS, clusters).sample(np.full(n, x), rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert fits(draws, CluSanT(epsilon * factor, WORDS, clusters).log_probs(np.array([x]))[0]) == right
    assert not fits(draws, CluSanT(epsilon, WORDS, clusters, scale=1.5).log_probs(np.array([x]))[0])


def test_chunks_do_not_matter(monkeypatch):
    x = np.random.default_rng(1).integers(-1, 201, (50, 9))
    whole = CluSanT(3.0, WORDS, 7).sample(x, rng=streams(50))
    monkeypatch.setattr("mechanisms.words.clusant._CHUNK", 10_000)
    np.testing.assert_array_equal(CluSanT(3.0, WORDS, 7).sample(x, rng=streams(50)), whole)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CluSanT(-1.0, WORDS), "clusant: epsilon must be from 0"),
        (lambda: CluSanT(1.0, WORDS, 0), "clusant: clusters must be from 1"),
        (lambda: CluSanT(1.0, WORDS, 201), "clusant: 201 clusters of 200 words"),
        (lambda: CluSanT(1.0, WORDS, 7, math.nan), "clusant: scale"),
        (lambda: CluSanT(1.0, WORDS, 7).privacy_loss(1e9), "clusant: .*distance"),
    ],
)
def test_mistakes_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
