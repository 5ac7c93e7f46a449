"""Durable, append-only ledger of the releases of a client, written before anything is sent.

A row is a block: releases that were drawn together, their users, the charge of each, and their exact bytes. The
releases of a cohort on one channel are one block, and so is a single release. Rows are never changed or deleted
(triggers forbid it). One process at a time writes: `exclusive` holds the file from the first reading of the spent
budget to the commit. So two concurrent requests can neither spend the same budget nor draw one key twice.

A file that is damaged, empty or of another format is an error: a client without its ledger answers nothing. A device
whose ledger is missing or an older copy answers nothing either: a hidden file beside the ledger, the rollback guard,
names its last commit. The two are compared when the ledger is opened, before each release, and before each commit. The
time of a commit is for people; nothing depends on the clock.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.store import rollback_guard
from client.store.durable import creating
from client.store.rollback_guard import NONCE_BYTES, Commit
from mechanisms.accounting.privacy_filter import FREE, Account, Cost, cost
from mechanisms.guarantee import Guarantee
from mechanisms.messages.questions import QUESTIONS

SCHEMA = "sottovoce-ledger-2"
_WAIT_SECONDS = 60.0
_PAIR = 16  # bytes of a user and a record
_RECORDS = 2**32  # numbers of records, as random streams have them

# keys: n pairs of user and record; payload: n rows of the same number of bytes; both little-endian. The checks are
# CRC-32 of the two: SQLite alone would not see a changed byte in them, and a ledger that names another user charges
# this one too little. The four bounds let a request pass over the blocks of others.
_CREATE = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', '{SCHEMA}');
CREATE TABLE draws (
    id INTEGER PRIMARY KEY, stage TEXT NOT NULL, channel TEXT NOT NULL, digest TEXT NOT NULL,
    guarantee TEXT NOT NULL, UNIQUE (stage, channel, digest, guarantee)
);
CREATE TABLE commits (
    id INTEGER PRIMARY KEY, time INTEGER NOT NULL, nonce BLOB NOT NULL CHECK (length(nonce) = {NONCE_BYTES})
);
CREATE TABLE releases (
    id INTEGER PRIMARY KEY, at INTEGER NOT NULL REFERENCES commits,
    draw INTEGER NOT NULL REFERENCES draws, n INTEGER NOT NULL CHECK (n > 0),
    epsilon REAL NOT NULL, delta REAL NOT NULL,
    first_user INTEGER NOT NULL, last_user INTEGER NOT NULL,
    first_record INTEGER NOT NULL, last_record INTEGER NOT NULL,
    keys_check INTEGER NOT NULL, payload_check INTEGER NOT NULL,
    keys BLOB NOT NULL CHECK (length(keys) = {_PAIR} * n),
    payload BLOB NOT NULL CHECK (length(payload) % n = 0)
);
CREATE INDEX blocks ON releases (draw, first_user, last_user, first_record, last_record);
"""
_FORBID = """
CREATE TRIGGER {0}_{1} BEFORE {1} ON {0} BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""
_INSERT = f"INSERT INTO releases VALUES (NULL{', ?' * 13})"
_COMMIT = "INSERT INTO commits (time, nonce) VALUES (?, ?)"
_DRAW = "INSERT INTO draws (stage, channel, digest, guarantee) VALUES (?, ?, ?, ?)"
_BLOCKS = """
FROM releases WHERE draw = ? AND first_user <= ? AND last_user >= ? AND first_record <= ? AND last_record >= ?
"""
_CHARGED = """
SELECT draw, channel, guarantee, keys_check, keys FROM draws JOIN releases ON draw = draws.id
WHERE first_user <= ? AND last_user >= ? AND first_record <= ? AND last_record >= ? {} ORDER BY draw
"""
_KEYS_OF = "SELECT keys_check, keys FROM releases WHERE first_user <= ? AND last_user >= ?"
_DRAWS_AT_ONCE = 64
_GONE = "ledger: {} is gone, and what was spent with it; put it back"
_ROWS = """
SELECT stage, channel, digest, guarantee, epsilon, delta, n, keys_check, keys, payload_check, payload,
    commits.id, time
FROM releases JOIN draws ON draw = draws.id JOIN commits ON at = commits.id
"""


class LedgerError(Exception):
    """Error of a ledger that cannot be read or written; nothing may leave the client."""


#: Record number of a release of all of a user's records together. Earlier versions made such releases beside those of
#: one record; they stay on their ledgers, and count towards the limit of each record.
ALL_RECORDS = 2**31 - 1


@dataclass(frozen=True)
class Key:
    """Public description of a draw, under which a record has one release.

    Attributes:
        stage: Stage of the request.
        channel: Channel of the release, whose limit of the policy applies.
        digest: Digest of everything that the request asks on this channel.
        guarantee: Guarantee of the release. A release under another one (`Guarantee.agrees`) has another key.
        former: Function that returns the digest which earlier versions gave this request, with the guarantee that
            their draw has on the ledger; None if there is none.
    """

    stage: str
    channel: str
    digest: str
    guarantee: Guarantee
    former: Callable[[dict[str, Any]], str] | None = field(default=None, compare=False, kw_only=True)

    def names(self, digest: str, theorem: str) -> bool:
        """Return whether a draw of the stage and channel has the key, by its digest and guarantee on a ledger."""
        same = digest == self.digest or (self.former is not None and digest == self.former(json.loads(theorem)))
        return same and self.guarantee.agrees(_guarantee(theorem))


@dataclass(frozen=True)
class Charge:
    """New releases of one channel to be written: key of their draw, cost of each, bytes of each row.

    Attributes:
        key: Key of the draw.
        epsilon: Worst case of the guarantee at delta, for each row.
        delta: δ of the worst case.
        users: (n,) int64.
        records: (n,) int64, from 0 to below 2^32. No pair of user and record occurs twice.
        payloads: (n, width) uint8, the bytes of the rows.
    """

    key: Key
    epsilon: float
    delta: float
    users: NDArray[np.int64]
    records: NDArray[np.int64]
    payloads: NDArray[np.uint8]


@dataclass(frozen=True)
class Recalled:
    """Entries of the ledger about n records under one key.

    Attributes:
        known: (n,) bool, the rows that were released under this key.
        payloads: (n, width) uint8, the bytes of those. The other rows are meaningless, and width is 0 if there are
            none.
        earlier: (n,) int64, the number of releases of each record at the same stage and channel under other digests.
    """

    known: NDArray[np.bool_]
    payloads: NDArray[np.uint8]
    earlier: NDArray[np.int64]


@dataclass(frozen=True)
class LedgerRow:
    """Entry of the ledger, for people.

    Attributes:
        user: Number of the user.
        record: Number of the record; where the release is `of_all`, of none in particular.
        stage: Stage of the request.
        channel: Channel of the release.
        digest: Digest of the request on this channel.
        guarantee: Guarantee of the release.
        epsilon: Worst case at delta, as it was charged.
        delta: δ of the worst case.
        payload: Bytes of the release.
        commit: Number of its commit.
        time: Time of the commit by the clock, in whole seconds since 1970 UTC.
    """

    user: int
    record: int
    stage: str
    channel: str
    digest: str
    guarantee: Guarantee
    epsilon: float
    delta: float
    payload: bytes
    commit: int
    time: int

    @property
    def of_all(self) -> bool:
        """Return whether the release is about all of its user's records, and not about the one of its number.

        A channel that this process does not know counts as such.
        """
        kind = QUESTIONS.get(self.channel)
        return self.record == ALL_RECORDS or kind is None or kind.of_user is True


class Ledger:
    """Ledger in one SQLite file, which is created if it is missing. Close it, or use it in a `with`.

    A device uses synchronous=EXTRA, which is FULL and also syncs the folder. With a rollback journal, FULL alone may
    lose the last commit in a power cut. The ledger would then count less than what left the device.

    Args:
        path: The file.
        durable: True for a device: wait until every commit lies on the disk, and refuse a ledger that lacks the commit
            named by the rollback guard. A simulation's folder is new for each run, and need not survive a power cut.

    Raises:
        LedgerError: The file cannot be trusted. Every method raises it.
    """

    def __init__(self, path: Path | str, durable: bool = True) -> None:
        self.path = Path(path)
        self._witness = self.path.with_name(f".{self.path.name}.made") if durable else None
        with _failing_closed():
            commit = None if self._witness is None else rollback_guard.read(self._witness)  # first: others may commit
            if not self.path.exists():
                if commit is not None:
                    raise LedgerError(_GONE.format(self.path))
                _create(self.path, durable)
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
        """Close the file, which holds all commits."""
        self._connection.close()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the only right to write, on a ledger that holds the commit of its rollback guard.

        Uncommitted changes are undone when the block ends.
        """
        with _failing_closed():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            with _failing_closed(), self._guarded():
                pass
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def commit(self, charges: Sequence[Charge]) -> None:
        """Write all charges with their bytes durably, or write nothing and raise. Call it inside `exclusive`.

        On a device, a failure after the commit leaves the releases charged: the rollback guard could not be written.
        """
        if not self._connection.in_transaction:
            raise LedgerError("ledger: commit outside of exclusive")
        if not charges:
            return
        nonce = os.urandom(NONCE_BYTES)
        with _failing_closed(), self._guarded():
            number = self._connection.execute(_COMMIT, (int(time.time()), nonce)).lastrowid
            assert number is not None
            for charge in charges:
                self._write(charge, number)
            self._connection.execute("COMMIT")
            if self._witness is not None:
                rollback_guard.advance(self._witness, Commit(number, nonce))

    def recall(self, key: Key, users: NDArray[np.int64], records: NDArray[np.int64]) -> Recalled:
        """Return the releases of each of n records at the key's stage and channel, under this key and under others.

        Args:
            key: The key.
            users: (n,) int64.
            records: (n,) int64.
        """
        wanted = np.stack([users, records], axis=1)
        known = np.zeros(len(users), dtype=np.bool_)
        payloads = np.zeros((len(users), 0), dtype=np.uint8)
        earlier = np.zeros(len(users), dtype=np.int64)
        with _failing_closed():
            for draw, digest, theorem in self._draws(key):
                if not key.names(digest, theorem):
                    other, asked = _numbered(self._keys(draw, users, records), wanted)
                    earlier += np.bincount(other, minlength=len(other) + len(asked))[asked]
                    continue
                keys, released = self._releases(draw, users, records)
                place = _places(keys, wanted)
                matches = place >= 0
                if not matches.any():
                    continue
                if not known.any():
                    payloads = np.zeros((len(users), released.shape[1]), dtype=np.uint8)
                payloads[matches] = released[place[matches]]
                known |= matches
        return Recalled(known, payloads, earlier)

    def spent(
        self,
        users: NDArray[np.int64],
        records: NDArray[np.int64] | None = None,
        *,
        channel: str | None = None,
        delta: float = 0.0,
        without: Collection[str] = (),
        declared: frozenset[str] = frozenset(),
    ) -> Account:
        """Return the charges of each user, or of each user's record, (n,), over all stages and digests.

        Releases of one draw are counted before they are priced. So n at once cost, to the last bit, the same as n one
        by one.

        Args:
            users: (n,) int64.
            records: (n,) int64, the record of each row; None sums over all records.
            channel: Channel of the charges; None sums over all channels.
            delta: δ of each release that needs one, as `privacy_filter.cost` takes it.
            without: Channels whose releases are counted but cost nothing.
            declared: Exposures that are declared public, as `privacy_filter.cost` takes them.
        """
        wanted = users[:, None] if records is None else np.stack([users, records], axis=1)
        if not len(users):
            return Account.empty(0)
        (row,) = _numbered(wanted)
        people = int(row.max()) + 1
        total = Account.empty(people)
        with _failing_closed():
            on, named = ("", ()) if channel is None else ("AND channel = ?", (channel,))
            blocks = self._connection.execute(_CHARGED.format(on), (*_block_bounds(users, records), *named))
            draws = groupby(blocks, key=lambda block: block[:3])
            while batch := [(draw, list(group)) for draw, group in islice(draws, _DRAWS_AT_ONCE)]:
                pairs = [_pairs([_checked(keys, check) for *_, check, keys in group]) for _, group in batch]
                number = np.repeat(np.arange(len(batch)), [len(p) for p in pairs])
                place = _places(wanted, np.concatenate(pairs)[:, : wanted.shape[1]])
                number, place = number[place >= 0], row[place[place >= 0]]
                times = np.bincount(number * people + place, minlength=len(batch) * people)
                costs = [FREE if on in without else _cost(theorem, delta, declared) for (_, on, theorem), _ in batch]
                total += Account.of(costs, times.reshape(len(batch), people))
        return total.take(row)

    def records_of(self, user: int) -> NDArray[np.int64]:
        """Return the numbers (n,) of a user's records that have any release, in order."""
        with _failing_closed():
            blocks = self._connection.execute(_KEYS_OF, (user, user))
            keys = _pairs([_checked(keys, check) for check, keys in blocks])
        return np.unique(keys[keys[:, 0] == user, 1])

    def rows(self) -> list[LedgerRow]:
        """Return all charges, ordered by user, record, stage, channel and digest."""
        rows: list[LedgerRow] = []
        with _failing_closed():
            for block in self._connection.execute(_ROWS):
                *key, guarantee, epsilon, delta, n, check, keys, payload_check, payload, commit, seconds = block
                payloads = _checked(payload, payload_check)
                width, theorem = len(payloads) // n, _guarantee(guarantee)
                for i, (user, record) in enumerate(_pairs([_checked(keys, check)]).tolist()):
                    one = payloads[i * width :][:width]
                    about: Any = (user, record, *key, theorem, epsilon, delta, one, commit, seconds)
                    rows.append(LedgerRow(*about))
        return sorted(rows, key=lambda row: (row.user, row.record, row.stage, row.channel, row.digest))

    def _write(self, charge: Charge, commit: int) -> None:
        """Write a charge as one block of that commit. Raise if a release of the same record exists under this key."""
        users, records, rows = charge.users, charge.records, charge.payloads
        n = len(users)
        if not (n == len(records) == len(rows) and rows.dtype == np.uint8 and rows.ndim == 2):
            raise LedgerError("ledger: a charge needs a user, a record and the bytes of each release")
        if (records < 0).any() or (records >= _RECORDS).any():
            raise LedgerError("ledger: a record's number is out of range")
        draw = self._draw(charge.key)
        keys = np.stack([users, records], axis=1)
        (codes,) = _numbered(np.concatenate([keys, self._keys(draw, users, records)]))
        if len(np.unique(codes)) < len(codes):
            raise LedgerError("ledger: one key cannot be written twice")
        data, payload = keys.astype("<i8").tobytes(), rows.tobytes()
        self._connection.execute(
            _INSERT,
            (
                commit,
                draw,
                n,
                charge.epsilon,
                charge.delta,
                *_bounds(users),
                *_bounds(records),
                zlib.crc32(data),
                zlib.crc32(payload),
                data,
                payload,
            ),
        )

    def _keys(self, draw: int, users: NDArray[np.int64], records: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return users and records (N, 2) of all blocks of a draw that may hold one of these."""
        rows = self._connection.execute(f"SELECT keys_check, keys {_BLOCKS}", (draw, *_block_bounds(users, records)))
        return _pairs([_checked(keys, check) for check, keys in rows])

    def _releases(
        self, draw: int, users: NDArray[np.int64], records: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the same as `_keys`, with the bytes of the releases, (N, width) uint8."""
        rows = self._connection.execute(
            f"SELECT n, keys_check, keys, payload_check, payload {_BLOCKS}", (draw, *_block_bounds(users, records))
        )
        keys, payloads, widths = [], [], set()
        for n, check, pairs, payload_check, payload in rows:
            keys.append(_checked(pairs, check))
            payloads.append(_checked(payload, payload_check))
            widths.add(len(payload) / n)
        if len(widths) > 1:
            raise LedgerError("ledger: the releases of one draw differ in their length")
        index = _pairs(keys)
        return index, np.frombuffer(b"".join(payloads), dtype=np.uint8).reshape(len(index), int(max(widths, default=0)))

    def _draw(self, key: Key) -> int:
        """Return the id of a draw's public description, which is written if it is new."""
        for draw, digest, theorem in self._draws(key):
            if digest == key.digest and key.guarantee.agrees(_guarantee(theorem)):
                return draw
        guarantee = json.dumps(key.guarantee.to_dict(), sort_keys=True)
        number = self._connection.execute(_DRAW, (key.stage, key.channel, key.digest, guarantee)).lastrowid
        assert number is not None
        return number

    def _draws(self, key: Key) -> list[tuple[int, str, str]]:
        """Return id, digest and guarantee of each draw of the key's stage and channel."""
        return self._connection.execute(
            "SELECT id, digest, guarantee FROM draws WHERE stage = ? AND channel = ?", (key.stage, key.channel)
        ).fetchall()

    def _verify(self) -> None:
        """Check the file."""
        schema = self._connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if schema != (SCHEMA,):
            raise LedgerError(f"ledger: {self.path} is not of schema {SCHEMA}")
        if self._connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise LedgerError(f"ledger: {self.path} is damaged")
        with self._guarded():
            pass

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Hold the rollback guard of a device, which names the last commit of the file in this place.

        The guard is advanced to a commit that was never acknowledged.

        Raises:
            LedgerError: A file does not hold the commit that the guard names, or the guard is gone.
        """
        if self._witness is None:
            yield
            return
        with rollback_guard.alone(self._witness.parent):
            commit = rollback_guard.read(self._witness)
            if not self.path.exists():  # SQLite would create it
                raise LedgerError(_GONE.format(self.path))
            # Another file may have been put over the one that this connection has read, or in its place.
            with closing(sqlite3.connect(self.path, timeout=_WAIT_SECONDS)) as anew:
                self._last(anew, commit)
            last = self._last(self._connection, commit)
            if commit is None or commit.number < last.number:
                rollback_guard.advance(self._witness, last)
            yield

    def _last(self, file: sqlite3.Connection, known: Commit | None) -> Commit:
        """Return the last commit of a file. Raise unless it holds the commit that the rollback guard names."""
        last = file.execute("SELECT id, nonce FROM commits ORDER BY id DESC LIMIT 1").fetchone()
        if last is None:
            raise LedgerError(f"ledger: {self.path} is damaged")
        if known is None and last[0] > 1:  # the first commit is the creation of the ledger; later ones have a guard
            raise LedgerError(f"ledger: {self._witness} is gone, and whether this is the last copy cannot be told")
        if known is not None:
            row = file.execute("SELECT nonce FROM commits WHERE id = ?", (known.number,)).fetchone()
            if row != (known.nonce,):
                raise LedgerError(f"ledger: {self.path} is an older copy or another ledger; put the last one back")
        return Commit(*last)


def _numbered(*tables: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return a number for each row of tables (N, k), the same for equal rows; the largest is below the rows of all."""
    rows = np.concatenate(tables)
    order = np.lexsort(rows.T[::-1])
    ordered, numbers = rows[order], np.empty(len(rows), np.int64)
    numbers[order] = np.cumsum((np.diff(ordered, axis=0, prepend=ordered[:1]) != 0).any(axis=1))
    return np.split(numbers, np.cumsum([len(table) for table in tables[:-1]]))


def _places(table: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place in a table (N, k) of each of n rows (n, k), -1 for a row that it does not have."""
    there, asked = _numbered(table, rows)
    place = np.full(len(table) + len(rows), -1)
    place[there] = np.arange(len(table))
    found: NDArray[np.int64] = place[asked]
    return found


def _block_bounds(users: NDArray[np.int64], records: NDArray[np.int64] | None) -> tuple[int, int, int, int]:
    """Return the parameters of _BLOCKS, for the blocks that may hold one of these."""
    (low, high), (first, last) = _bounds(users), (0, _RECORDS) if records is None else _bounds(records)
    return high, low, last, first


def _bounds(numbers: NDArray[np.int64]) -> tuple[int, int]:
    """Return the least and the largest number; of no numbers, bounds that contain nothing."""
    return (int(numbers.min()), int(numbers.max())) if len(numbers) else (1, 0)


def _checked(data: bytes, check: int) -> bytes:
    if zlib.crc32(data) != check:
        raise LedgerError("ledger: a block is damaged")
    return data


def _pairs(blocks: Sequence[bytes]) -> NDArray[np.int64]:
    return np.frombuffer(b"".join(blocks), dtype="<i8").reshape(-1, 2).astype(np.int64, copy=False)


def _create(path: Path, durable: bool) -> None:
    """Create a complete empty ledger, then give it its name: an existing ledger is never incomplete."""
    with creating(path, durable=durable) as draft, closing(_connect(draft, durable)) as connection:
        triggers = (
            _FORBID.format(table, verb)
            for table in ("meta", "draws", "commits", "releases")
            for verb in ("UPDATE", "DELETE")
        )
        first = f"INSERT INTO commits VALUES (1, {int(time.time())}, x'{os.urandom(NONCE_BYTES).hex()}');"
        connection.executescript("BEGIN;" + _CREATE + first + "".join(triggers) + "COMMIT;")


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
    except (sqlite3.Error, OSError, rollback_guard.Damaged) as error:  # the text says more than a name
        raise LedgerError(f"ledger: it cannot be used: {error}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise LedgerError(f"ledger: it cannot be used ({type(error).__name__})") from error


def _guarantee(text: str) -> Guarantee:
    return Guarantee.from_dict(json.loads(text))


@lru_cache(maxsize=2**14)
def _cost(guarantee: str, delta: float, declared: frozenset[str]) -> Cost:
    """Return the cost by the theorem, not by the charge: the policy may have been changed to another δ since."""
    return cost(_guarantee(guarantee), delta, declared=declared)
