"""Atomic creation of files and folders: each is complete, or does not exist."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from simulations.errors import UserError


@contextmanager
def staged(out: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `out`. It becomes `out` if the block succeeds, and is deleted otherwise.

    If `out` is a symbolic link, the folder is made at the target of the link.

    Args:
        out: Folder to create.
        private: True if only the owner may enter it. Otherwise an empty folder that already exists keeps its mode, and
            the umask decides on a new one.

    Raises:
        UserError: `out` already exists and is not an empty folder, or cannot be written. The check comes first.
    """
    out = followed(out)
    refuse_taken(out)
    parents = [p for p in out.parents if not p.exists()]
    part = out.with_name(f".{out.name}.{secrets.token_hex(8)}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(out.stat().st_mode) if out.exists() else 0o777
        part.mkdir(mode=0o700 if private else mode)
        if out.exists() and not private:
            part.chmod(mode)  # the umask counts for new folders only
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
    try:
        yield part
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        for parent in parents:
            if not any(parent.iterdir()):
                parent.rmdir()
        raise


def local_path(out: Path | str) -> Path:
    """Return the path of a folder.

    Raises:
        UserError: It is a URL.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(out)):
        raise UserError(f"{out}: is a URL; name a folder, and copy it with a tool such as: aws s3 sync FOLDER URL")
    return Path(out)


def followed(out: Path) -> Path:
    """Return the absolute path that a write reaches, with the symbolic link `out` resolved.

    The system resolves "..": behind a symbolic link, it does not lead to the folder named before it.
    """
    real = os.path.islink(out) or ".." in Path(out).parts
    return Path(os.path.realpath(out) if real else os.path.abspath(out))


def refuse_taken(out: Path) -> None:
    """Raise UserError unless the folder is new or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there already and not an empty folder; name another one")


def check_writable(folder: Path) -> None:
    """Check that files can be created in an existing folder, before the work whose results go there.

    Raises:
        UserError: The folder cannot be written.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None


@contextmanager
def cached(folder: Path) -> Iterator[None]:
    """Raise UserError if the cache that is to hold `folder` cannot be written. A full disk stays an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{folder.parent}: the cache cannot be written ({error.strerror}); name another folder in XDG_CACHE_HOME"
        ) from error


@contextmanager
def made_once(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`. It becomes `folder` if the block succeeds, and is deleted otherwise.

    It is also deleted if another process was first. Use it for a folder named by its inputs, so that both are the same.
    The content is on the disk before the rename: after a power cut, the folder is complete or does not exist.
    """
    with cached(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        yield part
        for place, _, files in os.walk(part):
            for path in (*(os.path.join(place, file) for file in files), place):
                _sync(path)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        _sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def alone(lock: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file. The system releases it when this process ends for any reason.

    Raises:
        UserError: Another process has it; the message is the refusal.
    """
    with open(lock, "a") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(refusal) from error
        yield


@contextmanager
def whole(path: Path, *, synced: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write to. It appears, or replaces an existing one, if the block succeeds.

    A symbolic link is followed, and stays. An existing file keeps its mode. The umask decides who reads a new one.

    Args:
        path: The file.
        synced: True if it must be on the disk when the block has ended.
        private: True if it holds private texts: nobody but its owner may read it, from its creation on.

    Raises:
        UserError: `path` is no regular file, such as a device, which a rename would replace.
        OSError: It cannot be written; the error names `path`, and not the file beside it.
    """
    with _named(path):
        old_mode = _mode(path)
    if old_mode is not None and stat.S_ISDIR(old_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if old_mode is not None and not stat.S_ISREG(old_mode):
        raise UserError(f"{path}: is no regular file; name a file")
    target = followed(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    mode = 0o600 if private else 0o666 if old_mode is None else old_mode & 0o777
    with _named(path):
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
    try:
        with file:
            if old_mode is not None:
                os.fchmod(file.fileno(), mode)  # which the umask has narrowed
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        with _named(path):
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _mode(path: Path) -> int | None:
    """Return the mode of a file; None if there is none."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(path: str | Path) -> None:
    """Return after the content of a file, or the file list of a folder, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
