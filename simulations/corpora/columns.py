"""Named columns become corpora: the checks that every outside source of texts shares."""

import difflib
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.store.text_column import TextColumn
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError

#: More distinct labels than this is a column of something else.
MOST_CLASSES = 1_000


class RowNames(Sequence[str]):
    """What rows are called, by their numbers: "line 2", "line 4", ..."""

    def __init__(self, kind: str, numbers: Iterable[int] = ()) -> None:
        self._kind, self._numbers = kind, array("q", numbers)

    def add(self, number: int) -> None:
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: Any) -> Any:
        return f"{self._kind} {self._numbers[row]}"


@dataclass(frozen=True)
class Columns:
    """Values as they were read, n in each column. `source` and `row_names` tell a person which row is meant.

    source: the file, or the hub's name and split. row_names: what each row is called there ("line 2"). classes:
    the names of labels 0, 1, ... where the source knows them.
    """

    source: str
    values: Mapping[str, Sequence[object]]
    row_names: Sequence[str]
    classes: tuple[str, ...] | None = None


def require_columns(source: str, wanted: Iterable[str | None], present: Iterable[str]) -> None:
    """Raises UserError where a wanted column is not there, with the nearest name; None is not wanted."""
    present = list(present)
    for name in wanted:
        if name is not None and name not in present:
            near = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
            mend = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(present) or 'none'}"
            raise UserError(f'{source}: has no column "{name}"; {mend}')


def make_corpora(
    train: Columns, test: Columns, *, text: str, label: str, user: str | None, second_text: str | None
) -> tuple[Corpus, Corpus]:
    """Train and test corpora of the same classes: the source's, or those that occur in train.

    Classes that are all whole numbers are in numerical order, others in alphabetical order. Raises UserError.
    """
    for part in (train, test):
        require_columns(part.source, (text, label, user, second_text), part.values)
        if not part.row_names:
            raise UserError(f"{part.source}: holds no records; give it at least one")
    names = [label_names(part, label) for part in (train, test)]
    classes = train.classes or _classes(train.source, label, names[0])
    made = []
    for part, labels in zip((train, test), names, strict=True):
        numbers = class_numbers(part, labels, classes, "add the class to the training data")
        made.append(
            Corpus(
                texts=texts_of(part, text, second_text),
                labels=numbers,
                classes=classes,
                users=None if user is None else _users(part, user),
            )
        )
    return made[0], made[1]


def label_names(part: Columns, label: str) -> list[str]:
    """The labels in a column, by their names. Raises UserError for what is no label."""
    return [_label(part, row, value) for row, value in enumerate(part.values[label])]


def class_numbers(part: Columns, names: Sequence[str], classes: Sequence[str], remedy: str) -> NDArray[np.int64]:
    """The place of each row's label among the classes, (n,). Raises UserError for one outside; remedy: what helps."""
    index = {name: i for i, name in enumerate(classes)}
    for row, name in enumerate(names):
        if name not in index:
            shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
            raise UserError(
                f'{part.source}: {part.row_names[row]}: label "{name}" is outside the classes ({shown}); '
                f"correct it, or {remedy}"
            )
    return np.array([index[name] for name in names], dtype=np.int64)


def _classes(source: str, label: str, names: Sequence[str]) -> tuple[str, ...]:
    distinct = set(names)
    if len(distinct) > MOST_CLASSES:
        raise UserError(
            f'{source}: column "{label}" has {len(distinct)} values; name the column that holds classes'
        )
    if len(distinct) < 2:
        raise UserError(f'{source}: column "{label}" has one class only, "{names[0]}"; two are needed')
    numbers = all(name.lstrip("-").isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=int) if numbers else sorted(distinct))


def _label(part: Columns, row: int, value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not (isinstance(value, str | int) or whole) or not str(value).strip():
        raise UserError(f"{part.source}: {part.row_names[row]}: label {value!r}; give a whole number or a name")
    if not isinstance(value, str):
        number = int(value)
        named = part.classes is not None and 0 <= number < len(part.classes)
        return part.classes[number] if named and part.classes else str(number)
    return sys.intern(value.strip())  # few names, and many rows


def texts_of(part: Columns, first: str, second: str | None = None) -> TextColumn:
    """The texts in a column, or pairs in two, without spaces around them. Raises UserError for an empty one."""
    for column in (first, second) if second else (first,):
        for row, value in enumerate(part.values[column]):
            if not isinstance(value, str):
                raise UserError(f'{part.source}: {part.row_names[row]}: "{column}" is {value!r}, not a text')
            if not value.strip():
                raise UserError(
                    f'{part.source}: {part.row_names[row]}: "{column}" is empty; fill it in or remove the record'
                )
    firsts = (str(value).strip() for value in part.values[first])
    if second is None:
        return TextColumn.of(firsts)
    return TextColumn.of(zip(firsts, (str(value).strip() for value in part.values[second]), strict=True))


def _users(part: Columns, user: str) -> list[str]:
    for row, value in enumerate(part.values[user]):
        if not isinstance(value, str | int) or not str(value).strip():
            raise UserError(
                f'{part.source}: {part.row_names[row]}: "{user}" is {value!r}; name the user of the record'
            )
    return [sys.intern(str(value).strip()) for value in part.values[user]]
