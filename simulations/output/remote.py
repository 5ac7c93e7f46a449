"""Folders behind a URL of fsspec, written and read file by file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from simulations.errors import UserError, in_short
from simulations.output.atomic import whole

#: Protocols whose content ends with this process, or that cannot be written to.
_NOT_KEPT = ("memory", "http", "https", "data")


def is_url(place: Path | str) -> bool:
    """Return True if a place is a URL, and not a path of this machine."""
    return "://" in str(place)


class Remote:
    """Folder behind a URL. Each file in it is complete or does not exist: it gets its name once all of it has arrived.

    Raises:
        UserError: No installed package can open the URL, or the service behind it fails. The message is one line.
    """

    def __init__(self, url: str) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self.url = url.rstrip("/")
        self._system, self._root = _opened(self.url)
        self._here = isinstance(self._system, LocalFileSystem)

    def exists(self, name: str) -> bool:
        """Return True if there is such a file, or a folder that is not empty."""
        return self._asked(lambda: self._fresh().exists(self._path(name)))

    def files(self) -> list[str]:
        """Return the sorted names of all files; none if the folder does not exist."""
        found = self._asked(lambda: self._fresh().find(self._root))
        return sorted(str(PurePosixPath(path).relative_to(self._root)) for path in found)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            held: bytes = self._asked(lambda: self._fresh().cat_file(self._path(name)))
        except FileNotFoundError:
            return None
        return held

    def write(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Write a file, or replace an existing one.

        Args:
            name: Name of the file.
            content: Its bytes.
            private: True if it may hold a user's data. If the URL leads to a folder of this machine, only the owner may
                read it. Elsewhere the remote system decides who reads it.
        """
        self._put(name, lambda file: file.write(content), private)

    def upload(self, name: str, path: Path, *, private: bool = False) -> None:
        """Write a file of this machine; see `write`."""
        with open(path, "rb") as source:
            self._put(name, lambda file: shutil.copyfileobj(source, file), private)

    def download(self, name: str, path: Path) -> None:
        """Copy a file to a path, and create its parent folders.

        It may hold a user's data: nobody but its owner may read it, from its creation on.

        Raises:
            FileNotFoundError: There is no such file.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        try:
            self._asked(lambda: self._fresh().get_file(self._path(name), str(path)))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def delete(self, folder: str) -> None:
        """Delete a folder with all of its content, if it exists."""
        if self.exists(folder):
            self._asked(lambda: self._system.rm(self._path(folder), recursive=True))

    def _put(self, name: str, write: Callable[[BinaryIO], Any], private: bool) -> None:
        def put() -> None:
            path = self._path(name)
            if self._here:
                for folder in reversed([p for p in Path(path).parents if not p.exists()]):
                    folder.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
                with whole(Path(path), private=private) as file:
                    write(file)
                return
            self._system.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
            with self._system.transaction, self._system.open(path, "wb") as file:
                write(file)

        self._asked(put)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _fresh(self) -> Any:
        self._system.invalidate_cache()
        return self._system

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except FileNotFoundError:
            raise
        except Exception as error:  # of many kinds: a server's, a key that is missing, a library's own
            raise UserError(f"{self.url}: {in_short(error)}") from error


@contextmanager
def here(place: Path | str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """Yield a folder on this machine; for a URL, a copy that lasts as long as the block.

    Args:
        place: Folder or URL.
        wanted: Filter of the files to copy, by name.

    Raises:
        UserError: The URL cannot be read.
    """
    if not is_url(place):
        yield Path(place)
        return
    remote = Remote(str(place))
    names = remote.files()
    if not names:
        raise UserError(f"{place}: there is nothing")
    with tempfile.TemporaryDirectory(prefix="sottovoce-") as folder:
        copy = Path(folder) / PurePosixPath(remote.url).name
        copy.mkdir()
        for name in filter(wanted, names):
            remote.download(name, copy / name)
        yield copy


def _opened(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations

    kind = url.partition("://")[0]
    if kind in _NOT_KEPT:
        raise UserError(f"{url}: {kind}: keeps nothing; name a folder, or a URL such as s3://BUCKET/NAME")
    try:
        system, root = url_to_fs(url)
    except ImportError as error:
        package = str(known_implementations.get(kind, {}).get("class", "")).partition(".")[0]
        missing = getattr(error.__cause__, "name", None) if package == "fsspec" else package
        raise UserError(f"{url}: needs another package: pip install {missing or kind}") from error
    except Exception as error:
        raise UserError(f"{url}: {in_short(error)}") from error
    return system, str(root).rstrip("/")
