"""The table of the smallest faults that are found: faults are planted, and gone afterwards. On fixed seeds."""

from benchmarks.audit_sizes import FAULTS, smallest
from mechanisms.randomized_response import RandomizedResponse


def test_every_fault_is_gone_when_it_has_been_looked_for():
    sample = RandomizedResponse.sample
    (fault,) = [f for f in FAULTS if f.what == "label in clear, client"]
    found = smallest(fault, 20_000)
    assert found is not None and 0.01 <= found < 1
    assert RandomizedResponse.sample is sample
