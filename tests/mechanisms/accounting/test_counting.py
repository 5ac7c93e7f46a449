"""The mechanism that counts with the least variance fits its budget, and no other size does better."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from mechanisms.accounting.counting import of_central, of_change, of_local, variance
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target
from mechanisms.mechanism import share_variance
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.subset_selection import SubsetSelection


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("classes", [2, 12, 77])
def test_at_a_local_epsilon_the_better_of_both_is_chosen(classes: int, epsilon: float) -> None:
    found = of_local(classes, epsilon)
    assert found.epsilon == epsilon and found.classes == classes
    for other in (RandomizedAnswer(epsilon, classes), SubsetSelection(epsilon, classes)):
        assert variance(found) <= variance(other)


@pytest.mark.parametrize(("users", "classes"), [(2_000, 12), (20_000, 12), (20_000, 77)])
def test_at_a_central_epsilon_the_ladder_shows_no_more(users: int, classes: int) -> None:
    found = of_central(classes, Target(1.0, 1e-6, users))
    assert found is not None
    shown = ladder(None, None, answer=found, users=users, delta=1e-6)[-1].epsilon
    assert shown is not None and 0.97 < shown <= 1.0
    pair = SubsetSelection(found.epsilon, classes, 2)  # no plan, but already a larger variance
    assert variance(found) < variance(pair)


def test_without_a_crowd_the_local_epsilon_is_all() -> None:
    found = of_central(77, Target(1.0, 1e-6, None))
    assert isinstance(found, SubsetSelection) and found.epsilon <= 1.0


def test_the_least_epsilon_for_a_change_has_the_stated_power() -> None:
    found = of_change(12, users=20_000, change=0.02, power=0.8)
    needed = 0.02 / (stats.norm.isf(0.04 / 24) + stats.norm.ppf(0.8))
    error = math.sqrt(sum(share_variance(found.hit, found.miss, share) for share in (1 / 12, 1 / 12 + 0.02)) / 20_000)
    assert 0.99 * needed < error <= needed
    assert of_change(12, users=80_000, change=0.02, power=0.8).epsilon < found.epsilon
    for wrong in ({"change": 0.0}, {"power": 1.0}):
        with pytest.raises(ValueError, match="counts: "):
            of_change(12, **({"users": 20_000, "change": 0.02, "power": 0.8} | wrong))  # type: ignore[arg-type]
