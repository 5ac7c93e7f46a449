"""Overlap of the parts of the data: shared texts, and people; and repetitions inside a part.

Texts are compared by their letters (with the marks that these bear) and digits alone, in one case, with single spaces
between. Punctuation makes no other text, nor do invisible characters such as a space of no width.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from mechanisms.pieces import Text
from simulations.corpora.corpus import Split
from simulations.corpora.names import INVISIBLE

#: Parts that must not overlap: rows of the first are searched in the second.
PAIRS = (("public", "train"), ("test", "train"), ("test", "public"))
#: Separators of words; for letters other than ASCII's, unless it is a mark of one, such as a vowel sign.
_BETWEEN = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Overlap:
    """Overlap of one part with another.

    Attributes:
        of: Part whose rows are searched.
        within: Other part.
        rows: Rows of the part `of`.
        texts: Rows of these whose text is a text of the other part.
        users: People who have rows in both, if the users are known.
    """

    of: str
    within: str
    rows: int
    texts: int
    users: int

    def __bool__(self) -> bool:
        return self.texts + self.users > 0

    def __str__(self) -> str:
        lines = []
        if self.texts:
            lines.append(f"{self.texts:,} of {self.rows:,} {self.of} texts are in {self.within}")
        if self.users:
            are = "user is" if self.users == 1 else "users are"
            lines.append(f"{self.users:,} {are} in {self.of} and {self.within}")
        return ", ".join(lines)


def normalized(text: Text) -> str:
    """Return the letters and digits of a text, or of a pair in two lines. A text without any is itself."""
    if isinstance(text, tuple):
        return f"{normalized(text[0])}\n{normalized(text[1])}"
    if text.isascii():
        plain = text.casefold()
        return _BETWEEN.sub(" ", plain).strip() or plain.strip()
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", INVISIBLE.sub("", text)).casefold())
    return _BETWEEN.sub(_marks, plain).strip() or plain.strip()


def _marks(between: re.Match[str]) -> str:
    """Return the marks that the letter before bears, and a space for the rest; no letter, no mark."""
    run = between.group()
    first = next((i for i, sign in enumerate(run) if unicodedata.category(sign)[0] != "M"), len(run))
    kept = run[:first] if between.start() else ""
    return kept + (" " if first < len(run) or not between.start() else "")


def compared(split: Split, *, people: bool) -> tuple[list[Overlap], dict[str, int]]:
    """Return the overlap of each of PAIRS, and for each part the number of rows that repeat a text of a row before.

    `people` states that the parts' users hold the rows, so they are compared.
    """
    parts = {name: getattr(split, name) for name in ("public", "train", "test")}
    plain = {name: [normalized(text) for text in part.texts] for name, part in parts.items()}
    distinct = {name: set(texts) for name, texts in plain.items()}
    results = []
    for of, within in PAIRS:
        shared = sum(text in distinct[within] for text in plain[of])
        users = [set(parts[name].users or ()) if people else set() for name in (of, within)]
        results.append(Overlap(of, within, len(plain[of]), shared, len(users[0] & users[1])))
    return results, {name: len(texts) - len(distinct[name]) for name, texts in plain.items()}
