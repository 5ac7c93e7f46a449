"""What the training server checks of a batch of sealed rows before anything is trained on it.

The shuffler is trusted to hide who sent what, and whoever runs it could still deliver a batch again, under another
name, or with rows twice: each would count a release more often than it was made.
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
    """Which batch was taken for which stage, for good: a folder with a file a stage that holds its batch's identity."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, stage: str, batch: str, rows: NDArray[np.uint8]) -> None:
        """Take a batch for a stage, or find that this very one was.

        batch: its identity, as the shuffler gives it. rows: (n, L) uint8. When this returns, what was taken lies on the
        disk. Raises ValueError, one line, where the rows have another identity, where another batch was taken for this
        stage, or this one for another; OSError where the folder cannot be written.
        """
        if batch_identity(rows.tobytes()) != batch:
            raise ValueError(f"batch of stage {stage!r}: its rows are not those that its identity names")
        taken = self._taken()
        if stage in taken:
            if taken[stage] != batch:
                raise ValueError(f"batch of stage {stage!r}: another one was taken for it before")
            return
        if before := [other for other, identity in taken.items() if identity == batch]:
            raise ValueError(f"batch of stage {stage!r}: it is replayed, and was taken for stage {before[0]!r}")
        self._write(stage, batch)

    def _taken(self) -> dict[str, str]:
        found = {}
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            identity = path.read_text().strip()
            if not is_hex(identity):
                raise ValueError(f"{path}: is damaged; whether a batch was taken before cannot be told")
            found[path.name.removesuffix(_SUFFIX)] = identity
        return found

    def _write(self, stage: str, batch: str) -> None:
        """Whole, or not at all, also through a power cut."""
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


def open_batch(
    rows: NDArray[np.uint8], request: Request, private_keys: Sequence[bytes]
) -> tuple[Reply, Counter[str]]:
    """The releases of a batch that are what was asked for, and how many rows were dropped for which reason.

    rows: (n, L) uint8, sealed. The reply's rows have no user, which is 0 in all of them; their records are their places
    in the batch, from 0. A row that occurs again is "replayed", and its first occurrence counts; one that was sealed to
    another key or for another request, or was changed, "does not open"; the others are validated as ever. As each
    dropped row may have been a user's only one, a batch of u users has at least u less the dropped ones in it.

    private_keys: the newest first; there is a second while devices change from one to the next. By which of them a row
    opens tells its owner which bundle a device has: rows of two keys are two crowds. So a batch is opened by one key,
    that of most rows, and the others' rows do not open.
    Raises ValueError where there are fewer rows than the request promises users, or for a private key that is none.
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
    # Which users answer is for the shuffler to check: here there are none, and the part does not concern the rows.
    valid, dropped = validate(reply, replace(request, part=(0, 1)), enrolled=range(1))
    return valid, dropped + Counter({"replayed": int((~first).sum()), "does not open": int((~opened).sum())})


def _first(rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which rows do not occur before, (n,)."""
    seen: set[bytes] = set()
    first = np.zeros(len(rows), np.bool_)
    for i, row in enumerate(map(bytes, rows)):
        first[i] = row not in seen
        seen.add(row)
    return first
