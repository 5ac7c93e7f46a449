"""Purkayastha, planar Laplace and Gaussian noise: draws, densities, bounds, each by a second way.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers whose
privacy parameter is 2/3 or 3/2 of the right one.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from mechanisms.accounting.compose import compose
from mechanisms.accounting.shuffle import joint_blanket
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import gaussian_delta, gaussian_delta_bound, gaussian_epsilon
from mechanisms.losses.angle_table import CELLS, AngleTable, angle_table, log_angle_integral, log_normalizer
from mechanisms.metrics import angular
from mechanisms.spherical import PlanarLaplace, Purkayastha
from tests.support.mechanisms import ALARM, fits, streams, unit

CASES = [(2, 10.0), (3, 1000.0), (16, 1.0), (768, 10.0)]


def angle_distribution(dim, kappa):
    """The distribution of the angle, by quadrature in log tan(θ/2) that shares nothing with the table."""
    u = np.linspace(-45, 45, 900_001)
    log_density = -(dim - 1) * np.logaddexp(u, -u) - kappa * 2 * np.arctan(np.exp(u))
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    return lambda theta: np.interp(np.log(np.tan(theta / 2)), u, cdf / cdf[-1])


@pytest.mark.parametrize(("dim", "kappa"), CASES[:3])
def test_purkayastha_draws_fit_their_density(dim, kappa):
    """The angle to the input by quadrature; the direction around it by its beta distribution."""
    n = 20_000
    x = np.tile(unit(1, dim), (n, 1))
    y = Purkayastha(dim, kappa).sample(x, rng=streams(n))
    angles = angular(x, y)
    assert fits(angles, angle_distribution(dim, kappa))
    assert not fits(angles, angle_distribution(dim, kappa * 2 / 3))
    assert not fits(angles, angle_distribution(dim, kappa * 3 / 2))

    tangent = y - np.sum(x * y, axis=1, keepdims=True) * x
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    axis = unit(1, dim, seed=3)[0]
    axis -= (axis @ x[0]) * x[0]
    along = tangent @ (axis / np.linalg.norm(axis))
    if dim == 2:
        assert stats.binomtest(int((along > 0).sum()), n).pvalue > ALARM
    else:
        assert fits((1 + along) / 2, stats.beta((dim - 2) / 2, (dim - 2) / 2).cdf)
    assert abs(stats.spearmanr(along, angles).statistic) * math.sqrt(n) < stats.norm.isf(ALARM / 2)


@pytest.mark.parametrize("mechanism", [Purkayastha, PlanarLaplace])
@pytest.mark.parametrize("dim", [2, 16])
def test_epsilon_zero_is_uniform_on_the_sphere(mechanism, dim):
    n = 20_000
    y = mechanism(dim, 0.0).sample(np.tile(unit(1, dim), (n, 1)), rng=streams(n))
    for axis in (np.eye(dim)[0], unit(1, dim)[0], unit(1, dim, seed=9)[0]):
        along = np.clip((1 + y @ axis) / 2, 0, 1)
        assert fits(along, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)
        assert not fits(along**1.1, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)


@pytest.mark.parametrize(("dim", "kappa"), [*CASES, (17, 0.0), (1024, 1000.0)])
def test_the_normalizer_against_independent_quadrature(dim, kappa):
    with mpmath.workdps(40):
        peak = mpmath.atan2(dim - 2, kappa) if kappa or dim > 2 else mpmath.pi / 2
        # cuts one standard deviation apart around the peak: coarser ones lose 1e-8 at (768, 1000)
        scale = mpmath.sin(peak) / mpmath.sqrt(dim - 2) if dim > 2 else mpmath.mpf(1) / max(kappa, 1)
        near = [peak + k * scale for k in [*range(-20, 20), *range(20, 80, 5)]]
        cuts = [mpmath.mpf(0), *(p for p in near if 0 < p < mpmath.pi), +mpmath.pi]
        integral = mpmath.quad(lambda t: mpmath.sin(t) ** (dim - 2) * mpmath.exp(-kappa * t), cuts)
        surface = 2 * mpmath.pi ** (mpmath.mpf(dim - 1) / 2) / mpmath.gamma(mpmath.mpf(dim - 1) / 2)
        expected = -mpmath.log(surface * integral)
    assert log_normalizer(dim, kappa) == pytest.approx(float(expected), rel=1e-12, abs=1e-11)


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_purkayastha_attains_its_bound(dim, kappa):
    """At y = x, for every other input."""
    mechanism, x, other = Purkayastha(dim, kappa), unit(200, dim, 1), unit(200, dim, 2)
    for away in (other, -x):
        ratio = mechanism.log_prob(x, x) - mechanism.log_prob(x, away)
        np.testing.assert_allclose(ratio, kappa * angular(x, away), rtol=0, atol=1e-9)
    np.testing.assert_allclose(mechanism.log_prob(x, x), log_normalizer(dim, kappa), rtol=1e-12)
    assert mechanism.guarantee.worst_case() == pytest.approx(kappa * math.pi, abs=1e-6)


@pytest.mark.parametrize(
    ("dim", "kappa"),
    [*CASES[1:], (1024, 1000.0), (1024, 0.0)],
)
def test_the_table_keeps_its_proved_bound(dim, kappa):
    """Log density inside each cell against the exact one: two points differ by at most numeric ε."""
    table = angle_table(dim, kappa)
    assert isinstance(table, AngleTable) and table.cells.shape == (CELLS, 5)
    mass, middle = table.masses, table.middle
    start, inverse, growth, scale, knot = table.cells.T
    # where a cell begins is the mass before it, or beyond the middle minus the mass after
    np.testing.assert_allclose(start[1:middle], np.cumsum(mass[: middle - 1]), rtol=1e-11)
    np.testing.assert_allclose(-start[middle:], np.cumsum(mass[middle:][::-1])[::-1], rtol=1e-11)
    assert mass[:middle].sum() == pytest.approx(table.split, abs=1e-12) and 0.5 <= table.split < 0.51
    worth = mass > 0
    assert mass[~worth].sum() == 0 and np.allclose(inverse[worth] * mass[worth], 1.0, rtol=1e-15)
    mass, growth, scale, knot = mass[worth], growth[worth], scale[worth], knot[worth]
    slope = np.log1p(growth)
    errors = []
    for t in (0.0, 0.25, 0.5, 0.75, 1.0):
        u = knot + t * scale * slope
        log_table = np.log(mass) - np.log(scale * growth) + t * slope
        log_sech = math.log(2) - np.logaddexp(u, -u)
        exact = (dim - 1) * log_sech - kappa * 2 * np.arctan(np.exp(u)) - log_angle_integral(dim - 2, kappa)
        errors.append(log_table - exact)
    spread = np.max(errors) - np.min(errors)
    assert spread <= table.numeric_epsilon + 1e-10
    assert table.numeric_epsilon < 2e-7 and table.numeric_delta < 1e-15
    assert start[0] == 0 and np.all(mass >= 0)


def test_a_table_may_be_off_by_more_than_half_of_its_numeric_epsilon(monkeypatch):
    """Where the log density bends both ways, the normalizer is off too: δ and γ pay e^(±numeric), not half of it."""
    monkeypatch.setattr("mechanisms.losses.angle_table.CELLS", 64)
    table = angle_table.__wrapped__(3, 5.0)
    mass = table.masses
    _, _, growth, scale, knot = table.cells.T
    slope, t = np.log1p(growth), np.linspace(0, 1, 9)[:, None]
    u = knot + t * scale * slope
    exact = 2 * (math.log(2) - np.logaddexp(u, -u)) - 5.0 * 2 * np.arctan(np.exp(u)) - log_angle_integral(1, 5.0)
    off = (np.log(mass) - np.log(scale * growth) + t * slope - exact)[:, mass > 1e-9]
    assert table.numeric_epsilon / 2 < np.abs(off).max() <= table.numeric_epsilon
    assert np.ptp(off) <= table.numeric_epsilon

    monkeypatch.setattr("mechanisms.spherical.angle_table", lambda dim, kappa: table)
    rough = Purkayastha(3, 5.0)
    assert compose([(rough, 3)], delta=1e-6).delta >= 1e-6 * math.exp(3 * table.numeric_epsilon)
    cells = joint_blanket([rough])
    assert cells.log_gamma <= rough.blanket().log_gamma - table.numeric_epsilon


@pytest.mark.parametrize(("dim", "kappa"), [*CASES[1:], (1024, 1000.0)])
def test_the_table_cuts_off_no_more_than_it_says(dim, kappa):
    table = angle_table(dim, kappa)
    low = table.cells[0, 4]
    high = table.cells[-1, 4] + table.cells[-1, 3] * np.log1p(table.cells[-1, 2])
    for left, right in ((low - 40, low), (high, high + 40)):
        u = np.linspace(left, right, 400_001)
        log_density = (dim - 1) * (math.log(2) - np.logaddexp(u, -u)) - kappa * 2 * np.arctan(np.exp(u))
        tail = logsumexp(log_density) + math.log(u[1] - u[0]) - log_angle_integral(dim - 2, kappa)
        assert -75 * math.log(2) < tail < -60.9 * math.log(2)


def test_the_arc_is_exact():
    for kappa in (0.0, 1e-9, 1.0, 1000.0):
        u = np.array([2.0**-53, 0.1, 0.5, 0.9, 1 - 2.0**-53])
        theta = np.arctan2(*angle_table(2, kappa).sine_cosine(u)[:2])
        with mpmath.workdps(40):
            for p, found in zip(u, theta, strict=True):
                rate = mpmath.mpf(kappa)
                whole = 1 - mpmath.exp(-rate * mpmath.pi)
                exact = -mpmath.log(1 - mpmath.mpf(p) * whole) / rate if kappa else mpmath.pi * mpmath.mpf(p)
                assert found == pytest.approx(float(exact), rel=1e-12)


def test_slightly_long_inputs_are_the_directions_they_point_in():
    x = unit(50, 16)
    for mechanism in (Purkayastha(16, 5.0), PlanarLaplace(16, 5.0), Gaussian(16, 1.0)):
        near = mechanism.sample(x * (1 + 9e-7), rng=streams(50))
        np.testing.assert_allclose(near, mechanism.sample(x, rng=streams(50)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 1.0), (16, 10.0)])
def test_planar_laplace_draws_fit_their_density(dim, epsilon):
    n = 20_000
    x = np.tile(3 * unit(1, dim), (n, 1))
    noise = PlanarLaplace(dim, epsilon, normalize=False).sample(x, rng=streams(n)) - x
    radius = np.linalg.norm(noise, axis=1)
    assert fits(radius, stats.gamma(dim, scale=1 / epsilon).cdf)
    assert not fits(radius, stats.gamma(dim, scale=1.5 / epsilon).cdf)
    assert not fits(radius, stats.gamma(dim, scale=1 / (1.5 * epsilon)).cdf)
    along = (1 + noise @ unit(1, dim, 4)[0] / radius) / 2
    assert fits(along, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)


@pytest.mark.parametrize(("dim", "epsilon"), [(3, 10.0), (768, 1000.0)])
def test_the_planar_density_integrates_to_one_and_attains_its_bound(dim, epsilon):
    mechanism = PlanarLaplace(dim, epsilon, normalize=False)
    centre = np.zeros(dim)
    axis = np.eye(dim)[0]
    log_radius = np.linspace(-20, 5, 20_001) if dim < 100 else np.linspace(-2, 2, 2_001)
    log_radius += math.log(dim / epsilon)
    y = np.exp(log_radius)[:, None] * axis
    log_surface = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    log_mass = mechanism.log_prob(y, np.broadcast_to(centre, y.shape)) + dim * log_radius + log_surface
    assert logsumexp(log_mass) + math.log(log_radius[1] - log_radius[0]) == pytest.approx(0.0, abs=1e-9)

    x, other = unit(100, dim, 1), unit(100, dim, 2)
    for beyond in (0.0, 0.3, 5.0):  # y = x, and y further along the line from x' through x
        y = x + beyond * (x - other)
        ratio = mechanism.log_prob(y, x) - mechanism.log_prob(y, other)
        np.testing.assert_allclose(ratio, epsilon * np.linalg.norm(x - other, axis=1), rtol=0, atol=1e-9)
    assert mechanism.guarantee.worst_case() == 2 * epsilon


def test_the_normalized_form_promises_no_density():
    with pytest.raises(NotImplementedError, match="closed-form"):
        PlanarLaplace(3, 1.0).log_prob(unit(1, 3), unit(1, 3))


@pytest.mark.parametrize("sigma", [3.0])
def test_gaussian_draws_fit_their_density(sigma):
    x = unit(3000, 16)
    noise = (Gaussian(16, sigma).sample(x, rng=streams(3000)) - x).ravel()
    assert fits(noise, stats.norm(scale=sigma).cdf)
    assert not fits(noise, stats.norm(scale=sigma * 1.5).cdf)
    assert not fits(noise, stats.norm(scale=sigma / 1.5).cdf)
    expected = stats.norm(x, sigma).logpdf(x + noise.reshape(x.shape)).sum(axis=1)
    np.testing.assert_allclose(Gaussian(16, sigma).log_prob(x + noise.reshape(x.shape), x), expected, atol=1e-9)


def exact_delta(ratio, epsilon):
    """δ of Balle and Wang, Theorem 8, with digits to spare for what cancels."""
    with mpmath.workdps(80 + int(min(ratio, 60) ** 2 / 2)):
        r, e = mpmath.mpf(ratio), mpmath.mpf(epsilon)
        return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)


def test_the_bound_of_the_profile_is_above_it_by_a_hair():
    rng = np.random.default_rng(2)
    for _ in range(100):
        ratio = 10 ** rng.uniform(-6.3, 1.5)
        epsilon = max(0.0, ratio * (rng.uniform(-1, 36) + ratio / 2))
        truth = exact_delta(ratio, epsilon)
        if truth > 1e-300:
            assert truth <= gaussian_delta_bound(ratio, epsilon) <= truth * (1 + 1e-11)
            least = gaussian_epsilon(ratio, float(truth))
            assert exact_delta(ratio, least) <= float(truth)
            assert least < 1e-6 or exact_delta(ratio, least * (1 - 1e-6)) > float(truth)
    assert gaussian_delta_bound(2e6, 1.0) == 1.0 and gaussian_delta_bound(1e-6, 1.0) == 0.0


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1e-2, 1e-280), (1e-5, 1e-12), (0.0, 1e-6), (8.0, 1e-12), (1000.0, 0.5)],
)
def test_a_calibrated_sigma_never_exceeds_its_delta(epsilon, delta):
    """Near the largest σ the two terms of the profile are equal to their last digits."""
    sigma = mpmath.mpf(Gaussian.calibrated(epsilon, delta, 3).sigma)
    assert exact_delta(2 / sigma, epsilon) <= delta < exact_delta(2 / (sigma * (1 - 2e-7)), epsilon)


def test_gaussian_limits():
    assert gaussian_epsilon(0.0, 0.0) == 0.0 == gaussian_delta(0.0, 1.0)
    assert gaussian_epsilon(1.0, 0.0) == math.inf == gaussian_epsilon(math.inf, 1e-6)
    assert gaussian_epsilon(0.1, 0.9) == 0.0
