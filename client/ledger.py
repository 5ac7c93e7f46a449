"""The client's memory of what left it: durable, append-only, and written before anything is sent.

A row is one release of one record: what was charged, and the very bytes. Rows are never changed or deleted
(triggers forbid it). One process at a time writes: `exclusive` holds the file from the first look at what was
spent to the commit, so two requests at once can neither spend the same budget nor draw one key twice.
A file that is damaged, empty or of another format is an error: a client without its ledger answers nothing.
Nor does a device whose ledger is gone: a hidden file beside it remembers that there was one. (An old copy put in
its place is not noticed.)
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.guarantee import Guarantee

SCHEMA = "sottovoce-ledger-1"
_WAIT_SECONDS = 60.0

_CREATE = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', '{SCHEMA}');
CREATE TABLE draws (
    id INTEGER PRIMARY KEY, stage TEXT NOT NULL, channel TEXT NOT NULL, digest TEXT NOT NULL,
    guarantee TEXT NOT NULL, UNIQUE (stage, channel, digest)
);
CREATE TABLE releases (
    draw INTEGER NOT NULL REFERENCES draws, user INTEGER NOT NULL, record INTEGER NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (draw, user, record)
) WITHOUT ROWID;
"""
_FORBID = """
CREATE TRIGGER {0}_{1} BEFORE {1} ON {0} BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""
_INSERT = "INSERT INTO releases (draw, user, record, epsilon, delta, payload) VALUES (?, ?, ?, ?, ?, ?)"
_RECORDS = "SELECT user, record FROM releases WHERE draw = ?"
_ROWS = """
SELECT user, record, stage, channel, digest, guarantee, epsilon, delta, payload
FROM releases JOIN draws ON draw = id ORDER BY user, record, stage, channel, digest
"""


class LedgerError(Exception):
    """The ledger cannot be read or written; nothing may leave the client."""


@dataclass(frozen=True)
class Charge:
    """New releases of one channel to be written: the key of their draw, what each costs, and each row's
    bytes.

    users, records: (n,) int64. epsilon: the guarantee's worst case at delta, for each row. payloads: n rows'
        bytes.
    """

    stage: str
    channel: str
    digest: str
    guarantee: Guarantee
    epsilon: float
    delta: float
    users: NDArray[np.int64]
    records: NDArray[np.int64]
    payloads: Sequence[bytes]


@dataclass(frozen=True)
class Recalled:
    """What the ledger knows of n records under one key.

    payloads: the bytes of each row's release, None where there is none yet.
    earlier: (n,) int64, how many releases each record made at the same stage and channel under other digests.
    """

    payloads: list[bytes | None]
    earlier: NDArray[np.int64]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(n,) bool: which rows were never released under this key."""
        return np.array([p is None for p in self.payloads], dtype=bool)


@dataclass(frozen=True)
class LedgerRow:
    """One line of the ledger, for people. epsilon is the worst case at delta, as it was charged."""

    user: int
    record: int
    stage: str
    channel: str
    digest: str
    guarantee: Guarantee
    epsilon: float
    delta: float
    payload: bytes


class Ledger:
    """The ledger in one SQLite file, made where there is none. Close it, or use it in a `with`.

    durable: a device's: wait until every commit lies on the disk, and refuse where an earlier ledger of this
        name is gone. A simulation's folder is new for each run, and need not survive a power cut.
    A device uses synchronous=EXTRA, which is FULL and syncs the folder too: with a rollback journal, FULL
    alone may lose the last commit to a power cut, and then the ledger would count less than what left.
    Every method raises LedgerError where the file cannot be trusted.
    """

    def __init__(self, path: Path | str, durable: bool = True) -> None:
        self.path = Path(path)
        with _failing_closed():
            marker = self.path.with_name(f".{self.path.name}.made")
            known = durable and marker.exists()  # looked at first: another process may make both in between
            if not self.path.exists():
                if known:
                    raise LedgerError(f"ledger: {self.path} is gone, and what was spent with it; put it back")
                _create(self.path, durable)
            if durable and not known:  # after the ledger, so that a crash between the two locks nobody out
                _mark(marker)
            self._connection = _connect(self.path, durable)
            try:
                self._verify()
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the only right to write. What is not committed when the block ends is undone."""
        with _failing_closed():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def commit(self, charges: Sequence[Charge]) -> None:
        """Write all charges with their bytes and make them last, or write nothing and raise. Inside
        `exclusive`."""
        if not self._connection.in_transaction:
            raise LedgerError("ledger: commit outside of exclusive")
        with _failing_closed():
            for charge in charges:
                draw = self._draw(charge)
                n = len(charge.payloads)
                rows = zip(
                    [draw] * n,
                    charge.users.tolist(),
                    charge.records.tolist(),
                    [charge.epsilon] * n,
                    [charge.delta] * n,
                    charge.payloads,
                    strict=True,
                )
                self._connection.executemany(_INSERT, rows)
            self._connection.execute("COMMIT")

    def recall(
        self, stage: str, channel: str, digest: str, users: NDArray[np.int64], records: NDArray[np.int64]
    ) -> Recalled:
        """What each of n records released at this stage and channel, under this digest and under others."""
        same: dict[tuple[int, int], bytes] = {}
        others: dict[tuple[int, int], int] = {}
        with _failing_closed():
            draws = self._connection.execute(
                "SELECT id, digest FROM draws WHERE stage = ? AND channel = ?", (stage, channel)
            ).fetchall()
            for draw, known in draws:
                if known == digest:
                    rows = self._connection.execute(
                        "SELECT user, record, payload FROM releases WHERE draw = ?", (draw,)
                    )
                    same = {(user, record): payload for user, record, payload in rows}
                else:
                    rows = self._connection.execute(_RECORDS, (draw,))
                    for key in rows:
                        others[key] = others.get(key, 0) + 1
        keys = list(zip(users.tolist(), records.tolist(), strict=True))
        earlier = np.array([others.get(key, 0) for key in keys], dtype=np.int64)
        return Recalled([same.get(key) for key in keys], earlier)

    def spent(
        self, users: NDArray[np.int64], *, delta: float = 0.0, without: Collection[str] = (),
        declared: frozenset[str] = frozenset(),
    ) -> NDArray[np.float64]:  # fmt: skip
        """Worst-case ε at delta that each user has spent, (n,), over all records, stages and channels but
        those `without`. Basic composition: k releases hold together at k·delta. declared: exposures that are
        declared public (`Guarantee.worst_case`)."""
        sums: dict[int, float] = {}
        with _failing_closed():
            for draw, channel, guarantee in self._draws():
                if channel in without:
                    continue
                cost = _worst_case(guarantee, delta, declared)
                rows = self._connection.execute(
                    "SELECT user, count(*) FROM releases WHERE draw = ? GROUP BY user", (draw,)
                )
                for user, count in rows:
                    sums[user] = sums.get(user, 0.0) + cost * count
        return np.array([sums.get(user, 0.0) for user in users.tolist()], dtype=np.float64)

    def spent_on(
        self, channel: str, users: NDArray[np.int64], records: NDArray[np.int64], *, delta: float = 0.0,
        declared: frozenset[str] = frozenset(),
    ) -> NDArray[np.float64]:  # fmt: skip
        """Worst-case ε at delta that each record has spent on one channel, (n,), over all stages and
        digests. declared: as in `spent`."""
        sums: dict[tuple[int, int], float] = {}
        with _failing_closed():
            for draw, where, guarantee in self._draws():
                if where != channel:
                    continue
                cost = _worst_case(guarantee, delta, declared)
                rows = self._connection.execute(_RECORDS, (draw,))
                for key in rows:
                    sums[key] = sums.get(key, 0.0) + cost
        keys = zip(users.tolist(), records.tolist(), strict=True)
        return np.array([sums.get(key, 0.0) for key in keys], dtype=np.float64)

    def rows(self) -> list[LedgerRow]:
        """Everything that was charged, ordered by user, record, stage, channel and digest."""
        with _failing_closed():
            return [
                LedgerRow(*row[:5], _guarantee(row[5]), *row[6:])
                for row in self._connection.execute(_ROWS).fetchall()
            ]

    def _draws(self) -> list[tuple[int, str, str]]:
        return self._connection.execute("SELECT id, channel, guarantee FROM draws").fetchall()

    def _draw(self, charge: Charge) -> int:
        """The id of a draw's public description, written where it is new."""
        key = (charge.stage, charge.channel, charge.digest)
        guarantee = json.dumps(charge.guarantee.to_dict(), sort_keys=True)
        self._connection.execute(
            "INSERT INTO draws (stage, channel, digest, guarantee) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (stage, channel, digest) DO NOTHING",
            (*key, guarantee),
        )
        draw, known = self._connection.execute(
            "SELECT id, guarantee FROM draws WHERE stage = ? AND channel = ? AND digest = ?", key
        ).fetchone()
        if known != guarantee:
            raise LedgerError("ledger: one digest under two guarantees")
        return int(draw)

    def _verify(self) -> None:
        schema = self._connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if schema != (SCHEMA,):
            raise LedgerError(f"ledger: {self.path} is not of schema {SCHEMA}")
        if self._connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise LedgerError(f"ledger: {self.path} is damaged")


def _create(path: Path, durable: bool) -> None:
    """Make an empty ledger whole, then give it its name: a ledger that exists is never half-made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(_connect(draft, durable)) as connection:
            triggers = (
                _FORBID.format(table, verb)
                for table in ("meta", "draws", "releases")
                for verb in ("UPDATE", "DELETE")
            )
            connection.executescript("BEGIN;" + _CREATE + "".join(triggers) + "COMMIT;")
        try:
            os.link(draft, path)  # unlike a rename, never replaces one that another process just made
        except FileExistsError:
            return
        if durable:
            _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _mark(marker: Path) -> None:
    """Remember, for good, that a ledger was made: nothing is released before this returns."""
    with open(marker, "w") as file:
        file.write("A ledger was made in this folder. Where it is gone, this client answers nothing.\n")
        file.flush()
        os.fsync(file.fileno())
    _sync(marker.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _connect(path: Path, durable: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
    try:
        connection.execute(f"PRAGMA synchronous = {'EXTRA' if durable else 'NORMAL'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA recursive_triggers = ON")  # else REPLACE deletes without a trigger
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _failing_closed() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError) as error:
        raise LedgerError(f"ledger: it cannot be used ({type(error).__name__})") from error


def _guarantee(text: str) -> Guarantee:
    return Guarantee.from_dict(json.loads(text))


@lru_cache(maxsize=1024)
def _worst_case(guarantee: str, delta: float, declared: frozenset[str]) -> float:
    """Taken from the theorem, not from the charge: a policy may have been written at another δ since."""
    return _guarantee(guarantee).worst_case(delta, declared=declared)
