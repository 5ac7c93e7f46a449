"""Comparison of the code that a run ships with the installed client. A run's code is never unpacked.

A Flower App Bundle (FAB) is a ZIP archive from the server. Only its table and the files that this client also has are
read, each only up to the length of the installed one.
"""

from __future__ import annotations

import io
import struct
import zipfile
from functools import cache
from pathlib import Path

import mechanisms

#: The packages of a client. A run may ship other packages for the server, which are not compared.
PACKAGES = ("client", "mechanisms")
#: Flower's own limit of a bundle, in bytes.
MAX_BUNDLE = 10 * 2**20
#: Of the archive's table: this many files, and bytes. A bundle of all of Sottovoce has about 200.
MAX_FILES = 2_000
MAX_TABLE = 2**19
#: The end of a ZIP archive without a comment, and the mark before it if the archive has more data elsewhere
#: (APPNOTE.TXT, 4.3.15 and 4.3.16).
_END = struct.Struct("<4s4H2LH")
_ELSEWHERE = 20
#: Compression methods for which Python's reader decompresses only the requested bytes.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@cache
def installed() -> dict[str, bytes]:
    """Return the installed client's source files, by their names in a bundle."""
    folders = (Path(__file__).parents[1], Path(str(mechanisms.__file__)).parent)
    return {
        f"{package}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for package, folder in zip(PACKAGES, folders, strict=True)
        for path in sorted(folder.rglob("*.py"))
    }


def same_code(fab: bytes) -> bool:
    """Return whether a bundle has the installed client's files, byte for byte, and no others in its packages."""
    if not _bounded(fab):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as archive:
            return _same(archive)
    except Exception:  # a hostile archive may make the reader raise anything
        return False


def _bounded(fab: bytes) -> bool:
    """Return whether the archive's table can be read without taking much memory."""
    if not _END.size + _ELSEWHERE < len(fab) <= MAX_BUNDLE:
        return False
    mark, disk, first, here, files, size, start, comment = _END.unpack(fab[-_END.size :])
    return (
        mark == b"PK\x05\x06"
        and disk == first == comment == 0
        and here == files <= MAX_FILES
        and size <= MAX_TABLE
        and start + size + _END.size == len(fab)
        and fab[-_END.size - _ELSEWHERE :][:4] != b"PK\x06\x07"
    )


def _same(archive: zipfile.ZipFile) -> bool:
    mine = installed()
    seen = set()
    for entry in archive.infolist():
        parts = entry.filename.split("/")
        if "\\" in entry.filename or not all(part.strip(" .") for part in parts):
            return False  # another spelling of a path, which might be unpacked elsewhere
        if parts[0].casefold() not in PACKAGES:
            continue
        content = mine.get(entry.filename)
        if content is None or entry.filename in seen or entry.compress_type not in _BOUNDED:
            return False
        with archive.open(entry) as file:
            if file.read(len(content) + 1) != content:
                return False
        seen.add(entry.filename)
    return seen == set(mine)
