"""What a shuffler keeps on its disk: sealed rows and whose they are while a stage is open, and its batch ever after.

A stage is opened by one request, is added to, and is closed once: then its rows are permuted by the operating system's
generator, and what said whose they are is dropped in the same transaction. A stage that ends with fewer users than its
request promises is discarded. Neither is ever undone: a stage gives one batch, or none, for good.

Every change is one transaction that lies on the disk before it is acknowledged, so a shuffler that is killed, or loses
power, goes on where it was: what was acknowledged is there, once. One process at a time has the file.

After a stage is closed, no user's number is in the file: SQLite writes zeros over what it drops (secure_delete). No
more can be promised of a file. During a transaction old pages also lie in the journal beside it, which is cut to
nothing at the end, not written over; and what a file system, a flash disk, a backup or Flower's own SuperLink have kept
is not touched. Whoever runs a shuffler sees who sends which row, and is trusted neither to keep that nor to share it.
"""

from __future__ import annotations

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

from mechanisms.messages.sealed import Sealed, batch_identity
from simulations.output.atomic import whole

SCHEMA = "sottovoce-shuffler-1"
OPEN, CLOSED, DISCARDED = "open", "closed", "discarded"

_CREATE = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', '{SCHEMA}');
CREATE TABLE stages (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, request BLOB NOT NULL, row_bytes INTEGER NOT NULL,
    minimum_users INTEGER NOT NULL, timeout REAL NOT NULL, state TEXT NOT NULL, users INTEGER NOT NULL,
    rows INTEGER NOT NULL, duplicates INTEGER NOT NULL, dropped TEXT NOT NULL, errors TEXT NOT NULL,
    identity TEXT NOT NULL
);
CREATE TABLE batches (stage INTEGER PRIMARY KEY REFERENCES stages, rows BLOB NOT NULL);
"""
# A table a stage, in the order of its key: the order in which rows came is nowhere, and its pages are dropped whole.
_INTAKE = """
CREATE TABLE intake_{} (
    user INTEGER NOT NULL, record INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (user, record)
) WITHOUT ROWID
"""
_COLUMNS = "name, request, row_bytes, minimum_users, timeout, state, users, rows, duplicates, dropped, errors, identity"


class StoreError(Exception):
    """The store cannot be used; one line."""


class Conflict(Exception):
    """Another request under the name of a stage that is there."""


class Late(Exception):
    """The stage is closed."""


@dataclass(frozen=True)
class Stage:
    """A stage as it is.

    request: the bytes that opened it. row_bytes: of one sealed row. timeout: seconds that nodes have to answer.
    state: open, closed or discarded. users, rows: how many are in it. duplicates: rows that came again, as they do
    where nodes are asked again after a restart. dropped, errors: rows that were refused, and nodes that did not answer,
    by the reason; known once it is closed. identity: of its batch, "" where it has none.
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
    """The store in one SQLite file, made where there is none; to be used in a `with`, by any thread.

    origins: a folder that is told whose the rows of each batch are, STAGE.npy, (n, 2) int64 of user and record in the
        batch's order: for a study that scores predictions. A shuffler that serves anybody never has one.
    Every method raises StoreError where the file cannot be used.
    """

    def __init__(self, path: Path, *, origins: Path | None = None) -> None:
        self.path = path
        self._origins = origins
        self._lock = threading.Lock()
        with _store_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
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

    def open_stage(
        self, name: str, request: bytes, *, row_bytes: int, minimum_users: int, timeout: float
    ) -> Stage:
        """Opens a stage; where this very request has opened it before, it is left as it is, open or not.

        Raises Conflict where another request has.
        """
        with self._transaction():
            there = self._find(name)
            if there is None:
                number = self._connection.execute(
                    f"INSERT INTO stages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, '{{}}', '{{}}', '')",
                    (name, request, row_bytes, minimum_users, timeout, OPEN),
                ).lastrowid
                self._connection.execute(_INTAKE.format(number))
                there = self._existing(name)
            elif (there.request, there.row_bytes) != (request, row_bytes):
                raise Conflict
            return there

    def stage(self, name: str) -> Stage | None:
        """A stage; None where there is none of that name."""
        with self._transaction():
            return self._find(name)

    def open_stages(self) -> list[Stage]:
        """All stages that are open, in the order in which they were opened."""
        with self._transaction():
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM stages WHERE state = ? ORDER BY id", (OPEN,))
            return [_stage(row) for row in rows]

    def add(self, name: str, sealed: Sealed) -> tuple[int, int]:
        """Adds rows, of each user and record the first that ever came. How many were added, and how many were not.

        Raises Late where the stage is closed, ValueError where the rows are not of its length.
        """
        with self._transaction():
            stage = self._existing(name)
            if stage.state != OPEN:
                raise Late
            if sealed.rows.shape[1] != stage.row_bytes:
                raise ValueError("shuffler: rows of another length")
            table = self._intake(name)
            before = self._connection.total_changes
            self._connection.executemany(
                f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)",
                zip(sealed.users.tolist(), sealed.records.tolist(), map(bytes, sealed.rows), strict=True),
            )
            added = self._connection.total_changes - before
            again = len(sealed) - added
            (users,) = self._connection.execute(f"SELECT COUNT(DISTINCT user) FROM {table}").fetchone()
            self._connection.execute(
                "UPDATE stages SET users = ?, rows = rows + ?, duplicates = duplicates + ? WHERE name = ?",
                (users, added, again, name),
            )
            return added, again

    def close(self, name: str, *, dropped: Mapping[str, int], errors: Mapping[str, int]) -> Stage:
        """Closes a stage for good: permutes its rows and forgets whose they are, or discards them where they are of
        fewer users than they must be. A stage that is closed already is left as it is."""
        with self._transaction():
            stage = self._existing(name)
            if stage.state != OPEN:
                return stage
            table, identity, state = self._intake(name), "", DISCARDED
            if stage.users >= max(stage.minimum_users, 1):
                rows = self._connection.execute(f"SELECT user, record, sealed FROM {table}").fetchall()
                secrets.SystemRandom().shuffle(rows)
                batch = b"".join(sealed for _, _, sealed in rows)
                identity, state = batch_identity(batch), CLOSED
                if self._origins is not None:  # first: a batch that is there has its origins
                    _write_origins(self._origins, name, [(user, record) for user, record, _ in rows])
                self._connection.execute(
                    "INSERT INTO batches SELECT id, ? FROM stages WHERE name = ?", (batch, name)
                )
            self._connection.execute(f"DROP TABLE {table}")
            self._connection.execute(
                "UPDATE stages SET state = ?, identity = ?, dropped = ?, errors = ? WHERE name = ?",
                (state, identity, json.dumps(dict(dropped)), json.dumps(dict(errors)), name),
            )
            return self._existing(name)

    def batch(self, name: str) -> NDArray[np.uint8]:
        """The rows of a stage that is closed, (n, row_bytes), the same for ever; none where it was discarded."""
        with self._transaction():
            stage = self._existing(name)
            row = self._connection.execute(
                "SELECT batches.rows FROM batches JOIN stages ON stage = id WHERE name = ?", (name,)
            ).fetchone()
        data = b"" if row is None else row[0]
        if stage.state == OPEN or (stage.state == CLOSED and batch_identity(data) != stage.identity):
            raise StoreError(f"shuffler: {self.path}: the batch of stage {name!r} is damaged or not there yet")
        return np.frombuffer(data, np.uint8).reshape(-1, stage.row_bytes)

    def _begin(self) -> None:
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        # Cut to nothing at a commit, and synced then. SQLite's own way is to unlink it, and FULL may then lose the last
        # commit to a power cut; and under an exclusive lock, to keep it, with whose the rows were.
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
        """Everything in it is done and on the disk when it ends, or nothing is."""
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

    def _intake(self, name: str) -> str:
        (number,) = self._connection.execute("SELECT id FROM stages WHERE name = ?", (name,)).fetchone()
        return f"intake_{number}"


def _stage(row: tuple[Any, ...]) -> Stage:
    *values, dropped, errors, identity = row
    return Stage(*values, Counter(json.loads(dropped)), Counter(json.loads(errors)), identity)


def _write_origins(folder: Path, name: str, pairs: list[tuple[int, int]]) -> None:
    """STAGE.npy, whole and on the disk, in the place of one that a kill has left without its batch."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole(folder / f"{name}.npy", synced=True) as file:
        np.save(file, np.array(pairs, np.int64).reshape(-1, 2))


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors as one line."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        busy = getattr(error, "sqlite_errorcode", 0) % 256 == sqlite3.SQLITE_BUSY
        reason = "another process has it" if busy else str(error)
        raise StoreError(f"shuffler: {path} cannot be used: {reason}") from error
