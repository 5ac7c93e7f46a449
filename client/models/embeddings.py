"""Stored embeddings that a node need not compute: a file of its own, or row numbers into tables that nodes share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.store.durable import private_file, replacing

#: How encoders read a text: embeddings of texts that were read in another way are not used. 2: special tokens in a text
#: are characters.
_READING = 2


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


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of n texts, (n, width) float32, of which a few are read or computed at a time.

    Attributes:
        width: Number of coordinates of an embedding.
        take: Function that returns the embeddings (k, width) of k rows.
    """

    width: int
    take: Callable[[NDArray[Any]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class TableEmbeddings:
    """Embeddings in shared tables: text i has the embedding in row rows[i].

    Attributes:
        tables: The tables.
        rows: (n,) int64.
    """

    tables: Tables
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """Return the number of coordinates of an embedding."""
        return self.tables.width

    def take(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the embeddings of some texts."""
        return self.tables.take(self.rows[rows])


def embeddings_path(folder: Path | str, split: str, identity: str) -> Path:
    """Return the path where a node keeps the embeddings of a split by the encoder of that hash.

    The file holds float32 (n, width), or int64 (n,) rows of the adjacent tables that the .json file names.
    """
    return Path(folder) / f"{split}-{identity}-{_READING}.npy"


def embeddings_of(path: Path) -> tuple[str, str] | None:
    """Return the split and the encoder's hash of an `embeddings_path`; None if its texts were read in another way."""
    split, _, identity = path.stem.removesuffix(f"-{_READING}").rpartition("-")
    return (split, identity) if path == embeddings_path(path.parent, split, identity) else None


def write_embeddings(
    folder: Path | str, split: str, identity: str, values: NDArray[np.float32] | TableEmbeddings
) -> None:
    """Keep the embeddings of a split's texts by the encoder of that hash.

    Shared tables are linked into the folder. So the folder may be moved, and the original tables may be deleted. If the
    file system cannot link them here, the node's own rows are copied.

    Raises:
        ValueError: The values have a wrong type or shape.
    """
    path = embeddings_path(folder, split, identity)
    if isinstance(values, TableEmbeddings):
        if values.rows.dtype != np.int64 or values.rows.ndim != 1:
            raise ValueError("embeddings: row numbers must be int64, one for each text")
        named = [f"{path.stem}.table-{i}.npy" for i in range(len(values.tables.paths))]
        try:
            for name, table in zip(named, values.tables.paths, strict=True):
                (path.parent / name).unlink(missing_ok=True)
                os.link(table.resolve(), path.parent / name)
        except OSError:
            values = values.take(np.arange(len(values)))
        else:
            with private_file(path.with_suffix(".json")) as file:
                file.write(json.dumps(named).encode())
            with private_file(path) as file:
                np.save(file, values.rows, allow_pickle=False)
            return
    if values.dtype != np.float32 or values.ndim != 2:
        raise ValueError("embeddings: they must be float32 (n, width)")
    with replacing(path) as (draft,):  # a device may be served meanwhile
        np.save(draft, values, allow_pickle=False)


def forget_embeddings(folder: Path | str, split: str) -> None:
    """Delete a node's embeddings of a split, by any encoder, because its texts will change."""
    for path in _kept(folder, split):
        path.unlink(missing_ok=True)


def keeps_embeddings(folder: Path | str, split: str) -> bool:
    """Return whether a node keeps embeddings of a split, by any encoder."""
    return bool(_kept(folder, split))


def _kept(folder: Path | str, split: str) -> list[Path]:
    return [path for kind in ("npy", "json") for path in Path(folder).glob(f"{split}-*.{kind}")]


def read_embeddings(folder: Path | str, split: str, identity: str, n: int) -> Embeddings | None:
    """Return the embeddings of a split's n texts, or None if the node keeps none.

    If there are more texts, because another process is adding some at the end, return those of the first n.

    Raises:
        ValueError: The embeddings do not fit the texts.
    """
    path = embeddings_path(folder, split, identity)
    if not path.exists():
        return None
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if values.dtype == np.int64:
            named = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            kept = TableEmbeddings(Tables(tuple(path.parent / name for name in named)), np.array(values))
        else:
            kept = TableEmbeddings(Tables((path,)), np.arange(len(values)))
    except (OSError, ValueError, EOFError, TypeError):
        raise ValueError(f"embeddings: {path} does not hold the embeddings of a split") from None
    kept = TableEmbeddings(kept.tables, kept.rows[:n])
    if kept.rows.shape != (n,) or (n and not 0 <= kept.rows.min() <= kept.rows.max() < len(kept.tables)):
        raise ValueError(f"embeddings: {path} does not fit its records")
    return Embeddings(kept.width, kept.take)
