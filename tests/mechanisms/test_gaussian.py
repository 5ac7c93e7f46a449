"""Gaussian noise: draws, and its calibration by a second way.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers whose
privacy parameter is 2/3 or 3/2 of the right one.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import gaussian_delta, gaussian_delta_bound, gaussian_epsilon
from tests.support.mechanisms import fits, streams, unit


@pytest.mark.parametrize("sigma", [0.1, 3.0])
def test_gaussian_draws_fit_their_density(sigma):
    x = unit(3000, 16)
    noise = (Gaussian(16, sigma).sample(x, rng=streams(3000)) - x).ravel()
    assert fits(noise, stats.norm(scale=sigma).cdf)
    assert not fits(noise, stats.norm(scale=sigma * 1.5).cdf)
    assert not fits(noise, stats.norm(scale=sigma / 1.5).cdf)
    expected = stats.norm(x, sigma).logpdf(x + noise.reshape(x.shape)).sum(axis=1)
    np.testing.assert_allclose(Gaussian(16, sigma).log_prob(x + noise.reshape(x.shape), x), expected, atol=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.01), (0.1, 1e-6), (1.0, 1e-6), (8.0, 1e-12), (100.0, 1e-9)])
def test_analytic_calibration_against_an_independent_evaluation(epsilon, delta):
    """δ of Balle and Wang, Theorem 8, in 60 digits: met at the σ chosen, missed by any smaller one."""
    mechanism = Gaussian.calibrated(epsilon, delta, 16)
    sigma = mpmath.mpf(mechanism.sigma)
    assert exact_delta(2 / sigma, epsilon) <= delta < exact_delta(2 / (sigma * (1 - 1e-8)), epsilon)
    assert mechanism.guarantee.worst_case(delta) == pytest.approx(epsilon, abs=1e-6)
    assert mechanism.guarantee.worst_case(0.0) == math.inf


def exact_delta(ratio, epsilon):
    """δ of Balle and Wang, Theorem 8, with digits to spare for what cancels."""
    with mpmath.workdps(80 + int(min(ratio, 60) ** 2 / 2)):
        r, e = mpmath.mpf(ratio), mpmath.mpf(epsilon)
        return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)


def test_the_bound_of_the_profile_is_above_it_by_a_hair():
    rng = np.random.default_rng(2)
    for _ in range(300):
        ratio = 10 ** rng.uniform(-6.3, 1.5)
        epsilon = max(0.0, ratio * (rng.uniform(-1, 36) + ratio / 2))
        truth = exact_delta(ratio, epsilon)
        if truth > 1e-300:
            assert truth <= gaussian_delta_bound(ratio, epsilon) <= truth * (1 + 1e-11)
            assert exact_delta(ratio, gaussian_epsilon(ratio, float(truth))) <= float(truth)
    assert gaussian_delta_bound(2e6, 1.0) == 1.0 and gaussian_delta_bound(1e-6, 1.0) == 0.0


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1e-2, 1e-280), (1e-4, 1e-6), (1e-5, 1e-12), (1e-9, 1e-6), (0.0, 1e-6), (1000.0, 0.5), (1000.0, 1e-300)],
)
def test_a_calibrated_sigma_never_exceeds_its_delta(epsilon, delta):
    """Near the largest σ the two terms of the profile are equal to their last digits."""
    sigma = mpmath.mpf(Gaussian.calibrated(epsilon, delta, 3).sigma)
    assert exact_delta(2 / sigma, epsilon) <= delta < exact_delta(2 / (sigma * (1 - 2e-7)), epsilon)


@pytest.mark.parametrize(
    ("ratio", "epsilon"), [(0.01, 0.0), (0.1, 0.3), (1.0, 0.0), (1.0, 1.0), (1.0, 6.0), (10.0, 100.0), (30.0, 900.0)]
)
def test_gaussian_delta_against_60_digits(ratio, epsilon):
    assert gaussian_delta(ratio, epsilon) == pytest.approx(float(exact_delta(ratio, epsilon)), rel=1e-9)


@pytest.mark.parametrize("ratio", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_gaussian_epsilon_is_safe_and_tight(ratio, delta):
    epsilon = gaussian_epsilon(ratio, delta)
    assert exact_delta(ratio, epsilon) <= delta
    assert epsilon == 0 or exact_delta(ratio, epsilon * (1 - 1e-6)) > delta


def test_gaussian_limits():
    assert gaussian_epsilon(0.0, 0.0) == 0.0 == gaussian_delta(0.0, 1.0)
    assert gaussian_epsilon(1.0, 0.0) == math.inf == gaussian_epsilon(math.inf, 1e-6)
    assert gaussian_epsilon(0.1, 0.9) == 0.0
