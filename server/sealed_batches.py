"""Checks of the training server on a batch of sealed rows before training.

The shuffler is trusted to hide who sent which row. Its operator could still deliver a batch again, under another name,
or with duplicate rows. Each case would count a release more often than it was made.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.checks import is_hex
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import batch_identity, unseal
from server.validation import validate

_SUFFIX = ".batch"


class Taken:
    """Permanent record of the batch taken for each stage.

    Args:
        folder: Folder with one file a stage, which holds the identity of its batch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, stage: str, batch: str, rows: NDArray[np.uint8]) -> None:
        """Take a batch for a stage, or find that this batch was already taken for it.

        The record is on disk when this returns.

        Args:
            stage: Name of the stage.
            batch: Identity of the batch, from the shuffler.
            rows: Sealed rows (n, L), uint8.

        Raises:
            ValueError: The rows have another identity, another batch was taken for this stage, or this batch was taken
                for another stage. The message is one line.
            OSError: The folder cannot be written.
        """
        if batch_identity(rows.tobytes()) != batch:
            raise ValueError(f"batch of stage {stage!r}: its rows are not those that its identity names")
        batches = self._taken()
        if stage in batches:
            if batches[stage] != batch:
                raise ValueError(f"batch of stage {stage!r}: another one was taken for it before")
            return
        if before := [other for other, identity in batches.items() if identity == batch]:
            raise ValueError(f"batch of stage {stage!r}: it is replayed, and was taken for stage {before[0]!r}")
        self._write(stage, batch)

    def _taken(self) -> dict[str, str]:
        batches = {}
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            identity = path.read_text().strip()
            if not is_hex(identity):
                raise ValueError(f"{path}: is damaged; whether a batch was taken before cannot be told")
            batches[path.name.removesuffix(_SUFFIX)] = identity
        return batches

    def _write(self, stage: str, batch: str) -> None:
        """Write the whole file or nothing, also through a power cut."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f".{stage}.draft"
        with open(draft, "w") as file:
            file.write(f"{batch}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / f"{stage}{_SUFFIX}")
        opened = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def open_batch(rows: NDArray[np.uint8], request: Request, private_keys: Sequence[bytes]) -> tuple[Reply, Counter[str]]:
    """Return the valid releases of a batch, and the number of dropped rows by reason.

    A repeated row is "replayed"; its first occurrence counts. A row "does not open" if it was sealed to another key or
    for another request, or was changed. The other rows are validated like any reply. Each dropped row may be a user's
    only one. So a batch of u users has at least u less the dropped rows in it.

    Args:
        rows: Sealed rows (n, L), uint8.
        request: Request that the rows answer.
        private_keys: Keys, newest first. There are two while devices change from one to the next. The key that opens a
            row tells its owner which bundle a device has, so rows of two keys are two crowds. So one key opens a batch:
            the key of most rows. The rows of the other key do not open.

    Returns:
        A reply and the reasons. All rows have user 0, and their records are their places in the batch, from 0.

    Raises:
        ValueError: The batch has fewer rows than the users that the request promises, or a private key is invalid.
    """
    if len(rows) < request.minimum_users:
        raise ValueError(
            f"batch of stage {request.stage!r}: {len(rows)} rows are fewer than the {request.minimum_users} users that "
            "it must have"
        )
    first = _first(rows)
    places = np.flatnonzero(first)
    releases, opened = max((unseal(rows[first], request, key) for key in private_keys), key=lambda got: got[1].sum())
    reply = Reply(np.zeros(int(opened.sum()), np.int64), places[opened].astype(np.int64), releases)
    # the shuffler checks which users answer; here there are no users, and the part says nothing about rows
    valid, dropped = validate(reply, replace(request, part=(0, 1)), enrolled=range(1))
    return valid, dropped + Counter({"replayed": int((~first).sum()), "does not open": int((~opened).sum())})


def _first(rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return True for each row that does not occur earlier, (n,)."""
    seen: set[bytes] = set()
    first = np.zeros(len(rows), np.bool_)
    for i, row in enumerate(map(bytes, rows)):
        first[i] = row not in seen
        seen.add(row)
    return first
