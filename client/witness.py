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

NONCE_BYTES = 16

_WORDS = "The last commit of the ledger beside this file. With an older ledger, this client answers nothing."
_LINE = re.compile(rb"commit ([0-9]{1,18}) ([0-9a-f]{32})\n")


class Damaged(Exception):
    """The witness is there, and names no commit."""


@dataclass(frozen=True)
class Head:
    """A commit: its number, from 1, and its nonce."""

    number: int
    nonce: bytes


def held(witness: Path) -> Head | None:
    """The commit that the witness names; None where there is no witness. Raises Damaged."""
    try:
        words, _, line = witness.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    found = _LINE.fullmatch(line)
    if words != _WORDS.encode() or not found:
        raise Damaged(f"its witness {witness} is damaged")
    return Head(int(found[1]), bytes.fromhex(found[2].decode()))


def hold(witness: Path, head: Head) -> None:
    """Make the witness name this commit, for good: a power cut leaves the old one or the new one, whole.

    Several processes may do so in any order: a witness never goes back.
    """
    with _alone(witness.parent) as folder:
        before = held(witness)
        if before is not None and before.number >= head.number:
            return
        draft = witness.with_name(f"{witness.name}.draft")
        with open(draft, "wb") as file:
            file.write(f"{_WORDS}\ncommit {head.number} {head.nonce.hex()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, witness)
        os.fsync(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """One process at a time in the folder, which is open meanwhile. The lock ends with the process."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened
    finally:
        os.close(opened)
