"""Record numbers of the sentences in a device's inference requests.

Nothing else of a sentence is kept. A sentence keeps its number. The ledger charges every request about it, by any
server, to that number, and repeats a release if the request is the same. The number is durable before anything is drawn
for it, so a crash never gives it to another sentence.

A sentence is identified by its SHA-256. This hides nothing from a person who has the file and can guess the sentence;
the file is the device's own, beside the texts of its records. Numbers begin at `FIRST_RECORD`, above any record of a
shard. If the file is missing, they continue above the highest number on the ledger; earlier sentences then count as
new.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.store.durable import sync

#: Records of a shard are numbered below this.
FIRST_RECORD = 2**31
_END = 2**32
_WAIT_SECONDS = 60.0
_CREATE = """
CREATE TABLE IF NOT EXISTS sentences (
    user INTEGER NOT NULL, sha256 BLOB NOT NULL CHECK (length(sha256) = 32), record INTEGER NOT NULL,
    PRIMARY KEY (user, sha256), UNIQUE (user, record)
) WITHOUT ROWID
"""


class QuestionRecordsError(ValueError):
    """One-line error of record numbers that cannot be read or kept; the releases that needed them were not charged."""


class QuestionRecords:
    """Record numbers in a device's folder, in the file asked.sqlite, created if missing. Use it in a `with`.

    Raises:
        QuestionRecordsError: The file cannot be used. Every method raises it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = self.path_in(folder)
        with self._translated_errors():
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
            try:
                self._connection.execute("PRAGMA synchronous = EXTRA")
                self._connection.execute(_CREATE)
                sync(folder)
            except BaseException:
                self._connection.close()
                raise

    @staticmethod
    def path_in(folder: Path) -> Path:
        """Return the path of the file in a device's folder."""
        return folder / "asked.sqlite"

    def __enter__(self) -> QuestionRecords:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def users(self) -> list[int]:
        """Return the users who have requested any inference."""
        with self._translated_errors():
            return [user for (user,) in self._connection.execute("SELECT DISTINCT user FROM sentences")]

    def record_numbers(self, user: int, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the record numbers (n,) of a user's sentences by `sentence_hash`; -1 for a sentence that has none."""
        select = "SELECT record FROM sentences WHERE user = ? AND sha256 = ?"
        with self._translated_errors():
            rows = (self._connection.execute(select, (user, sha256)).fetchone() for sha256 in hashes)
            return np.array([-1 if row is None else row[0] for row in rows], dtype=np.int64)

    def assign(self, user: int, hashes: Sequence[bytes], *, above: int) -> NDArray[np.int64]:
        """Return the same as `record_numbers`, after durably numbering every sentence that had no number.

        Args:
            user: Number of the user.
            hashes: Hashes of the sentences.
            above: Highest number of the user on the ledger; new numbers are higher.
        """
        with self._translated_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                (highest,) = self._connection.execute(
                    "SELECT max(record) FROM sentences WHERE user = ?", (user,)
                ).fetchone()
                numbers = self.record_numbers(user, hashes)
                new = list(dict.fromkeys(sha256 for sha256, number in zip(hashes, numbers, strict=True) if number < 0))
                start = max(FIRST_RECORD, int(above) + 1, 0 if highest is None else highest + 1)
                if start + len(new) > _END:
                    raise QuestionRecordsError(f"{self.path}: there are no numbers left for more sentences")
                rows = ((user, sha256, start + i) for i, sha256 in enumerate(new))
                self._connection.executemany("INSERT INTO sentences VALUES (?, ?, ?)", rows)
                numbers = self.record_numbers(user, hashes)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        return numbers

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:  # a full disk, a folder that cannot be written
            reason = getattr(error, "strerror", None) or str(error)
            raise QuestionRecordsError(f"{self.path}: cannot be used ({reason})") from error
        except sqlite3.Error as error:
            raise QuestionRecordsError(
                f"{self.path}: is damaged; move it away, and sentences asked before are new ones, which cost again"
            ) from error


def sentence_hash(sentence: str) -> bytes:
    """Return the SHA-256 of the sentence's UTF-8 bytes, which identifies it."""
    return hashlib.sha256(sentence.encode()).digest()
