"""Common form of every source of texts: a `Corpus`, and its three parts, a `Split`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from client.store.text_column import TextColumn
from simulations.errors import UserError


@dataclass(frozen=True, eq=False)
class Corpus:
    """Labelled texts, one entry of every column for each record.

    Attributes:
        texts: n strings, or n pairs (first, second) for sentence-pair tasks; none is empty. They are kept as a
            TextColumn.
        labels: int64 (n,), indices into `classes`.
        classes: Names of the labels. A part of a corpus keeps all of them.
        users: n user names, or None if every record is a user of its own.
        extra: Further columns of n values each, for measurements (an author, a second label).

    Raises:
        UserError: The columns do not fit one another, or a text is empty.
    """

    texts: TextColumn
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    users: Sequence[str] | None = None
    extra: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or (labels.size and not np.issubdtype(labels.dtype, np.integer)):
            raise UserError(f"labels: want integers of shape (n,), got {labels.dtype} {labels.shape}")
        labels = labels.astype(np.int64)
        labels.flags.writeable = False
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "texts", TextColumn.of(self.texts))
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "users", None if self.users is None else list(self.users))
        object.__setattr__(self, "extra", {name: list(values) for name, values in self.extra.items()})
        self._validate()

    def _validate(self) -> None:
        n = len(self.texts)
        columns = {"labels": self.labels, **self.extra}
        if self.users is not None:
            columns["users"] = self.users
        for name, values in columns.items():
            if len(values) != n:
                raise UserError(f"{name}: {len(values)} values for {n} texts; give one for each text")
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            raise UserError(f"classes: want at least one name and no name twice, got {self.classes}")
        outside = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if outside.size:
            row = int(outside[0])
            raise UserError(
                f"record {row}: label {self.labels[row]} is outside the {len(self.classes)} classes; "
                "correct the label or name the class"
            )
        pairs = n > 0 and isinstance(self.texts[0], tuple)
        for row, text in enumerate(self.texts):
            if isinstance(text, tuple) != pairs:
                raise UserError(f"record {row}: texts must be all strings or all pairs of two strings")
            if not all(part.strip() for part in ([text] if isinstance(text, str) else text)):
                raise UserError(f"record {row}: the text is empty; fill it in or remove the record")

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Corpus":
        """Return the records at `rows` (k,), in that order, as a corpus of the same classes."""
        rows = np.asarray(rows, dtype=np.int64)
        labels, numbers = self.labels[rows], rows.tolist()
        labels.flags.writeable = False
        part = object.__new__(Corpus)  # skips the checks, which take long over a million records
        columns = {
            "texts": self.texts.take(rows),
            "labels": labels,
            "classes": self.classes,
            "users": None if self.users is None else [self.users[i] for i in numbers],
            "extra": {name: [values[i] for i in numbers] for name, values in self.extra.items()},
        }
        for name, values in columns.items():
            object.__setattr__(part, name, values)
        return part


@dataclass(frozen=True, eq=False)
class Split:
    """Three parts of the data: public, held by users, and for the test. All have the same classes in the same order.

    Attributes:
        public: Public part.
        train: Part that users hold.
        test: Part for the test.

    Raises:
        UserError: Classes differ.
    """

    public: Corpus
    train: Corpus
    test: Corpus

    def __post_init__(self) -> None:
        for name in ("public", "test"):
            classes = getattr(self, name).classes
            if classes != self.train.classes:
                raise UserError(
                    f"{name}: classes {classes} differ from those of train, {self.train.classes}; "
                    "give all three parts the same classes in the same order"
                )
