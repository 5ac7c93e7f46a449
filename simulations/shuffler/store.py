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

SCHEMA = "sottovoce-shuffler-2"
OPEN, CLOSED, DISCARDED = "open", "closed", "discarded"

#: Bytes of a batch that are one value of the table, and are held at once: SQLite's values end at 10^9 bytes.
_PIECE = 2**24
#: Before, a batch was one value; it is the one piece of its stage now.
_BEFORE = "sottovoce-shuffler-1"

_PIECES = """CREATE TABLE pieces (
    stage INTEGER NOT NULL REFERENCES stages, number INTEGER NOT NULL, rows BLOB NOT NULL, PRIMARY KEY (stage, number)
)"""
_CREATE = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', '{SCHEMA}');
CREATE TABLE stages (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, request BLOB NOT NULL, row_bytes INTEGER NOT NULL,
    minimum_users INTEGER NOT NULL, timeout REAL NOT NULL, state TEXT NOT NULL, users INTEGER NOT NULL,
    rows INTEGER NOT NULL, duplicates INTEGER NOT NULL, dropped TEXT NOT NULL, errors TEXT NOT NULL,
    identity TEXT NOT NULL
);
{_PIECES};
"""
_RENEW = f"""
{_PIECES};
INSERT INTO pieces SELECT stage, 0, rows FROM batches;
DROP TABLE batches;
UPDATE meta SET value = '{SCHEMA}' WHERE name = 'schema';
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

    def add(self, name: str, sealed: Sealed, most: NDArray[np.int64] | None = None) -> tuple[int, int, int]:
        """Adds rows, of each user and record the first that ever came. How many were added, how many were there before,
        and how many were refused.

        most: (n,), of how many records the user of each row may have releases in this stage; more are refused. None:
        of any number.
        Raises Late where the stage is closed, ValueError where the rows are not of its length.
        """
        with self._transaction():
            stage = self._existing(name)
            if stage.state != OPEN:
                raise Late
            if sealed.rows.shape[1] != stage.row_bytes:
                raise ValueError("shuffler: rows of another length")
            told = Counter[str]()
            # user by user, so that what is known of no more than one is held
            order = np.lexsort((sealed.records, sealed.users))
            self._connection.executemany(
                f"INSERT INTO {self._intake(name)} VALUES (?, ?, ?)", self._new(name, sealed, order, most, told)
            )
            added, again = told["added"], told["again"]
            self._connection.execute(
                "UPDATE stages SET users = users + ?, rows = rows + ?, duplicates = duplicates + ? WHERE name = ?",
                (told["users"], added, again, name),
            )
            return added, again, told["refused"]

    def _new(
        self, name: str, sealed: Sealed, order: NDArray[np.intp], most: NDArray[np.int64] | None, told: Counter[str]
    ) -> Iterator[tuple[int, int, bytes]]:
        """The rows that are not there yet and may come, in the order of the table's key; `told` is counted up."""
        held: set[int] = set()
        last = None
        for i in order:
            user, record = int(sealed.users[i]), int(sealed.records[i])
            if user != last:
                of_user = f"SELECT record FROM {self._intake(name)} WHERE user = ?"
                held, last = {known for (known,) in self._connection.execute(of_user, (user,))}, user
            if record in held:
                told["again"] += 1
            elif most is not None and len(held) >= most[i]:
                told["refused"] += 1
            else:
                told["users"] += not held
                told["added"] += 1
                held.add(record)
                yield user, record, sealed.rows[i].tobytes()

    def close(self, name: str, *, dropped: Mapping[str, int], errors: Mapping[str, int]) -> Stage:
        """Closes a stage for good: permutes its rows and forgets whose they are, or discards them where they are of
        fewer users than they must be. A stage that is closed already is left as it is."""
        with self._transaction():
            stage = self._existing(name)
            if stage.state != OPEN:
                return stage
            identity, state = "", DISCARDED
            if stage.users >= max(stage.minimum_users, 1):
                identity, state = self._permuted(stage), CLOSED
            self._connection.execute(f"DROP TABLE {self._intake(name)}")
            self._connection.execute(
                "UPDATE stages SET state = ?, identity = ?, dropped = ?, errors = ? WHERE name = ?",
                (state, identity, json.dumps(dict(dropped)), json.dumps(dict(errors)), name),
            )
            return self._existing(name)

    def _permuted(self, stage: Stage) -> str:
        """Writes a stage's batch, piece by piece; its identity. Of all rows at once only their keys are held."""
        table, number = self._intake(stage.name), self._number(stage.name)
        keys = np.empty((stage.rows, 2), np.int64)
        for i, key in enumerate(self._connection.execute(f"SELECT user, record FROM {table} ORDER BY user, record")):
            keys[i] = key
        # in the order of 128 random bits each: two are alike once in 10^24 batches of 10^7 rows
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
        """The rows of a stage that is closed, in pieces of whole rows, the same for ever; none where it was discarded.

        Raises StoreError where it is open, and after the last piece where they are not what they were.
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
        """All of `pieces` at once, (n, row_bytes)."""
        data = b"".join(self.pieces(name))
        return np.frombuffer(data, np.uint8).reshape(-1, self._existing(name).row_bytes)

    def _piece(self, name: str, i: int) -> bytes | None:
        with self._transaction():
            find = "SELECT rows FROM pieces WHERE stage = ? AND number = ?"
            row = self._connection.execute(find, (self._number(name), i)).fetchone()
        return None if row is None else row[0]

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
                self._statements(_CREATE)
            if self._schema() == (_BEFORE,):
                self._statements(_RENEW)
            if self._schema() != (SCHEMA,):
                raise StoreError(f"shuffler: {self.path} is not of schema {SCHEMA}")
            if self._connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise StoreError(f"shuffler: {self.path} is damaged")

    def _statements(self, statements: str) -> None:
        for statement in statements.split(";"):  # not as a script, which would commit by itself
            self._connection.execute(statement)

    def _schema(self) -> Any:
        return self._connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()

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

    def _number(self, name: str) -> int:
        (number,) = self._connection.execute("SELECT id FROM stages WHERE name = ?", (name,)).fetchone()
        return int(number)

    def _intake(self, name: str) -> str:
        return f"intake_{self._number(name)}"


def _stage(row: tuple[Any, ...]) -> Stage:
    *values, dropped, errors, identity = row
    return Stage(*values, Counter(json.loads(dropped)), Counter(json.loads(errors)), identity)


def _write_origins(folder: Path, name: str, pairs: NDArray[np.int64]) -> None:
    """STAGE.npy, whole and on the disk, in the place of one that a kill has left without its batch."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole(folder / f"{name}.npy", synced=True, private=True) as file:
        np.save(file, pairs)


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors as one line."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        busy = getattr(error, "sqlite_errorcode", 0) % 256 == sqlite3.SQLITE_BUSY
        reason = "another process has it" if busy else str(error)
        raise StoreError(f"shuffler: {path} cannot be used: {reason}") from error
