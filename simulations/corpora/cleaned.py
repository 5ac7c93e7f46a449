"""A stranger's table of texts and labels, looked at and cleaned: which column is which, and what is not as it should.

Nothing is guessed in silence: `Cleaned.notes` says of everything that was changed or left out how often.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client.store.text_column import Text
from simulations.corpora import files
from simulations.corpora.columns import Columns, is_missing, label_names, plain_name, require_columns
from simulations.corpora.names import folded, spelled
from simulations.corpora.overlap import near_another, normalized
from simulations.errors import UserError

#: What columns are called where people name them as others do.
_TEXTS = ("text", "review", "sentence", "comment", "content", "message", "tweet", "body", "post", "review_text")
_LABELS = ("label", "sentiment", "class", "category", "rating", "stars", "score", "target", "polarity", "topic")
_USERS = ("user", "user_id", "userid", "username", "author", "author_id", "reviewer", "reviewer_id", "reviewerid")
#: Labels of fewer rows cannot be divided into three parts; of more names than this, a column holds something else.
LEAST, MOST_CLASSES = 5, 50
#: Tags of HTML, by their names: "<3" is none.
_TAG = re.compile(
    r"</?(?:a|b|i|u|p|q|s|br|em|hr|li|ol|td|th|tr|ul|div|img|pre|sub|sup|h[1-6]|code|span|font|small|table|tbody|strong"
    r"|blockquote)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos|nbsp|[a-z]{2,8});")


class Chosen(NamedTuple):
    """The columns of the texts, of the labels and, where there is one, of the users."""

    text: str
    label: str
    user: str | None


@dataclass(frozen=True)
class Cleaned:
    """n rows that a study can use. labels: (n,) indices into classes. users: n names; None without such a column.
    rows: how many the file has. notes: what was changed and what was left out, a line each."""

    texts: Sequence[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    users: Sequence[str] | None
    rows: int
    notes: tuple[str, ...]


def chosen(file: Path, *, text: str | None, label: str | None, user: str | None) -> Chosen:
    """The columns as said, those that are not said by their names. Raises UserError where these do not tell."""
    names = files.column_names(file)
    require_columns(str(file), (text, label, user), names)
    free = [name for name in names if name not in (text, label, user)]
    found = {
        "text": text or _named(free, _TEXTS), "label": label or _named(free, _LABELS),
        "user": user or _named(free, _USERS),
    }  # fmt: skip
    for option in ("text", "label"):
        if found[option] is None:
            there = ", ".join(map(plain_name, names[:20])) + (", ..." if len(names) > 20 else "")
            raise UserError(f"{file}: say which column holds the {option}s, --{option} NAME; there are: {there}")
    if found["text"] == found["label"]:
        raise UserError(f"{file}: --text and --label are one column; name two")
    return Chosen(str(found["text"]), str(found["label"]), found["user"])


def _named(names: Sequence[str], usual: Sequence[str]) -> str | None:
    folded = {name.casefold(): name for name in reversed(names)}
    return next((folded[name] for name in usual if name in folded), None)


def cleaned(file: Path, columns: Chosen) -> Cleaned:
    """The file's rows that a study can use: with a text and a label, of a class that is not all but empty, none the
    same or nearly the same as another. Tags of HTML become spaces; spellings of a label, its most frequent one.

    Raises UserError, in one line, where what is left is no table of texts and classes.
    """
    table = files.read(file, [name for name in columns if name is not None])
    rows, notes = len(table.row_names), []
    keep = [row for row in range(rows) if not any(is_missing(values[row]) for values in table.values.values())]
    if not keep:
        empty = [name for name, values in table.values.items() if all(map(is_missing, values))]
        raise UserError(f"{file}: " + (
            f'column "{empty[0]}" is empty in every row; name another one' if rows and empty
            else "no row has something in each of these columns: " + ", ".join(table.values) if rows
            else "has no rows below its header"
        ))  # fmt: skip
    if left := rows - len(keep):
        notes.append(f"{left:,} of {rows:,} rows lack something in one of these columns: left out")
    table = Columns(
        table.source, {name: [values[row] for row in keep] for name, values in table.values.items()},
        [table.row_names[row] for row in keep],
    )  # fmt: skip
    texts = [str(value) for value in table.values[columns.text]]
    plain = [without_html(text) for text in texts]
    if changed := sum(a != b for a, b in zip(texts, plain, strict=True)):
        notes.append(f"{changed:,} texts hold HTML: tags became spaces, entities their characters")
    labels, said = _one_spelling(label_names(table, columns.label))
    notes += said
    users = None
    if columns.user is not None:
        users, said = _one_user([str(value).strip() for value in table.values[columns.user]])
        notes += said
    kept, said = _usable(file, columns, plain, labels)
    notes += said
    classes = _ordered({labels[row] for row in kept})
    if len(classes) < 2:
        raise UserError(f'{file}: column "{columns.label}" has one usable class; name another column with --label')
    number = {name: i for i, name in enumerate(classes)}
    return Cleaned(
        [plain[row] for row in kept], np.array([number[labels[row]] for row in kept], np.int64), classes,
        None if users is None else [users[row] for row in kept], rows, tuple(notes),
    )  # fmt: skip


def without_html(text: str) -> str:
    """The text on one line, without tags of HTML and with characters in place of its entities."""
    text = _TAG.sub(" ", text)
    if _ENTITY.search(text):
        text = html.unescape(text)
    return " ".join(text.replace("\0", " ").split())


def _one_spelling(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """The labels, those that differ in case, Unicode form, spaces or a last full stop by their most frequent spelling;
    and a note."""
    usual, groups = _usual(labels, lambda name: folded(name.rstrip(".")) or name)
    notes = []
    for counts in groups:
        (first, _), *others = counts.most_common()
        also = ", ".join(f"{spelled(name)} ({n:,})" for name, n in others)
        notes.append(f"label {spelled(first)} is also spelled {also}: made one")
    return usual, notes


def _one_user(users: Sequence[str]) -> tuple[list[str], list[str]]:
    """The users, those whose names differ in case or Unicode form by their most frequent spelling, since one person
    under two names would have two budgets; and a note."""
    usual, groups = _usual(users, folded)
    if not groups:
        return usual, []
    first, second = (spelled(name) for name, _ in groups[0].most_common(2))
    return usual, [
        f"users have names in more than one spelling, {len(groups):,} in all, as {first} and {second}: made one each"
    ]


def _usual(names: Sequence[str], form: Callable[[str], str]) -> tuple[list[str], list[Counter[str]]]:
    """Each name in the most frequent spelling of its form, and how often each spelling occurs where there are two."""
    forms = {name: form(name) for name in set(names)}
    spellings: dict[str, Counter[str]] = {}
    for name in names:
        spellings.setdefault(forms[name], Counter())[name] += 1
    usual = {plain: counts.most_common(1)[0][0] for plain, counts in spellings.items()}
    return [usual[forms[name]] for name in names], [counts for counts in spellings.values() if len(counts) > 1]


def _usable(
    file: Path, columns: Chosen, texts: Sequence[str], labels: Sequence[str]
) -> tuple[list[int], list[str]]:
    """The rows that are kept, and what was left out."""
    counts, notes = Counter(labels), []
    rare = {name: n for name, n in counts.items() if n < LEAST}
    if len(counts) - len(rare) > MOST_CLASSES or sum(rare.values()) > len(labels) / 10:
        values, of = "value" if len(counts) == 1 else "values", "row" if len(labels) == 1 else "rows"
        if len(counts) == len(rare):
            why = f", none of them in {LEAST} rows: give more rows, or name"
        else:
            why = f", more than {MOST_CLASSES} of them in {LEAST} rows: name"
            if sum(rare.values()) > len(labels) / 10:
                why = f", and many of them in fewer than {LEAST} rows: name"
        has = f'column "{columns.label}" has {len(counts):,} {values} in {len(labels):,} {of}'
        raise UserError(f"{file}: {has}{why} the column that holds classes with --label")
    for name, n in rare.items():
        notes.append(f'label "{name}" has {n} {"row" if n == 1 else "rows"}: left out')
    kept: list[int] = []
    seen: dict[Text, int] = {}
    same = clash = 0
    for row, text in enumerate(texts):
        if labels[row] in rare or not text:
            continue
        if (first := seen.setdefault(normalized(text), row)) != row:
            same, clash = same + 1, clash + (labels[first] != labels[row])
            continue
        kept.append(row)
    if same:
        notes.append(
            f"{same:,} texts are repeated, but for case and marks ({clash:,} with another label): the first is kept"
        )
    near = near_another([str(normalized(texts[row])) for row in kept])
    if near:
        notes.append(f"{len(near):,} more texts are nearly another: left out, or they would stand in two parts")
    return [row for row in kept if normalized(texts[row]) not in near], notes


def _ordered(names: set[str]) -> tuple[str, ...]:
    numbers = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=int if numbers else None))
