"""Folders that can tell whether they are still what was written into them.

A cyclic redundancy check finds what a disk, a power cut or a broken copy does to a file, nearly as fast as that can be
read: 1.7 GB a second on one core. It is no protection from somebody who writes into the cache.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import zlib
from functools import lru_cache
from pathlib import Path

log = logging.getLogger(__name__)


_SUMS = "checksums.json"
#: Of a folder that was set aside; no name in the cache begins so.
ASIDE = ".damaged-"


def write_sums(folder: Path) -> None:
    """Notes what every file in a folder holds, in a file of its own."""
    (folder / _SUMS).write_text(json.dumps(_sums(folder), indent=1) + "\n", encoding="utf-8")


def sound(folder: Path) -> bool:
    """Whether a folder holds what `write_sums` noted, neither less nor more. What this process has read before is read
    again only where it was touched since."""
    try:
        noted: dict[str, list[int]] = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        return bool(noted == _sums(folder))
    except (OSError, ValueError):
        return False


def set_aside(folder: Path) -> None:
    """Takes a damaged folder out of the way, under a name that nobody looks for. Another process may be first."""
    place = folder.with_name(f"{ASIDE}{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(place)
    except FileNotFoundError:
        return
    os.utime(place)
    log.info(f"{folder}: is damaged; set aside as {place.name}, and made again")


def _sums(folder: Path) -> dict[str, list[int]]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / _SUMS)
    found = {}
    for file in files:
        state = file.stat()
        total = _sum(file, state.st_size, state.st_mtime_ns, state.st_ino)
        found[str(file.relative_to(folder))] = [state.st_size, total]
    return found


@lru_cache(maxsize=4096)
def _sum(file: Path, size: int, changed: int, number: int) -> int:
    """The file's CRC-32. The other arguments say which state of the file it is of."""
    total, buffer = 0, bytearray(1 << 20)
    view = memoryview(buffer)
    with open(file, "rb", buffering=0) as stream:
        while read := stream.readinto(buffer):
            total = zlib.crc32(view[:read], total)
    return total
