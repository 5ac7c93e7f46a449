"""Usual names of columns, and the names that may be shown in errors.

A file's first line may be a person's record. So the only parts of it, or of an object's keys, that an error shows are
words of a public list.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

#: Usual names of columns.
TEXTS = ("text", "review", "sentence", "comment", "content", "message", "tweet", "body", "post", "review_text")
LABELS = ("label", "sentiment", "class", "category", "rating", "stars", "score", "target", "polarity", "topic")
USERS = ("user", "user_id", "userid", "username", "author", "author_id", "reviewer", "reviewer_id", "reviewerid")
#: Usual names of the columns of pairs.
PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("query", "document"),
)
_OTHERS = """
texts sentences utterance said paraphrase title headline subject summary description labels intent emotion genre kind
type group split annotator annotator_id worker worker_id speaker name id idx index row date time timestamp created_at
url source language lang country age sex gender helpful verified product product_id item item_id who
"""
#: Words that may be shown: they identify no record.
USUAL = frozenset((*TEXTS, *LABELS, *USERS, *(name for pair in PAIRS for name in pair), *_OTHERS.split()))
#: Most words and characters of a name, digits in one run of it, and characters of a script that is written wide, or
#: without spaces.
_WORDS, _LONGEST, _DIGITS, _WIDE = 3, 40, 4, 8


def shown_names(names: Sequence[str]) -> str:
    """Return the names that may be shown, and the number of others; if all are others, the remedy."""
    usual = [name for name in dict.fromkeys(names) if name.casefold() in USUAL]
    rest = len(names) - len(usual)
    if not usual:
        return f"{rest} of names that are not shown; if the first line is a record, put a line of names above it"
    return ", ".join([*usual, *([f"{rest} more"] if rest else [])])


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that may be shown and is most like a missing one, or None."""
    usual = [item for item in names if item.casefold() in USUAL]
    return next(iter(difflib.get_close_matches(name, usual, n=1, cutoff=0.5)), None)


def is_name(cell: str) -> bool:
    """Return True if a cell looks like a column's name: few short words, no sentence, address or person's number."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" or "\u0e00" <= sign <= "\u0eff" for sign in cell)
    runs = "".join(sign if sign.isdigit() else " " for sign in cell).split()
    return (
        len(cell) <= _LONGEST
        and len(cell.split()) <= _WORDS
        and wide <= _WIDE
        and cell.isprintable()
        and "@" not in cell
        and not cell.endswith((".", "!", "。", "！", "…"))
        and all(len(run) <= _DIGITS for run in runs)
    )
