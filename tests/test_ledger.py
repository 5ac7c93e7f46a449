"""The ledger is append-only, durable, exclusive, and closed to anything that damages it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

from client.ledger import Charge, Ledger, LedgerError
from mechanisms.guarantee import Guarantee

RR = Guarantee(epsilon=2.0, metric="discrete", diameter=1.0, protects="label")
NOISE = Guarantee(epsilon=float("inf"), metric="euclidean", diameter=2.0, protects="sequence", sigma=1.0)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def charge(users, records, *, stage="s", channel="label", digest="d", guarantee=RR, payloads=None, delta=0.0):
    payloads = [b"%d" % i for i in range(len(users))] if payloads is None else payloads
    cost = guarantee.worst_case(delta)
    return Charge(stage, channel, digest, guarantee, cost, delta, ids(*users), ids(*records), payloads)


def write(ledger, *charges):
    with ledger.exclusive():
        ledger.commit(charges)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def test_recalls_the_bytes_of_a_key_and_counts_other_digests(ledger):
    write(ledger, charge([1, 2], [0, 0]), charge([1], [0], digest="other"))
    found = ledger.recall("s", "label", "d", ids(2, 1, 1), ids(0, 0, 1))
    assert found.payloads == [b"1", b"0", None]
    assert found.missing.tolist() == [False, False, True]
    assert found.earlier.tolist() == [0, 1, 0]
    for key in (("t", "label", "d"), ("s", "embedding", "d"), ("s", "label", "e")):
        assert ledger.recall(*key, ids(1), ids(0)).payloads == [None]


def test_spending_adds_up_over_records_stages_and_digests(ledger):
    write(ledger, charge([1, 1, 2], [0, 1, 0]))
    write(ledger, charge([1], [0], stage="t"), charge([1], [0], digest="e"))
    write(ledger, charge([1], [0], channel="embedding", guarantee=NOISE))
    assert ledger.spent(ids(1, 2, 3), without=["embedding"]).tolist() == [8.0, 2.0, 0.0]
    assert ledger.spent_on("label", ids(1, 1, 2), ids(0, 1, 0)).tolist() == [6.0, 2.0, 2.0]
    assert ledger.spent(ids(1)).tolist() == [np.inf]  # Gaussian noise promises nothing at δ = 0
    assert ledger.spent(ids(1), delta=1e-6)[0] == pytest.approx(8 + NOISE.worst_case(1e-6))


def test_rows_show_what_was_charged(ledger):
    write(ledger, charge([1], [3], channel="embedding", guarantee=NOISE, delta=1e-6, payloads=[b"xyz"]))
    (row,) = ledger.rows()
    assert (row.user, row.record, row.stage, row.channel, row.digest) == (1, 3, "s", "embedding", "d")
    assert (row.guarantee, row.delta, row.payload) == (NOISE, 1e-6, b"xyz")
    assert row.epsilon == NOISE.worst_case(1e-6)


def test_an_infinite_charge_is_kept(tmp_path):
    endless = Guarantee(epsilon=float("inf"), metric="discrete", diameter=1.0, protects="label")
    with Ledger(tmp_path / "l") as ledger:
        write(ledger, charge([1, 1], [0, 1], guarantee=endless))
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.rows()[0].epsilon == np.inf
        assert ledger.spent(ids(1)).tolist() == [np.inf]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE releases SET epsilon = 0",
        "DELETE FROM releases",
        "UPDATE draws SET guarantee = ''",
        "DELETE FROM draws",
        "UPDATE meta SET value = 'x'",
        "DELETE FROM meta",
        "REPLACE INTO releases SELECT draw, user, record, 0, delta, payload FROM releases",
        "REPLACE INTO draws SELECT id, stage, channel, digest, 'x' FROM draws",
    ],
)
def test_nothing_is_changed_or_deleted(ledger, statement):
    write(ledger, charge([1], [0]))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        ledger._connection.execute(statement)
    assert ledger.spent(ids(1)).tolist() == [2.0]


def test_a_key_is_written_once_and_a_failed_commit_writes_nothing(ledger):
    write(ledger, charge([1], [0]))
    with pytest.raises(LedgerError):
        write(ledger, charge([5], [0]), charge([1], [0], payloads=[b"other"]))
    assert [(r.user, r.payload) for r in ledger.rows()] == [(1, b"0")]
    with pytest.raises(LedgerError):  # one digest cannot stand for two theorems
        write(ledger, charge([6], [0], guarantee=NOISE, delta=0.1))
    with pytest.raises(LedgerError):
        ledger.commit([charge([7], [0])])
    assert len(ledger.rows()) == 1


def test_what_is_not_committed_is_undone(ledger):
    with pytest.raises(RuntimeError), ledger.exclusive():
        raise RuntimeError
    with ledger.exclusive():
        pass
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
        patch.setattr("client.ledger._mark", lambda marker: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(LedgerError):
            Ledger(path)
    Ledger(path).close()
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        Ledger(path)


def _damage():
    yield "empty", lambda p: p.write_bytes(b"")
    yield "not a database", lambda p: p.write_bytes(b"not a database at all" * 100)
    yield "truncated", lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])
    yield "scribbled", lambda p: p.write_bytes(p.read_bytes()[:4096] + b"\xa5" * (p.stat().st_size - 4096))

    def other_schema(path):
        path.unlink()
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE meta (name, value)")
            other.execute("INSERT INTO meta VALUES ('schema', 'sottovoce-ledger-0')")
        other.close()

    yield "another schema", other_schema

    def bad_theorem(path):
        with sqlite3.connect(path) as other:
            other.execute("DROP TRIGGER draws_UPDATE")
            other.execute("UPDATE draws SET guarantee = '{\"epsilon\": -1}'")
        other.close()

    yield "a bad guarantee", bad_theorem


@pytest.mark.parametrize(("name", "damage"), list(_damage()), ids=[n for n, _ in _damage()])
def test_a_damaged_ledger_fails_closed(tmp_path, name, damage):
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        write(ledger, charge(range(200), range(200), payloads=[b"x" * 50] * 200))
    damage(path)
    with pytest.raises(LedgerError), Ledger(path) as ledger:
        ledger.spent(ids(1))


def test_a_folder_that_cannot_be_written_fails_closed(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError):
        Ledger(tmp_path / "file" / "ledger.sqlite")
    with pytest.raises(LedgerError):
        Ledger(tmp_path)


def test_a_transaction_cut_short_by_a_kill_leaves_nothing(tmp_path):
    program = f"""
import os, signal, sys
sys.path.insert(0, {os.getcwd()!r})
from tests.test_ledger import charge
from client.ledger import Ledger
ledger = Ledger({str(tmp_path / "l")!r})
with ledger.exclusive():
    ledger._connection.execute("PRAGMA cache_size = 1")  # pages spill to the file before the commit
    draw = ledger._draw(charge([1], [0]))
    for i in range(5000):
        ledger._connection.execute("INSERT INTO releases VALUES (?, ?, 0, 1, 0, ?)", (draw, i, b"x" * 50))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.rows() == []
        write(ledger, charge([1], [0]))
        assert len(ledger.rows()) == 1
