"""Labels: draws, tables and the best mechanism by a second way.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers whose
privacy parameter is 2/3 or 3/2 of the right one.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog

from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from tests.support.mechanisms import streams
from tests.support.words import fits


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 0.5), (12, 4.0)])
def test_randomized_response_fits_its_probabilities(classes, epsilon):
    n = 50_000
    x = np.full(n, classes - 1)
    labels = RandomizedResponse(epsilon, classes).sample(x, rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        log_prob = RandomizedResponse(epsilon * factor, classes).log_prob(np.arange(classes), np.full(classes, x[0]))
        assert np.exp(log_prob).sum() == pytest.approx(1.0, abs=1e-12)
        assert fits(labels, log_prob) == right


@pytest.mark.parametrize("classes", [2, 12])
def test_randomized_response_at_zero_is_uniform_and_attains_its_bound(classes):
    n = 20_000
    x = np.zeros(n, np.int64)
    labels = RandomizedResponse(0.0, classes).sample(x, rng=streams(n))
    assert fits(labels, np.full(classes, -math.log(classes)))
    for epsilon in (0.0, 1.0, 1000.0):
        mechanism = RandomizedResponse(epsilon, classes)
        one, zero = np.array([1]), np.array([0])
        ratio = mechanism.log_prob(zero, zero) - mechanism.log_prob(zero, one)
        assert ratio[0] == pytest.approx(epsilon, abs=1e-9) == mechanism.guarantee.worst_case()


PRIOR = np.array([0.05, 0.4, 0.02, 0.3, 0.03, 0.2])


@pytest.mark.parametrize(("epsilon", "label"), [(0.5, 1), (2.0, 0), (4.0, 3)])
def test_randomized_response_with_a_prior_fits_its_probabilities(epsilon, label):
    n, classes = 100_000, len(PRIOR)
    prior = np.tile(PRIOR, (n, 1))
    labels = RandomizedResponsePrior(epsilon, classes).sample(np.full(n, label), prior=prior, rng=streams(n))
    scores = []
    for factor in (1, 2 / 3, 3 / 2):
        mechanism = RandomizedResponsePrior(epsilon * factor, classes)
        log_prob = mechanism.log_prob(np.arange(classes), np.full(classes, label), prior=prior[:classes])
        assert np.exp(log_prob).sum() == pytest.approx(1.0, abs=1e-12)
        kept = mechanism.kept(prior[:1])[0]
        # with the truth left out, or alone, ε shows only in the number of labels kept
        visible = kept[label] and kept.sum() > 1
        scores.append((fits(labels, log_prob), visible, kept.sum()))
    assert scores[0][0]
    for fit, visible, size in scores[1:]:
        if (visible and scores[0][1]) or size != scores[0][2]:
            assert not fit


def exact_matrix(epsilon, prior):
    """Log P[output | label], (outputs, labels)."""
    classes = len(prior)
    outputs, labels = np.meshgrid(np.arange(classes), np.arange(classes), indexing="ij")
    mechanism = RandomizedResponsePrior(epsilon, classes)
    rows = np.tile(prior, (classes**2, 1))
    return mechanism.log_prob(outputs.ravel(), labels.ravel(), prior=rows).reshape(classes, classes)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 5.0])
def test_the_prior_mechanism_is_the_best_of_all_and_private(epsilon):
    """Against a linear program over every ε-LDP mechanism on 4 labels; ε-LDP checked on all pairs."""
    rng = np.random.default_rng(11)
    for prior in [*rng.dirichlet(np.full(4, 0.7), 8), np.full(4, 0.25), np.array([1.0, 0, 0, 0])]:
        log_matrix = exact_matrix(epsilon, prior)
        possible = np.isfinite(log_matrix)
        assert np.all(possible.all(axis=1) | ~possible.any(axis=1))
        ratios = np.ptp(log_matrix[possible.all(axis=1)], axis=1)
        assert np.all(ratios <= epsilon + 1e-12)
        if possible.all(axis=1).sum() > 1:
            np.testing.assert_allclose(ratios, epsilon, atol=1e-9)
        matrix = np.exp(log_matrix)
        np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-12)

        # variables P[o | y], flattened as (y, o); maximize Σ p_y P[y | y] under P[o | y] <= e^ε P[o | y']
        size, pairs = 4, list(itertools.permutations(range(4), 2))
        limits = np.zeros((len(pairs) * size, size * size))
        for row, ((a, b), output) in enumerate(itertools.product(pairs, range(size))):
            limits[row, a * size + output], limits[row, b * size + output] = 1.0, -math.exp(epsilon)
        best = linprog(
            -np.diag(prior).ravel(),
            A_ub=limits,
            b_ub=np.zeros(len(limits)),
            A_eq=np.kron(np.eye(size), np.ones(size)),
            b_eq=np.ones(size),
        )
        assert prior @ np.diag(matrix) == pytest.approx(-best.fun, abs=1e-7)


@pytest.mark.parametrize("prior", [[[0.5, 0.6]], [[1.1, -0.1]], [[np.nan, 1.0]], [[1.0]], [0.5, 0.5], [[0.5, 0.5]] * 2])
def test_a_prior_must_be_one_distribution_for_each_row(prior):
    with pytest.raises(ValueError, match="prior"):
        RandomizedResponsePrior(1.0, 2).sample(np.array([1]), prior=np.array(prior), rng=streams(1))
