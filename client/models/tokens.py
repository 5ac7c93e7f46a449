"""Conversion of text in any script to the word ids of a vocabulary.

Treatment of text that is not simply a word of the vocabulary (`mechanisms.words.text` states the costs):

chunk between spaces   looked up whole first, as written, then in lower case: already tokenized text ("do n't",
                       ":)") stays so
unknown word           looked up again in Unicode's composed and compatibility forms, and without accents or skins
                       ("café" as "cafe"); else it is one unknown word: see `TextMechanism.unknown`
contraction            "it's" is "it", "'s", and "don't" is "do", "n't"; where the vocabulary has "'" and "s", but no
                       "'s", "it", "'", "s" (and "don", "'", "t"); else the contraction is one unknown word
hyphen, apostrophe or  the parts, where one of them is known; a mark that the vocabulary does not have is left out of
underscore inside      them
number                 digits with . , : / - inside ("1,000.5", "12:30") are one word, and most often an unknown one:
                       `TextMechanism.numbers` is about those in the vocabulary
punctuation            each mark is a word, unless the vocabulary has several together ("...", ":)"); the Penn
                       Treebank's "``" and "-lrb-" also pass for the marks that they stand for;
                       `TextMechanism.punctuation` is about those in the vocabulary, another is an unknown word
emoji                  one word with its modifiers (a skin, a flag, a family)
Han characters         each one a word, unless the vocabulary has a run of them; of other scripts that leave no spaces,
                       a run of letters is one word
casing                 not kept: the release has the vocabulary's spelling
control characters     as spaces, NUL and zero-width spaces too; soft hyphens and marks of direction are left out
length                 words after `TextMechanism.tokens` are cut, on each side of a pair; an empty text has no words

The result is a function of the text and the public vocabulary. The time is linear in the text's length. It never fails.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.clean_text import clean_text
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import TextMechanism

#: Limits of the cache of chunks' word ids: characters of a chunk, and chunks.
_LONGEST, _MOST = 64, 2**17

_APOSTROPHES, _HYPHENS, _IN_NUMBERS = "'’ʼ＇", "-‐‑_", ".,:/"
_INNER = re.compile(f"([{re.escape(_APOSTROPHES + _HYPHENS)}])")
_STRAIGHT = str.maketrans(dict.fromkeys(_APOSTROPHES, "'"))
_CLITICS = ("n't", "'re", "'ve", "'ll", "'s", "'d", "'m")
#: Marks as the Penn Treebank writes them.
_TREEBANK = {"``": '"', "''": '"', "`": "'", "-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]"}

#: Joiners, variants and skins, which may be left out in looking up a word.
_PLAINER = "\u200c\u200d\ufe0e\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"

_ODD = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_CLEAN = {c: " " for c in (*range(0x20), *range(0x7F, 0xA0), 0x200B)} | dict.fromkeys(
    (0xAD, 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF), ""
)

# Pieces are found among the characters' classes (one letter for each character), because `re` knows no Unicode
# property: W letter, M combining mark, D digit, H Han, A apostrophe, Y hyphen, N mark that may stand inside a number,
# P other mark, E emoji, R half a flag, S skin, J joiner. Possessive: nothing is tried twice.
_PIECE = re.compile(
    r"(?P<emoji>RR|[ERS]M*+(?:SM*+)?+(?:JEM*+(?:SM*+)?+)*+)"
    r"|(?P<number>D[DM]*+(?:[NY]D[DM]*+)++)"
    r"|(?P<han>H[HM]*+)"
    r"|(?P<word>[WDM][WDMJ]*+(?:[AY][WDM][WDMJ]*+)*+)"
    r"|(?P<marks>[PNAY]++)"
)
_HAN = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x32000))
_EMOJI = ((0x2300, 0x2400), (0x2600, 0x27C0), (0x2B00, 0x2C00), (0x1F000, 0x1FB00))


class _Classes(dict[int, str]):
    """Cache of the class of each character, by its code point, as long as it stays small."""

    def __missing__(self, code: int) -> str:
        name = _class(code)
        if len(self) < 2**16:
            self[code] = name
        return name


def _class(code: int) -> str:
    character = chr(code)
    for members, name in ((_APOSTROPHES, "A"), (_HYPHENS, "Y"), (_IN_NUMBERS, "N"), ("\u200c\u200d", "J")):
        if character in members:
            return name
    if 0x1F1E6 <= code <= 0x1F1FF:
        return "R"
    if 0x1F3FB <= code <= 0x1F3FF:
        return "S"
    category = unicodedata.category(character)
    if category[0] == "M" or 0xE0020 <= code <= 0xE007F:
        return "M"
    if category[0] == "L":
        return "H" if any(low <= code < high for low, high in _HAN) else "W"
    if category[0] == "N":
        return "D"
    return "E" if category[0] == "S" and any(low <= code < high for low, high in _EMOJI) else "P"


_CLASSES = _Classes()


class _Reader:
    """Reader of the chunks of texts as words of one vocabulary. See the table of this module."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids_of_short = lru_cache(_MOST)(self._ids_of)  # nine times faster

    def ids(self, chunks: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Yield the ids of the words of a text's chunks, a few at a time."""
        return (self.word_ids(chunk) for chunk in chunks)

    def word_ids(self, chunk: str) -> tuple[int, ...]:
        """Return the ids of the words of a chunk."""
        return self._ids_of_short(chunk) if len(chunk) <= _LONGEST else self._ids_of(chunk)

    def _ids_of(self, chunk: str) -> tuple[int, ...]:
        return tuple(self._vocabulary.word_id(token) for token in self.tokens(chunk))

    def tokens(self, chunk: str) -> Iterator[str]:
        """Yield the words of a chunk."""
        entry = self._known(chunk)
        if entry is not None:
            yield entry
            return
        if (clitic := _clitic(chunk)) == chunk:
            yield from self._clitic(clitic)
            return
        for piece in _PIECE.finditer(chunk.translate(_CLASSES)):
            text = chunk[piece.start() : piece.end()]
            if piece.lastgroup == "word":
                yield from self._word(text)
            elif piece.lastgroup in ("han", "marks"):
                yield from self._run(text, each=piece.lastgroup == "han")
            else:
                yield self._known(text) or text

    def _known(self, word: str) -> str | None:
        """Return the form of the word that the vocabulary contains; None if there is none."""
        if self._has(word):
            return word
        if len(word) > _LONGEST:  # to normalize a long run of combining marks takes the square of its length
            return None
        for form in _forms(word):
            if self._has(form):
                return form
        return None

    def _has(self, word: str) -> bool:
        return bool(word) and self._vocabulary.word_id(word) != self._vocabulary.unknown

    def _word(self, word: str) -> Iterator[str]:
        entry = self._known(word)
        if entry is not None:
            yield entry
            return
        parts = [p for p in _INNER.split(word) if p]
        forms = [self._known(p) for p in parts]
        clitic = _clitic(word)
        if clitic and (self._known(clitic) or None in forms):
            yield from self._parts(word[: -len(clitic)])
            yield from self._clitic(clitic)
        else:
            yield from self._parts(word)

    def _parts(self, word: str) -> Iterator[str]:
        """Yield a known word, or its parts if one of them is known, or the word itself."""
        entry = self._known(word)
        parts = [] if entry else [p for p in _INNER.split(word) if p]
        forms = [self._known(p) for p in parts]
        if entry or not any(f for p, f in zip(parts, forms, strict=True) if not _INNER.fullmatch(p)):
            if word:
                yield entry or word
            return
        for part, form in zip(parts, forms, strict=True):
            if form or not _INNER.fullmatch(part):
                yield form or part

    def _clitic(self, clitic: str) -> Iterator[str]:
        """Yield one word, or its parts if all of them are known and the word is not."""
        entry = self._known(clitic)
        forms = [self._known(p) for p in _INNER.split(clitic) if p]
        if entry or None in forms:
            yield entry or clitic
        else:
            yield from (form for form in forms if form)

    def _run(self, run: str, *, each: bool) -> Iterator[str]:
        """Yield marks or Han characters: joined if they are known joined, else runs of the same mark, else each."""
        entry = self._known(run)
        if entry:
            yield entry
            return
        same = run if each else ("".join(group) for _, group in groupby(run))
        for part in same:
            together = self._known(part)
            if together:
                yield together
            else:
                yield from (self._known(character) or character for character in part)


def _forms(word: str) -> Iterator[str]:
    if word.isascii():
        if word.lower() in _TREEBANK:
            yield _TREEBANK[word.lower()]
        return
    composed = unicodedata.normalize("NFC", word)
    yield composed
    straight = composed.translate(_STRAIGHT)
    yield straight
    compatible = unicodedata.normalize("NFKD", straight)
    yield unicodedata.normalize("NFC", compatible)
    yield "".join(c for c in compatible if not unicodedata.combining(c) and c not in _PLAINER)


def _clitic(word: str) -> str:
    """Return the contraction at the end of a word, as written; "" if there is none."""
    for clitic in _CLITICS:
        tail = word[-len(clitic) :]
        if tail.translate(_STRAIGHT).lower() == clitic:
            return tail
    return ""


_reader = lru_cache(maxsize=4)(_Reader)


def _chunks(text: str) -> list[str]:
    if _ODD.search(text):
        text = text.translate(_CLEAN)
    return text.split()


def tokenize(text: str, vocabulary: Vocabulary) -> list[str]:
    """Return the words of a text, in the form that `vocabulary.word_id` knows, and unknown words as written."""
    reader = _reader(vocabulary)
    return [token for chunk in _chunks(text) for token in reader.tokens(chunk)]


def word_ids(text: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of all words of a text, with `vocabulary.unknown` for unknown words."""
    reader = _reader(vocabulary)
    return [word_id for ids in reader.ids(_chunks(text)) for word_id in ids]


def joined(text: str | tuple[str, str]) -> str:
    """Return a text, or the two texts of a pair with a space between."""
    return text if isinstance(text, str) else " ".join(text)


def sides_of(text: str | tuple[str, str], sides: int) -> tuple[str, ...]:
    """Return a text as `sides` texts: a pair as its two or `joined`; the second side of a single text is empty."""
    if sides == 1:
        return (joined(text),)
    return (text, "") if isinstance(text, str) else text


def in_form(texts: Sequence[str | tuple[str, str]], sides: int) -> list[str | tuple[str, str]]:
    """Return texts as a mechanism of `sides` sides releases them: as pairs, or as single texts (see `sides_of`)."""
    split: list[Any] = [sides_of(text, sides) for text in texts]
    return [text for (text,) in split] if sides == 1 else split


def padded_word_ids(texts: Sequence[str | tuple[str, str]], mechanism: TextMechanism) -> NDArray[np.int64]:
    """Return the word ids (n, positions) of n texts or pairs (see `sides_of`), as `mechanism.sample` takes them.

    Words of kinds that the mechanism drops are left out. Each side is cut after L = `mechanism.tokens` words, with
    NOTHING after its end.
    """
    reader = _reader(mechanism.vocabulary)
    padded = np.full((len(texts), mechanism.positions), NOTHING, dtype=np.int64)
    dropped = frozenset(np.flatnonzero(mechanism.dropped).tolist())
    for row, text in enumerate(texts):
        for part, side in zip(sides_of(clean_text(text), mechanism.sides), mechanism.slices, strict=True):
            ids = _first(reader, _chunks(part), dropped, mechanism.tokens)
            padded[row, side.start : side.start + len(ids)] = ids
    return padded


def _first(reader: _Reader, chunks: Iterable[str], dropped: frozenset[int], most: int) -> list[int]:
    """Return the first word ids that are not dropped, at most `most`."""
    ids: list[int] = []
    for new in reader.ids(chunks):
        ids.extend(i for i in new if i not in dropped) if dropped else ids.extend(new)
        if len(ids) >= most:
            return ids[:most]
    return ids
