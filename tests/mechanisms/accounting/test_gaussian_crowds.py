"""Gaussian noise in a crowd by the blanket N(0, σ²), which has no pure weight, against brute force in small worlds.

A world of the line: inputs at some cosines to the target's axis, outputs of N(cosine, σ²) gathered in cells. That is a
post-processing of unit vectors in any dimension (the coordinate along the axis), so no bound may be below it.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from mechanisms import Gaussian, RandomizedResponse
from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.shuffle import amplify
from mechanisms.accounting.truncated import best_truncation, fits_truncated, truncated
from mechanisms.guarantee import gaussian_delta
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.gaussian import line
from tests.support.lower import few_cells_delta, mixture
from tests.support.small_worlds import World, circle, largest_delta

EPSILONS = (0.0, 0.3, 1.0)


def least_delta(cells: BlanketCells, n: int, epsilon: float) -> float:
    """The least of blanket bound and price over many truncations."""
    found = [1.0]
    for log_gamma in (-4.0, -2.0, -1.0, -0.4, 0.0):
        cut, eta = truncated(cells, log_gamma)
        found.append(blanket_delta(cut, n, epsilon) + (1 + math.exp(epsilon)) * (n - 1) * eta)
    return min(found)


def of_line(sigma: float, cosines: list[float], outputs: int) -> World:
    """Outputs in so many cells between -1 - 2σ and 1 + 2σ, and the two beyond."""
    edges = np.concatenate([[-np.inf], np.linspace(-1 - 2 * sigma, 1 + 2 * sigma, outputs - 1), [np.inf]])
    return World(np.array([np.diff(ndtr((edges - c) / sigma)) for c in cosines]))


@pytest.mark.parametrize("users", [2, 4])
@pytest.mark.parametrize("sigma", [0.7, 1.5, 4.0])
def test_no_data_set_of_the_line_exceeds_the_bound(users: int, sigma: float) -> None:
    exact = largest_delta(of_line(sigma, [-1.0, -0.4, 0.0, 0.5, 1.0], 9), users, EPSILONS)
    bounds = np.array([least_delta(line(1 / sigma), users, e) for e in EPSILONS])
    local = np.array([gaussian_delta(2 / sigma, e) for e in EPSILONS])
    assert (exact <= bounds).all(), (exact, bounds)
    if sigma > 1:  # it says something, and a tenth of the claimed δ would be refuted
        assert (bounds < local * 0.999).any() and (exact > bounds / 10)[0]


def test_no_data_set_of_the_plane_exceeds_the_bound() -> None:
    """Others beside the axis too, their radius seen."""
    world, cells = circle(Gaussian(2, 1.5), 4, 4, ring=1.8), line(1 / 1.5)
    for users in (2, 3):
        bounds = [least_delta(cells, users, e) for e in EPSILONS]
        assert (largest_delta(world, users, EPSILONS) <= bounds).all()


def test_a_price_left_out_is_found_out() -> None:
    """With its γ' but without what others pay for it, the bound is below a data set of the line."""
    cut, eta = truncated(line(1 / 1.5), 0.0)
    assert eta > 0.1
    reached = largest_delta(of_line(1.5, [-1.0, 0.0, 1.0], 9), 4, [1.0])[0]
    assert reached > 2 * blanket_delta(cut, 4, 1.0)


@pytest.mark.parametrize("ratio", [0.2, 0.8, 1.5])
def test_what_a_truncation_moves_is_that_of_the_normal_law(ratio: float) -> None:
    """η = E(γ' - U)_+ under N(0, 1), for U = exp(rt - r²/2): γ'·Φ(a) - Φ(a - r), r·a - r²/2 = log γ'."""
    for log_gamma in (-6.0, -2.0, -0.5, 0.0):
        a = (log_gamma + mpmath.mpf(ratio) ** 2 / 2) / ratio
        exact = mpmath.exp(log_gamma) * mpmath.ncdf(a) - mpmath.ncdf(a - ratio)
        found = truncated(line(ratio), log_gamma)[1]
        assert exact <= found <= exact * 1.1 + 1e-30
    cells = line(ratio)
    for log_mass, mean in ((cells.log_w, 0), (cells.log_p, ratio), (cells.log_q, -ratio)):
        assert np.exp(log_mass).sum() == pytest.approx(1.0, abs=1e-13)
        middle = len(log_mass) // 2
        assert math.exp(log_mass[middle - 1]) == pytest.approx(
            float(mpmath.ncdf(-mean) - mpmath.ncdf(-(ratio + 12.0) / 767 - mean)), rel=1e-11
        )


@pytest.mark.parametrize("epsilon", [2.0, 6.0])
@pytest.mark.parametrize("users", [1000, 30_000])
def test_many_users_are_between_a_data_set_and_the_local_loss(users: int, epsilon: float) -> None:
    """The sign along the axis is randomized response of two labels: pure, its δ known in closed form."""
    noise = Gaussian.calibrated(epsilon, 1e-6, 768)
    answer = amplify([noise], users=users, delta=1e-6)
    assert answer.epsilon < 0.3 * answer.local_epsilon
    high = float(ndtr(1 / noise.sigma))
    pair = RandomizedResponse(math.log(high / (1 - high)), 2).blanket()
    for at_x in (0.0, 0.5, 1.0):
        signs = mixture(pair, at_x, 1.0 - at_x)
        assert few_cells_delta(signs, users, answer.epsilon) <= 1e-6
        assert few_cells_delta(signs, users, answer.epsilon / 16) > 1e-6
    assert fits_truncated(noise.blanket(), users, answer.epsilon * 1.001, 1e-6)


def test_any_dimension_has_one_bound_and_a_lone_user_the_local_one() -> None:
    several = [amplify([Gaussian(d, 2.0)], users=5000, delta=1e-6) for d in (2, 15_361)]
    assert several[0].epsilon == pytest.approx(several[1].epsilon, rel=1e-6)
    for alone in (
        amplify([Gaussian(768, 2.0)], users=1, delta=1e-6),
        amplify([Gaussian(768, 2.0)], users=2, delta=1e-9),
    ):
        assert alone.epsilon == alone.local_epsilon
    assert best_truncation(line(0.5), 1, 1e-6) is None
