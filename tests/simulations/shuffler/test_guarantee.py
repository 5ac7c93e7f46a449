"""The shuffler's guarantee, for its rules and through both doors: the simulation's, in memory, and the deployed one's.

A batch has at least its minimum of users, each record of a user once, and nothing in it says who sent which row.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest
from scipy.stats import chi2

from mechanisms.guarantee import Guarantee
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.sealed import Sealed
from simulations.shuffler.core import admit
from simulations.shuffler.shuffle import shuffle
from simulations.shuffler.store import OPEN, Store, StoreError

#: A chi-square above this occurs once in a million runs of a uniform permutation.
FALSE_ALARM = 1e-6
LABEL = Guarantee(1.0, "discrete", 1.0, "label")

#: A row as it is sent: user, record, and the content, which stands for what the row says.
Row = tuple[int, int, int]


class Batch(NamedTuple):
    """What leaves a shuffler: contents in the order of the batch, and its counts."""

    contents: list[int]
    users: int
    again: int
    late: int


class Door(Protocol):
    """A stage from its replies to its batch; `late` sends after the stage is closed."""

    def __call__(self, replies: Sequence[Sequence[Row]], minimum: int, late: frozenset[int] = frozenset()) -> Batch: ...


def columns(rows: Sequence[Row]) -> tuple[Any, Any, Any]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2:].copy()


def simulated() -> Door:
    rng = np.random.default_rng(3)

    def door(replies: Sequence[Sequence[Row]], minimum: int, late: frozenset[int] = frozenset()) -> Batch:
        def made(rows: Sequence[Row]) -> Reply:
            users, records, content = columns(rows)
            return Reply(users, records, (Release({"y": content[:, 0]}, "label", "train", LABEL, "l"),))

        def clock(users: Any) -> Any:
            return np.isin(users, list(late))

        batch, origin, gone = shuffle(map(made, replies), minimum_users=minimum, rng=rng, late=clock)
        given = [content for release in batch.releases for content in release.payload["y"].tolist()]
        assert (batch.discarded is None) == bool(given) and len(origin.users) == len(given)
        return Batch(given, batch.users, batch.duplicates, gone)

    return door


def deployed(store: Store) -> Door:
    names = (f"stage-{i}" for i in itertools.count())

    def door(replies: Sequence[Sequence[Row]], minimum: int, late: frozenset[int] = frozenset()) -> Batch:
        def add(rows: Sequence[Row]) -> int:
            users, records, content = columns(rows)
            return store.add(stage, Sealed(users, records, content.view(np.uint8))).late

        stage = next(names)
        store.open_stage(stage, b"asked", row_bytes=8, minimum_users=minimum, timeout=1.0)
        assert not any(add([row for row in rows if row[0] not in late]) for rows in replies)
        done = store.close(stage, dropped={}, errors={})
        given = store.batch(stage).copy().view(np.int64).ravel().tolist()
        gone = add([row for rows in replies for row in rows if row[0] in late])
        assert (store.stage(stage) == done and done.rows == len(given)) or not given  # it stays what it was
        return Batch(given, done.users if given else 0, done.duplicates, gone)

    return door


@pytest.fixture(params=["simulated", "deployed"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    if request.param == "simulated":
        yield simulated()
        return
    with Store(tmp_path / "store.sqlite") as store:
        yield deployed(store)


def expected(replies: Sequence[Sequence[Row]], minimum: int, late: frozenset[int]) -> tuple[list[int], int, int, int]:
    """The guarantee, row by row."""
    first: dict[tuple[int, int], int] = {}
    again, gone = 0, set()
    for user, record, content in itertools.chain(*replies):
        if user in late:
            gone.add(user)
        elif (user, record) in first:
            again += 1
        else:
            first[user, record] = content
    users = {user for user, _ in first}
    leaves = len(users) >= max(minimum, 1)
    return sorted(first.values()) if leaves else [], len(users) * leaves, again, len(gone)


def check(door: Door, replies: Sequence[Sequence[Row]], minimum: int, late: frozenset[int] = frozenset()) -> Batch:
    batch = door(replies, minimum, late)
    assert (sorted(batch.contents), *batch[1:]) == expected(replies, minimum, late)
    return batch


A, B, C = (1, 0, 10), (2, 0, 20), (3, 0, 30)


def test_any_replies(door: Door) -> None:
    """60 stages of a few users, of whom some send twice or the same as others, some send late and some are alone."""
    rng = np.random.default_rng(5)
    outcomes = Counter[bool]()
    for _ in range(60):
        sizes = rng.integers(0, 6, rng.integers(0, 5))
        replies = [[(int(u), int(r), int(m)) for u, r, m in rng.integers(0, (6, 3, 9), (n, 3))] for n in sizes]
        late = frozenset(np.flatnonzero(rng.random(6) < 0.3).tolist())
        outcomes[bool(check(door, replies, int(rng.integers(0, 5)), late).contents)] += 1
    assert min(outcomes[True], outcomes[False]) > 10


def test_all_orders_are_as_likely(door: Door) -> None:
    """Three rows have six orders: 600 batches of them, against a uniform choice. False alarm: one run in a million."""
    seen = Counter(tuple(door([[A, B], [C]], 2).contents) for _ in range(600))
    observed = np.array([seen[order] for order in itertools.permutations((10, 20, 30))])
    assert observed.sum() == 600
    assert ((observed - 100) ** 2 / 100).sum() < chi2.isf(FALSE_ALARM, df=5)


# -- the rules ------------------------------------------------------------------------------------------------------


def one_by_one(users: Any, records: Any, held: Any, most: Any) -> tuple[set[int], int, int, int]:
    """Rows that are taken in the order of users and records, as a loop says it."""
    there: dict[int, set[int]] = {}
    for user, record in held.tolist():
        there.setdefault(user, set()).add(record)
    rows, new, again, refused = set(), 0, 0, 0
    for i in np.lexsort((records, users)).tolist():
        mine = there.setdefault(int(users[i]), set())
        if records[i] in mine:
            again += 1
        elif len(mine) >= most[i]:
            refused += 1
        else:
            new += not mine
            mine.add(int(records[i]))
            rows.add(i)
    return rows, new, again, refused


def test_the_rules_are_what_a_loop_says() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        n, people, k = rng.integers(0, 12), rng.integers(1, 5), rng.integers(0, 6)
        users, records = rng.integers(0, people, n), rng.integers(-2, 4, n)
        held = np.unique(np.stack([rng.integers(0, people, k), rng.integers(-2, 4, k)], axis=1), axis=0)
        limits = rng.integers(0, 4, people)
        for most in (limits[users], np.full(n, 99)):
            taken = admit(users, records, held=held, most=most)
            assert (set(taken.rows.tolist()), taken.users, taken.again, taken.refused) == one_by_one(
                users, records, held, most
            )
            keys = [(users[i], records[i]) for i in taken.rows]
            assert keys == sorted(keys)  # the order of arrival is lost
        late = rng.random(n) < 0.3
        without, kept = admit(users, records, held=held, late=late), np.flatnonzero(~late)
        alone = admit(users[kept], records[kept], held=held, most=np.full(len(kept), 99))
        assert np.array_equal(without.rows, kept[alone.rows]) and without.users == alone.users
        assert (without.again, without.late) == (alone.again, len(set(users[late].tolist())))


# -- a crash between write and release ------------------------------------------------------------------------------


def test_a_stage_that_could_not_be_closed_is_open_with_every_row(tmp_path: Path) -> None:
    """The batch is written, and then the users cannot be deleted: neither counts. The next try gives one batch."""
    store = Store(tmp_path / "store.sqlite")

    def denied(action: int, *_: Any) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_DROP_TABLE else sqlite3.SQLITE_OK

    rows = np.arange(16, dtype=np.uint8).reshape(2, 8)
    store.open_stage("train", b"asked", row_bytes=8, minimum_users=2, timeout=1.0)
    store.add("train", Sealed(np.array([1, 2]), np.zeros(2, np.int64), rows))
    store._connection.set_authorizer(denied)
    with pytest.raises(StoreError):
        store.close("train", dropped={}, errors={})
    left = store.stage("train")
    assert left is not None and (left.state, left.users, left.rows) == (OPEN, 2, 2)
    with pytest.raises(StoreError, match="not there yet"):
        store.batch("train")
    store._connection.set_authorizer(None)
    store.close("train", dropped={}, errors={})
    assert sorted(map(bytes, store.batch("train"))) == sorted(map(bytes, rows))


# --- the simulation's shuffler against sorting and permuting

EMBEDDING = Guarantee(4.0, "angular", np.pi, "sequence")


def reply(users, records=None):
    users = np.asarray(users, np.int64)
    records = np.zeros_like(users) if records is None else np.asarray(records, np.int64)
    z = np.stack([users, records], axis=1).astype(np.int16)
    return Reply(
        users,
        records,
        (
            Release({"z": z}, "embedding", "train", EMBEDDING, "e"),
            Release({"y": (users % 3).astype(np.int16)}, "label", "train", LABEL, "l"),
        ),
    )


def ids(message):
    return zip(message.users.tolist(), message.records.tolist(), strict=True)


def test_the_batch_is_what_sorting_and_permuting_all_rows_gives():
    """Row by row, from many messages with repeated rows: the first of each (user, record), sorted, then permuted."""
    seed, rng = 1, np.random.default_rng
    generator = rng(seed)
    replies = [reply(generator.integers(0, 20, n), generator.integers(0, 3, n)) for n in (5, 0, 17, 1, 40)]
    batch, origin, _ = shuffle(replies, minimum_users=1, rng=rng(seed + 10))
    rows = [(u, r, i, j) for i, m in enumerate(replies) for j, (u, r) in enumerate(ids(m))]
    first = {}
    for u, r, i, j in rows:
        first.setdefault((u, r), (i, j))
    keys = sorted(first)
    keys = [keys[k] for k in rng(seed + 10).permutation(len(keys))]
    assert list(zip(origin.users.tolist(), origin.records.tolist(), strict=True)) == keys
    assert batch.users == len({u for u, _ in keys}) and batch.duplicates == len(rows) - len(keys)
    for position, kind in enumerate((EmbeddingQuestion, LabelQuestion)):
        values = batch.of(kind).values
        expected = [next(iter(replies[i].releases[position].payload.values()))[j] for i, j in map(first.get, keys)]
        assert np.array_equal(values, expected) and values.dtype == np.int16
