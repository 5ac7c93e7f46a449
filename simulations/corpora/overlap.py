"""Overlap of the parts of the data: shared and nearly equal texts, and people; and repetitions inside a part.

Texts are compared by their letters (with the marks that these bear) and digits alone, in one case, with single spaces
between. Punctuation makes no other text, nor do invisible characters such as a space of no width. Two are nearly the
same if, of all runs of five bytes that occur in either, at least 70 % occur in both (Jaccard's index of shingles,
Broder 1997): in a text of twelve words that is about one word. The comparison is exact: two sets of index t or more
share one of the |x| - ⌈t·|x|⌉ + 1 rarest of each (Bayardo, Ma and Srikant 2007, prefix filtering). So pairs that share
none need no comparison.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mechanisms.pieces import Text
from simulations.corpora.corpus import Split
from simulations.corpora.names import INVISIBLE

#: Parts that must not overlap: rows of the first are searched in the second.
PAIRS = (("public", "train"), ("test", "train"), ("test", "public"))
#: Bytes of a shingle, and the least index of two texts that are nearly the same.
SHINGLE, NEARLY = 5, 0.7
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
        near: Rows whose text is not, but nearly.
        users: People who have rows in both, if the users are known.
    """

    of: str
    within: str
    rows: int
    texts: int
    near: int
    users: int

    def __bool__(self) -> bool:
        return self.texts + self.near + self.users > 0

    def __str__(self) -> str:
        lines = []
        if self.texts or self.near:
            nearly = f" and {self.near:,} nearly" if self.near else ""
            lines.append(f"{self.texts:,}{nearly} of {self.rows:,} {self.of} texts are in {self.within}")
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

    `people` states that the parts' users hold the rows, so they are compared. It takes seconds for 67,349 phrases.
    """
    parts = {name: getattr(split, name) for name in ("public", "train", "test")}
    plain = {name: [normalized(text) for text in part.texts] for name, part in parts.items()}
    distinct = {name: set(texts) for name, texts in plain.items()}
    results = []
    for of, within in PAIRS:
        same = distinct[of] & distinct[within]
        near = nearly(sorted(distinct[of] - same), sorted(distinct[within]))
        users = [set(parts[name].users or ()) if people else set() for name in (of, within)]
        results.append(
            Overlap(
                of,
                within,
                len(plain[of]),
                sum(text in same for text in plain[of]),
                sum(text in near for text in plain[of]),
                len(users[0] & users[1]),
            )
        )
    return results, {name: len(texts) - len(distinct[name]) for name, texts in plain.items()}


def nearly(texts: Sequence[str], others: Iterable[str]) -> set[str]:
    """Return the normalized texts that are nearly the same as one of the others. None of them is among the others."""
    index = _Index(texts)
    for text in texts:
        index.add(text)
    return set().union(*map(index.near, others))


def near_another(texts: Sequence[str]) -> set[str]:
    """Return some of the distinct normalized texts, such that no two of the rest are nearly the same.

    Of two that are, it is the later one.
    """
    index = _Index(texts)
    gone = set()
    for text in texts:
        if index.near(text):
            gone.add(text)
        else:
            index.add(text)
    return gone


class _Index:
    """Normalized texts, by the rarest of their shingles among some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._frequency = Counter(shingle for text in texts for shingle in _shingles(text))
        self._texts: defaultdict[bytes, list[tuple[str, int]]] = defaultdict(list)

    def add(self, text: str) -> None:
        """Add a text."""
        shingles = _shingles(text)
        for shingle in self._rarest(shingles):
            self._texts[shingle].append((text, len(shingles)))

    def near(self, text: str) -> set[str]:
        """Return the added texts that are nearly the same as a text."""
        own = _shingles(text)
        sizes = range(math.ceil(NEARLY * len(own) - 1e-6), math.floor(len(own) / NEARLY + 1e-6) + 1)
        places = [self._texts[shingle] for shingle in self._rarest(own) if shingle in self._texts]
        candidates = {other for place in places for other, size in place if size in sizes}
        return {other for other in candidates if _jaccard(own, _shingles(other)) >= NEARLY - 1e-9}

    def _rarest(self, shingles: set[bytes]) -> list[bytes]:
        """Return those of the rarest |x| - ⌈t·|x|⌉ + 1 shingles that occur in the counted texts at all."""
        counted = [shingle for shingle in shingles if shingle in self._frequency]
        rarest = len(counted) - math.ceil(NEARLY * len(shingles) - 1e-6) + 1
        return sorted(counted, key=lambda shingle: (self._frequency[shingle], shingle))[: max(0, rarest)]


def _shingles(text: str) -> set[bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return {data[i : i + SHINGLE] for i in range(len(data) - SHINGLE + 1)}


def _jaccard(one: set[bytes], other: set[bytes]) -> float:
    both = len(one & other)
    return both / (len(one) + len(other) - both)
