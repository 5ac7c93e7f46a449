"""Compositions at a δ far below what a Fourier transform rounds, against exact ones by mpmath and by bounds.

k randomized responses of ε compose to a binomial law (Kairouz, Oh and Viswanath 2015); other laws are convolved here in
60 digits, atom by atom.
"""

import itertools
import math
import time

import mpmath
import numpy as np
import pytest

from mechanisms.accounting import pld
from mechanisms.accounting.compose import compose
from mechanisms.accounting.privacy_filter import ORDERS, renyi_to_epsilon
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import gaussian_delta, gaussian_epsilon
from mechanisms.losses.categorical import pure_loss, randomized_response_loss
from mechanisms.losses.gaussian import gaussian_loss
from mechanisms.losses.loss import LossCells
from mechanisms.losses.sampled_gaussian import replaced_loss
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from tests.support.lower import least


def binomial_delta(epsilon, times, at):
    """δ(at) of `times` binary randomized responses, in 60 digits."""
    with mpmath.workdps(60):
        e, at = mpmath.mpf(epsilon), mpmath.mpf(at)
        total, lies = mpmath.mpf(0), 0
        term = (mpmath.exp(e) / (1 + mpmath.exp(e))) ** times
        while (times - 2 * lies) * e > at:
            total += term * (1 - mpmath.exp(at - (times - 2 * lies) * e))
            term *= mpmath.mpf(times - lies) / (lies + 1) * mpmath.exp(-e)
            lies += 1
        return total


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-6, 1e-9, 1e-12, 1e-30, 1e-90])
@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 100), (1.0, 7), (0.01, 3000), (2.0, 1000), (6.0, 40)])
def test_randomized_responses_are_the_binomial_at_any_delta(epsilon, times, delta):
    found = pld.compose([(randomized_response_loss(epsilon, 2), times)], tail=delta * 1e-6).epsilon(delta)
    assert binomial_delta(epsilon, times, found) <= delta
    if found > 1e-3:
        assert binomial_delta(epsilon, times, found * (1 - 2e-6)) > delta


@pytest.mark.parametrize(
    ("mechanism", "times", "delta", "most"),
    [
        (RandomizedResponse(0.1, 2), 100, 1e-9, 5.9597),  # was 10, the sum
        (RandomizedResponse(0.001, 2), 10**6, 1e-6, 4.8866),  # was 1000
        (Purkayastha(16, 1.0), 100, 1e-12, 48.66),  # was 314.2
        (Purkayastha(16, 1.0), 1000, 1e-12, 246.5),
    ],
)
def test_what_fell_back_to_the_sum_is_within_two_percent(mechanism, times, delta, most):
    start = time.perf_counter()
    budget = compose([(mechanism, times)], delta=delta)
    assert time.perf_counter() - start < 20  # a second or less, on a machine with other work
    assert budget.epsilon <= most
    below = pld.compose([(least(mechanism.privacy_loss()), times)]).epsilon(delta)
    assert below * (1 - 1e-5) <= budget.epsilon <= 1.02 * below
    assert "worst cases added" not in budget.assumptions


def test_a_thousand_releases_at_a_tiny_delta_are_within_two_percent():
    exact = gaussian_epsilon(0.05 * math.sqrt(1000), 1e-12)
    assert exact <= pld.compose([(gaussian_loss(0.05), 1000)], tail=1e-18).epsilon(1e-12) <= 1.02 * exact
    for cells in (Purkayastha(8, 3.0).privacy_loss(), replaced_loss(1.0, 0.01), pure_loss(1.0)):
        above = pld.compose([(cells, 1000)], tail=1e-18).epsilon(1e-12)
        below = pld.compose([(least(cells), 1000)], tail=1e-18).epsilon(1e-12)
        assert below * (1 - 1e-5) <= above <= 1.02 * below


def small_worlds():
    """Cells with atoms on whole multiples of 1/8, in both directions alike, and releases of several of them."""
    rng = np.random.default_rng(11)
    for _ in range(12):
        places = np.sort(rng.choice(np.arange(1, 30), size=int(rng.integers(1, 5)), replace=False)) / 8
        masses = rng.dirichlet(np.ones(len(places) + 1)) * (1.0 if rng.random() < 0.5 else rng.random())
        up = masses[:-1] / (1 + np.exp(-places))  # of a pair at ±loss, what is above
        losses = np.concatenate([-places[::-1], [0.0], places])
        p = np.concatenate([(up * np.exp(-places))[::-1], [masses[-1]], up])
        infinite = max(0.0, 1.0 - p.sum()) if rng.random() < 0.3 else 0.0
        p /= p.sum() / (1 - infinite)
        yield LossCells(losses, losses, np.log(p), np.log(p[::-1]), infinite * 1e-9), int(rng.integers(1, 9))


def test_mixed_releases_are_the_convolution_in_sixty_digits():
    worlds = list(small_worlds())
    for (one, n), (other, k) in itertools.pairwise(worlds):
        with mpmath.workdps(60):
            law = {0: mpmath.mpf(1)}
            for cells, times in ((one, n), (other, k)):
                atoms = [(round(8 * x), mpmath.exp(mpmath.mpf(p))) for x, p in zip(cells.low, cells.log_p, strict=True)]
                for _ in range(times):
                    made = {}
                    for (at, p), (step, q) in itertools.product(law.items(), atoms):
                        made[at + step] = made.get(at + step, 0) + p * q
                    law = made
            bounded = (1 - mpmath.mpf(one.infinite)) ** n * (1 - mpmath.mpf(other.infinite)) ** k
            above = pld.compose([(one, n), (other, k)], interval=1 / 8)
            for share in (-0.2, 0.0, 0.3, 0.6, 0.9, 0.99):
                epsilon = share * max(law) / 8
                gains = (p * max(0, 1 - mpmath.exp(epsilon - mpmath.mpf(x) / 8)) for x, p in law.items())
                exact = 1 - bounded + sum(gains)
                assert exact <= above.delta(epsilon) * (1 + 1e-13), (n, k, share)
                assert above.delta(epsilon) <= float(exact) * (1 + 1e-6)


def test_the_rounding_bound_holds_the_rounding():
    """Of Gaussian sums, whose δ is known: what is added for rounding is above what is missing, at every tilt."""
    for ratio, times in ((0.3, 50), (0.02, 2000)):
        composed = pld.compose([(gaussian_loss(ratio), times)], tail=1e-25)
        for epsilon in np.linspace(0.0, 12.0 * ratio * math.sqrt(times), 7):
            assert composed.delta(float(epsilon)) >= gaussian_delta(ratio * math.sqrt(times), float(epsilon))


def test_so_many_releases_that_nothing_is_transformed_still_have_the_renyi_bound():
    times = 2**41
    epsilon = 1e-7
    found = pld.compose([(randomized_response_loss(epsilon, 2), times)]).epsilon(1e-9)
    best = min(renyi_to_epsilon(order, times * order * epsilon**2 / 2, 1e-9) for order in ORDERS)
    assert best * 0.98 < found <= best * 1.001 < times * epsilon


def test_the_assumptions_say_what_gave_the_epsilon():
    exact = compose([(Purkayastha(16, 0.1), 100)], delta=1e-6).assumptions[-1]
    basic = compose([(Gaussian(4, 1.0), 1)], delta=0.0).assumptions[-1]
    assert "exact composition" in exact and "worst cases added" in basic
