"""Public words that text mechanisms read and write, with their vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, IntArray
from mechanisms.pieces import WAYS, spelled
from mechanisms.stop_words import STOP_WORDS

#: Universal part-of-speech tags (Petrov et al. 2011), by number.
TAGS = ("NOUN", "VERB", "ADJ", "ADV", "PRON", "DET", "ADP", "NUM", "CONJ", "PRT", ".", "X")
#: Id of a place without a token.
NOTHING = -1


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """V distinct public words, identified by the hash of their content. A word's position is its id.

    A word outside has the id V, `unknown`. Mechanisms take it as an input that lies at the mean of all vectors, and
    never return it. Two vocabularies of equal content are equal.

    Attributes:
        words: Words of any script, none empty.
        vectors: (V, m) float32, finite. Words may have equal vectors.
        counts: (V,) int64, occurrences of each in a *public* corpus; None if not counted.
        tags: (V,) int8, positions in TAGS; None if not tagged.
        pieces: Spelling of the words, one of `mechanisms.pieces.WAYS`, if they are pieces of a tokenizer; else "".

    Raises:
        ValueError: The content is anything else.
    """

    words: tuple[str, ...]
    vectors: NDArray[np.float32]
    counts: IntArray | None = None
    tags: NDArray[np.int8] | None = None
    pieces: str = ""

    def __post_init__(self) -> None:
        size = len(self.words)
        if size < 2 or not all(isinstance(w, str) and w for w in self.words):
            raise ValueError("vocabulary: at least two words are needed, and none may be empty")
        if len(self._ids) != size:
            raise ValueError("vocabulary: a word occurs twice")
        if self.pieces and self.pieces not in WAYS:
            raise ValueError(f"vocabulary: pieces must be one of {', '.join(WAYS)}, got {self.pieces!r}")
        shape = self.vectors.shape
        if self.vectors.dtype != np.float32 or self.vectors.ndim != 2 or shape[0] != size or not shape[1]:
            raise ValueError(f"vocabulary: vectors must be float32, one for each of {size} words, got {shape}")
        if not np.isfinite(self.vectors).all():
            bad = int(np.argmin(np.isfinite(self.vectors).all(axis=1)))
            raise ValueError(f"vocabulary: the vector of word {bad} is not finite")
        for name, values, kind in (("counts", self.counts, np.int64), ("tags", self.tags, np.int8)):
            if values is not None and (values.dtype != kind or values.shape != (size,) or values.min() < 0):
                raise ValueError(f"vocabulary: {name} must be {kind.__name__} of at least 0, one for each word")
        if self.tags is not None and self.tags.max() >= len(TAGS):
            raise ValueError(f"vocabulary: tags must be below {len(TAGS)}")
        for array in (self.vectors, self.counts, self.tags):
            if array is not None:
                array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def unknown(self) -> int:
        """Return the id of a word outside the vocabulary."""
        return len(self.words)

    @cached_property
    def identity(self) -> str:
        """Return SHA-256 (hex) over words, vectors, counts and tags, and the spelling of pieces."""
        digest = hashlib.sha256()
        if self.pieces:
            digest.update(f"pieces {self.pieces} ".encode())
        for word in self.words:
            data = word.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(4, "little") + data)
        for name, values in (("vectors", self.vectors), ("counts", self.counts), ("tags", self.tags)):
            if values is not None:
                data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
                digest.update(f"{name} {values.shape} ".encode() + hashlib.sha256(data).digest())
        return digest.hexdigest()

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def points(self) -> NDArray[np.float32]:
        """Return (V + 1, m) float32: the vectors, and their mean as that of an unknown word."""
        return np.vstack([self.vectors, self.vectors.mean(axis=0, dtype=np.float64)[None].astype(np.float32)])

    def exact_word_id(self, word: str) -> int | None:
        """Return the id of a word as it is written, or None."""
        return self._ids.get(word)

    def word_id(self, word: str) -> int:
        """Return the id of a word as it is written, else in lower case, else `unknown`."""
        exact = self._ids.get(word)
        if exact is None:
            exact = self._ids.get(word.lower(), self.unknown)
        return exact

    @cached_property
    def kinds(self) -> Mapping[str, BoolArray]:
        """Return masks of stop words, punctuation and numbers, (V + 1,) each; the unknown word is none of them."""
        return {
            "stop_words": self._which(lambda w: w.lower() in STOP_WORDS),
            "punctuation": self._which(is_punctuation),
            "numbers": self._which(is_number),
        }

    def _which(self, test: Any) -> BoolArray:
        return np.array([*(bool(test(w)) for w in self.words), False])

    def text(self, word_ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the words of those ids with spaces between, or the text that the pieces spell.

        NOTHING and ids out of range are left out.
        """
        words = [self.words[i] for i in word_ids if 0 <= i < len(self.words)]
        return spelled(words, self.pieces) if self.pieces else " ".join(words)


def is_punctuation(word: str) -> bool:
    """Return True if nothing in the word is a letter or a digit, in any script."""
    return not any(c.isalnum() for c in word)


def is_number(word: str) -> bool:
    """Return True if the word has digits and no letters."""
    return any(c.isdigit() for c in word) and not any(c.isalpha() for c in word)
