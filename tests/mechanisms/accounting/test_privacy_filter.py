"""A filter's total holds against the best course of questions there is, found by dynamic programming; what looks like a
filter and is none is broken by the same search."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from mechanisms.accounting.privacy_filter import (
    FREE,
    Account,
    Cost,
    concentrated,
    concentrated_limit,
    cost,
    within,
    within_epsilon,
)
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import Guarantee, gaussian_delta
from mechanisms.identity import Identity
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha

Used = tuple[int, ...]


def pure(epsilon: float, **more: float) -> Guarantee:
    return Guarantee(epsilon=epsilon, metric="discrete", diameter=1.0, protects="label", **more)


def noise(ratio: float) -> Guarantee:
    return Guarantee(epsilon=math.inf, metric="euclidean", diameter=ratio, protects="sequence", sigma=1.0)


def account(*costs: Cost, times: int = 1) -> Account:
    total = Account.empty(1)
    for one in costs:
        total = total.plus(one, np.array([times]))
    return total


def worst_course(menu: tuple[float, ...], most: int, target: float, admits: Callable[[Used], bool]) -> float:
    """Largest E[(1 - e^(target - loss))+] of all who ask by randomized response, choosing each ε of the menu, and when
    to stop, in the light of the answers, as long as the rule admits what was asked: exact, over all of them.

    That is the δ at which what left is (target, δ)-private, and no less.
    """

    @cache
    def value(used: Used, truths: Used) -> float:
        loss = sum((2 * t - u) * e for u, t, e in zip(used, truths, menu, strict=True))
        best = max(0.0, -math.expm1(target - loss))
        for i, epsilon in enumerate(menu) if sum(used) < most else ():
            asked = tuple(u + (j == i) for j, u in enumerate(used))
            if not admits(asked):
                continue
            true = tuple(t + (j == i) for j, t in enumerate(truths))
            p = 1 / (1 + math.exp(-epsilon))
            best = max(best, p * value(asked, true) + (1 - p) * value(asked, truths))
        return best

    nothing = (0,) * len(menu)
    return value(nothing, nothing)


WORLDS = [((0.4, 0.1), 30, 0.1), ((0.5, 0.1), 40, 0.3), ((0.3, 0.1, 0.02), 16, 0.2)]


@pytest.mark.parametrize(("menu", "most", "delta"), WORLDS)
def test_no_course_of_questions_passes_the_total(menu: tuple[float, ...], most: int, delta: float) -> None:
    def admits(used: Used) -> bool:
        total = Account.empty(1)
        for epsilon, times in zip(menu, used, strict=True):
            total = total.plus(cost(pure(epsilon), 0.0), np.array([times]))
        return bool(within(total, epsilon=1.0, delta=delta)[0])

    found = worst_course(menu, most, 1.0, lru_cache(maxsize=None)(admits))
    assert 0 < found <= delta / 2  # the filter's half: nothing here fails
    # and it lets more be than sums do, under which no loss ever passes the total
    assert worst_course(menu, most, 1.0, lambda used: np.dot(used, menu) <= 1 + 1e-9) < 1e-9


def test_a_sum_that_forgets_delta_is_no_filter() -> None:
    """300 Gaussians of ε = 0 at δ = 1e-6 each have an exact δ(0) of 1.7e-5; sums of ε alone say 0."""
    ratio = 2 * norm.ppf(0.5 + 1e-6 / 2) * (1 - 1e-6)
    one = cost(noise(float(ratio)), 1e-6)
    assert one.epsilon == 0 and one.delta == 1e-6
    true = gaussian_delta(math.sqrt(300) * ratio, 0.0)
    assert true > 1.7e-5
    many = account(one, times=300)
    assert many.epsilon[0] == 0 and not within(many, epsilon=0.0, delta=1e-5)[0]
    allowed = max(n for n in range(301) if within(account(one, times=n), epsilon=0.0, delta=1e-5)[0])
    assert allowed == 5 and gaussian_delta(math.sqrt(allowed) * ratio, 0.0) < 1e-5


@pytest.mark.parametrize("epsilon", [0.01, 2.0, 30.0])
def test_zcdp_of_randomized_response_by_its_definition(epsilon: float) -> None:
    """D_α/α of the two outcomes, at orders from near 1 to 1e4: never above, and reached towards order 1."""
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    orders = 1 + np.logspace(-6, 4, 400)
    log_sum = np.logaddexp(orders * np.log(p) + (1 - orders) * np.log(q), orders * np.log(q) + (1 - orders) * np.log(p))
    rates = log_sum / (orders - 1) / orders
    rho = concentrated(pure(epsilon))
    assert rates.max() <= rho * (1 + 1e-6)  # of rounding, at orders near 1
    assert rates.max() >= rho * (1 - 1e-4) and rho <= epsilon**2 / 2
    assert concentrated(RandomizedResponse(epsilon, 2).guarantee) == pytest.approx(rho)


@pytest.mark.parametrize("sigma", [3.0])
def test_zcdp_of_gaussian_noise_by_quadrature(sigma: float) -> None:
    guarantee = Gaussian(2, sigma).guarantee
    for order in (1.5, 2.0, 7.0):

        def density(x: float, order: float = order) -> float:
            return math.exp(order * norm.logpdf(x, guarantee.diameter, sigma) + (1 - order) * norm.logpdf(x, 0, sigma))

        low, high = -20 * sigma, order * guarantee.diameter + 20 * sigma
        found = math.log(quad(density, low, high, limit=500)[0]) / (order - 1)
        assert found == pytest.approx(order * concentrated(guarantee), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.1), (1.0, 1e-9), (40.0, 5e-6)])
def test_the_zcdp_that_fits_a_total(epsilon: float, delta: float) -> None:
    """Gaussian noise of that ρ, whose exact profile is known, stays below δ; and not by much."""
    rho = concentrated_limit(epsilon, delta)
    exact = gaussian_delta(math.sqrt(2 * rho), epsilon)
    assert delta / 40 < exact <= delta
    # the classic conversion (Bun and Steinke 2016, Proposition 1.3) allows no more
    classic = (math.sqrt(epsilon + math.log(1 / delta)) - math.sqrt(math.log(1 / delta))) ** 2
    assert rho >= classic * (1 - 1e-3)
    assert concentrated_limit(math.inf, delta) == math.inf and concentrated_limit(epsilon, 0.0) == 0.0


def test_what_a_release_is_charged() -> None:
    sphere = Purkayastha(16, 4.0).guarantee
    assert cost(sphere, 1e-6) == Cost(sphere.worst_case(), sphere.numeric_delta, concentrated(sphere))
    one = cost(Gaussian(16, 2.0).guarantee, 1e-6)
    assert one.epsilon == Gaussian(16, 2.0).guarantee.worst_case(1e-6) and one.rho == 0.5
    assert one.delta == 1e-6 + Gaussian(16, 2.0).guarantee.numeric_delta
    clear = cost(Identity("label", 2).guarantee, 1e-6)
    assert clear.epsilon == clear.rho == math.inf
    texts = Guarantee(epsilon=1.0, metric="discrete", diameter=1.0, protects="sequence", exposes=("length",))
    assert cost(texts, 0.0).rho == math.inf and cost(texts, 0.0, declared={"length"}).epsilon == 1.0


def test_n_at_once_are_n_one_by_one() -> None:
    rng = np.random.default_rng(3)
    costs = [cost(pure(e, numeric_delta=1e-9), 0.0) for e in (0.01, 0.3, 2.0)] + [cost(noise(0.2), 1e-7), FREE]
    times = rng.integers(0, 30, (len(costs), 4))
    once = Account.empty(4)
    for one, counts in zip(costs, times, strict=True):
        once = once.plus(one, counts)
    single = Account.empty(4)
    for number in rng.permutation(np.repeat(np.arange(len(costs)), 29)):
        left = times[number] > 0
        single, times[number] = single.plus(costs[number], left), times[number] - left
    for name in ("epsilon", "delta", "rho"):
        np.testing.assert_allclose(getattr(single, name), getattr(once, name), rtol=1e-12)
    assert single.releases.tolist() == once.releases.tolist()
    folded = once.sum_by(np.array([1, 1, 0, 1]), 2)
    assert folded.releases.tolist() == [once.releases[2], once.releases[[0, 1, 3]].sum()]
    assert folded.rho[0] == once.rho[2]


def test_what_costs_infinitely_much_and_was_not_released_costs_nothing() -> None:
    total = Account.empty(2).plus(cost(pure(math.inf), 0.0), np.array([0, 1]))
    assert total.epsilon.tolist() == total.rho.tolist() == [0.0, math.inf]
    assert within(total, epsilon=5.0, delta=1e-5).tolist() == [True, False]


def test_a_limit_of_infinity_still_counts_delta() -> None:
    samplers = cost(pure(1.0, numeric_delta=1e-6), 0.0)
    assert [bool(within(account(samplers, times=n), epsilon=math.inf, delta=1e-5)[0]) for n in (5, 6)] == [True, False]
    assert within_epsilon(account(samplers, times=6), epsilon=math.inf, delta=1e-5)[0]
    assert not within(account(samplers), epsilon=math.inf, delta=0.0)[0]


def test_a_total_without_delta_is_the_sum_of_pure_epsilons() -> None:
    """No zCDP, and samplers may spend SAMPLERS: 8 of ε = .1 and 1e-13 each are within .8, and 9 within nothing."""
    one = cost(pure(0.1, numeric_delta=1e-13), 0.0)
    assert [bool(within(account(one, times=n), epsilon=0.8, delta=0.0)[0]) for n in (8, 9)] == [True, False]
    assert within(account(one, times=9), epsilon=0.8, delta=0.5)[0]
    assert [bool(within(account(one, times=n), epsilon=9.0, delta=0.0)[0]) for n in (10, 11)] == [True, False]
