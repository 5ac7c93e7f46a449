"""A deployment of several devices and four stages while everything fails that can: what was acknowledged is there once,
what left was charged, and no party grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rough_checks import SETTLING
from tests.support.rough_day import BETWEEN, Day

#: Of what happens when.
SEED = 19


#: MB of memory of its own that any party may have, in whatever state.
MOST = 400.0


def check(
    folder: Path, *, devices: int, seconds: float, settling: float = SETTLING, between: tuple[float, float] = BETWEEN
) -> dict[str, float]:
    """By how many MB a minute the memory of each party grew, once its process was `settling` seconds old. seconds,
    between: as in `Day.through`."""
    with Day(folder, SEED, devices=devices) as day:
        try:
            day.through(seconds, between)
            found = day.findings()
        finally:
            slopes = {name: round(mb, 2) for name, mb in day.slopes(settling).items()}
            print(f"seed {SEED}; {len(day.told.batches)} stages", *day.happened, f"MB a minute: {slopes}", sep="\n")
    assert not found
    most = {name: max((s.megabytes for s in party.samples), default=0.0) for name, party in day.parties.items()}
    assert 0 < max(most.values()) < MOST, most
    return slopes


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.xdist_group("deployment")
def test_a_rough_day(tmp_path: Path) -> None:
    """Four devices, a minute: each fault at least once. Processes are still loading by then (30 to 120 MB a minute on a
    busy machine): slopes are printed, and what is bounded is how much any party ever has."""
    check(tmp_path, devices=4, seconds=0.0)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.xdist_group("deployment")
def test_a_long_rough_day(tmp_path: Path) -> None:
    """Eight devices, half an hour, of processes that are a minute old."""
    slopes = check(tmp_path, devices=8, seconds=1800.0, settling=60.0, between=(2.0, 16.0))
    assert len(slopes) >= 8 and max(slopes.values()) < 2.0, slopes
