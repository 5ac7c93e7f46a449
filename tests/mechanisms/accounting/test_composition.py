"""Composition: n at once is n one by one, and every bound against exact values found in another way.

Second derivations: enumeration of all outputs, closed forms (Gaussian, binary randomized response), dp-accounting,
and convolution in 60 digits, atom by atom. k randomized responses of ε compose to a binomial law (Kairouz, Oh and
Viswanath 2015).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from mechanisms.accounting import pld
from mechanisms.accounting.compose import compose
from mechanisms.accounting.privacy_filter import ORDERS, renyi_to_epsilon
from mechanisms.accounting.solve_epsilon import solve_epsilon
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import gaussian_delta, gaussian_epsilon
from mechanisms.identity import Identity
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.gaussian import gaussian_loss
from mechanisms.losses.loss import LossCells, unbounded_loss
from mechanisms.losses.sphere import purkayastha_loss
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace, Purkayastha
from tests.support.lower import least

pytest.importorskip("dp_accounting")

DELTA = 1e-6
MECHANISMS = (
    Purkayastha(16, 2.0),
    PlanarLaplace(16, 3.0),
    PlanarLaplace(16, 3.0, normalize=False),
    Gaussian(16, 2.0),
    RandomizedResponse(1.0, 4),
    RandomizedResponsePrior(1.0, 4),
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_n_at_once_cost_what_n_one_by_one_cost(mechanism):
    one = compose([(mechanism, 1)], delta=DELTA)
    once = compose([(mechanism, 6)], delta=DELTA)
    singly = compose([(mechanism, 1)] * 6, delta=DELTA)
    mixed = compose([(mechanism, 2), (mechanism, 4)], delta=DELTA)
    assert once == singly == mixed
    # and it is the cost of six, not of one (the fault of two accountants for their own events)
    assert once.epsilon > 1.5 * one.epsilon


def test_the_order_of_the_list_does_not_matter():
    pairs = [(mechanism, 1 + i % 2) for i, mechanism in enumerate(MECHANISMS)]
    forward = compose(pairs, delta=DELTA)
    back = compose(pairs[::-1], delta=DELTA)
    assert forward.epsilon == back.epsilon and forward.delta == back.delta and forward.unit == "record"


@pytest.mark.parametrize(("ratio", "times"), [(1.0, 1), (0.05, 1000), (2.0, 7)])
def test_gaussian_releases_compose_to_one_of_a_larger_ratio(ratio, times):
    exact = gaussian_epsilon(ratio * math.sqrt(times), DELTA)
    above = pld.compose([(gaussian_loss(ratio), times)])
    assert exact * (1 - 1e-9) <= above.epsilon(DELTA) <= exact * 1.001
    for epsilon in (0.0, exact / 2, exact):
        assert gaussian_delta(ratio * math.sqrt(times), epsilon) <= above.delta(epsilon) * (1 + 1e-9)


def test_discretization_is_small_and_on_the_safe_side():
    for cells, times in (
        (purkayastha_loss(16, 4.0), 1),
        (purkayastha_loss(16, 4.0), 10),
        (purkayastha_loss(16, 1000.0), 3),
    ):
        above, below = pld.compose([(cells, times)]), pld.compose([(least(cells), times)])
        assert below.epsilon(DELTA) <= above.epsilon(DELTA) <= below.epsilon(DELTA) * 1.001
        # a coarser grid is never below the truth
        coarse = pld.compose([(cells, times)], interval=64 * above.interval)
        assert coarse.epsilon(DELTA) >= below.epsilon(DELTA)
    single = purkayastha_loss(16, 4.0)
    assert pld.compose([(single, 1)]).epsilon(DELTA) == pytest.approx(single.epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize("times", [3])
def test_dp_accountings_accountants_beside_ours(times: int) -> None:
    """Gaussian noise and randomized response agree; Rényi is larger, and so is its Laplace noise, of a number.

    Unit vectors are at most 2 apart, and its noise multipliers are relative to that. `compose(event, n)` counts
    a randomized response once, so each is composed by itself.
    """
    import dp_accounting as theirs
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    added, replaced = theirs.NeighboringRelation.ADD_OR_REMOVE_ONE, theirs.NeighboringRelation.REPLACE_ONE
    k, response = 4, RandomizedResponse(1.5, 4)
    for mechanism, event, relation in (
        (Gaussian(8, 2.0), theirs.GaussianDpEvent(1.0), added),
        (response, theirs.RandomizedResponseDpEvent(k / (math.exp(1.5) + k - 1), k), replaced),
        (PlanarLaplace(16, 2.0, normalize=False), theirs.LaplaceDpEvent(0.25), added),
    ):
        ours, accountant = compose([(mechanism, times)], delta=DELTA).epsilon, PLDAccountant(relation)
        for _ in range(times):
            accountant.compose(event)
        if isinstance(mechanism, PlanarLaplace):
            assert ours < accountant.get_epsilon(DELTA) <= 4 * times * 1.001
        else:
            assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)
        if isinstance(mechanism, Gaussian):
            assert RdpAccountant(neighboring_relation=relation).compose(event, times).get_epsilon(DELTA) > ours


def test_the_samplers_approximations_are_added_release_by_release():
    mechanism = Purkayastha(16, 4.0)
    guarantee = mechanism.guarantee
    budget = compose([(mechanism, 7)], delta=DELTA)
    bare = pld.compose([(mechanism.privacy_loss(), 7)]).epsilon(DELTA)
    assert budget.epsilon == pytest.approx(bare + 7 * guarantee.numeric_epsilon, abs=1e-8)
    assert DELTA <= budget.delta == pytest.approx(DELTA, rel=1e-5)
    assert 0 < budget.sampler_delta == pytest.approx(7 * guarantee.numeric_delta, abs=0)
    basic = compose([(mechanism, 7)], delta=0.0)
    assert basic.delta == 0 and basic.sampler_delta == budget.sampler_delta


def test_an_unprotected_channel_makes_the_whole_infinite():
    budget = compose([(Purkayastha(16, 1.0), 2), (Identity("label", 2), 1)], delta=DELTA)
    assert budget.epsilon == math.inf and budget.unit == "record"
    assert pld.compose([(unbounded_loss(), 2)]).epsilon(DELTA) == math.inf
    assert pld.compose([(unbounded_loss(), 1), (gaussian_loss(1.0), 1)]).delta(3.0) == pytest.approx(1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-6, 0.3])
def test_the_least_epsilon_is_on_the_safe_side_and_a_little_less_is_not(delta: float) -> None:
    """Of Gaussian noise and of ten randomized responses: seen on either side of δ, 2e-9 apart."""
    for losses in ([(gaussian_loss(1.0), 1)], [(RandomizedResponse(1.0, classes=2).privacy_loss(), 10)]):
        composed = pld.compose(losses)
        found = composed.epsilon(delta)
        if math.isinf(found):
            assert composed.delta(math.inf) > delta
            continue
        assert composed.delta(found) <= delta < composed.delta(found * (1 - 2e-9))


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


@pytest.mark.parametrize(
    ("epsilon", "times", "delta"),
    [(0.1, 100, 0.3), (1.0, 7, 1e-6), (0.01, 3000, 1e-12), (2.0, 1000, 1e-30), (6.0, 40, 1e-90)],
)
def test_randomized_responses_are_the_binomial_at_any_delta(epsilon, times, delta):
    found = pld.compose([(pure_loss(epsilon), times)], tail=delta * 1e-6).epsilon(delta)
    assert binomial_delta(epsilon, times, found) <= delta
    if found > 1e-3:
        assert binomial_delta(epsilon, times, found * (1 - 2e-6)) > delta


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
    found = pld.compose([(pure_loss(epsilon), times)]).epsilon(1e-9)
    best = min(renyi_to_epsilon(order, times * order * epsilon**2 / 2, 1e-9) for order in ORDERS)
    assert best * 0.98 < found <= best * 1.001 < times * epsilon


def looked(excess: Callable[[float], float], guess: float, top: float, fall: float, tolerance: float = 1e-4) -> int:
    """How many looks it took, after what was found was held to what was seen."""
    seen: dict[float, float] = {}

    def watched(epsilon: float) -> float:
        assert epsilon not in seen and 0 <= epsilon <= top
        seen[epsilon] = excess(epsilon)
        return seen[epsilon]

    found = solve_epsilon(watched, guess, top, fall=fall, tolerance=tolerance)
    assert found is not None
    low, high = found
    assert seen[low] > 0 >= seen[high] and 0 < high - low <= tolerance * high
    return len(seen)


@pytest.mark.parametrize("root", [1e-5, 1.0])
@pytest.mark.parametrize(
    "shape",
    [
        lambda e, root: 12.0 if e < root else -690.0,  # a cliff at both ends of which nothing is learnt
        lambda e, root: 40 * (root - e) / root if e < root else -690.0,  # a slope that ends in one
        lambda e, root: (root - e) ** 3 * 1e5,  # flat where it crosses
        lambda e, root: (root - e) / root * 5 + 1e-3 * math.sin(1e5 * e / root),  # with noise on it
    ],
)
def test_no_shape_takes_it_from_its_bracket(shape: Callable[[float, float], float], root: float) -> None:
    for guess in (0.01 * root, 0.9 * root, min(2.9, 1.7 * root)):
        assert looked(lambda e: shape(e, root), guess, 3.0, 1 / guess, 1e-4) <= 60


def test_where_there_is_nothing_to_find() -> None:
    assert solve_epsilon(lambda e: 1.0 - 0.1 * e, 0.5, 3.0, fall=0.1, tolerance=1e-4) is None
    assert solve_epsilon(lambda e: -1.0 - e, 0.5, 3.0, fall=1.0, tolerance=1e-4) == (0.0, 0.0)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_a_number_is_above(broken: float) -> None:
    """Nobody knows that δ is small enough there, so no ε is claimed that rests on it."""
    assert solve_epsilon(lambda e: broken, 1.0, 4.0, fall=1.0, tolerance=1e-4) is None
    # at 0, and around where it crosses: the bracket's far end was seen to be a number, and not above 0
    for hole in (lambda e: e == 0, lambda e: e < 1.2, lambda e: 0.7 < e < 1.3, lambda e: 1.1 < e < 1.2):
        seen: dict[float, float] = {}

        def excess(e: float, hole: Callable[[float], bool] = hole, seen: dict[float, float] = seen) -> float:
            seen[e] = broken if hole(e) else 1.0 - e
            return seen[e]

        for guess in (0.3, 1.0, 1.15, 2.9):
            seen.clear()
            found = solve_epsilon(excess, guess, 4.0, fall=1.0, tolerance=1e-4)
            assert found is not None and seen[found[1]] <= 0 < found[1]
