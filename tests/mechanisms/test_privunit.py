"""PrivUnit: its law, its scale and its loss, each by a second way; and what a shuffler makes of it.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers whose ε is
2/3 or 3/2 of the right one.
"""

from __future__ import annotations

import math
from functools import partial

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import betaincinv, expit

from mechanisms.privunit import LEAST_CAP, PrivUnit, best_cap_probability
from tests.support.mechanisms import ALARM, fits, streams, unit

N = 40_000


def cosine_cdf(mechanism: PrivUnit, t: np.ndarray) -> np.ndarray:
    """Of <x, y>, from the density's two values and the law of a coordinate of a uniform vector, by scipy's beta."""
    half, p, c = (mechanism.dim - 1) / 2, mechanism.cap_probability, math.exp(mechanism.log_mass)
    uniform = stats.beta(half, half).cdf((1 + t) / 2)
    below = (1 - p) * np.minimum(uniform / (1 - c), 1.0)
    return below + p * np.maximum((uniform - (1 - c)) / c, 0.0)


@pytest.mark.parametrize(
    ("dim", "epsilon"),
    [
        (2, 1.0),
        (3, 4.0),
        (64, 5.0),
    ],
)
def test_the_angle_to_the_input_has_its_law(dim: int, epsilon: float) -> None:
    mechanism = PrivUnit(dim, epsilon)
    n = min(N, 2**22 // dim)
    x = unit(n, dim)
    y = mechanism.sample(x, rng=streams(n))
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1.0, rtol=1e-12)
    cosines = np.einsum("ij,ij->i", x, y)
    assert fits(cosines, partial(cosine_cdf, mechanism))
    p = mechanism.cap_probability
    for factor in (2 / 3, 3 / 2):
        wrong = PrivUnit(dim, epsilon * factor, min(p, float(expit(epsilon * factor))))
        if n == N and epsilon >= 1:
            assert not fits(cosines, partial(cosine_cdf, wrong))
    assert not fits(cosines, partial(cosine_cdf, PrivUnit(dim, epsilon, p * 0.9)))


def test_the_direction_around_the_input_is_uniform() -> None:
    """The part of y orthogonal to x, normalized: every coordinate of it is that of a uniform vector of D - 1."""
    mechanism, dim = PrivUnit(5, 3.0), 5
    x = np.zeros((N, dim))
    x[:, 0] = 1.0
    y = mechanism.sample(x, rng=streams(N))
    law, pairs = stats.beta(1.5, 1.5), (dim - 1) * (dim - 2) / 2  # of (1 + t)/2 on S^3

    def around(rest: np.ndarray) -> np.ndarray:
        directions: np.ndarray = rest / np.linalg.norm(rest, axis=1, keepdims=True)
        return directions

    def even(t: np.ndarray) -> bool:
        return bool(stats.kstest((1 + t) / 2, law.cdf).pvalue > ALARM)

    def uncorrelated(directions: np.ndarray) -> bool:
        """A correlation of N rows is nearly normal, of variance 1/N; one alarm for all pairs."""
        most = stats.norm.isf(ALARM / 2 / pairs) / math.sqrt(N)
        return bool(abs(np.corrcoef(directions.T) - np.eye(dim - 1)).max() < most)

    directions = around(y[:, 1:])
    assert all(even(directions[:, j]) for j in range(dim - 1)) and uncorrelated(directions)
    for factor in (2 / 3, 3 / 2):
        stretched, leaning = y[:, 1:].copy(), y[:, 1:].copy()
        stretched[:, 0] *= factor
        leaning[:, 0] += (factor - 1) * leaning[:, 1]
        assert not even(around(stretched)[:, 0]) and not uncorrelated(around(leaning))


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 100.0), (3, 0.3), (32, 5.0), (8192, 20.0)])
def test_mass_and_scale_by_quadrature(dim: int, epsilon: float) -> None:
    """In 40 digits, by integrating sin^(D-2) over the angles of the cap: its mass, and the mean cosine there."""
    mechanism = PrivUnit(dim, epsilon)
    with mpmath.workdps(40):
        p, c = mpmath.mpf(mechanism.cap_probability), mpmath.e ** mpmath.mpf(mechanism.log_mass)
        assert mpmath.almosteq(mpmath.log(p / (1 - p) * (1 - c) / c), epsilon, rel_eps=1e-13, abs_eps=1e-13)
        half = (dim - 1) / 2
        edge = 2 * mpmath.asin(mpmath.sqrt(mpmath.mpf(float(betaincinv(half, half, math.exp(mechanism.log_mass))))))
        assert mpmath.almosteq(mpmath.cos(edge), mechanism.threshold, rel_eps=1e-12, abs_eps=1e-12)

        def integral(weight: object, end: object) -> object:
            top = min(end, mpmath.pi / 2)  # the integrand is largest there
            points = [top - min(top, 14 / mpmath.sqrt(dim)) * k / 60 for k in range(60, -1, -1)]
            return mpmath.quad(lambda a: mpmath.sin(a) ** (dim - 2) * weight(a), points, method="gauss-legendre")

        whole = mpmath.beta(0.5, mpmath.mpf(dim - 1) / 2)  # of sin^(D-2) over [0, π]
        mass = integral(lambda a: 1, edge) / whole
        assert mpmath.almosteq(mass, c, rel_eps=1e-9, abs_eps=0)
        first = integral(mpmath.cos, edge) / whole
        assert mpmath.almosteq(first * (p / c - (1 - p) / (1 - c)), mechanism.scale, rel_eps=1e-8, abs_eps=0)


def test_the_density_has_the_masses_of_the_cap_and_of_the_rest() -> None:
    mechanism, x = PrivUnit(6, 4.0), unit(2000, 6, 1)
    y, c, p = unit(2000, 6, 2), math.exp(mechanism.log_mass), mechanism.cap_probability
    inside = np.einsum("ij,ij->i", x, y) >= mechanism.threshold
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(np.exp(mechanism.log_prob(y, x)), np.where(inside, p / c, (1 - p) / (1 - c)), rtol=1e-12)


def test_a_mean_of_draws_is_unbiased_and_its_error_is_known() -> None:
    mechanism, n, dim = PrivUnit(16, 4.0), N, 16
    x = unit(n, dim, 4) * 0.6 + np.eye(dim)[0]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    estimate = mechanism.decoded_mean(mechanism.grid.encode(mechanism.sample(x, rng=streams(n))))
    mean = x.mean(axis=0)
    expected = (1 / mechanism.scale**2 - mean @ mean) / n
    # squared error is a sum of 16 nearly normal squares: a chi-squared test, alarm 1e-6 on either side
    found = ((estimate - mean) ** 2).sum() / (expected / dim)
    assert stats.chi2(dim).ppf(ALARM) < found < stats.chi2(dim).ppf(1 - ALARM)
    for factor in (2 / 3, 3 / 2):
        other = ((estimate * mechanism.scale / PrivUnit(16, 4.0 * factor).scale - mean) ** 2).sum() / (expected / dim)
        assert other > stats.chi2(dim).ppf(1 - ALARM)


def test_the_best_cap_is_the_best() -> None:
    for dim, epsilon in ((32, 3.0), (64, 5.0), (512, 1.0), (64, 0.1)):
        p = best_cap_probability(dim, epsilon)
        scale = PrivUnit(dim, epsilon).scale
        tried = np.linspace(0.02, float(expit(epsilon)), 200)
        best = max(PrivUnit(dim, epsilon, float(q)).scale for q in tried)
        assert scale > best * (1 - 1e-4) and PrivUnit(dim, epsilon).cap_probability == p


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 100.0])
def test_the_loss_of_a_rare_cap_is_the_one_it_states(epsilon: float) -> None:
    """In 60 digits, from the p and the c that are drawn by: no larger than stated, also where 1 - p is rounded."""
    for p in (LEAST_CAP, 3e-6, 1e-4, 0.3, 0.5, 1 - 1e-5, 1 - LEAST_CAP):
        if p > float(expit(epsilon)):
            continue
        mechanism = PrivUnit(16, epsilon, p)
        with mpmath.workdps(60):
            inside, c = mpmath.mpf(p), mpmath.mpf(math.exp(mechanism.log_mass))
            loss = mpmath.log(inside / c) - mpmath.log((1 - inside) / (1 - c))
            assert 0 < mechanism.guarantee.worst_case() - loss < 2e-11
            held = mechanism.privacy_loss()
            assert held.epsilon(0.0) + mechanism.guarantee.numeric_epsilon >= loss
            assert held.delta(0.0) == pytest.approx(float(inside - (1 - inside) * c / (1 - c)), rel=1e-9, abs=1e-15)
