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
from tests.support.mechanisms import fits, streams, unit


@pytest.mark.parametrize("sigma", [0.1, 3.0])
def test_gaussian_draws_fit_their_density(sigma):
    x = unit(3000, 16)
    noise = (Gaussian(16, sigma).sample(x, rng=streams(3000)) - x).ravel()
    assert fits(noise, stats.norm(scale=sigma).cdf)
    assert not fits(noise, stats.norm(scale=sigma * 1.5).cdf)
    assert not fits(noise, stats.norm(scale=sigma / 1.5).cdf)
    expected = stats.norm(x, sigma).logpdf(x + noise.reshape(x.shape)).sum(axis=1)
    np.testing.assert_allclose(
        Gaussian(16, sigma).log_prob(x + noise.reshape(x.shape), x), expected, atol=1e-9
    )


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.01), (0.1, 1e-6), (1.0, 1e-6), (8.0, 1e-12), (100.0, 1e-9)]
)
def test_analytic_calibration_against_an_independent_evaluation(epsilon, delta):
    """δ of Balle and Wang, Theorem 8, in 60 digits: met at the σ chosen, missed by any smaller one."""

    def exact(sigma):
        with mpmath.workdps(60):
            ratio, e = 2 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
            return mpmath.ncdf(ratio / 2 - e / ratio) - mpmath.exp(e) * mpmath.ncdf(-ratio / 2 - e / ratio)

    mechanism = Gaussian.calibrated(epsilon, delta, 16)
    assert exact(mechanism.sigma) <= delta < exact(mechanism.sigma * (1 - 1e-8))
    assert mechanism.guarantee.worst_case(delta) == pytest.approx(epsilon, abs=1e-6)
    assert mechanism.guarantee.worst_case(0.0) == math.inf
