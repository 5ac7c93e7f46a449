"""The blanket bound where numbers end: next to no samples, tilts that overflow, values far below 0."""

import math

import pytest

from mechanisms import Purkayastha, RandomizedResponse
from mechanisms.accounting.blanket import blanket_delta, blanket_epsilon
from mechanisms.accounting.shuffle import joint_blanket
from mechanisms.accounting.truncated import truncated_epsilon

DELTA = 1e-6


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97, 0.999])
@pytest.mark.parametrize("n", [1, 1000, 10**6])
def test_the_optimistic_twin_is_below_where_next_to_nobody_sends_a_sample(n, share):
    """The exact δ is never above the local one, (p - e^ε·q)_+ of an answer."""
    local = 40.0
    mechanism = RandomizedResponse(local, 2)
    epsilon = share * local
    exact = -math.expm1(epsilon - local) / (1 + math.exp(-local))
    below = blanket_delta(mechanism.blanket(), n, epsilon, pessimistic=False)
    assert 0 <= below <= exact * (1 + 1e-12)
    assert exact * (1 - 1e-9) <= blanket_delta(mechanism.blanket(), n, epsilon)


@pytest.mark.filterwarnings("error")
def test_what_no_number_holds_is_no_bound_and_no_noise():
    """A tilt that overflows, and a law with values far below 0 whose bins are wider than its largest value."""
    response = RandomizedResponse(20.0, 10)
    for pessimistic in (True, False):
        found = blanket_epsilon(response.blanket(), 10**9, DELTA, pessimistic=pessimistic)
        assert found is None or 0 <= found <= 20.0
    far = joint_blanket([Purkayastha(16, 8.0), RandomizedResponse(1.0, 2)])
    found = truncated_epsilon(far, 10**6, DELTA)
    assert 20 < found < far.loss().epsilon(DELTA)
