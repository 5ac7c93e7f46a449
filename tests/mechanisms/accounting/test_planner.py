"""The planner: its answers fit, slightly more does not, and the ladder of a plan shows the budget asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from scipy.special import logit

from mechanisms import Gaussian, Identity, Purkayastha, RandomizedResponse, RandomizedResponsePrior
from mechanisms.accounting.central import central_epsilon, group_factor
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target, best_privunit, fits, plan, users_needed
from mechanisms.accounting.shuffle import amplify
from mechanisms.privunit import PrivUnit

DELTA = 1e-6


def joint(embedding: float, label: float) -> list:
    return [Purkayastha(16, embedding), RandomizedResponse(label, 2)]


def test_the_largest_epsilon_fits_and_a_little_more_does_not() -> None:
    target = Target(0.203, DELTA, 10_000)
    found = plan(lambda e: [Purkayastha(16, e)], target)
    # κ = 2 costs 0.203 at n = 10,000 by a prototype's blanket; a better bound allows for more
    assert 2.0 * 0.97 < found < 4.0
    assert fits([Purkayastha(16, found)], target) and not fits([Purkayastha(16, found * 1.01)], target)
    cost = ladder(Purkayastha(16, found), None, users=10_000, delta=DELTA)[-1].epsilon
    assert 0.97 * 0.203 < cost <= 0.203 * 1.001  # the budget is used up, and no more


def test_without_a_shuffler_it_is_the_local_budget() -> None:
    target = Target(4.37, DELTA, None)
    found = plan(lambda e: [Purkayastha(16, e)], target)
    assert found == pytest.approx(2.0, rel=0.01)  # the table again
    pure = plan(lambda e: [RandomizedResponse(e, 2)], Target(1.0, DELTA, None))
    assert pure == pytest.approx(1.0, rel=5e-3)


def test_the_ends_of_the_range() -> None:
    target = Target(0.5, DELTA, None)
    assert plan(lambda e: [RandomizedResponse(e, 2)], target, most=0.1) == 0.1
    assert plan(lambda e: [RandomizedResponse(e, 2)], target, least=2.0) is None
    with pytest.raises(ValueError, match="least must be above 0"):
        plan(lambda e: [RandomizedResponse(e, 2)], target, least=2.0, most=1.0)


def test_several_records_and_stages_share_the_budget() -> None:
    target = Target(1.0, DELTA, 100_000, records=2, stages=2)
    epsilon, delta = target.one_record
    assert epsilon == 0.25 and delta == pytest.approx(DELTA / 2 / (1 + math.exp(0.25)))
    found = plan(lambda e: [Purkayastha(16, e)], target, tolerance=0.02)
    alone = plan(lambda e: [Purkayastha(16, e)], Target(1.0, DELTA, 100_000), tolerance=0.02)
    assert found < alone
    cost, _ = central_epsilon((Purkayastha(16, found),), users=100_000, delta=DELTA, records=2, stages=2)
    assert 0.9 < cost <= 1.001


def test_users_needed() -> None:
    mechanism = [Purkayastha(16, 2.0)]
    needed = users_needed(mechanism, epsilon=0.203, delta=DELTA)
    assert 1000 < needed < 10_500  # 10,000 by a prototype's blanket
    assert fits(mechanism, Target(0.203, DELTA, needed))
    assert not fits(mechanism, Target(0.203, DELTA, int(needed * 0.9)))
    assert users_needed([RandomizedResponse(1.0, 2)], epsilon=1.0, delta=DELTA) == 1
    more = users_needed(mechanism, epsilon=0.203, delta=DELTA, records=2, stages=2, tolerance=0.1)
    assert needed < more and fits(mechanism, Target(0.203, DELTA, more, records=2, stages=2))
    assert not fits(mechanism, Target(0.203, DELTA, int(more * 0.8), records=2, stages=2))
    assert users_needed([Identity("label", 2)], epsilon=1.0, delta=DELTA) is None


@dataclass(frozen=True)
class RoughResponse(RandomizedResponse):
    """Randomized response by a sampler whose densities are off by a factor of e^(±0.1), and whose losses by 0.1."""

    @property
    def guarantee(self):
        return replace(super().guarantee, numeric_epsilon=0.1)


@pytest.mark.parametrize("users", [None, 10_000])
def test_a_sampler_that_is_off_is_in_the_plan(users) -> None:
    """The law farthest from the theorem's within that: its exact local δ, and amplify's bound, keep to the target."""
    target = Target(0.5, DELTA if users else 0.02, users)
    most = plan(lambda e: [RoughResponse(e, 2)], target)
    exact = plan(lambda e: [RandomizedResponse(e, 2)], target)
    assert most < exact
    if users:
        assert amplify([RoughResponse(most, 2)], users=users, delta=DELTA).epsilon <= 0.5
        assert amplify([RoughResponse(exact, 2)], users=users, delta=DELTA).epsilon > 0.5
    else:
        # the truth is told with odds e^0.1 higher: δ(ε) = p - e^ε·(1 - p)
        for found, keeps in ((most, True), (exact, False)):
            truth = 1 / (1 + math.exp(-found - 0.1))
            assert (truth - math.exp(0.5) * (1 - truth) <= 0.02) == keeps


@pytest.mark.parametrize(
    ("users", "epsilon", "prototype"),
    [
        (20_000, 0.25, 0.253),
        (63_000, 0.25, 0.314),
        (63_000, 1.0, 0.425),
        (10**6, 1.0, 0.529),
        pytest.param(20_000, 1.0, 0.372, marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
def test_the_privunit_of_least_error(users, epsilon, prototype) -> None:
    """No worse than a prototype's grid of p by tenths, and than any other p: E cos at D = 32."""
    target = Target(epsilon, DELTA, users)
    best = best_privunit(32, target)
    assert prototype <= best.scale <= 1.06 * prototype
    assert fits([best], target) and not fits([PrivUnit(32, best.epsilon * 1.01, best.cap_probability)], target)
    if (users, epsilon) != (20_000, 1.0):
        return
    for p in (0.4, best.cap_probability - 0.05, best.cap_probability + 0.05, 0.97):
        other = plan(lambda e, p=p: [PrivUnit(32, e, p)], target, least=max(2.0, logit(p) + 1e-9), most=8)
        assert other is not None and PrivUnit(32, other, p).scale <= best.scale * 1.002


def test_privunit_in_several_stages_and_where_nothing_fits() -> None:
    target = Target(1.0, DELTA, 2_000, stages=3)
    best = best_privunit(16, target, tolerance=0.05)
    cost, details = central_epsilon((best,), users=2_000, delta=DELTA, stages=3)
    assert 0.85 < cost <= 1.0 and details["stages_composed"] == cost  # to a twentieth of ε0
    assert best_privunit(16, Target(1e-5, 1e-9, 2)) is None


def test_a_prior_hides_only_beside_what_it_is_made_from() -> None:
    prior = [Purkayastha(16, 1.0), RandomizedResponsePrior(1.0, 2)]
    assert fits(prior, Target(0.1, DELTA, 100_000)) and not fits(prior, Target(0.001, DELTA, 100_000))
    # without the embedding that the prior is a function of, users need not have one randomizer
    assert not fits(prior[1:], Target(0.1, DELTA, 100_000))


@pytest.mark.parametrize("mechanism", [Purkayastha(4, 2.0), Gaussian(4, 0.8), RandomizedResponse(4.0, 2)])
def test_what_fits_is_what_amplification_says(mechanism) -> None:
    """A δ at the target's ε and the search for an ε at δ are the same bounds, and part by little."""
    cost = amplify([mechanism], users=3000, delta=DELTA).epsilon
    assert fits([mechanism], Target(cost * 1.001, DELTA, 3000))
    assert not fits([mechanism], Target(cost * 0.98, DELTA, 3000))


def test_what_has_no_guarantee_fits_nothing() -> None:
    assert not fits([Identity("embedding", 16)], Target(10.0, DELTA, 10**6))
    assert fits([Gaussian.calibrated(2.0, DELTA, 4)], Target(2.01, DELTA, None))
    assert not fits([Gaussian.calibrated(2.0, DELTA, 4)], Target(1.9, DELTA, None))


def test_beyond_what_a_blanket_is_asked_the_local_budget_counts() -> None:
    target = Target(800.0, 1e-6, 1000)
    assert fits([RandomizedResponse(790.0, 2)], target)
    assert not fits([RandomizedResponse(600.0, 2)] * 2, target)


def test_group_factor_is_a_sum_of_powers() -> None:
    for k in (1, 2, 7):
        assert group_factor(0.3, k) == pytest.approx(sum(math.exp(0.3 * i) for i in range(k)))


@pytest.mark.parametrize(
    "numbers",
    [
        (0.0, DELTA, 10),
        (math.nan, DELTA, 10),
        (math.inf, DELTA, 10),
        (1.0, 0.0, 10),
        (1.0, 1.0, 10),
        (1.0, math.nan, 10),
        (1.0, DELTA, 0),
        (1.0, DELTA, 10, 0),
        (1.0, DELTA, 10, 1, 0),
        (1.0, DELTA, True),
    ],
)
def test_bad_targets(numbers: tuple) -> None:
    with pytest.raises(ValueError, match=r"^plan: [^\n]+$"):
        Target(*numbers)
