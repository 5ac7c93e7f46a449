"""Files and folders that are whole or not there, and files that are still there after a power cut.

What is not whole yet is a draft: it lies beside what it becomes, under a name that begins with ".draft.".
"""

from __future__ import annotations

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


def private_file(path: Path) -> BinaryIO:
    """Open a file to write it anew: nobody but its owner may read it, from its creation on, whatever the umask."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    os.fchmod(file.fileno(), 0o600)  # one that is there keeps its mode
    return file


@contextmanager
def replacing(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Drafts of files of one folder, which take their places when the block ends well, in this order and for good.

    At any moment, and after a power cut, each file is the old one or the new one, and none is new where one before it
    is old. What a kill leaves of a draft is written over the next time. One process at a time may replace a file. For
    the eyes of its owner alone. Raises OSError where the disk fails; the drafts are gone then, and files whose turn had
    not come are as they were.
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
    """The draft of a new file, which gets its name when the block ends well; where another process was first, that
    one's file stays, whatever came of this draft.

    durable: for good: a power cut leaves all of it or none. For the eyes of its owner alone. Raises OSError.
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
    """Raise ValueError, which begins with `kind`, unless the folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{kind}: {folder} is there already and not an empty folder; name another one")


@contextmanager
def creating_folder(folder: Path) -> Iterator[Path]:
    """The draft of a folder that is new or empty (`require_free`), which gets its name when the block ends well.

    Not synced: what is kept in folders names its content by hashes, and is refused where a power cut has spoiled it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".draft.{folder.name}-"))
    try:
        draft.chmod(0o755)
        yield draft
        draft.rename(folder)  # POSIX: onto an empty folder too
    finally:
        shutil.rmtree(draft, ignore_errors=True)
