"""Rollback guard: file beside a device's ledger that names the last acknowledged commit, to detect an older ledger.

A ledger that is restored from a copy after more was spent has lost commits. The guard is a second file, written after
every commit and before anything is sent. It names the last commit by its number and a random nonce. A ledger without
this exact commit is not the one that was here: `Ledger` compares the two before it releases or commits anything, and
holds the guard from the comparison to the end of the commit.

A crash between the commit and the writing of the guard leaves the ledger ahead, by a commit that was never
acknowledged. This is no fault, and the guard is advanced to that commit before anything is repeated from it. (A guard
that was written first would name, after a crash, a commit that never was, and the device could answer nothing again.)

Not detected: restoring an old ledger *with* its old guard (a backup of the whole folder, a snapshot of a virtual
machine), two devices that get copies of both, and a file put over the ledger while a commit is being written.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client.store.durable import replacing

NONCE_BYTES = 16

_HEADING = "The last commit of the ledger beside this file. With an older ledger, this client answers nothing."
_LINE = re.compile(rb"commit ([0-9]{1,18}) ([0-9a-f]{32})\n")


class Damaged(Exception):
    """Error of a guard that exists but names no commit."""


@dataclass(frozen=True)
class Commit:
    """Commit of a ledger: its number, from 1, and its nonce."""

    number: int
    nonce: bytes


def read(witness: Path) -> Commit | None:
    """Return the commit that the guard names, or None if there is no guard.

    Raises:
        Damaged: The guard names no commit.
    """
    try:
        heading, _, line = witness.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    parts = _LINE.fullmatch(line)
    if heading != _HEADING.encode() or not parts:
        raise Damaged(f"its witness {witness} is damaged")
    return Commit(int(parts[1]), bytes.fromhex(parts[2].decode()))


def advance(witness: Path, commit: Commit) -> None:
    """Make the guard name this commit, durably: a power cut leaves the complete old guard or the complete new one.

    Call it inside `alone`.
    """
    with replacing(witness) as (draft,):
        draft.write_bytes(f"{_HEADING}\ncommit {commit.number} {commit.nonce.hex()}\n".encode())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Admit one process at a time to the folder. The lock ends with the process."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
