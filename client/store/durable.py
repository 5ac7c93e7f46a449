"""Files and folders: atomic creation and replacement, which survive a power cut where requested, and hashes.

An incomplete file or folder is a draft. It lies beside its target, under a name that begins with ".draft.".
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, lie on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of the content of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def private_file(path: Path) -> BinaryIO:
    """Open a file for writing from its start, readable by its owner alone from its creation on, under any umask."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    os.fchmod(file.fileno(), 0o600)  # one that is there keeps its mode
    return file


@contextmanager
def replacing(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Yield drafts of files in one folder, and durably replace the files in this order when the block succeeds.

    At any moment, and after a power cut, each file is the old one or the new one. No file is new where one before it
    is old. A draft that a killed process left is overwritten the next time. Only one process at a time may replace a
    file. Only the owner may read the files.

    Raises:
        OSError: The disk failed. The drafts are deleted, and files whose turn had not come are unchanged.
    """
    drafts = tuple(path.with_name(f".draft.{path.name}") for path in paths)
    try:
        for draft in drafts:
            private_file(draft).close()
        yield drafts
        for draft in drafts:
            sync(draft)
        for draft, path in zip(drafts, paths, strict=True):
            os.replace(draft, path)
            sync(path.parent)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


@contextmanager
def creating(path: Path, *, durable: bool) -> Iterator[Path]:
    """Yield the draft of a new file, which gets its name when the block ends without error.

    If another process created the file first, its file stays and this draft is discarded. Only the owner may read the
    file.

    Args:
        path: Final path of the file.
        durable: Whether the file survives a power cut. A power cut then leaves all of it or none.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened, name = tempfile.mkstemp(dir=path.parent, prefix=f".draft.{path.name}.")
    os.close(opened)
    draft = Path(name)
    try:
        yield draft
        if durable:
            sync(draft)
        try:
            os.link(draft, path)  # unlike a rename, never replaces one that another process just made
        except FileExistsError:
            return
        if durable:
            sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def require_free(folder: Path, kind: str) -> None:
    """Check that a folder is new or empty.

    Raises:
        ValueError: It is neither. The message begins with `kind`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{kind}: {folder} is there already and not an empty folder; name another one")


@contextmanager
def creating_folder(folder: Path) -> Iterator[Path]:
    """Yield the draft of a new or empty folder (`require_free`), which gets its name when the block succeeds.

    It is not synced: content of folders is named by hashes, and is refused if a power cut has damaged it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".draft.{folder.name}-"))
    try:
        draft.chmod(0o755)
        yield draft
        draft.rename(folder)  # POSIX: onto an empty folder too
    finally:
        shutil.rmtree(draft, ignore_errors=True)
