"""A deployment of several devices and four stages while everything fails that can: what was acknowledged is there once,
what left was charged, and no party grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mechanisms.messages.sealed import Sealed
from simulations.shuffler.core import Admitted, admit
from simulations.shuffler.store import Store
from tests.support.rough_checks import SETTLING, Gathered, Held, Sample, Told, lost, slope, twice, uncharged
from tests.support.rough_day import BETWEEN, FAULTS, Day, read_store

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


# -- what is checked shows what is wrong ----------------------------------------------------------------------------

OWNERS = [[(8 * user + device, record) for user in range(2) for record in range(2)] for device in range(2)]


def good() -> Gathered:
    owners = [owner for of in OWNERS for owner in of]
    return Gathered(owners, [b"sealed %d %d" % o for o in owners], [{"label": b"said %d %d" % o} for o in owners])


def ledgers(got: Gathered) -> dict[tuple[str, int, int, str], list[bytes]]:
    return {
        ("s", *o): [said["label"]]
        for o, said in zip([(user, record, "label") for user, record in got.owners], got.payloads, strict=True)
    }


def everything(got: Gathered, held: list[Held], full: frozenset[int] = frozenset()) -> list[str]:
    return [*twice("s", got), *lost("s", got, OWNERS, held, full), *uncharged("s", got, ledgers(good()))]


def stored(got: Gathered) -> Held:
    return Held("s", 4, dict(zip(got.owners, got.rows, strict=True)))


def test_an_honest_day_has_no_findings() -> None:
    assert everything(good(), [stored(good())]) == []


def repeats_under_a_new_name(got: Gathered) -> None:
    """A device has one record of a user who is enrolled with two."""
    got.payloads[1] = got.payloads[0]


def sends_twice(got: Gathered) -> None:
    for of in (got.owners, got.rows, got.payloads):
        of.append(of[0])


def sends_what_it_drew_anew(got: Gathered) -> None:
    got.payloads[3] = {"label": b"drawn after the charge"}


def loses_a_row(got: Gathered) -> None:
    for of in (got.owners, got.rows, got.payloads):
        del of[2]


def takes_a_later_row(got: Gathered) -> None:
    """The first one was acknowledged, and thrown away with its process."""
    got.rows[5] = b"sealed anew"


def loses_a_device(got: Gathered) -> None:
    for of in (got.owners, got.rows, got.payloads):
        del of[4:]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (repeats_under_a_new_name, "2 times: release"),
        (repeats_under_a_new_name, "uncharged: label of user 0, record 1"),
        (sends_twice, "2 times: owner"),
        (sends_twice, "2 times: row"),
        (sends_what_it_drew_anew, "uncharged"),
        (loses_a_row, "a part of device 0"),
        (takes_a_later_row, "what was stored of (1, 1)"),
        (loses_a_device, "lost: devices [1]"),
    ],
)
def test_what_is_wrong_is_found(fault: Callable[[Gathered], None], words: str) -> None:
    got = good()
    fault(got)
    assert any(words in line for line in everything(got, [stored(good())])), everything(got, [stored(good())])


def test_a_device_whose_disk_was_full_may_be_missing_where_it_is_counted() -> None:
    got = good()
    loses_a_device(got)
    assert everything(got, [], frozenset({1})) and everything(got, [], frozenset({0}))
    got.errors = {"this client cannot write its ledger": 1}
    assert everything(got, [], frozenset({1})) == []


class Hasty(Store):
    """A shuffler's store that acknowledges rows before it has committed them."""

    def add(self, name: str, sealed: Sealed, most: object = None) -> Admitted:
        self._connection.execute("BEGIN")
        rows = zip(sealed.users.tolist(), sealed.records.tolist(), map(bytes, sealed.rows), strict=True)
        self._connection.executemany(f"INSERT INTO {self._intake(name)} VALUES (?, ?, ?)", rows)
        return admit(sealed.users, sealed.records)


@pytest.fixture(params=[Store, Hasty])
def killed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[bool, Held]]:
    """Whether it was honest, and what a store holds that was killed after it had told of four users."""
    told = Told()
    with request.param(tmp_path / "store.sqlite") as store:
        store.open_stage("s", b"asked", row_bytes=4, minimum_users=1, timeout=1.0)
        users = np.arange(4)
        taken = store.add("s", Sealed(users, np.zeros(4, np.int64), np.zeros((4, 4), np.uint8)))
        told.of("s", len(taken.rows))
        for path in tmp_path.glob("store.sqlite*"):
            (tmp_path / "copy").mkdir(exist_ok=True)
            (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
        if store._connection.in_transaction:
            store._connection.execute("ROLLBACK")
    (held,) = read_store(tmp_path / "copy" / "store.sqlite", told)
    yield request.param is Store, held


def test_a_shuffler_that_acknowledges_before_it_commits_is_found(killed: tuple[bool, Held]) -> None:
    honest, held = killed
    got = Gathered([(u, 0) for u in range(4)], [bytes(4)] * 4, [{}] * 4)
    devices = [got.owners]
    assert bool(list(lost("s", got, devices, [held], frozenset()))) is not honest


def test_users_that_become_fewer_and_another_batch_are_found() -> None:
    told = Told()
    for users in (1, 3, 3):
        told.of("s", users)
    told.closed("s", 3, "one")
    told.closed("s", 3, "one")
    assert told.wrong == []
    told.of("s", 2)
    told.closed("s", 3, "two")
    assert [line.split(":")[1].strip() for line in told.wrong] == ["lost", "another batch than before"]


@pytest.mark.parametrize("leak", [0.0, 5.0])
def test_the_slope_of_memory(leak: float) -> None:
    """Of two processes, one after the other, whatever each of them loads first."""
    rng = np.random.default_rng(1)
    samples = [
        Sample(
            life,
            age,
            (60 * life + age) / 60,
            80 + 30 * life + 40 * min(1.0, age / SETTLING) + leak * age / 60 + rng.normal(0, 0.2),
        )
        for life in (0, 1)
        for age in np.arange(0.0, 60.0, 0.5)
    ]
    grown = slope(samples)
    assert grown is not None and abs(grown - leak) < 0.3  # 8 standard errors of the noise
    assert slope(samples[:30]) is None


def test_every_fault_is_of_a_kind_and_of_somebody() -> None:
    assert {what for what, _ in FAULTS} == {"kill", "stop", "full disk", "clock", "cut", "slow"}
    assert {whose for what, whose in FAULTS if what in ("kill", "stop")} == {
        "SuperLink",
        "shuffler",
        "training server",
        "device",
    }
