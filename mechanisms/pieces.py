"""How the pieces of a language model's tokenizer spell a text."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Names of the ways: pieces that go on with a word begin with ##; pieces that begin one begin with ▁; or with Ġ, in the
#: letters that stand for bytes.
WORDPIECE, SENTENCEPIECE, BYTE_LEVEL = "wordpiece", "sentencepiece", "byte-level"
WAYS = (WORDPIECE, SENTENCEPIECE, BYTE_LEVEL)
#: A byte that SentencePiece has no piece for.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level piece stands for (Radford et al. 2019): printable ones for themselves,
    the others, in their order, for letters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_LETTERS = byte_letters()


def spelled(pieces: Sequence[str], way: str) -> str:
    """The text that pieces spell, with single spaces; never fails: a broken character is U+FFFD."""
    if way == WORDPIECE:
        text = " ".join(pieces).replace(" ##", "")
    else:
        of_bytes = way == BYTE_LEVEL
        text = b"".join(_bytes(piece, of_bytes) for piece in pieces).decode("utf-8", "replace")
    return " ".join(text.split())


def _bytes(piece: str, of_bytes: bool) -> bytes:
    if of_bytes and all(letter in _LETTERS for letter in piece):
        return bytes(_LETTERS[letter] for letter in piece)
    one = _BYTE.fullmatch(piece)
    return bytes([int(one[1], 16)]) if one else piece.replace("▁", " ").encode("utf-8", "replace")
