"""Rows of float32 on the disk under 16-byte keys, in immutable segments.

A segment is a folder with keys.npy, uint64 (k, 2) ascending, values.npy, float32 (k, m) with row i under key i, and
checksums. It is written under another name, renamed when complete, and named by the hash of its keys. So two processes
that add the same rows add one segment, and neither waits. A deleted segment is absent, and so is a damaged one, which
is set aside before any of its rows is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.store.durable import private_file
from client.store.tables import Tables
from simulations.artifacts.checksums import ASIDE, set_aside, sound, write_sums
from simulations.output.atomic import made_once
from simulations.progress import Progress

#: Number of segments without use for a day above which they are merged.
_MANY = 16
_DAY = 86_400.0
_ROWS = 1 << 14  # rows that are copied at once

Keys = NDArray[np.uint64]
RowNumbers = NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Segments in a folder, which need not exist.

    Attributes:
        folder: Folder.
        width: m, the number of values in a row.
    """

    folder: Path
    width: int
    progress: Progress = lambda line: None

    def find(self, keys: Keys) -> tuple[tuple[Path, ...], RowNumbers]:
        """Return the tables, and the row of each of some distinct keys (k, 2) in their concatenation; -1 if missing."""
        rows, paths, start = np.full(len(keys), -1, np.int64), [], 0
        for segment, known in self._open():
            missing = np.flatnonzero(rows < 0)
            place = np.searchsorted(known[:, 0], keys[missing, 0])
            place[place == len(known)] = 0
            here = (known[place] == keys[missing]).all(axis=1) if len(known) else np.zeros(len(missing), bool)
            if here.any() and self._sound(segment):
                rows[missing[here]] = start + place[here]
                paths.append(segment / "values.npy")
                start += len(known)
                os.utime(segment)  # so that no other process merges it meanwhile
        return tuple(paths), rows

    def add(self, keys: Keys, values: NDArray[np.float32]) -> Path:
        """Write the values (k, m) of distinct keys (k, 2), in ascending order of the keys, and return the table."""
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        return self._write(keys[order], iter([values[order]]))

    def compact(self) -> None:
        """Merge segments that were not used for a day, if there are many, and delete what was set aside a day ago."""
        for damaged in self.folder.glob(f"{ASIDE}*"):
            if _unused(damaged):
                shutil.rmtree(damaged, ignore_errors=True)
        old = [segment for segment, _ in self._open() if _unused(segment)]
        if len(old) <= _MANY:
            return
        old = [segment for segment in old if self._sound(segment)]
        whole = np.concatenate([np.load(segment / "keys.npy") for segment in old])
        keys, first = np.unique(whole, axis=0, return_index=True)
        tables = Tables(tuple(segment / "values.npy" for segment in old))
        pieces = (tables.take(first[i : i + _ROWS]) for i in range(0, len(first), _ROWS))
        merged = self._write(keys, pieces).parent
        for segment in old:
            if segment != merged:
                shutil.rmtree(segment, ignore_errors=True)

    def _open(self) -> Iterator[tuple[Path, Keys]]:
        """Yield the segments and their keys, mapped. Unreadable segments are set aside, vanishing ones skipped."""
        for segment in sorted(self.folder.glob("[0-9a-f]*")):
            try:
                keys = np.load(segment / "keys.npy", mmap_mode="r", allow_pickle=False)
                if keys.dtype != np.uint64 or keys.ndim != 2 or keys.shape[1] != 2:
                    raise ValueError
            except (OSError, ValueError, EOFError):
                if segment.is_dir():
                    set_aside(segment, self.progress)
                continue
            yield segment, keys

    def _sound(self, segment: Path) -> bool:
        """Return True if a segment may be used, or set it aside."""
        if sound(segment):
            return True
        set_aside(segment, self.progress)
        return False

    def _write(self, keys: Keys, pieces: Iterator[NDArray[np.float32]]) -> Path:
        segment = self.folder / hashlib.sha256(np.ascontiguousarray(keys).tobytes()).hexdigest()[:32]
        if not segment.is_dir() or not self._sound(segment):
            with made_once(segment) as part:
                with private_file(part / "values.npy") as file:  # nodes link to it
                    header = {"descr": "<f4", "fortran_order": False, "shape": (len(keys), self.width)}
                    np.lib.format.write_array_header_1_0(file, header)
                    for piece in pieces:
                        file.write(np.ascontiguousarray(piece, dtype="<f4").tobytes())
                np.save(part / "keys.npy", keys, allow_pickle=False)
                write_sums(part)
        return segment / "values.npy"


def _unused(folder: Path) -> bool:
    """Return True if a segment was not used for a day; False if another process is removing it."""
    try:
        return time.time() - folder.stat().st_mtime > _DAY
    except FileNotFoundError:
        return False
