"""Rows of large tables on the disk, read without keeping the tables in memory."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: Rows copied before their pages are let go of: 4 MiB at most, as a page fault maps a window of so many bytes.
_AT_ONCE = 64
_WINDOW = 1 << 16
#: madvise flag that releases them, if the platform has it; elsewhere they are released when a call has copied its rows.
_LET_GO = getattr(mmap, "MADV_DONTNEED", None)
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True)
class Tables:
    """float32 tables (n_i, m) in one or more .npy files, stacked in the order of their paths into sum(n_i) rows.

    A table is mapped only while rows are copied out of it, and a few pages at a time. Pages that stay mapped count as
    the process' own memory: a table of a million users would then count in every process that has read from it. Reading
    pieces of the file instead costs ten times as much if rows lie far apart.

    Args:
        paths: The files.

    Raises:
        ValueError: A file is incomplete, not such a table, or not as wide as the first. The message is one line.
    """

    paths: tuple[Path, ...]
    width: int = field(init=False)
    _starts: tuple[int, ...] = field(init=False, repr=False)  # row at which each table begins, then the number of rows
    _offsets: tuple[int, ...] = field(init=False, repr=False)  # bytes before each table's first row

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("tables: at least one file is needed")
        starts, offsets, widths = [0], [], []
        for path in self.paths:
            rows, width, offset = _header(path)
            starts.append(starts[-1] + rows)
            offsets.append(offset)
            widths.append(width)
            if width != widths[0]:
                raise ValueError(f"tables: {path} is {width} wide, and {self.paths[0]} {widths[0]}")
        object.__setattr__(self, "width", widths[0])
        object.__setattr__(self, "_starts", tuple(starts))
        object.__setattr__(self, "_offsets", tuple(offsets))

    def __len__(self) -> int:
        return self._starts[-1]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of these numbers, (k, m), in the given order; a number may occur several times.

        Rows are copied in their order on the disk.

        Raises:
            IndexError: A number is outside 0 .. len - 1.
            ValueError: A file has changed or disappeared since.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"tables: rows are 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}")
        taken = np.empty((len(rows), self.width), dtype=_FLOAT32)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        ends = np.searchsorted(ordered, self._starts).tolist()
        for table, (first, last) in enumerate(pairwise(ends)):
            if first < last and self.width:
                self._read(table, ordered[first:last] - self._starts[table], order[first:last], taken)
        return taken

    def _read(self, table: int, rows: NDArray[np.int64], places: NDArray[np.int64], taken: NDArray[np.float32]) -> None:
        """Copy ascending rows of one table to these places."""
        path, (start, end) = self.paths[table], self._starts[table : table + 2]
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                size = (end - start) * self.width
                if len(mapped) < self._offsets[table] + size * _FLOAT32.itemsize:
                    raise ValueError(f"tables: {path} has become shorter")
                values = np.frombuffer(mapped, _FLOAT32, size, self._offsets[table]).reshape(end - start, self.width)
                for at in range(0, len(rows), _AT_ONCE):
                    part = rows[at : at + _AT_ONCE]
                    taken[places[at : at + _AT_ONCE]] = values[part]
                    if _LET_GO is not None:
                        low, high = (self._offsets[table] + int(n) * values.strides[0] for n in (part[0], part[-1] + 1))
                        low -= low % _WINDOW
                        mapped.madvise(_LET_GO, low, min(high + _WINDOW, len(mapped)) - low)
                del values  # or the map could not be closed
        except OSError:
            raise ValueError(f"tables: {path} cannot be read") from None


def _header(path: Path) -> tuple[int, int, int]:
    """Return the rows, the width, and the number of bytes before the first row."""
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
            size = file.seek(0, 2) - offset
    except OSError:
        raise ValueError(f"tables: {path} cannot be read") from None
    except (ValueError, EOFError):
        raise ValueError(f"tables: {path} is no .npy file") from None
    if dtype != _FLOAT32 or len(shape) != 2 or (fortran and min(shape) > 1):
        raise ValueError(f"tables: {path} must hold float32 (n, m) row by row, not {dtype} {shape}")
    if size != shape[0] * shape[1] * _FLOAT32.itemsize:
        raise ValueError(f"tables: {path} is not whole")
    return shape[0], shape[1], offset
