"""The cost of noisy gradient descent: against dp-accounting's own, brute force in a small world, and closed forms."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from mechanisms.accounting.descent import descent_epsilon, least_noise
from mechanisms.accounting.pld import compose
from mechanisms.gaussian import Gaussian
from mechanisms.losses.sampled_gaussian import replaced_loss
from tests.support.dp_accounting_losses import to_pld

DELTA = 1e-6


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 300), (4.0, 0.25, 50), (20.0, 0.5, 100)])
def test_it_is_what_dp_accounting_says_of_replacement_and_not_of_removal(noise: float, rate: float, steps: int) -> None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as theirs

    def other(relation: NeighboringRelation) -> float:
        one = theirs.from_gaussian_mechanism(
            noise, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=1e-4
        )
        return float(one.self_compose(steps).get_epsilon_for_delta(DELTA))

    epsilon = descent_epsilon(noise, rate=rate, steps=steps, delta=DELTA)
    assert epsilon == pytest.approx(other(NeighboringRelation.REPLACE_ONE), rel=1e-3)
    assert epsilon > 1.3 * other(NeighboringRelation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_no_pair_of_vectors_loses_more_than_opposite_ones(rate: float) -> None:
    """A second derivation, by quadrature in the plane of two vectors: every hockey-stick divergence of every pair lies
    below that of ±1, which the cells give from above and below."""
    noise, cells = 1.3, replaced_loss(1.3, rate)
    x = np.linspace(-9, 9, 361)
    plane = np.stack(np.meshgrid(x, x), axis=-1)
    area = (x[1] - x[0]) ** 2

    def density(vector: tuple[float, float]) -> np.ndarray:
        def normal(center: tuple[float, float]) -> np.ndarray:
            square = ((plane - np.array(center)) ** 2).sum(axis=-1)
            return np.exp(-0.5 * square / noise**2) / (2 * math.pi * noise**2)

        return (1 - rate) * normal((0.0, 0.0)) + rate * normal(vector)

    pairs = [((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (-0.6, 0.8)), ((1.0, 0.0), (-0.5, 0.0)), ((0.3, 0.0), (-1.0, 0.0))]
    for epsilon in (-1.0, -0.2, 0.0, 0.3, 1.0):

        def worst(at: float, alpha: float = math.exp(epsilon)) -> float:
            up = (1 - rate) * norm.pdf(at, 0, noise) + rate * norm.pdf(at, 1, noise)
            down = (1 - rate) * norm.pdf(at, 0, noise) + rate * norm.pdf(at, -1, noise)
            return max(up - alpha * down, 0.0)

        exact = quad(worst, -15, 15, points=[-1, 0, 1], limit=200)[0]
        assert cells.delta_optimistic(epsilon) - 1e-9 <= exact <= cells.delta(epsilon) + 1e-9
        for one, other in pairs:
            loss = np.maximum(density(one) - math.exp(epsilon) * density(other), 0).sum() * area
            assert loss <= exact + 1e-5


def test_steps_at_once_are_steps_one_by_one() -> None:
    cells, steps = replaced_loss(3.0, 0.2), 6
    together = compose([(cells, steps)])
    one = to_pld(cells, together.interval)
    each = one
    for _ in range(steps - 1):
        each = each.compose(one)
    assert together.delta(0.5) == pytest.approx(each.get_delta_for_epsilon(0.5), rel=1e-6)


def test_without_sampling_it_is_one_gaussian_release() -> None:
    """Of two unit vectors, at most 2 apart: the analytic calibration of Balle and Wang 2018."""
    noise = least_noise(1.0, rate=1.0, steps=50, delta=DELTA) / math.sqrt(50)
    assert noise == pytest.approx(Gaussian.calibrated(1.0, DELTA, 2).sigma, rel=1e-3)
    assert descent_epsilon(8.0, rate=1.0, steps=1, delta=DELTA) == pytest.approx(
        descent_epsilon(8.0, rate=1 - 1e-12, steps=1, delta=DELTA), rel=1e-3
    )


def test_the_least_noise_costs_what_was_asked_for_and_hardly_less() -> None:
    noise = least_noise(2.0, rate=0.25, steps=20, delta=DELTA)
    assert 1.999 < descent_epsilon(noise, rate=0.25, steps=20, delta=DELTA) <= 2.0
    assert descent_epsilon(noise * 2 / 3, rate=0.25, steps=20, delta=DELTA) > 3.0
    with pytest.raises(ValueError, match="epsilon must be"):
        least_noise(0.0, rate=0.25, steps=20, delta=DELTA)
    for steps in (0, 2.9, math.nan, True):  # 2.9 steps would be reckoned as 2
        with pytest.raises(ValueError, match="at least one step"):
            descent_epsilon(1.0, rate=0.25, steps=steps, delta=DELTA)
    with pytest.raises(ValueError, match="rate must be"):
        descent_epsilon(1.0, rate=1.5, steps=1, delta=DELTA)
    with pytest.raises(ValueError, match="noise must be"):
        descent_epsilon(-1.0, rate=0.5, steps=1, delta=DELTA)


@pytest.mark.parametrize(("noise", "rate"), [(0.3, 1e-6), (1.0, 1e-6), (30.0, 1e-6), (1.0, 0.3)])
def test_a_rare_sample_keeps_enough_digits_and_a_rarer_one_is_refused(noise: float, rate: float) -> None:
    """δ(0), 60 digits: q·(2Φ(1/σ) - 1), since the pair is q·(N(1, σ²) - N(-1, σ²)) apart."""
    with mpmath.workdps(60):
        exact = float(mpmath.mpf(rate) * mpmath.erf(1 / (mpmath.mpf(noise) * mpmath.sqrt(2))))
    assert exact * (1 - 1e-8) <= replaced_loss(noise, rate).delta(0.0) <= exact * (1 + 1e-3)
    with pytest.raises(ValueError, match="rate must be from 1e-06 to 1, got 1e-12"):
        replaced_loss(noise, 1e-12)
