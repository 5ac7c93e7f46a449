"""What stands beside a device's ledger and notices an older one: the last commit that was acknowledged.

A ledger that is copied back after more was spent has lost commits. The witness is a second file, written after every
commit and before anything is sent, that names the last one by its number and a random nonce: a ledger without that
very commit is not the one that was here. A crash between commit and witness leaves the ledger ahead, by a commit that
nobody was told of; that is no fault, and the witness is brought up to it before anything is repeated from it.
Not noticed: somebody who puts back an old ledger *with* its old witness (a restored backup of the whole folder, a
snapshot of a virtual machine), and two devices that are given copies of both.
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
    """The witness is there, and names no commit."""


@dataclass(frozen=True)
class Commit:
    """A commit: its number, from 1, and its nonce."""

    number: int
    nonce: bytes


def read(witness: Path) -> Commit | None:
    """The commit that the witness names; None where there is no witness. Raises Damaged."""
    try:
        heading, _, line = witness.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    parts = _LINE.fullmatch(line)
    if heading != _HEADING.encode() or not parts:
        raise Damaged(f"its witness {witness} is damaged")
    return Commit(int(parts[1]), bytes.fromhex(parts[2].decode()))


def advance(witness: Path, commit: Commit) -> None:
    """Make the witness name this commit, for good: a power cut leaves the old one or the new one, whole.

    Several processes may do so in any order: a witness never goes back.
    """
    with _alone(witness.parent):
        before = read(witness)
        if before is None or before.number < commit.number:
            with replacing(witness) as (draft,):
                draft.write_bytes(f"{_HEADING}\ncommit {commit.number} {commit.nonce.hex()}\n".encode())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time in the folder. The lock ends with the process."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
