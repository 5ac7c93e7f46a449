"""Overlap of the parts of the data: shared and nearly equal texts, and people; and repetitions inside a part.

Texts are compared by their letters (with the marks that these bear) and digits alone, in one case, with single spaces
between. Punctuation makes no other text, nor do invisible characters such as a space of no width. Two are nearly the
same if, of all runs of five bytes that occur in either, at least 70 % occur in both (Jaccard's index of shingles,
Broder 1997): in a text of twelve words that is about one word. The comparison is exact: two sets of index t or more
share one of the |x| - ⌈t·|x|⌉ + 1 rarest of each (Bayardo, Ma and Srikant 2007, prefix filtering). So pairs that share
none need no comparison, and sketches rule out most of the others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mechanisms.pieces import Text
from simulations.corpora.corpus import Split
from simulations.corpora.names import INVISIBLE

Ints = NDArray[np.int64]

#: Parts that must not overlap: rows of the first are searched in the second.
PAIRS = (("public", "train"), ("test", "train"), ("test", "public"))
#: Bytes of a shingle, and the least index of two texts that are nearly the same.
SHINGLE, NEARLY = 5, 0.7
#: Texts of either part that are compared at once, pairs whose sketches are, and bits of a sketch.
_AT_ONCE, _BLOCK, _PAIRS, _BITS = 1 << 12, 1 << 12, 1 << 16, 1 << 10
#: Largest number of texts that are compared pair by pair rather than by tables.
_FEW = 16
_SHINGLES, _SIX = (1 << 8 * SHINGLE) - 1, np.uint64(63)
#: Separators of words; for letters other than ASCII's, unless it is a mark of one, such as a vowel sign.
_BETWEEN = re.compile(r"[\W_]+")
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


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


def nearly(texts: Sequence[str], others: Sequence[str]) -> set[str]:
    """Return the normalized texts that are nearly the same as one of the others. None of them is among the others."""
    result: set[str] = set()
    for first in range(0, len(texts), _AT_ONCE):
        result |= _nearly(texts[first : first + _AT_ONCE], others)
    return result


def near_another(texts: Sequence[str]) -> set[str]:
    """Return some of the distinct normalized texts, such that no two of the rest are nearly the same.

    Of two that are, it is the later one. Every pair is compared at one level of a recursion by halves.
    """
    if len(texts) <= _FEW:
        return _near_another(texts)
    half = len(texts) // 2
    gone = near_another(texts[:half]) | near_another(texts[half:])
    first, second = ([text for text in part if text not in gone] for part in (texts[:half], texts[half:]))
    return gone | nearly(second, first)


def _near_another(texts: Sequence[str]) -> set[str]:
    """Return the same for a few texts, pair by pair."""
    kept: list[set[bytes]] = []
    gone: set[str] = set()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        own = {data[i : i + SHINGLE] for i in range(len(data) - SHINGLE + 1)}
        # two of index t or more have sizes of a ratio of t or more, which rules out most
        peers = (other for other in kept if min(len(own), len(other)) >= NEARLY * max(len(own), len(other)) - 1e-6)
        if own and any((1 + NEARLY) * len(own & other) >= NEARLY * (len(own) + len(other)) - 1e-6 for other in peers):
            gone.add(text)
        else:
            kept.append(own)
    return gone


def _nearly(texts: Sequence[str], others: Sequence[str]) -> set[str]:
    own = _Sets.of(texts)
    shingles, places, often = np.unique(own.shingles, return_inverse=True, return_counts=True)
    if not len(shingles):
        return set()
    ranks = np.empty(len(shingles), np.int64)
    ranks[np.argsort(often, kind="stable")] = np.arange(1, len(shingles) + 1)  # 0: of no text here, rarest of all
    mine, rarest = own.matrices(ranks[places], len(shingles))
    sketches, candidates = own.sketches(), np.flatnonzero(own.counts)
    result: set[str] = set()
    for first in range(0, len(others), _BLOCK):
        block = _Sets.of(others[first : first + _BLOCK])
        at = np.minimum(np.searchsorted(shingles, block.shingles), len(shingles) - 1)
        matrix, their_rarest = block.matrices(np.where(shingles[at] == block.shingles, ranks[at], 0), len(shingles))
        pairs, sketched = (rarest[candidates] @ their_rarest.T).tocoo(), block.sketches()
        near = np.zeros(len(texts), np.bool_)
        for start in range(0, pairs.nnz, _PAIRS):
            i, j = candidates[pairs.row[start : start + _PAIRS]], pairs.col[start : start + _PAIRS]
            total = own.counts[i] + block.counts[j]
            apart = np.bitwise_count(sketches[i] ^ sketched[j]).sum(axis=1, dtype=np.int64)
            possible = (1 + NEARLY) * apart <= (1 - NEARLY) * total + 1e-6  # bits apart are shingles apart
            i, j, total = i[possible], j[possible], total[possible]
            both = np.asarray(mine[i].multiply(matrix[j]).sum(axis=1)).ravel()
            near[i[(1 + NEARLY) * both >= NEARLY * total - 1e-6]] = True
        result.update(texts[row] for row in np.flatnonzero(near).tolist())
        candidates = candidates[~near[candidates]]
    return result


class _Sets(NamedTuple):
    """Shingles of n texts, each once: owners[i] has shingles[i], in the order of both; counts (n,) of each text."""

    owners: Ints
    shingles: Ints
    counts: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Sets:
        data = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths = np.array([len(item) for item in data], np.int64)
        runs = np.maximum(lengths - SHINGLE + 1, 0)
        at = np.arange(runs.sum()) + np.repeat(np.cumsum(lengths) - lengths - np.cumsum(runs) + runs, runs)
        flat = np.frombuffer(b"".join(data), np.uint8).astype(np.int64)
        packed = np.repeat(np.arange(len(texts), dtype=np.int64), runs)
        for i in range(SHINGLE):
            packed = packed << 8 | flat[at + i]
        packed = _distinct(packed)
        owners = packed >> 8 * SHINGLE
        return cls(owners, packed & _SHINGLES, np.bincount(owners, minlength=len(texts)))

    def matrices(self, ranks: Ints, width: int) -> tuple[Any, Any]:
        """Return the texts' shingles by their ranks 1..width, (n, width + 1); and the rarest of them. 0 is none."""
        packed = np.sort(self.owners << 8 * SHINGLE | ranks)
        owners, ranks = packed >> 8 * SHINGLE, packed & _SHINGLES
        place = np.arange(len(owners)) - (np.cumsum(self.counts) - self.counts)[owners]
        least = np.ceil(NEARLY * self.counts - 1e-6).astype(np.int64)
        matrices = []
        for kept in (ranks > 0, (ranks > 0) & (place <= (self.counts - least)[owners])):
            entries = (np.ones(int(kept.sum()), np.int32), (owners[kept], ranks[kept]))
            matrices.append(sparse.csr_matrix(entries, shape=(len(self.counts), width + 1)))
        return matrices[0], matrices[1]

    def sketches(self) -> NDArray[np.uint64]:
        """Return a bit for each shingle of a text, uint64 (n, _BITS / 64): differing bits are of different shingles."""
        bits = self.shingles.astype(np.uint64) * _SPREAD >> np.uint64(64 - _BITS.bit_length() + 1)
        result = np.zeros((len(self.counts), _BITS // 64), np.uint64)
        np.bitwise_or.at(result, (self.owners, (bits >> np.uint64(6)).astype(np.int64)), np.uint64(1) << (bits & _SIX))
        return result


def _distinct(values: Ints) -> Ints:
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values
