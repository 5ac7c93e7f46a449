"""The table of the smallest faults that are found: faults are planted, and gone afterwards. On fixed seeds."""

import pytest

from mechanisms.randomized_response import RandomizedResponse
from sottovoce.adversary.audit.sizes import FAULTS, smallest


def test_every_fault_is_gone_when_it_has_been_looked_for():
    sample = RandomizedResponse.sample
    (fault,) = [f for f in FAULTS if f.what == "label in clear, client"]
    found = smallest(fault, 20_000)
    assert found is not None and 0.01 <= found < 1
    assert RandomizedResponse.sample is sample


@pytest.mark.parametrize("of", ["record", "stage", "step"])
def test_streams_of_a_share_of_users(of):
    (fault,) = [f for f in FAULTS if f"ignore the {of}" in f.what]
    found = smallest(fault, 20_000)
    assert found is not None and found < 1
