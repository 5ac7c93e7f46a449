"""Files and folders that are whole or not there."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from simulations.errors import UserError


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends well, and vanishes otherwise.

    Raises UserError where `out` is there already and is not an empty folder, before anything is done.
    """
    out = Path(os.path.abspath(out))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there already and not an empty folder; name another one")
    made = [p for p in out.parents if not p.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
    try:
        part.chmod(out.stat().st_mode & 0o777 if out.exists() else 0o755)
        yield part
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        for parent in made:
            if not any(parent.iterdir()):
                parent.rmdir()
        raise


def check_writable(folder: Path) -> None:
    """UserError unless files can be made in a folder that is there: said before the work whose results go into it."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None


@contextmanager
def made_once(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that becomes it when the block ends well, and vanishes otherwise, or where
    another process was first: for what is named by what it is made from, so that both are the same. All of it lies on
    the disk by then: after a power cut it is whole, or not there."""
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
def whole(path: Path, *, synced: bool = False) -> Iterator[BinaryIO]:
    """A file to write to that appears, or takes the place of one that is there, when the block ends well; who may read
    it is for the process' umask to say. synced: and lies on the disk by then. An OSError that names a file names the
    one that was to be, and not the one beside it."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with _named(path):
        file = open(part, "xb")  # noqa: SIM115 - closed below
    try:
        with file:
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        with _named(path):
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(path: str | Path) -> None:
    """What a file, or a folder's list of files, holds lies on the disk when this returns."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
