"""Several anonymous messages of one user: against every data set of a small world, and against one message's bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mechanisms.accounting import several_messages
from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.several_messages import messages_delta
from mechanisms.privunit import PrivUnit
from tests.support.small_worlds import _added


def of_mass(classes: int, epsilon: float) -> PrivUnit:
    """A cap of mass 1/classes: in every question of counts it is randomized response of so many classes."""
    weight = math.exp(epsilon)
    return PrivUnit(16, epsilon, weight / (weight + classes - 1))


def exact_delta(classes: int, local: float, messages: int, users: int, epsilon: float) -> float:
    """δ(ε) of the worst data set in which every user sends so many draws, over all of them."""
    weight = math.exp(local)
    rows = (np.eye(classes) * (weight - 1) + 1) / (weight + classes - 1)
    worst = 0.0
    for others in itertools.combinations_with_replacement(range(classes), users - 1):
        laws = []
        for first in range(2):  # by symmetry the one concerned changes from the first class to the second
            law, sent = np.ones(1), 0
            for at in (first, *others):
                for _ in range(messages):
                    law, sent = _added(law, rows[at], sent), sent + 1
            laws.append(law)
        worst = max(worst, float(np.maximum(laws[0] - math.exp(epsilon) * laws[1], 0.0).sum()))
    return worst


@pytest.mark.parametrize(("classes", "messages", "users"), [(2, 2, 4), (3, 2, 4), (3, 3, 3), (4, 2, 3), (3, 1, 5)])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_no_data_set_of_a_small_world_exceeds_it(classes: int, messages: int, users: int, epsilon: float) -> None:
    for local in (0.5, 1.5):
        bound = messages_delta(of_mass(classes, local), messages, users, epsilon)
        assert exact_delta(classes, local, messages, users, epsilon) <= bound
        # the price of one message would be too little: the harness finds that
        if messages > 1 and epsilon < local:
            naive = messages_delta(of_mass(classes, local), 1, users * messages, epsilon)
            assert exact_delta(classes, local, messages, users, epsilon) > naive


@pytest.mark.parametrize(("users", "epsilon"), [(200, 1.0), (2000, 1.0), (20_000, 0.25)])
def test_one_message_is_the_blanket_bound(users: int, epsilon: float) -> None:
    """By trinomials here, by Fourier transforms of another formula there; rounding the blanket's number down costs."""
    mechanism = PrivUnit(64, 4.0, 0.75)
    known = blanket_delta(mechanism.blanket(), users, epsilon)
    assert known * (1 - 1e-4) <= messages_delta(mechanism, 1, users, epsilon) <= 2 * known + 1e-9


def test_more_messages_cost_more_and_more_users_less() -> None:
    mechanism = PrivUnit(64, 3.0, 0.7)
    of_messages = [messages_delta(mechanism, m, 1000, 0.8) for m in (1, 2, 4)]
    of_users = [messages_delta(mechanism, 3, n, 0.8) for n in (300, 1000, 3000)]
    assert of_messages == sorted(of_messages) and of_users == sorted(of_users, reverse=True)
    assert of_messages[0] < of_messages[-1] / 10 and of_users[-1] < of_users[0] / 10


def test_a_lone_user_has_the_composition_of_the_draws() -> None:
    """No one else: δ(ε) of m draws in one unordered batch, which for three cells is their composition."""
    mechanism = of_mass(3, 1.0)
    weight = math.exp(1.0)
    chances = np.array([weight, 1.0, 1.0]) / (weight + 2)
    exact = 0.0
    for draws in itertools.product(range(3), repeat=2):
        p, q = np.prod(chances[list(draws)]), np.prod(np.roll(chances, 1)[list(draws)])
        exact += max(0.0, p - math.exp(0.7) * q)
    assert messages_delta(mechanism, 2, 1, 0.7) == pytest.approx(exact, rel=1e-5, abs=1e-9)


def test_chances_that_are_off_in_their_seventh_digit_make_it_no_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows δ is a small difference of large chances, and logarithms of factorials have no more digits there."""
    mechanism, users, epsilon = PrivUnit(16, 1.0, 0.5), 3_000, 0.1
    exact = several_messages._trinomial

    def off(rows: int, first: float, second: float, counts: range) -> np.ndarray:
        a, b = np.meshgrid(counts, counts, indexing="ij")
        return exact(rows, first, second, counts) * (1 - 1e-7 * np.sign(a - b))

    bound = messages_delta(mechanism, 2, users, epsilon)
    monkeypatch.setattr(several_messages, "_ARITHMETIC", 0.0)
    true = messages_delta(mechanism, 2, users, epsilon)
    monkeypatch.undo()
    monkeypatch.setattr(several_messages, "_trinomial", off)
    assert true <= messages_delta(mechanism, 2, users, epsilon) < bound < true * (1 + 1e-3)


@pytest.mark.parametrize(("messages", "users"), [(0, 5), (2, 0), (2, 10**7)])
def test_refused(messages: int, users: int) -> None:
    with pytest.raises(ValueError, match="at least 1 and at most 10,000,000 rows together"):
        messages_delta(PrivUnit(16, 1.0), messages, users, 1.0)
