"""Loss distributions: every figure against a second derivation, by quadrature of the hockey stick of two densities."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from mechanisms.checks import LEAST_EPSILON
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import gaussian_delta, gaussian_epsilon
from mechanisms.losses.categorical import from_profile, pair_loss
from mechanisms.losses.gaussian import gaussian_loss, replaced_loss
from mechanisms.losses.loss import LossCells, no_loss, unbounded_loss
from mechanisms.losses.planar_laplace import laplace_loss
from mechanisms.losses.sphere import (
    RADIAL_ERROR,
    SERIES_EPSILON,
    log_radial_ratio,
    purkayastha_loss,
)
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace, Purkayastha


def test_the_loss_grows_with_the_distance():
    for mechanism, distances in (
        (PlanarLaplace(5, 3.0), (0.3, 1.0, 2.0)),
        (PlanarLaplace(5, 3.0, normalize=False), (0.3, 1.0, 2.0, 4.0)),
        (Gaussian(3, 1.0), (0.3, 1.0, 2.0)),
    ):
        losses = [mechanism.privacy_loss(d) for d in distances]
        for epsilon in (0.0, 0.5, 2.0, 5.0):
            lower = [cells.delta_optimistic(epsilon) for cells in losses]
            upper = [cells.delta(epsilon) for cells in losses]
            assert all(a <= b * (1 + 1e-9) for a, b in zip(lower, upper[1:], strict=False)), mechanism
    for mechanism, distance, words in (
        (Purkayastha(3, 1.0), 3.2, "distance"),
        (RandomizedResponse(1.0, 2), 0.5, "0 or 1"),
    ):
        with pytest.raises(ValueError, match=words):
            mechanism.privacy_loss(distance)


@pytest.mark.parametrize(("m", "epsilon", "distance"), [(2, 5.0, 0.6), (3, 3.0, 1.0)])
def test_raw_laplace_is_a_sum_over_space(m, epsilon, distance):
    """Cartesian: midpoint sums over the half plane (along x' - x, radius across it), error below 1e-4."""
    reach = 14 / epsilon
    along = (np.arange(2400) + 0.5) / 2400 * 2 * reach - reach
    across = (np.arange(1200) + 0.5) / 1200 * reach
    a, b = along[:, None], across[None, :]
    r, other = np.hypot(a, b), np.hypot(a - distance, b)
    p = np.exp(-epsilon * r) * b ** (m - 2)
    p /= p.sum()
    loss = epsilon * (other - r)
    cells = laplace_loss(m, epsilon, distance)
    for share in (0.0, 0.4, 0.9):
        e = share * epsilon * distance
        summed = float((p * np.maximum(-np.expm1(np.minimum(e - loss, 0)), 0)).sum())
        assert cells.delta_optimistic(e) - 1e-4 <= summed <= cells.delta(e) + 1e-4
        assert cells.delta(e) == pytest.approx(cells.delta_optimistic(e), rel=2e-3)


def test_gaussian_is_balle_and_wangs_profile():
    for ratio in (0.05, 1.0, 3.0, 50.0, 1e5):
        cells = gaussian_loss(ratio)
        for epsilon in ratio * np.array([0.0, 0.5, 1.0, 3.0]) + ratio**2 / 2:
            exact = gaussian_delta(ratio, epsilon)
            assert cells.delta_optimistic(epsilon) * (1 - 1e-6) <= exact <= cells.delta(epsilon) * (1 + 1e-6)
            assert cells.delta(epsilon) == pytest.approx(exact, rel=2e-2)
        assert gaussian_epsilon(ratio, 1e-6) == pytest.approx(cells.epsilon(1e-6), rel=1e-5)
    # the authors' own code calibrates σ = 3.730631634944469 for sensitivity 1, ε = 1, δ = 1e-5
    assert gaussian_loss(1 / 3.730631634944469).delta(1.0) == pytest.approx(1e-5, rel=1e-4)
    assert gaussian_loss(0.5).epsilon(0.0) == math.inf  # tails have no largest loss


def test_no_prior_makes_randomized_response_worse_than_its_loss():
    epsilon, classes = 1.5, 4
    mechanism = RandomizedResponsePrior(epsilon, classes)
    cells = mechanism.privacy_loss()
    labels, attained = np.arange(classes), False
    for prior in np.random.default_rng(2).dirichlet(np.full(classes, 0.4), 200):
        table = np.exp(
            [mechanism.log_prob(labels, np.full(classes, x), prior=np.tile(prior, (classes, 1))) for x in labels]
        )
        for e in (0.0, 0.5, 1.2):
            worst = max(np.maximum(p - math.exp(e) * q, 0).sum() for p in table for q in table)
            assert worst <= cells.delta(e) + 1e-12
            attained |= e == 0.5 and abs(worst - cells.delta(e)) < 1e-12
    assert attained


def test_a_pair_with_outputs_that_one_input_never_makes():
    with np.errstate(divide="ignore"):
        rows = np.log([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])
    assert pair_loss(rows[1], rows[0]).infinite == pytest.approx(0.25)
    assert pair_loss(rows[0], rows[1]).infinite == 0.0 and not pair_loss(rows[0], rows[1]).symmetric
    with pytest.raises(ValueError, match="no probability"):
        pair_loss(rows[0], np.full(3, -np.inf))


def test_a_profile_becomes_a_loss_that_passes_through_its_points():
    epsilons = np.linspace(0, 20, 400)
    exact = purkayastha_loss(16, 4.0)
    cells = from_profile(epsilons, np.array([exact.delta(e) for e in epsilons]))
    for e in epsilons[:300:7]:
        assert cells.delta(e) == pytest.approx(exact.delta(e), rel=1e-6, abs=1e-15)
    for e in (0.01, 1.333, 7.777):
        assert exact.delta(e) * (1 - 1e-9) <= cells.delta(e) <= exact.delta(e) * 1.02


@pytest.mark.filterwarnings("error")
def test_extreme_parameters_neither_underflow_nor_warn():
    for mechanism in (
        Purkayastha(1024, 1000.0),
        Purkayastha(2, 1000.0),
        Purkayastha(1024, 1e-6),
        PlanarLaplace(1024, 1000.0),
        PlanarLaplace(2, 1e-6),
        PlanarLaplace(1024, 1000.0, normalize=False),
        PlanarLaplace(2, 1e-6, normalize=False),
        Gaussian(2, 1e-6),
        Gaussian(2, 1e6),
        RandomizedResponse(1000.0, 10_000),
    ):
        cells = mechanism.privacy_loss()
        epsilon = cells.epsilon(1e-6)
        assert math.isfinite(epsilon) and cells.epsilon_optimistic(1e-6) <= epsilon
        assert epsilon == pytest.approx(cells.epsilon_optimistic(1e-6), rel=1e-4, abs=1e-5)


def test_cells_dominate_every_law_inside_them_and_are_dominated_when_collapsed():
    # truth: a fine discrete pair; cells: its outputs merged by rising loss, eight at a time
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(64)), rng.dirichlet(np.ones(64))
    order = np.argsort(np.log(p / q))
    p, q = p[order], q[order]
    loss = np.log(p / q).reshape(8, 8)
    p, q = p.reshape(8, 8), q.reshape(8, 8)
    cells = LossCells(loss.min(1), loss.max(1), np.log(p.sum(1)), np.log(q.sum(1)), symmetric=False)
    for epsilon in np.linspace(-3, 3, 61):
        exact = np.maximum(p - np.exp(epsilon) * q, 0).sum()
        assert cells.delta_optimistic(epsilon) - 1e-15 <= exact <= cells.delta(epsilon) + 1e-15
    # both masses are kept
    losses, masses = cells.pessimistic
    assert masses.sum() == pytest.approx(1.0) and (masses * np.exp(-losses)).sum() == pytest.approx(1.0)


def test_unbounded_cells_and_mass_left_out_go_to_the_safe_side():
    half = math.log(0.5)
    cells = LossCells([0.0], [math.inf], [half], [half], infinite=0.1, left_out=0.05)
    assert cells.delta(0.0) == pytest.approx(0.15)  # the mean ratio is 1, the lower end: nothing is spread
    assert cells.delta_optimistic(0.0) == pytest.approx(0.1)
    wide = LossCells([-math.inf], [math.inf], [0.0], [0.0])
    assert wide.delta(50.0) == 1.0 and wide.delta_optimistic(0.0) == 0.0
    assert wide.epsilon(0.5) == math.inf
    assert no_loss().epsilon(0.0) == 0.0 and unbounded_loss().epsilon(0.99) == math.inf


#: Shares of the largest loss at which δ is compared.
PLACES = (0.0, 0.3, 0.8)


def log_ratio(m: int, epsilon: float, theta: object) -> object:
    """log E e^(εg), g = r - |r·ξ - x| under r ~ Gamma(m, 1/ε), by mpmath's own quadrature in r: no digits are lost."""
    e, c = mp.mpf(epsilon), mp.cos(theta)
    usual, corner = (m - 1) / e, mp.sin(theta)

    def integrand(r: object) -> object:
        gain = e * (2 * r * c - 1) / (r + mp.sqrt((r - c) ** 2 + corner**2))
        return (r / usual) ** (m - 1) * mp.exp((m - 1) - e * r) * mp.expm1(gain)

    width = usual / mp.sqrt(m)
    cuts = {mp.mpf(0), *(usual + k * width for k in (-5, -2, 0, 2, 5, 12, 30, 60))}
    cuts |= {k * usual for k in (0.03, 0.3)} | {c + k * corner for k in (-1, 0, 1, 4)} | {mp.mpf(4), mp.mpf(20)}
    kept: list[object] = []
    for cut in sorted(cut for cut in cuts if cut >= 0):
        if not kept or cut - kept[-1] > 1e-13:
            kept.append(cut)
    scale = usual ** (m - 1) * mp.exp(-(m - 1)) * e**m / mp.gamma(m)
    return mp.log1p(scale * mp.quad(integrand, kept))


@pytest.mark.parametrize(
    ("m", "epsilon"),
    [(3, SERIES_EPSILON), (2, 1.01 * SERIES_EPSILON), (16, 1e-3), (16, 10.0)],
)
def test_the_density_of_the_normalized_laplace_to_its_stated_error(m: int, epsilon: float) -> None:
    angles = [1e-3, 0.8, 2.5]
    error = 4 * epsilon**2 / (m - 1) + 2e-16 * epsilon if epsilon <= SERIES_EPSILON else RADIAL_ERROR
    with mp.workdps(20):
        for angle, value in zip(angles, log_radial_ratio(m, epsilon, np.array(angles)), strict=True):
            assert abs(value - log_ratio(m, epsilon, mp.mpf(angle))) <= error


@pytest.mark.parametrize("m", [2, 1024])
def test_the_density_of_the_normalized_laplace_at_the_poles(m: int) -> None:
    """Opposite to its input it is e^-ε times the uniform one; at its input, incomplete gamma functions."""
    for epsilon in (1e-12, SERIES_EPSILON, 1.01 * SERIES_EPSILON, 1e-4, 0.3, 10.0, 1000.0):
        with mp.workdps(30):
            e = mp.mpf(epsilon)
            inside = mp.quad(lambda r, e=e: r ** (m - 1) * mp.exp(e * (r - 1)), [0, 0.5, 0.9, 0.99, 1]) * e**m
            at = mp.log((inside + mp.exp(e) * mp.gammainc(m, e)) / mp.gamma(m))
            error = 4 * e**2 / (m - 1) + 4e-16 * e if epsilon <= SERIES_EPSILON else RADIAL_ERROR
            first, last = log_radial_ratio(m, epsilon, np.array([0.0, math.pi]))
            assert abs(first - at) <= error and abs(last + e) <= error


def dominates(cells: LossCells, exact: Callable[[object], object], places: list[object], loose: float = 3e-2) -> None:
    """δ of the cells is at least the exact one, and hardly more; what their ε(δ) says holds."""
    for place in places:
        truth = exact(mp.mpf(place))
        assert cells.delta_optimistic(float(place)) <= truth * (1 + mp.mpf(10) ** -12)
        assert truth <= cells.delta(float(place)) <= truth * (1 + loose)
        if 0 < truth < 0.9:
            found = cells.epsilon(float(truth))
            assert exact(mp.mpf(found)) <= mp.mpf(float(truth)) and found <= place * (1 + loose) + 1e-12


def on_the_sphere(m: int, log_f: Callable[[object], object], parts: int) -> Callable[[object], object]:
    """δ of the antipodal pair of a density that falls with the angle, by quadrature up to where the loss is ε."""

    def density(theta: object, at: object) -> object:
        return mp.sin(theta) ** (m - 2) * mp.exp(log_f(at))

    whole = mp.quad(lambda t: density(t, t), mp.linspace(0, mp.pi, 2 * parts))

    def exact(place: object) -> object:
        def excess(theta: object) -> object:
            return log_f(theta) - log_f(mp.pi - theta) - place

        low, high = mp.mpf(0), mp.pi / 2
        if excess(low) <= 0:
            return mp.mpf(0)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        gain = mp.quad(lambda t: density(t, t) * -mp.expm1(-excess(t)), mp.linspace(0, high, parts))
        return gain / whole

    return exact


def tilted(m: int, epsilon: float, place: float) -> float:
    """Of the normalized and of the raw planar Laplace as ε vanishes: δ(2ε·place)/(2ε) = E(cos θ - place)₊."""
    weight = (m - 3) / mp.mpf(2)
    gain = mp.quad(lambda c: (c - place) * (1 - c * c) ** weight, [place, (1 + mp.mpf(place)) / 2, 1])
    return gain / mp.beta(mp.mpf(1) / 2, (m - 1) / mp.mpf(2))


@pytest.mark.parametrize(
    ("m", "kappa"), [(2, LEAST_EPSILON), (16, LEAST_EPSILON), (16, 1e-4), (3, 2.0), (16, 4.0), (64, 30.0)]
)
def test_purkayastha(m: int, kappa: float) -> None:
    cells = Purkayastha(m, kappa).privacy_loss()
    with mp.workdps(20 + 2 * max(0, -int(math.log10(kappa)))):
        exact = on_the_sphere(m, lambda theta: -mp.mpf(kappa) * theta, parts=21 if kappa > 1 else 2)
        dominates(cells, exact, [place * kappa * mp.pi for place in PLACES], loose=3e-2 if kappa < 1 else 5e-3)
        assert cells.epsilon(0.0) == pytest.approx(kappa * math.pi, rel=1e-15)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("m", "epsilon"), [(2, 1e-9), (16, LEAST_EPSILON)])
def test_planar_laplace_as_epsilon_vanishes(m: int, epsilon: float, normalize: bool) -> None:
    mechanism = PlanarLaplace(m, epsilon, normalize=normalize)
    cells = mechanism.privacy_loss()
    for place in PLACES:
        limit = float(tilted(m, epsilon, place)) * 2 * epsilon
        assert limit * (1 - 2 * epsilon) <= cells.delta(2 * epsilon * place) <= limit * (1 + 3e-2)
    assert 2 * epsilon * (1 - epsilon) <= cells.epsilon(0.0) <= 2 * epsilon
    near = mechanism.privacy_loss(0.5)
    assert near.delta(0.0) >= float(tilted(m, epsilon, 0.0)) * 0.5 * epsilon * (1 - 2 * epsilon)


def test_gaussian_noise_at_the_largest_sigma() -> None:
    with mp.workdps(60):
        for sigma in (1e6, 1e4, 1.0):
            ratio = 2 / mp.mpf(sigma)

            def exact(e: object, ratio: object = ratio) -> object:
                return mp.ncdf(ratio / 2 - e / ratio) - mp.exp(e) * mp.ncdf(-ratio / 2 - e / ratio)

            dominates(Gaussian(3, sigma).privacy_loss(), exact, [0.0, ratio, 3 * ratio], loose=1e-4)


def test_randomized_response_and_privunit() -> None:
    with mp.workdps(150):
        for epsilon in (LEAST_EPSILON, 1e-15, 1e-6, 1.0, 20.0):
            e = mp.mpf(epsilon)
            for classes in (2, 3, 1000):
                high = mp.exp(e) / (mp.exp(e) + classes - 1)
                rest = (1 - high) / (classes - 1)
                for mechanism in (RandomizedResponse(epsilon, classes), RandomizedResponsePrior(epsilon, classes)):
                    cells = mechanism.privacy_loss()
                    assert cells.delta(0.0) * (1 + 1e-14) >= (high - rest) and cells.epsilon(0.0) == epsilon
                    if mechanism.name == "randomized-response":
                        truth = high - mp.exp(0.3 * e) * rest
                        assert cells.delta(0.3 * epsilon) == pytest.approx(float(truth), rel=1e-12)
            for p in (1e-6, 0.25, 0.5):
                mechanism = PrivUnit(16, epsilon, p)
                inside = mp.mpf(p)
                c = 1 / (1 + mp.exp(e) * (1 - inside) / inside)
                cells, truth = mechanism.privacy_loss(), inside - (1 - inside) * c / (1 - c)
                assert cells.delta(0.0) * (1 + 1e-9) >= truth and cells.epsilon(0.0) == epsilon


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1e-6), (1e8, 1.0), (30.0, 0.01)])
def test_a_sampled_gaussian_sum(noise: float, rate: float) -> None:
    with mp.workdps(40):
        s, q = mp.mpf(noise), mp.mpf(rate)

        def exact(place: object) -> object:
            def gain(z: object) -> object:  # x = s·z
                p, other = (mp.npdf(z) * (1 - q + q * mp.exp(side * z / s - 1 / (2 * s * s))) for side in (1, -1))
                return p - mp.exp(place) * other

            cut = (place + 0) * s / (2 * q)
            low, high = cut - abs(cut) - 1, cut + abs(cut) + 1
            for _ in range(120):
                middle = (low + high) / 2
                low, high = (middle, high) if gain(middle) < 0 else (low, middle)
            return mp.quad(gain, [high + k for k in (0, 0.5, 1, 2, 3, 4, 6, 8, 12, 20)])

        scale = 2 * rate / noise
        dominates(replaced_loss(noise, rate), exact, [0.0, 0.5 * scale, 2 * scale])


def test_two_laws_next_to_each_other() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.3, 0.2]) * (1 + np.array([1e-12, -1e-12, -1e-12]))
    cells = pair_loss(np.log(p), np.log(q))
    with mp.workdps(40):
        truth = sum(
            max(mp.exp(mp.mpf(float(a))) - mp.exp(mp.mpf(float(b))), 0)
            for a, b in zip(np.log(p), np.log(q), strict=True)
        )
    assert cells.delta(0.0) >= truth * (1 - 1e-9)
