"""Cleaning of an unknown table of texts and labels: choice of columns, and removal of unusable rows.

No guess is silent: `Cleaned.notes` counts everything that was changed or left out.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.store.text_column import Text
from simulations.corpora import files, headers
from simulations.corpora.columns import (
    LONGEST_NAME,
    MOST_CLASSES,
    Columns,
    is_missing,
    is_number,
    is_text,
    kind,
    label_names,
    names_user,
    plain_name,
    require_columns,
    shown,
)
from simulations.corpora.names import folded
from simulations.corpora.overlap import near_another, normalized
from simulations.errors import UserError
from simulations.experiment.sections import LEVELS

#: Least rows of a class, because fewer cannot be divided into three parts; and number of rare classes listed by name.
LEAST, _NAMED = 5, 5
#: Marks between several labels of one row.
_SEPARATORS = ("|", ";", ",", "/")
#: Placeholders that programs and sites write in place of a missing text; and of a user or a class.
_NO_TEXT = frozenset(("[deleted]", "[removed]", "null", "none", "na", "n/a", "nil", "undefined"))
_NOBODY = _NO_TEXT | {"unknown", "anonymous", "-", "?"}
#: Tags of HTML, by their names. "<3" is not one.
_TAG = re.compile(
    r"</?(?:a|b|i|u|p|q|s|br|em|hr|li|ol|td|th|tr|ul|div|img|pre|sub|sup|h[1-6]|code|span|font|small|table|tbody|strong"
    r"|blockquote)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos|nbsp|[a-z]{2,8});")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Chosen:
    """Columns of a table: names, or positions from 1.

    Attributes:
        text: Column of the texts.
        label: Column of the labels.
        user: Column of the users; None without one.
        second: Column of the second texts of pairs; None if texts are single.
        kept: Further columns, which are copied as they are.
        named: False if columns are positions.
    """

    text: str
    label: str
    user: str | None
    second: str | None = None
    kept: tuple[str, ...] = ()
    named: bool = True

    @property
    def texts(self) -> list[str]:
        """Return the columns of texts."""
        return [name for name in (self.text, self.second) if name is not None]

    @property
    def needed(self) -> list[str]:
        """Return the columns that no row may lack."""
        return [*self.texts, self.label, *([] if self.user is None else [self.user])]

    @property
    def all(self) -> list[str]:
        """Return the columns that exist."""
        return [*self.needed, *self.kept]


@dataclass(frozen=True)
class Cleaned:
    """n rows that a run can use.

    Attributes:
        texts: n texts, or pairs.
        labels: (n,) indices into classes.
        classes: Names of the labels; of numbers, the levels that occur.
        users: n names; None without such a column.
        written: n labels as a copy has them.
        kept: n cells of each kept column.
        between: Lowest and highest label if labels are numbers; None if they are classes.
        rows: Number of rows of the file.
        notes: Changes and omissions, a line each.
        left: Number of rows left out, by these lines. With the n, they are all of the file's.
    """

    texts: Sequence[Text]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    users: Sequence[str] | None
    written: Sequence[str]
    kept: Mapping[str, Sequence[str]]
    between: tuple[float, float] | None
    rows: int
    notes: tuple[str, ...]
    left: Mapping[str, int]

    def without(self, gone: NDArray[np.bool_], why: str) -> Cleaned:
        """Return the same without some of the rows. ROWS in `why` is replaced by their number."""
        if not gone.any():
            return self
        kept, said = np.flatnonzero(~gone), _counted(why, int(gone.sum()))
        there = np.unique(self.labels[kept])
        return replace(
            self,
            texts=[self.texts[row] for row in kept],
            labels=np.searchsorted(there, self.labels[kept]).astype(np.int64),
            classes=tuple(self.classes[i] for i in there),
            users=None if self.users is None else [self.users[row] for row in kept],
            written=[self.written[row] for row in kept],
            kept={name: [cells[row] for row in kept] for name, cells in self.kept.items()},
            notes=(*self.notes, said),
            left={**self.left, said: int(gone.sum())},
        )


def chosen(
    file: Path,
    *,
    text: str | None,
    label: str | None,
    user: str | None,
    second: str | None = None,
    kept: Sequence[str] = (),
) -> Chosen:
    """Return the given columns, and the others by their names.

    The usual names of two texts of a pair are found if no column has a usual name of single texts.

    Raises:
        UserError: A column does not exist, or the names do not identify one.
    """
    names = files.column_names(file)
    given = (text, label, user, second, *kept)
    options = ("--text", "--label", "--user", "--second", *("--keep" for _ in kept))
    said = zip(options, given, strict=True)
    for (one, column), (other, again) in combinations(said, 2):
        if column is not None and column == again:
            raise UserError(f"{file}: {one} and {other} are one column; name two")
    if files.positional(file, given):
        for option, position in (("text", text), ("label", label)):
            if position is None:
                raise UserError(f"{file}: say where the {option}s stand too, as --{option} 1: columns have no names")
        return Chosen(str(text), str(label), user, second, tuple(kept), named=False)
    declared = files.declares(file)
    require_columns(str(file), given, names, declared=declared)
    free = [name for name in names if name not in given]
    if text is None and second is None:
        for pair in headers.PAIRS:
            if set(pair) <= set(free) and _named([name for name in free if name not in pair], headers.TEXTS) is None:
                text, second = pair
                break
    found = {
        "text": text or _named(free, headers.TEXTS),
        "label": label or _named(free, headers.LABELS),
        "user": user or _named(free, headers.USERS),
    }
    for option in ("text", "label"):
        if found[option] is None:
            there = ", ".join(map(plain_name, names[:20])) if declared else headers.told(names)
            raise UserError(f"{file}: say which column holds the {option}s, --{option} NAME; there are: {there}")
    if found["text"] == found["label"]:
        raise UserError(f"{file}: --text and --label are one column; name two")
    return Chosen(str(found["text"]), str(found["label"]), found["user"], second, tuple(kept))


def _named(names: Sequence[str], usual: Sequence[str]) -> str | None:
    folded = {name.casefold(): name for name in reversed(names)}
    return next((folded[name] for name in usual if name in folded), None)


@dataclass
class _Table:
    """Remaining rows, and notes on the others."""

    columns: Columns
    notes: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.columns.row_names)

    def leave_out(self, gone: Sequence[bool], why: str) -> None:
        """Take rows out. ROWS in `why` is replaced by their number, and the first of them is named behind it."""
        number = sum(gone)
        if not number:
            return
        keep = [row for row in range(self.rows) if not gone[row]]
        where = self.columns.row_names[list(gone).index(True)]
        self.left[f"{_counted(why, number)} ({'first: ' * (number > 1)}{where})"] = number
        values = {name: [column[row] for row in keep] for name, column in self.columns.values.items()}
        self.columns = Columns(self.columns.source, values, [self.columns.row_names[row] for row in keep])

    def put(self, column: str, values: Sequence[object]) -> None:
        """Replace the values of a column."""
        self.columns = Columns(self.columns.source, {**self.columns.values, column: values}, self.columns.row_names)

    def refuse(self, column: str, is_wrong: Callable[[object], bool], mend: str) -> None:
        """Raise UserError at the first invalid value, with its kind."""
        for row, value in enumerate(self.columns.values[column]):
            if is_wrong(value):
                where = f"{self.columns.source}: {self.columns.row_names[row]}"
                raise UserError(f'{where}: "{column}" is {kind(value)}{mend}')


def cleaned(file: Path, columns: Chosen) -> Cleaned:
    """Return the file's rows that a run can use.

    They have a text and a label, of a class with enough rows, and no text is nearly the same as another. Without users,
    no two texts are the same either. Tags of HTML become spaces. Spellings of a label become the most frequent one.
    Labels are numbers, not classes, if they have more than LEVELS values that are not all whole.

    Raises:
        UserError: The rest is no table of texts and classes.
    """
    table = _Table(files.read(file, columns.all, named=columns.named))
    rows = table.rows
    _decode(columns, table)
    _take_out_missing(file, columns, table)
    _check_kinds(columns, table)
    _as_plain(columns, table)
    _refuse_several_labels(columns, table)
    between = _range(table.columns.values[columns.label])
    if between is None:
        labels, said = _one_spelling(label_names(table.columns, columns.label))
        table.put(columns.label, labels)
        table.notes += said
        _leave_out_rare(file, columns, table)
    else:
        table.notes.append(f"labels are numbers: each is rounded to the nearest of {LEVELS} levels")
    _leave_out_repeated(columns, table)
    labels = [str(value).strip() for value in table.columns.values[columns.label]]
    levels = labels if between is None else [_level(float(label), between) for label in labels]
    classes = _ordered(set(levels))
    if len(classes) < 2:
        raise UserError(f'{file}: column "{columns.label}" has one usable class; name another column with --label')
    number = {name: i for i, name in enumerate(classes)}
    texts: list[Sequence[str]] = [[str(text) for text in table.columns.values[column]] for column in columns.texts]
    return Cleaned(
        texts[0] if columns.second is None else list(zip(*texts, strict=True)),
        np.array([number[name] for name in levels], np.int64),
        classes,
        None if columns.user is None else [str(name) for name in table.columns.values[columns.user]],
        labels,
        {name: [_cell(value) for value in table.columns.values[name]] for name in columns.kept},
        between,
        rows,
        (*table.notes, *table.left),
        table.left,
    )


def _cell(value: object) -> str:
    """Return a kept value as a cell; nothing for one that is missing."""
    return "" if is_missing(value) else str(value)


def _range(labels: Sequence[object]) -> tuple[float, float] | None:
    """Return whole numbers around the labels if these are numbers and no classes; otherwise None."""
    values = {str(value).strip() for value in labels if not isinstance(value, bool)}
    if len(values) <= LEVELS or not all(map(is_number, values)):
        return None
    numbers = sorted(map(float, values))
    if all(number.is_integer() for number in numbers):
        return None
    return float(math.floor(numbers[0])), float(math.ceil(numbers[-1]))


def _level(number: float, between: tuple[float, float]) -> str:
    low, high = between
    return str(round((number - low) / (high - low) * (LEVELS - 1)))


def _refuse_several_labels(columns: Chosen, table: _Table) -> None:
    """Raise UserError if a row has several labels: a list, or labels of other rows with a separator between."""
    values = table.columns.values[columns.label]
    mend = "make a row for each, or name a column of one label"

    def refused(row: int) -> UserError:
        where = f"{table.columns.source}: {table.columns.row_names[row]}"
        return UserError(f'{where}: "{columns.label}" holds several labels; {mend}')

    for row, value in enumerate(values):
        written = value.strip() if isinstance(value, str) else ""
        if isinstance(value, list | tuple) or (written[:1], written[-1:]) == ("[", "]"):
            raise refused(row)
    alone = {str(value).strip() for value in values}
    for separator in _SEPARATORS:
        found = [row for row, value in enumerate(values) if separator in str(value).strip(separator)]
        parts = [[part.strip() for part in str(values[row]).split(separator)] for row in found]
        joined = sum(all(part in alone for part in each) for each in parts)
        if found and joined >= len(found) / 2:
            raise refused(found[0])


def _take_out_missing(file: Path, columns: Chosen, table: _Table) -> None:
    """Take out rows without a text, a label or a user. Note placeholders that remain as classes."""
    rows, values = table.rows, table.columns.values
    gone = [any(is_missing(values[name][row]) for name in columns.needed) for row in range(rows)]
    if all(gone):
        empty = [name for name in columns.needed if all(map(is_missing, values[name]))]
        raise UserError(
            f"{file}: "
            + (
                f'column "{empty[0]}" is empty in every row; name another one'
                if rows and empty
                else "no row has something in each of these columns: " + ", ".join(columns.needed)
                if rows
                else "has no rows below its header"
            )
        )
    names = [plain_name(name) if columns.named else name for name in columns.needed]
    either = f"{', '.join(names[:-1])} or {names[-1]}"
    table.leave_out(gone, f"N of {rows:,} rows have nothing in column {either}: left out; fill them in to keep them")
    texts = [(column, _NO_TEXT, "text") for column in columns.texts]
    for column, nothing, what in (*texts, (columns.user, _NOBODY, "user")):
        if column is None:
            continue
        held = [_folded(value) for value in table.columns.values[column]]
        said = sorted({value for value in held if value in nothing})
        if said and all(value in nothing for value in held):
            raise UserError(f'{file}: column "{column}" names no {what} in any row; name another one')
        table.leave_out(
            [value in nothing for value in held],
            f"ROWS with {' or '.join(map(_quoted, said))} in place of a {what}: left out",
        )
    classes = Counter(_folded(value) for value in table.columns.values[columns.label])
    for name in sorted(_NOBODY & set(classes)):
        table.notes.append(
            f"label {_quoted(name)} ({_rows(classes[name])}) may stand for no label: it is a class here; take its rows "
            "out where it is none"
        )


def _decode(columns: Chosen, table: _Table) -> None:
    """Decode bytes as UTF-8, or raise UserError."""
    for column in columns.all:
        values = table.columns.values[column]
        if any(isinstance(value, bytes) for value in values):
            table.put(column, [_as_utf8(value) for value in values])
            table.refuse(column, lambda value: isinstance(value, bytes), " that are no UTF-8 text")
            table.notes.append(f'column "{plain_name(column)}" holds bytes, which are read as UTF-8')


def _check_kinds(columns: Chosen, table: _Table) -> None:
    """Raise UserError for a value that is no text, or names no user. An integer names one."""
    for column in columns.texts:
        table.refuse(column, lambda value: not isinstance(value, str), ", not a text; name a column of texts")
        if all(is_number(str(value)) for value in table.columns.values[column]):
            raise UserError(f'{table.columns.source}: column "{column}" holds numbers alone; name a column of texts')
    if columns.user is not None:
        users = [
            int(value) if isinstance(value, float) and value.is_integer() else value
            for value in table.columns.values[columns.user]
        ]
        table.put(columns.user, users)
        table.refuse(
            columns.user,
            lambda value: not names_user(value),
            f", no name of at most {LONGEST_NAME} characters; name the column that says whose a row is with --user",
        )
        usual, said = _one_user([str(value).strip() for value in users])
        table.put(columns.user, usual)
        table.notes += said


def _as_plain(columns: Chosen, table: _Table) -> None:
    """Put texts on one line without markup, and leave out rows of markup alone."""
    for column in columns.texts:
        texts = [str(text) for text in table.columns.values[column]]
        plain = [without_html(text) for text in texts]
        empty = [not normalized(text) for text in plain]
        pairs = list(zip(texts, plain, empty, strict=True))
        if changed := sum(new != _on_one_line(old) and not none for old, new, none in pairs):
            table.notes.append(f"{changed:,} texts hold HTML: tags became spaces, entities their characters")
        if broken := sum(not is_text(old) and not none for old, _, none in pairs):
            table.notes.append(f"{broken:,} texts hold NUL or half of a surrogate pair: replaced")
        table.put(column, plain)
        table.leave_out(empty, "ROWS with no text but markup, or what nobody sees: left out")


def _folded(value: object) -> str:
    return str(value).strip().casefold()


def _quoted(name: str) -> str:
    return f'"{name}"'


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _counted(why: str, number: int) -> str:
    return why.replace("ROWS", _rows(number), 1) if "ROWS" in why else why.replace("N", f"{number:,}", 1)


def _as_utf8(value: object) -> object:
    """Return bytes as the text that they encode, if they do."""
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def without_html(text: str) -> str:
    """Return the text on one line, without tags of HTML and with characters in place of its entities."""
    text = _TAG.sub(" ", text)
    if _ENTITY.search(text):
        text = html.unescape(text)
    return _on_one_line(text)


def _on_one_line(text: str) -> str:
    return " ".join(_SURROGATE.sub("\ufffd", text).replace("\0", " ").split())


def _one_spelling(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the labels in their most frequent spelling, and notes.

    Spellings differ in case, Unicode form, spaces or a last full stop.
    """
    usual, groups = _usual(labels, lambda name: folded(name).rstrip(".").strip() or name)
    notes = []
    for counts in groups:
        (first, _), *others = counts.most_common()
        also = ", ".join(f"{shown(name)} ({n:,})" for name, n in others)
        notes.append(f"label {shown(first)} is also spelled {also}: made one")
    return usual, notes


def _one_user(users: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the users in their most frequent spelling, and a note.

    Spellings differ in case or Unicode form. One person under two names would have two budgets.
    """
    usual, groups = _usual(users, folded)
    if not groups:
        return usual, []
    first, second = (shown(name) for name, _ in groups[0].most_common(2))
    return usual, [
        f"users have names in more than one spelling, {len(groups):,} in all, as {first} and {second}: made one each"
    ]


def _usual(names: Sequence[str], form: Callable[[str], str]) -> tuple[list[str], list[Counter[str]]]:
    """Return each name in the most frequent spelling of its form, and counts of the spellings of forms with several."""
    forms = {name: form(name) for name in set(names)}
    spellings: dict[str, Counter[str]] = {}
    for name in names:
        spellings.setdefault(forms[name], Counter())[name] += 1
    usual = {plain: counts.most_common(1)[0][0] for plain, counts in spellings.items()}
    return [usual[forms[name]] for name in names], [counts for counts in spellings.values() if len(counts) > 1]


def _leave_out_rare(file: Path, columns: Chosen, table: _Table) -> None:
    """Leave out rows of classes that have too few, or raise UserError if the column does not hold classes."""
    labels = [str(value) for value in table.columns.values[columns.label]]
    counts = Counter(labels)
    rare = {name: n for name, n in counts.items() if n < LEAST}
    if len(counts) - len(rare) > MOST_CLASSES or sum(rare.values()) > len(labels) / 10:
        values, of = "value" if len(counts) == 1 else "values", "row" if len(labels) == 1 else "rows"
        if len(counts) == len(rare):
            why = f", none of them in {LEAST} rows: give more rows, or name"
        else:
            why = f", more than {MOST_CLASSES:,} of them in {LEAST} rows: name"
            if sum(rare.values()) > len(labels) / 10:
                why = f", and many of them in fewer than {LEAST} rows: name"
        has = f'column "{columns.label}" has {len(counts):,} {values} in {len(labels):,} {of}'
        raise UserError(f"{file}: {has}{why} the column that holds classes with --label")
    few = {name: f"label {shown(name)} has ROWS, fewer than {LEAST}: left out" for name in list(rare)[:_NAMED]}
    for name, why in few.items():
        table.leave_out([value == name for value in table.columns.values[columns.label]], why)
    table.leave_out(
        [value in rare for value in table.columns.values[columns.label]],
        f"{len(rare) - len(few):,} more labels of fewer than {LEAST} rows have ROWS: left out",
    )


def _leave_out_repeated(columns: Chosen, table: _Table) -> None:
    """Leave out texts that are nearly another's and, without users, repeated texts: they would stand in two parts.

    If users are known, rows of people are divided such that shared texts stay in one part.
    """
    labels, plain = table.columns.values[columns.label], _normalized(columns, table)
    first: dict[Text, int] = {}
    for row, text in enumerate(plain):
        first.setdefault(text, row)
    if columns.user is None:
        same = [first[text] != row for row, text in enumerate(plain)]
        clash = sum(labels[first[text]] != labels[row] for row, text in enumerate(plain))
        table.leave_out(
            same,
            f"N texts are repeated, but for case and marks ({clash:,} with another label): the first is kept; all are "
            "with --user, if they are of different people",
        )
    near = near_another(list(map(str, first)))
    plain = _normalized(columns, table)
    table.leave_out(
        [text in near for text in plain], "N more texts are nearly another: left out, or they would stand in two parts"
    )


def _normalized(columns: Chosen, table: _Table) -> list[str]:
    texts = [map(str, table.columns.values[column]) for column in columns.texts]
    return [normalized(each[0] if len(each) == 1 else each) for each in zip(*texts, strict=True)]


def _ordered(names: set[str]) -> tuple[str, ...]:
    numbers = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=int if numbers else None))
