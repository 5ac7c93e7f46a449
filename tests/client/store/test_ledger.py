"""The ledger is append-only, durable, exclusive, and closed to anything that damages it."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from client.store import ledger as ledgers
from client.store.ledger import Charge, Key, Ledger, LedgerError
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import Guarantee

RR = Guarantee(epsilon=2.0, metric="discrete", diameter=1.0, protects="label")
NOISE = Guarantee(epsilon=float("inf"), metric="euclidean", diameter=2.0, protects="sequence", sigma=1.0)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def rows(payloads):
    """Strings of bytes of one length, (n, width) uint8."""
    return np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), -1)


def recalled(found):
    return [bytes(p) if known else None for p, known in zip(found.payloads, found.known, strict=True)]


def charge(users, records, *, stage="s", channel="label", digest="d", guarantee=RR, payloads=None, delta=0.0):
    payloads = [b"%03d" % i for i in range(len(users))] if payloads is None else payloads
    cost = guarantee.worst_case(delta)
    return Charge(Key(stage, channel, digest, guarantee), cost, delta, ids(*users), ids(*records), rows(payloads))


def write(ledger, *charges):
    with ledger.exclusive():
        ledger.commit(charges)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def test_a_theorem_is_a_part_of_the_key_but_for_its_last_bits(ledger):
    near, other = replace(RR, numeric_epsilon=1e-12), replace(RR, numeric_epsilon=1e-6)
    write(ledger, charge([1], [0]), charge([2], [0], guarantee=near), charge([1], [0], guarantee=other))
    found = ledger.recall(Key("s", "label", "d", near), ids(1, 2), ids(0, 0))
    assert (recalled(found), found.earlier.tolist()) == ([b"000", b"000"], [1, 0])
    assert ledger.spent(ids(1, 2)).epsilon.tolist() == [2 + 2 + 1e-6, 2]


def test_noise_is_priced_at_the_delta_that_is_given(ledger):
    write(ledger, charge([1, 1], [0, 1]), charge([1], [0], channel="embedding", guarantee=NOISE))
    assert ledger.spent(ids(1), without=["embedding"]).epsilon.tolist() == [4.0]
    assert ledger.spent(ids(1)).epsilon.tolist() == [np.inf]  # Gaussian noise promises nothing at δ = 0
    assert ledger.spent(ids(1), delta=1e-6).epsilon[0] == pytest.approx(4 + NOISE.worst_case(1e-6))


@pytest.mark.parametrize("seed", range(3))
def test_blocks_answer_as_single_rows_would(tmp_path, seed):
    """Random blocks, some of one release, of users with several records, asked about in any order."""
    rng = np.random.default_rng(seed)
    people = rng.choice([0, 1, 2, 3, 7, 2**40, 2**62], size=5, replace=False)
    numbers = np.array([0, 1, 2, 2**32 - 1])
    released = {}  # bytes by stage, channel, digest, user and record; each at ε = 2
    with Ledger(tmp_path / "l", durable=False) as ledger:
        for stage, (channel, width), digest in itertools.product("st", [("label", 2), ("embedding", 5)], "de"):
            pairs = rng.permutation([(u, r) for u in people for r in numbers])[: rng.integers(3, 20)]
            for part in np.array_split(pairs, rng.integers(1, 4)):
                data = [rng.bytes(width) for _ in part]
                write(ledger, charge(*part.T.tolist(), stage=stage, channel=channel, digest=digest, payloads=data))
                keys = ((stage, channel, digest, *pair) for pair in part.tolist())
                released |= dict(zip(keys, data, strict=True))
        for _ in range(4):
            asked = rng.permutation([(u, r) for u in [*people, 5, 2**63 - 1] for r in numbers])[: rng.integers(0, 28)]
            users, records = asked[:, 0].copy(), asked[:, 1].copy()
            for key in (("s", "label", "d"), ("t", "embedding", "e"), ("t", "label", "nothing")):
                found = ledger.recall(Key(*key, RR), users, records)
                assert recalled(found) == [released.get((*key, *pair)) for pair in asked.tolist()]
                others = [(*key[:2], digest) for digest in {"d", "e"} - {key[2]}]
                assert found.earlier.tolist() == [sum((*o, *p) in released for o in others) for p in asked.tolist()]
            for without in ((), ("label",)):
                spent = [2.0 * sum(k[3] == user and k[1] not in without for k in released) for user in users]
                assert ledger.spent(users, without=without).epsilon.tolist() == spent
            spent = [2.0 * sum((k[1], *k[3:]) == ("label", *pair) for k in released) for pair in asked.tolist()]
            assert ledger.spent(users, records, channel="label").epsilon.tolist() == spent
        rows = ledger.rows()
        keys = [(r.user, r.record, r.stage, r.channel, r.digest) for r in rows]
        assert keys == sorted(keys) and len(keys) == len(released)
        assert {(*k[2:], *k[:2]): r.payload for k, r in zip(keys, rows, strict=True)} == released


def test_n_one_by_one_cost_what_n_at_once_cost(tmp_path):
    sums = []
    for step in (1, 6):
        with Ledger(tmp_path / f"{step}", durable=False) as ledger:
            for start in range(0, 6, step):
                write(ledger, charge([3] * step, range(start, start + step), guarantee=Gaussian(4, 2.0).guarantee))
            account = ledger.spent(ids(3), delta=1e-7)
            sums.append([column.tolist() for column in (account.epsilon, account.delta, account.rho)])
    assert sums[0] == sums[1] and sums[0][0] == [pytest.approx(6 * Gaussian(4, 2.0).guarantee.worst_case(1e-7))]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE releases SET epsilon = 0",
        "DELETE FROM releases",
        "UPDATE draws SET guarantee = ''",
        "DELETE FROM draws",
        "UPDATE meta SET value = 'x'",
        "DELETE FROM commits",
        "REPLACE INTO releases SELECT * FROM releases",
    ],
)
def test_nothing_is_changed_or_deleted(ledger, statement):
    write(ledger, charge([1], [0]))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        ledger._connection.execute(statement)
    assert ledger.spent(ids(1)).epsilon.tolist() == [2.0]


def test_a_key_is_written_once_and_a_failed_commit_writes_nothing(ledger):
    write(ledger, charge([1], [0]))
    with pytest.raises(LedgerError):
        write(ledger, charge([5], [0]), charge([1], [0], payloads=[b"other"]))
    assert [(r.user, r.payload) for r in ledger.rows()] == [(1, b"000")]
    for repeated in (charge([6, 6], [1, 1]), charge([0, 1, 2], [0, 0, 0]), charge([1, 6, 6], [1, 1, 1])):
        with pytest.raises(LedgerError, match="twice"):
            write(ledger, repeated)
    with pytest.raises(LedgerError, match="twice"):  # two charges of one commit
        write(ledger, charge([6], [0]), charge([5, 6], [0, 0]))
    with pytest.raises(LedgerError):
        ledger.commit([charge([7], [0])])
    assert len(ledger.rows()) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"payloads": rows([b"a"])},
        {"payloads": np.zeros((2, 1), np.int16)},
        {"records": ids(0, -1)},
        {"records": ids(0, 2**32)},
        {"users": ids(), "records": ids(), "payloads": np.zeros((0, 1), np.uint8)},
    ],
)
def test_a_charge_that_is_none_is_refused(ledger, wrong):
    with pytest.raises(LedgerError):
        write(ledger, replace(charge([1, 2], [0, 0]), **wrong))
    assert ledger.rows() == []


def test_one_writer_at_a_time(tmp_path):
    path, order = tmp_path / "l", []

    def second():
        with Ledger(path) as other, other.exclusive():
            order.append("second")

    with Ledger(path) as ledger:
        with ledger.exclusive():
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(0.3)
            order.append("first")
        thread.join(30)
    assert order == ["first", "second"]


def test_a_device_waits_for_the_disk(tmp_path):
    for durable, least in ((True, 2), (False, 1)):  # 1 NORMAL, 2 FULL, 3 EXTRA
        with Ledger(tmp_path / str(durable), durable=durable) as ledger:
            assert ledger._connection.execute("PRAGMA synchronous").fetchone()[0] >= least
            assert ledger._connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
            assert (ledger.path.stat().st_mode & 0o077) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [".True.made", "False", "True"]  # no drafts are left


def test_a_ledger_that_another_makes_and_writes_meanwhile_is_no_lost_witness(tmp_path, monkeypatch):
    path, create = tmp_path / "ledger.sqlite", ledgers._create

    def overtaken(*arguments):
        monkeypatch.undo()
        with Ledger(path) as other:
            write(other, charge([1], [0]))
        create(*arguments)

    monkeypatch.setattr(ledgers, "_create", overtaken)
    with Ledger(path) as ledger:
        assert len(ledger.rows()) == 1


def test_the_numbers_of_a_users_records(ledger):
    write(ledger, charge([1, 2, 1], [7, 9, 3]), charge([1], [2**31], stage="t"))
    write(ledger, charge([1], [3], digest="e"))
    assert ledger.records_of(1).tolist() == [3, 7, 2**31] and ledger.records_of(2).tolist() == [9]
    assert ledger.records_of(3).tolist() == []


def test_a_ledger_that_is_gone_is_no_first_run(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        write(ledger, charge([1], [0]))
    kept = path.read_bytes()
    path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="is gone"):
            Ledger(path)
    assert not path.exists()
    path.write_bytes(kept)
    with Ledger(path) as ledger:
        assert len(ledger.rows()) == 1


def test_a_crash_between_a_new_ledger_and_its_mark_locks_nobody_out(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr("client.store.rollback_guard.advance", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(LedgerError):
            Ledger(path)
    Ledger(path).close()
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        Ledger(path)


@pytest.mark.parametrize("put", [shutil.copyfile, os.replace])
@pytest.mark.parametrize("drawing", [False, True])
def test_an_older_copy_in_the_place_of_an_open_ledger_is_not_used(tmp_path, put, drawing):
    """Put back by cp or by mv, before a release or while it is drawn: nothing is repeated, and nothing committed."""
    path, copy = tmp_path / "ledger.sqlite", tmp_path / "copy"
    with Ledger(path) as ledger:
        shutil.copyfile(path, copy)
        write(ledger, charge([1], [0]))
        if drawing:
            with ledger.exclusive(), pytest.raises(LedgerError, match="older copy"):
                put(copy, path)
                ledger.commit([charge([1], [1])])
        else:
            put(copy, path)
            with pytest.raises(LedgerError, match="older copy"), ledger.exclusive():
                pass
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(path)


def test_another_ledger_of_as_many_commits_is_not_used(tmp_path):
    for name in "ab":
        with Ledger(tmp_path / name / "l") as ledger:
            write(ledger, charge([1], [0]))
    shutil.copyfile(tmp_path / "b" / "l", tmp_path / "a" / "l")
    with pytest.raises(LedgerError, match="another ledger"):
        Ledger(tmp_path / "a" / "l")


def test_of_two_branches_of_a_ledger_one_goes_on(tmp_path):
    """A copy of the last state takes the place of an open ledger: equal numbers of commits, another nonce."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as first:
        shutil.copyfile(path, tmp_path / "copy")
        os.replace(tmp_path / "copy", path)
        with Ledger(path) as second, first.exclusive(), second.exclusive():
            second.commit([charge([1], [0])])
            with pytest.raises(LedgerError, match="older copy"):
                first.commit([charge([1], [1])])


def test_a_commit_that_was_never_acknowledged_is_guarded_before_it_is_repeated(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        shutil.copyfile(path, tmp_path / "copy")
        with monkeypatch.context() as patch, Ledger(path) as killed:
            patch.setattr("client.store.rollback_guard.advance", lambda *_: (_ for _ in ()).throw(OSError("killed")))
            with pytest.raises(LedgerError):
                write(killed, charge([1], [0]))
        with ledger.exclusive():
            assert recalled(ledger.recall(Key("s", "label", "d", RR), ids(1), ids(0))) == [b"000"]
            os.replace(tmp_path / "copy", path)
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(path)


def sql(path, *statements):
    with closing(sqlite3.connect(path)) as other:
        for statement in statements:
            other.execute(statement)
        other.commit()


def other_schema(path):
    path.unlink()
    sql(path, "CREATE TABLE meta (name, value)", "INSERT INTO meta VALUES ('schema', 'sottovoce-ledger-0')")


def of_another_user(path):  # SQLite sees no fault in it
    data, (one, other, record) = path.read_bytes(), (np.int64(number).tobytes() for number in (1, 201, 1))
    assert data.count(one + record) == 1
    path.write_bytes(data.replace(one + record, other + record))


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "not a database": lambda path: path.write_bytes(b"not a database at all" * 100),
    "scribbled": lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (path.stat().st_size - 4096)),
    "another schema": other_schema,
    "a bad guarantee": lambda path: sql(
        path, "DROP TRIGGER draws_UPDATE", "UPDATE draws SET guarantee = '{\"epsilon\": -1}'"
    ),
    "a charge under another user's name": of_another_user,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_ledger_fails_closed(tmp_path, name):
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        write(ledger, charge(range(200), range(200), payloads=[b"x" * 50] * 200))
    DAMAGE[name](path)
    looks = [lambda ledger: ledger.spent(ids(1))]
    if DAMAGE[name] is of_another_user:
        looks.append(lambda ledger: ledger.records_of(1))
    for look in looks:
        with pytest.raises(LedgerError), Ledger(path) as ledger:
            look(ledger)


def test_a_byte_that_has_changed_in_a_release_is_not_sent(tmp_path):
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        write(ledger, charge([1, 2], [0, 0], payloads=[b"first release", b"other release"]))
    path.write_bytes(path.read_bytes().replace(b"first", b"fiRst"))
    with Ledger(path) as ledger:
        for look in (ledger.rows, lambda: ledger.recall(Key("s", "label", "d", RR), ids(2), ids(0))):
            with pytest.raises(LedgerError, match="damaged"):
                look()
