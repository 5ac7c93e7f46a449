"""Storage of a shuffler on disk: sealed rows with their users while a stage is open, and its batch afterwards.

One request opens a stage. Rows are added to it, and it is closed once. The store then permutes its rows with the
operating system's generator, and deletes the link between rows and users in the same transaction. A stage with fewer
users than its request promises is discarded. Neither is ever undone: a stage gives one batch, or none, for good.

Every change is one transaction that is on the disk before it is acknowledged. A shuffler that is killed, or loses
power, therefore continues where it was: each acknowledged row is there, once. One process at a time has the file.

After a stage is closed, no user's number is in the file: SQLite overwrites deleted data with zeros (secure_delete). A
file can promise no more. During a transaction, old pages also lie in the journal beside the file. The journal is
truncated at the end, not overwritten. Copies of a file system, a flash disk, a backup or Flower's own SuperLink are not
erased. The shuffler's operator sees who sends which row, and is trusted neither to keep nor to share that.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.sealed import Sealed
from simulations.output.atomic import whole
from simulations.shuffler.core import Admitted, admit, shortfall

SCHEMA = "sottovoce-shuffler-2"
OPEN, CLOSED, DISCARDED = "open", "closed", "discarded"

#: Bytes of a batch in one value of the table, held at once: SQLite limits values to 10^9 bytes.
_PIECE = 2**24
_CREATE = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', '{SCHEMA}');
CREATE TABLE stages (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, request BLOB NOT NULL, row_bytes INTEGER NOT NULL,
    minimum_users INTEGER NOT NULL, timeout REAL NOT NULL, state TEXT NOT NULL, users INTEGER NOT NULL,
    rows INTEGER NOT NULL, duplicates INTEGER NOT NULL, dropped TEXT NOT NULL, errors TEXT NOT NULL,
    identity TEXT NOT NULL
);
CREATE TABLE pieces (
    stage INTEGER NOT NULL REFERENCES stages, number INTEGER NOT NULL, rows BLOB NOT NULL, PRIMARY KEY (stage, number)
);
"""
# One table for each stage, in the order of its key: the order of arrival is not stored, and whole pages are dropped.
_INTAKE = """
CREATE TABLE intake_{} (
    user INTEGER NOT NULL, record INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (user, record)
) WITHOUT ROWID
"""
_COLUMNS = "name, request, row_bytes, minimum_users, timeout, state, users, rows, duplicates, dropped, errors, identity"


class StoreError(Exception):
    """Error of a store that cannot be used; one line."""


class Conflict(Exception):
    """Error of another request under the name of an existing stage."""


@dataclass(frozen=True)
class Stage:
    """State of a stage.

    Args:
        name: Name of the stage.
        request: Bytes of the request that opened it.
        row_bytes: Size in bytes of one sealed row.
        minimum_users: Distinct users below which the batch is discarded.
        timeout: Time in seconds that nodes have to answer.
        state: "open", "closed" or "discarded".
        users: Number of users in it.
        rows: Number of rows in it.
        duplicates: Repeated rows, as nodes send them after a restart of the shuffler.
        dropped: Refused rows by reason; known once the stage is closed.
        errors: Nodes that did not answer, by reason; known once the stage is closed.
        identity: Identity of its batch, "" if it has none.
    """

    name: str
    request: bytes
    row_bytes: int
    minimum_users: int
    timeout: float
    state: str
    users: int
    rows: int
    duplicates: int
    dropped: Mapping[str, int]
    errors: Mapping[str, int]
    identity: str


class Store:
    """Store in one SQLite file, created if missing. Use it in a `with` block, from any thread.

    Every method raises StoreError if the file cannot be used.

    Args:
        path: The SQLite file.
        origins: Folder for the origins of each batch's rows: STAGE.npy, (n, 2) int64 of user and record in the batch's
            order. It is for an experiment that scores predictions. A shuffler in production never has one.
    """

    def __init__(self, path: Path, *, origins: Path | None = None) -> None:
        self.path = path
        self._origins = origins
        self._lock = threading.Lock()
        with _store_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
            try:
                self._begin()
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def open_stage(self, name: str, request: bytes, *, row_bytes: int, minimum_users: int, timeout: float) -> Stage:
        """Open a stage. If the same request has opened it already, leave it unchanged, open or not.

        Raises:
            Conflict: Another request has opened it.
        """
        with self._transaction():
            stage = self._find(name)
            if stage is None:
                number = self._connection.execute(
                    f"INSERT INTO stages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, '{{}}', '{{}}', '')",
                    (name, request, row_bytes, minimum_users, timeout, OPEN),
                ).lastrowid
                self._connection.execute(_INTAKE.format(number))
                stage = self._existing(name)
            elif (stage.request, stage.row_bytes) != (request, row_bytes):
                raise Conflict
            return stage

    def stage(self, name: str) -> Stage | None:
        """Return a stage; None if there is none of that name."""
        with self._transaction():
            return self._find(name)

    def open_stages(self) -> list[Stage]:
        """Return all open stages, in the order in which they were opened."""
        with self._transaction():
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM stages WHERE state = ? ORDER BY id", (OPEN,))
            return [_stage(row) for row in rows]

    def add(self, name: str, sealed: Sealed, most: NDArray[np.int64] | None = None) -> Admitted:
        """Add the rows that the stage takes (`core.admit`); a closed stage takes none.

        Args:
            name: Name of the stage.
            sealed: Sealed rows with their users and records.
            most: Maximum number of records, (n,), of which the user of each row may have rows in this stage. None sets
                no limit.

        Raises:
            ValueError: The rows have another length than those of the stage.
        """
        with self._transaction():
            stage = self._existing(name)
            if sealed.rows.shape[1] != stage.row_bytes:
                raise ValueError("shuffler: rows of another length")
            if stage.state != OPEN:
                return admit(sealed.users, sealed.records, late=np.ones(len(sealed), np.bool_))
            pairs = self._held(name, np.unique(sealed.users))
            admission = admit(sealed.users, sealed.records, held=pairs, most=most)
            self._connection.executemany(
                f"INSERT INTO {self._intake(name)} VALUES (?, ?, ?)",
                ((int(sealed.users[i]), int(sealed.records[i]), sealed.rows[i].tobytes()) for i in admission.rows),
            )
            self._connection.execute(
                "UPDATE stages SET users = users + ?, rows = rows + ?, duplicates = duplicates + ? WHERE name = ?",
                (admission.users, len(admission.rows), admission.again, name),
            )
            return admission

    def _held(self, name: str, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the users and records, (k, 2), of the stage's rows of some users."""
        of_user = f"SELECT user, record FROM {self._intake(name)} WHERE user = ?"
        keys = (key for user in users.tolist() for key in self._connection.execute(of_user, (user,)))
        return np.fromiter(keys, np.dtype((np.int64, 2)))

    def close(self, name: str, *, dropped: Mapping[str, int], errors: Mapping[str, int]) -> Stage:
        """Close a stage for good: permute its rows and forget their users, or discard them if the users are too few.

        A stage that is closed already stays unchanged.
        """
        with self._transaction():
            stage = self._existing(name)
            if stage.state != OPEN:
                return stage
            identity, state = "", DISCARDED
            if shortfall(stage.users, stage.minimum_users) is None:
                identity, state = self._permuted(stage), CLOSED
            self._connection.execute(f"DROP TABLE {self._intake(name)}")
            self._connection.execute(
                "UPDATE stages SET state = ?, identity = ?, dropped = ?, errors = ? WHERE name = ?",
                (state, identity, json.dumps(dict(dropped)), json.dumps(dict(errors)), name),
            )
            return self._existing(name)

    def _permuted(self, stage: Stage) -> str:
        """Write a stage's batch in pieces and return its identity. Only the keys of all rows are held at once."""
        table, number = self._intake(stage.name), self._number(stage.name)
        keys = np.empty((stage.rows, 2), np.int64)
        for i, key in enumerate(self._connection.execute(f"SELECT user, record FROM {table} ORDER BY user, record")):
            keys[i] = key
        # in the order of 128 random bits each: two are equal once in 10^24 batches of 10^7 rows
        bits = np.frombuffer(secrets.SystemRandom().randbytes(16 * len(keys)), np.uint64).reshape(2, -1)
        keys = keys[np.lexsort((bits[0], bits[1]))]
        if self._origins is not None:  # first: a batch that is there has its origins
            _write_origins(self._origins, stage.name, keys)
        identity = hashlib.sha256()
        at_once = max(1, _PIECE // stage.row_bytes)
        find = f"SELECT sealed FROM {table} WHERE user = ? AND record = ?"
        for i, start in enumerate(range(0, len(keys), at_once)):
            here = keys[start : start + at_once].tolist()
            piece = b"".join(self._connection.execute(find, key).fetchone()[0] for key in here)
            identity.update(piece)
            self._connection.execute("INSERT INTO pieces VALUES (?, ?, ?)", (number, i, piece))
        return identity.hexdigest()

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the rows of a closed stage, in pieces of whole rows, always the same; none if it was discarded.

        Raises:
            StoreError: The stage is open, or, after the last piece, the rows have changed.
        """
        stage, identity = self.stage(name), hashlib.sha256()
        if stage is None:
            raise KeyError(name)
        i, piece = 0, self._piece(name, 0)
        while piece is not None:
            identity.update(piece)
            yield piece
            i, piece = i + 1, self._piece(name, i + 1)
        if stage.state == OPEN or (stage.state == CLOSED and identity.hexdigest() != stage.identity):
            raise StoreError(f"shuffler: {self.path}: the batch of stage {name!r} is damaged or not there yet")

    def batch(self, name: str) -> NDArray[np.uint8]:
        """Return all rows of `pieces` in one array, (n, row_bytes)."""
        data = b"".join(self.pieces(name))
        return np.frombuffer(data, np.uint8).reshape(-1, self._existing(name).row_bytes)

    def _piece(self, name: str, i: int) -> bytes | None:
        with self._transaction():
            find = "SELECT rows FROM pieces WHERE stage = ? AND number = ?"
            row = self._connection.execute(find, (self._number(name), i)).fetchone()
        return None if row is None else row[0]

    def _begin(self) -> None:
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        # The journal is truncated at a commit, and synced then. By default SQLite unlinks it: FULL may lose the last
        # commit to a power cut. Under an exclusive lock SQLite keeps it, with the users of the rows.
        self._connection.execute("PRAGMA journal_mode = TRUNCATE")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        with self._transaction():
            if not self._connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _CREATE.split(";"):  # not as a script, which would commit by itself
                    self._connection.execute(statement)
            schema = self._connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
            if schema != (SCHEMA,):
                raise StoreError(f"shuffler: {self.path} is not of schema {SCHEMA}")
            if self._connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise StoreError(f"shuffler: {self.path} is damaged")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the whole block to the disk when it ends, or nothing of it."""
        with self._lock, _store_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _find(self, name: str) -> Stage | None:
        row = self._connection.execute(f"SELECT {_COLUMNS} FROM stages WHERE name = ?", (name,)).fetchone()
        return None if row is None else _stage(row)

    def _existing(self, name: str) -> Stage:
        stage = self._find(name)
        if stage is None:
            raise KeyError(name)
        return stage

    def _number(self, name: str) -> int:
        (number,) = self._connection.execute("SELECT id FROM stages WHERE name = ?", (name,)).fetchone()
        return int(number)

    def _intake(self, name: str) -> str:
        return f"intake_{self._number(name)}"


def _stage(row: tuple[Any, ...]) -> Stage:
    *values, dropped, errors, identity = row
    values += [Counter(json.loads(dropped)), Counter(json.loads(errors)), identity]
    return Stage(*values)


def _write_origins(folder: Path, name: str, pairs: NDArray[np.int64]) -> None:
    """Write STAGE.npy to the disk atomically. It replaces one that a killed process has left without its batch."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole(folder / f"{name}.npy", synced=True, private=True) as file:
        np.save(file, pairs)


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the system to one line."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        busy = getattr(error, "sqlite_errorcode", 0) % 256 == sqlite3.SQLITE_BUSY
        reason = "another process has it" if busy else str(error)
        raise StoreError(f"shuffler: {path} cannot be used: {reason}") from error
