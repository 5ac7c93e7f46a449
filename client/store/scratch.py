"""Temporary rows of numbers on the disk, for the length of a command, so that they take no memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """Rows that are added one after another, and read when all are added. Use it in a `with`.

    They lie in a nameless file in `folder`, which exists until its last reader ends. A full disk is an error, not a
    crash.
    """

    def __init__(self, folder: Path | str) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed at the end of the `with`

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: NDArray[Any]) -> None:
        """Append rows.

        Raises:
            OSError: The disk is full.
        """
        self._file.write(np.ascontiguousarray(rows).tobytes())
        self._file.flush()

    def read(self, dtype: type[np.generic], width: int) -> NDArray[Any]:
        """Return all rows, (n, width), at least one. They stay readable after the `with` has ended."""
        n = self._file.tell() // (np.dtype(dtype).itemsize * width)
        return np.memmap(self._file, dtype, "r", shape=(n, width))
