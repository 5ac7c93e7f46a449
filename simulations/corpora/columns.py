"""Conversion of named columns to corpora, with the checks of every outside source of texts."""

import datetime
import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from client.store.text_column import TextColumn
from simulations.corpora import headers
from simulations.corpora.corpus import Corpus
from simulations.corpora.names import alike, folded, normal, spelled
from simulations.errors import UserError

#: Most distinct labels of a column, and longest label. Beyond these, the column holds something else.
MOST_CLASSES, LONGEST_NAME = 1_000, 200
#: Most groups of an attribute, and the name of those without one.
MOST_GROUPS, NO_GROUP = 100, "not given"
#: Integer, and placeholders of programs for a missing value.
_REAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
_NUMBER, _MISSING = re.compile(r"-?[0-9]+(\.0*)?"), frozenset(("nan", "nat", "<na>", "#n/a"))
#: Characters that no text may hold: NUL, and half of a surrogate pair, which is no character. A name may not hold
#: control characters or line ends either.
_NO_TEXT, _NO_NAME = re.compile("[\0\ud800-\udfff]"), re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Columns:
    """Values as they were read, n in each column.

    Attributes:
        source: File, or the hub's name and split.
        values: Values of each column.
        unit: Name of a row in messages: "line", or "row".
        numbers: Number of each row in messages, n.
        classes: Names of labels 0, 1, ... if the source knows them.
    """

    source: str
    values: Mapping[str, Sequence[object]]
    unit: str
    numbers: Sequence[int]
    classes: tuple[str, ...] | None = None

    def place(self, row: int) -> str:
        """Return the place of a row for messages."""
        return f"{self.source}: {self.unit} {self.numbers[row]}"


def require_columns(
    source: str, wanted: Iterable[str | None], present: Iterable[str], *, declared: bool = False
) -> None:
    """Check that all wanted columns are present. None is not wanted.

    `declared` states that a schema names the present columns. Otherwise they may be a person's words
    (`simulations.corpora.headers`).

    Raises:
        UserError: One is missing; the message has the nearest name.
    """
    present = list(present)
    for name in wanted:
        if name is not None and name not in present:
            if declared:
                near = next(iter(difflib.get_close_matches(name, present, n=1, cutoff=0.5)), None)
                named = ", ".join(map(plain_name, present[:20])) + (", ..." if len(present) > 20 else "")
            else:
                near, named = headers.nearest(name, present), headers.shown_names(present) if present else ""
            mend = f'did you mean "{plain_name(near)}"?' if near else f"there are: {named or 'none'}"
            raise UserError(f'{source}: has no column "{name}"; {mend}')


class Roles(TypedDict, total=False):
    """Columns of a corpus by what they hold; None, or left out, if there is none.

    Attributes:
        text: Column of the texts.
        label: Column of the labels.
        user: Column of the users.
        second_text: Column of the second texts. With it, each text is a pair.
        group: Column of an attribute, which becomes a further column of the corpora.
        numbers: Rising and equally spaced values of numeric labels. The class of a label is the nearest of them.
    """

    text: Required[str]
    label: Required[str]
    user: str | None
    second_text: str | None
    group: str | None
    numbers: Sequence[float] | None


def named(roles: Roles) -> list[str]:
    """Return the columns that the roles name: text, label, and those of user, second text and group."""
    columns = (roles["text"], roles["label"], roles.get("user"), roles.get("second_text"), roles.get("group"))
    return [column for column in columns if column is not None]


def make_corpora(parts: Sequence[Columns], **roles: Unpack[Roles]) -> list[Corpus]:
    """Return corpora of the same classes: the first source's, or those that occur in the first part.

    Classes that are all integers are in numerical order, others in alphabetical order.

    Args:
        parts: Columns of each part, the training part first.
        **roles: Columns (`Roles`).

    Raises:
        UserError: A column is missing, or a value is invalid.
    """
    text, label, numbers = roles["text"], roles["label"], roles.get("numbers")
    user, second_text, group = roles.get("user"), roles.get("second_text"), roles.get("group")
    for part in parts:
        require_columns(part.source, (text, label, user, second_text, group), part.values)
        if not part.numbers:
            raise UserError(f"{part.source}: holds no records; give it at least one")
    users = [None if user is None else _users(part, user) for part in parts]
    if user is not None:
        _refuse_two_users(parts, user, [name for part in users for name in part or ()])
    names = [] if numbers is not None else [label_names(part, label) for part in parts]
    classes: tuple[str, ...]
    if numbers is not None:
        classes = tuple(f"{number:g}" for number in numbers)
    else:
        if parts[0].classes:
            refuse_two_spellings(parts[0].source, label, parts[0].classes)
        classes = parts[0].classes or _classes(parts[0].source, label, names[0])
    results = []
    for i, part in enumerate(parts):
        if numbers is not None:
            labels = _levels(part, label, numbers)
        else:
            labels = class_numbers(part, names[i], classes, "add the class to the training data")
        results.append(
            Corpus(
                texts=texts_of(part, text, second_text),
                labels=labels,
                classes=classes,
                users=users[i],
                extra={} if group is None else {group: group_names(part, group)},
            )
        )
    return results


def _levels(part: Columns, label: str, numbers: Sequence[float]) -> NDArray[np.int64]:
    """Return the place of the nearest number to each label, (n,), or raise UserError for one out of range."""
    low, high = numbers[0], numbers[-1]
    result = np.empty(len(part.numbers))
    for row, value in enumerate(part.values[label]):
        written = isinstance(value, str) and _REAL.fullmatch(value.strip()) is not None
        real = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if written or real else math.nan  # type: ignore[arg-type]
        if not low <= number <= high:
            raise UserError(_refused(part, row, f"label is no number from {low:g} to {high:g}"))
        result[row] = number
    return np.rint((result - low) / (high - low) * (len(numbers) - 1)).astype(np.int64)


def label_names(part: Columns, label: str) -> list[str]:
    """Return the labels in a column, by their names.

    Raises:
        UserError: A value is no label.
    """
    name_of: dict[str, str] = {}  # few names, and many rows
    names = []
    for row, value in enumerate(part.values[label]):
        name = name_of.get(value) if isinstance(value, str) else None
        if name is None:
            name = _label(part, row, value)
            name_of[name] = name
        names.append(name)
    return names


def class_numbers(part: Columns, names: Sequence[str], classes: Sequence[str], remedy: str) -> NDArray[np.int64]:
    """Return the place of each row's label among the classes, (n,). `remedy` is shown in the error.

    Raises:
        UserError: A label is outside.
    """
    index = {name: i for i, name in enumerate(classes)}
    for row, name in enumerate(names):
        if name not in index:
            same = next((other for other in classes if normal(other) == normal(name)), None)
            if same is not None:
                text = f"label {shown(name)} is the class {shown(same)} in another spelling; write it one way"
                raise UserError(_refused(part, row, text))
            raise UserError(
                _refused(part, row, f"its label is none of the {len(classes):,} classes; correct it, or {remedy}")
            )
    return np.array([index[name] for name in names], dtype=np.int64)


def _classes(source: str, label: str, names: Sequence[str]) -> tuple[str, ...]:
    distinct = sorted(set(names))
    if len(distinct) > MOST_CLASSES:
        raise UserError(f'{source}: column "{label}" has {len(distinct)} values; name the column that holds classes')
    if len(distinct) < 2:
        raise UserError(f'{source}: column "{label}" has one class only; two are needed')
    refuse_two_spellings(source, label, distinct)
    numbers = {int(name.partition(".")[0]): name for name in distinct if _NUMBER.fullmatch(name)}
    return tuple(numbers[value] for value in sorted(numbers)) if len(numbers) == len(distinct) else tuple(distinct)


def refuse_two_spellings(source: str, label: str, names: Iterable[str]) -> None:
    """Check that no two distinct labels have one normal form: they would be two classes.

    Raises:
        UserError: Two have.
    """
    if groups := alike(names, normal):
        first, second, *_ = groups[0]
        same = "number" if _REAL.fullmatch(normal(first)) else "name"
        raise UserError(
            f'{source}: column "{label}": labels {shown(first)} and {shown(second)} are one {same}; write it one way'
        )


def _label(part: Columns, row: int, value: object) -> str:
    integral = isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not (isinstance(value, str | int) or integral):
        raise UserError(_refused(part, row, f"label is {kind(value)}; give a whole number or a name"))
    if not isinstance(value, str):
        number = int(value)  # type: ignore[call-overload]
        if part.classes is not None and 0 <= number < len(part.classes):
            return part.classes[number]
        value = str(number)
    name = value.strip()
    if not is_name(name):
        raise UserError(_refused(part, row, f"label is {kind(value)}; give a whole number or a name"))
    return name


def is_number(value: str) -> bool:
    """Return True if a text is a number as programs write one."""
    return _REAL.fullmatch(value.strip()) is not None


def is_name(name: str) -> bool:
    """Return True if a cell can name a label or a user: visible, not missing, one line of characters, not too long."""
    if len(name) > LONGEST_NAME or _NO_NAME.search(name) is not None:
        return False
    return normal(name).casefold() not in ("", *_MISSING)


def names_user(value: object) -> bool:
    """Return True if a value can name the user of a row."""
    return isinstance(value, str | int) and not isinstance(value, bool) and is_name(str(value).strip())


def is_text(value: str) -> bool:
    """Return True if a text holds neither NUL nor half of a surrogate pair."""
    return _NO_TEXT.search(value) is None


def is_missing(value: object) -> bool:
    """Return True if a cell is empty: nothing visible, or a placeholder of a program."""
    if isinstance(value, float):
        return value != value  # NaN
    if not isinstance(value, str):
        return value is None
    return not value.strip() or (len(value) <= LONGEST_NAME and normal(value).casefold() in ("", *_MISSING))


def plain_name(name: str) -> str:
    """Return a column's name as an error shows it. The key of an object may be anything."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown(name: str) -> str:
    """Return a user or a label for messages: in quotes, or by its length if it may be a person's words or address."""
    plain = normal(name)
    return spelled(name) if is_number(plain) or headers.is_name(plain) else f"of {len(name)} characters"


def as_numbers(values: Iterable[Any]) -> list[Any]:
    """Return values with integers and floats in place of decimals, as databases export numbers."""
    return [
        (int(value) if value == value.to_integral_value() else float(value)) if isinstance(value, Decimal) else value
        for value in values
    ]


def kind(value: object) -> str:
    """Return the kind of a value for errors. The value itself is a person's and is never shown."""
    if is_missing(value):
        return "missing"
    if isinstance(value, str):
        odd = " that holds NUL or half of a surrogate pair" if not is_text(value) else ""
        return f"a text of {len(value):,} characters{odd}"
    kinds = (
        (bool, "true or false"),
        (int | float, "a number"),
        (bytes, "bytes"),
        (dict, "an object"),
        (list, "a list"),
        (datetime.date | datetime.time | datetime.timedelta, "a time"),
    )
    return next((name for kinds_, name in kinds if isinstance(value, kinds_)), f"a {type(value).__name__}")


def _refused(part: Columns, row: int, why: str) -> str:
    return f"{part.place(row)}: {why}"


def texts_of(part: Columns, first: str, second: str | None = None) -> TextColumn:
    """Return the texts in a column, or pairs in two, without spaces around them.

    Raises:
        UserError: One is empty, or is no text.
    """
    for column in (first, second) if second else (first,):
        for row, value in enumerate(part.values[column]):
            if not isinstance(value, str):
                raise UserError(_refused(part, row, f'"{column}" is {kind(value)}, not a text'))
            if not value.strip():
                raise UserError(_refused(part, row, f'"{column}" is empty; fill it in or remove the record'))
            if not is_text(value):
                raise UserError(_refused(part, row, f'"{column}" holds NUL or half of a surrogate pair; mend the text'))
    firsts = (str(value).strip() for value in part.values[first])
    if second is None:
        return TextColumn.of(firsts)
    return TextColumn.of(zip(firsts, (str(value).strip() for value in part.values[second]), strict=True))


def _users(part: Columns, user: str) -> list[str]:
    for row, value in enumerate(part.values[user]):
        if not names_user(value):
            raise UserError(_refused(part, row, f'"{user}" is {kind(value)}; name the user of the record'))
    return [sys.intern(str(value).strip()) for value in part.values[user]]


def group_names(part: Columns, group: str) -> list[str]:
    """Return the groups in a column of an attribute, by their names; NO_GROUP where the cell is empty.

    Raises:
        UserError: A value names no group, or there are too many.
    """
    names = []
    for row, value in enumerate(part.values[group]):
        if is_missing(value):
            names.append(NO_GROUP)
            continue
        integral = isinstance(value, float) and value.is_integer()
        name = str(int(value) if integral else value).strip()  # type: ignore[call-overload]
        if not isinstance(value, str | int | float) or not is_name(name):
            raise UserError(_refused(part, row, f'"{group}" is {kind(value)}; name a column of groups'))
        names.append(name)
    if (number := len(set(names))) > MOST_GROUPS:
        raise UserError(
            f'{part.source}: column "{group}" has {number:,} values, and at most {MOST_GROUPS} are compared; name a '
            "column of groups, such as tens of years"
        )
    return names


def _refuse_two_users(parts: Sequence[Columns], user: str, names: Sequence[str]) -> None:
    """Raise UserError if two names may be one person, who would have a budget under each of them."""
    for form, differ in ((normal, "one name in two spellings"), (folded, "names that differ in case or width alone")):
        if groups := alike(names, form):
            rows = [part.place(row) for part in parts for row in range(len(part.numbers))]
            first, second = (rows[names.index(name)] for name in groups[0][:2])
            more = f", and {len(groups) - 1:,} more pairs of rows" if len(groups) > 1 else ""
            raise UserError(
                f'{first} and {second}{more}: column "{user}" holds {differ}, which would be two users with a budget '
                "each; write each person's name one way"
            )
