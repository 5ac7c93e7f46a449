"""Rows of large tables on the disk, read without keeping the tables in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tables:
    """float32 tables (n_i, m) in one or more .npy files, stacked in the order of their paths into sum(n_i) rows.

    A table is mapped only while rows are copied out of it.

    Args:
        paths: The files.

    Raises:
        ValueError: A file is incomplete, not such a table, or not as wide as the first. The message is one line.
    """

    paths: tuple[Path, ...]
    width: int = field(init=False)
    _starts: tuple[int, ...] = field(init=False, repr=False)  # row at which each table begins, then the number of rows

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("tables: at least one file is needed")
        rows, widths = zip(*(_mapped(path).shape for path in self.paths), strict=True)
        for path, width in zip(self.paths, widths, strict=True):
            if width != widths[0]:
                raise ValueError(f"tables: {path} is {width} wide, and {self.paths[0]} {widths[0]}")
        object.__setattr__(self, "width", widths[0])
        object.__setattr__(self, "_starts", (0, *np.cumsum(rows).tolist()))

    def __len__(self) -> int:
        return self._starts[-1]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of these numbers, (k, m), in the given order; a number may occur several times.

        Raises:
            IndexError: A number is outside 0 .. len - 1.
            ValueError: A file has changed or disappeared since.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"tables: rows are 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}")
        result = np.empty((len(rows), self.width), dtype=np.float32)
        for path, (start, end) in zip(self.paths, pairwise(self._starts), strict=True):
            places = np.flatnonzero((rows >= start) & (rows < end))
            if len(places):
                values = _mapped(path)
                if values.shape != (end - start, self.width):
                    raise ValueError(f"tables: {path} has changed since it was opened")
                result[places] = values[rows[places] - start]
        return result


def _mapped(path: Path) -> NDArray[np.float32]:
    try:
        values: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise ValueError(f"tables: {path} cannot be read") from None
    except (ValueError, EOFError):
        raise ValueError(f"tables: {path} is no whole .npy file") from None
    if values.dtype != "<f4" or values.ndim != 2 or not values.flags.c_contiguous:
        raise ValueError(f"tables: {path} must hold float32 (n, m) row by row, not {values.dtype} {values.shape}")
    return values
