"""Many texts in little memory: their concatenated UTF-8 bytes, and the start of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from client.store.durable import private_file
from mechanisms.pieces import Text

#: Texts that are copied or read at once.
_BLOCK = 1 << 14
#: A JSON file may hold half of a surrogate pair, which plain UTF-8 refuses.
_ERRORS = "surrogatepass"


@dataclass(frozen=True, eq=False, repr=False)
class TextColumn(Sequence[Text]):
    """Column of n texts, or pairs of two texts, in any mixture; equal to a list of the same.

    Attributes:
        data: uint8, the bytes of all texts.
        starts: (n + 1,) int64, the start of each text and the end of the last.
        second_starts: (n,) int64, the start of the second text of a pair, -1 for a single text; None if no text is a
            pair.

    Raises:
        ValueError: The arrays do not fit one another.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    second_starts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        valid = self.data.dtype == np.uint8 and self.starts.dtype == np.int64 and self.starts.ndim == 1
        if not (valid and len(self.starts) and self.starts[0] == 0 and self.starts[-1] == len(self.data)):
            raise ValueError("texts: where they begin does not fit their bytes")
        if (self.starts[1:] < self.starts[:-1]).any():
            raise ValueError("texts: one begins before the last")
        if self.second_starts is not None:
            second = self.second_starts
            pair = second >= 0
            inside = (second >= self.starts[:-1]) & (second <= self.starts[1:])
            if second.dtype != np.int64 or second.shape != (len(self),) or not inside[pair].all():
                raise ValueError("texts: a pair's second text does not lie within it")

    @classmethod
    def of(cls, texts: Iterable[Text]) -> TextColumn:
        """Return the column of some texts."""
        if isinstance(texts, TextColumn):
            return texts
        writer = TextColumnWriter()
        for text in texts:
            writer.add(text)
        return writer.column()

    @classmethod
    def load(cls, path: Path | str, n: int | None = None) -> TextColumn:
        """Return the column that `save` has written, mapped: unread parts take no memory.

        Args:
            path: Path of the bytes.
            n: Number of texts to read from the start, if there are more. Bytes behind the last text are not read
                either: another process may be adding texts.

        Raises:
            ValueError: The files hold no column of texts.
        """
        try:
            table = np.load(f"{path}.starts.npy", allow_pickle=False)
            if table.ndim != 2 or len(table) not in (1, 2) or not table.size or table.dtype != np.int64:
                raise ValueError
            table = table if n is None else table[:, : n + 1]
            with open(path, "rb") as file:
                empty = not file.seek(0, 2)
            data = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
            return cls(data[: table[0, -1]], table[0], table[1, :-1] if len(table) == 2 else None)
        except (OSError, ValueError, EOFError):  # NumPy's texts may quote the file, which is private
            raise ValueError(f"texts: {path} does not hold a column of texts") from None

    def save(self, path: Path | str) -> None:
        """Write the bytes to `path`, and the starts to {path}.starts.npy.

        The second file is int64: the starts (1, n + 1), and the second starts below. Only the owner may read both
        files.
        """
        with private_file(Path(path)) as file:
            self.data.tofile(file)
        rows = [self.starts] if self.second_starts is None else [self.starts, np.append(self.second_starts, -1)]
        with private_file(Path(f"{path}.starts.npy")) as file:
            np.save(file, np.stack(rows), allow_pickle=False)

    def take(self, rows: NDArray[Any]) -> TextColumn:
        """Return the texts of some rows (k,), in that order."""
        return TextColumn.of(self[row] for row in np.asarray(rows, dtype=np.int64).tolist())

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> Text: ...
    @overload
    def __getitem__(self, index: slice) -> TextColumn: ...
    def __getitem__(self, index: int | slice) -> Text | TextColumn:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        row = range(len(self))[index]
        return next(self._read(row, row + 1))

    def __iter__(self) -> Iterator[Text]:
        for first in range(0, len(self), _BLOCK):
            yield from self._read(first, min(first + _BLOCK, len(self)))

    def _read(self, first: int, last: int) -> Iterator[Text]:
        base = int(self.starts[first])
        starts = (self.starts[first : last + 1] - base).tolist()
        data = self.data[base : base + starts[-1]].tobytes()
        try:
            if self.second_starts is None:
                for begin, end in pairwise(starts):
                    yield data[begin:end].decode(errors=_ERRORS)
                return
            for (begin, end), second in zip(pairwise(starts), self.second_starts[first:last].tolist(), strict=True):
                if second < 0:
                    yield data[begin:end].decode(errors=_ERRORS)
                else:
                    cut = second - base
                    yield data[begin:cut].decode(errors=_ERRORS), data[cut:end].decode(errors=_ERRORS)
        except UnicodeDecodeError:
            raise ValueError("texts: one is not UTF-8") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TextColumn({len(self)} texts)"  # and not what they say


class TextColumnWriter:
    """Writer of a column of texts that arrive one by one."""

    def __init__(self) -> None:
        self._data, self._starts, self._second_starts, self._pairs = bytearray(), array("q", [0]), array("q"), False

    def add(self, text: Text) -> None:
        """Append a text or a pair."""
        if isinstance(text, str):
            self._second_starts.append(-1)
        else:
            self._data += text[0].encode(errors=_ERRORS)
            self._second_starts.append(len(self._data))
            text, self._pairs = text[1], True
        self._data += text.encode(errors=_ERRORS)
        self._starts.append(len(self._data))

    def column(self) -> TextColumn:
        """Return the column of the added texts. Add nothing afterwards."""
        second_starts = np.frombuffer(self._second_starts, np.int64) if self._pairs else None
        return TextColumn(np.frombuffer(self._data, np.uint8), np.frombuffer(self._starts, np.int64), second_starts)
