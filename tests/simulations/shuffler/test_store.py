"""The shuffler's store: one batch a stage for good, every acknowledged row in it once, and no link to whose it is."""

from __future__ import annotations

import random
import resource
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechanisms.messages.sealed import Sealed, batch_identity
from simulations.shuffler.core import Admitted
from simulations.shuffler.store import CLOSED, DISCARDED, OPEN, Conflict, Stage, Store, StoreError
from tests.support.kills import MARK

WIDTH = 112


def sealed(users: Sequence[int], records: Sequence[int] | None = None, seed: int = 0, width: int = WIDTH) -> Sealed:
    rows = np.random.default_rng([seed, *np.abs(users)]).integers(0, 256, (len(users), width), dtype=np.uint8)
    numbers = [0] * len(users) if records is None else records
    return Sealed(np.array(users, np.int64), np.array(numbers, np.int64), rows)


def opened(store: Store, name: str = "train", **changes: Any) -> Stage:
    values: dict[str, Any] = {"request": b"asked", "row_bytes": WIDTH, "minimum_users": 2, "timeout": 60.0}
    return store.open_stage(name, **(values | changes))


def closed(store: Store, name: str = "train") -> Stage:
    return store.close(name, dropped={}, errors={})


def numbers(taken: Admitted) -> tuple[int, int, int]:
    return len(taken.rows), taken.again, taken.refused


def rows_of(*replies: Sealed) -> list[bytes]:
    return sorted(bytes(row) for reply in replies for row in reply.rows)


def test_a_stage_from_first_to_last(store: Store, path: Path) -> None:
    assert store.stage("train") is None and store.open_stages() == []
    stage = opened(store)
    assert (stage.state, stage.users, stage.rows, stage.duplicates, stage.identity) == (OPEN, 0, 0, 0, "")
    one, two = sealed([1, 2, 2], [0, 0, 1]), sealed([7])
    assert numbers(store.add("train", one)) == (3, 0, 0) and numbers(store.add("train", two)) == (1, 0, 0)
    now = store.stage("train")
    assert now is not None and (now.users, now.rows) == (3, 4)
    done = store.close("train", dropped={"not enrolled there": 2}, errors={"code 5": 1})
    assert (done.state, done.users, done.rows, done.duplicates) == (CLOSED, 3, 4, 0)
    assert done.dropped == {"not enrolled there": 2} and done.errors == {"code 5": 1}
    batch = store.batch("train")
    assert batch.shape == (4, WIDTH) and sorted(map(bytes, batch)) == rows_of(one, two)
    assert done.identity == batch_identity(batch.tobytes())
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("ended", [False, True])
def test_another_request_under_the_same_stage_is_refused(store: Store, ended: bool) -> None:
    first = opened(store)
    if ended:
        first = closed(store)
    for changes in ({"request": b"another"}, {"row_bytes": WIDTH + 64}):
        with pytest.raises(Conflict):
            opened(store, **changes)
    assert store.stage("train") == first


def test_stages_are_apart(store: Store) -> None:
    for name in ("train", "test"):
        opened(store, name)
    store.add("train", sealed([1, 2]))
    store.add("test", sealed([1, 2, 3], seed=1))
    assert [s.name for s in store.open_stages()] == ["train", "test"]
    closed(store, "test")
    assert [s.name for s in store.open_stages()] == ["train"]
    assert sorted(map(bytes, store.batch("test"))) == rows_of(sealed([1, 2, 3], seed=1))
    closed(store)
    assert sorted(map(bytes, store.batch("train"))) == rows_of(sealed([1, 2]))


@pytest.mark.parametrize(("users", "records"), [([], []), ([1, 1, 1], [0, 1, 2])])
def test_too_few_users_are_discarded_for_good(path: Path, users: list[int], records: list[int]) -> None:
    """Users, not rows."""
    with Store(path) as store:
        opened(store)
        if users:
            store.add("train", sealed(users, records))
        done = closed(store)
        assert (done.state, done.identity, done.users, done.rows) == (DISCARDED, "", len(set(users)), len(users))
    with Store(path) as store:
        assert opened(store).state == DISCARDED and closed(store) == done
        assert store.batch("train").shape == (0, WIDTH)
    assert not any(bytes(row) in path.read_bytes() for row in sealed(users, records).rows)


def test_an_open_stage_has_no_batch_and_takes_rows_of_its_length_alone(store: Store) -> None:
    opened(store)
    with pytest.raises(StoreError, match="not there yet"):
        store.batch("train")
    with pytest.raises(ValueError, match="another length"):
        store.add("train", sealed([1, 2], width=WIDTH + 1))
    assert opened(store).rows == 0
    with pytest.raises(KeyError):
        store.add("nothing", sealed([1]))


def test_a_batch_is_kept_and_given_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a value of SQLite's ends at 8 kB in the place of 10^9 bytes: 1,000 rows are 112 kB, as 9 million were."""
    monkeypatch.setattr("simulations.shuffler.store._PIECE", 4000)
    reply = sealed(range(1000))
    with Store(path) as store:
        store._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 8000)
        opened(store)
        store.add("train", reply)
        done = closed(store)
        pieces = list(store.pieces("train"))
        assert done.state == CLOSED and sorted(map(bytes, store.batch("train"))) == rows_of(reply)
        assert len(pieces) == 29 and {len(piece) for piece in pieces[:-1]} == {35 * WIDTH}
        assert done.identity == batch_identity(b"".join(pieces))


# -- in random order ------------------------------------------------------------------------------------------------


def batch_of(folder: Path, replies: Sequence[Sealed]) -> bytes:
    with Store(folder / "store.sqlite") as store:
        opened(store)
        for reply in replies:
            store.add("train", reply)
        closed(store)
        return store.batch("train").tobytes()


def test_the_order_is_the_operating_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed repeats it; and where that generator is made to repeat itself, the order in which messages came, or how
    rows were spread over them, makes no difference."""
    whole = sealed(range(30))
    spread = slice(20, 30), slice(0, 7), slice(7, 20)
    parts = [Sealed(whole.users[rows], whole.records[rows], whole.rows[rows]) for rows in spread]
    seen = set()
    for i in range(2):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002  what a careless store would draw from
        seen.add(batch_of(tmp_path / f"free-{i}", [whole]))
    assert len(seen) == 2  # one order of 30! again: never
    same = set()
    for i, replies in enumerate(([whole], parts, parts[::-1])):
        stream = random.Random(5)
        monkeypatch.setattr(random, "_urandom", stream.randbytes)
        same.add(batch_of(tmp_path / f"fixed-{i}", replies))
    assert len(same) == 1


# -- what the file says afterwards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum", [2, 10_000])
def test_no_users_number_is_left_in_the_file(path: Path, minimum: int) -> None:
    """Closed or discarded, of many pages, beside a stage that is open, and after the next one took their place."""
    mark = (MARK >> 24).to_bytes(3, "big")
    users = [MARK + i for i in range(3000)]
    with Store(path) as store:
        opened(store, minimum_users=minimum)
        opened(store, "other")
        for at in range(0, len(users), 700):
            store.add("train", sealed(users[at : at + 700]))
        store.add("other", sealed(range(900)))
        assert path.read_bytes().count(mark) == len(users)
        closed(store)
        assert files(path).count(mark) == 0
        opened(store, "next")
        store.add("next", sealed(range(2000), seed=2))
        assert files(path).count(mark) == 0
    assert files(path).count(mark) == 0


def files(path: Path) -> bytes:
    """Everything in the folder: the file, and its journal."""
    return b"".join(p.read_bytes() for p in path.parent.iterdir() if p.is_file())


def test_origins_are_told_where_a_study_asks_for_them(path: Path, tmp_path: Path) -> None:
    reply = sealed([30, 10, 20, 10], [5, 6, 7, 8])
    owner = {bytes(row): (u, r) for row, u, r in zip(reply.rows, reply.users.tolist(), reply.records.tolist())}  # noqa: B905
    with Store(path, origins=tmp_path / "origins") as store:
        for name in ("train", "few"):
            opened(store, name, minimum_users=3 if name == "train" else 9)
            store.add(name, reply)
            closed(store, name)
        expected = [owner[bytes(row)] for row in store.batch("train")]
    assert [p.name for p in (tmp_path / "origins").iterdir()] == ["train.npy"]
    assert [tuple(pair) for pair in np.load(tmp_path / "origins" / "train.npy").tolist()] == expected


# -- damaged, shared ----------------------------------------------------------------------------------------


def test_one_process_at_a_time(path: Path, store: Store) -> None:
    with pytest.raises(StoreError, match=r"store.sqlite cannot be used: another process has it$"):
        Store(path)
    opened(store)


def test_threads_share_a_store(store: Store) -> None:
    opened(store)
    seen: list[int] = []

    def send(node: int) -> None:
        for user in range(20):
            seen.append(len(store.add("train", sealed([user * 10 + node % 4])).rows))
            store.stage("train")

    threads = [threading.Thread(target=send, args=(node,)) for node in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = closed(store)
    assert sum(seen) == done.rows == done.users == 80 and done.duplicates == 80


def test_a_file_that_is_no_store_stays_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    content = b"no database at all, but long enough to look like a file" * 100
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be used") as caught:
        Store(path)
    assert "\n" not in str(caught.value) and path.read_bytes() == content
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (name TEXT, value TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="is not of schema"):
        Store(path)


def test_a_batch_that_is_damaged_is_not_given(path: Path) -> None:
    with Store(path) as store:
        opened(store)
        store.add("train", sealed(range(9)))
        closed(store)
        row = store.batch("train")[4].tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(row) + 50] ^= 1
    path.write_bytes(data)
    with Store(path) as store, pytest.raises(StoreError, match="damaged"):
        store.batch("train")


def test_a_full_disk(path: Path, store: Store) -> None:
    """Files may not grow, as on a full disk: nothing is acknowledged, and the stage goes on afterwards."""
    opened(store)
    store.add("train", sealed([1, 2]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(StoreError, match="cannot be used") as caught:
            store.add("train", sealed(range(500)))
        assert "\n" not in str(caught.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert numbers(store.add("train", sealed(range(500), seed=1))) == (498, 2, 0)
    assert closed(store).rows == 500
