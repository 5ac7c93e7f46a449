"""Pieces of a language model's tokenizer: their spelling of a text, and the reading of a text as characters only.

A tokenizer reads the name of a special piece ("[MASK]", "</s>") as that piece. A text that contains one would change
the model's query. So `encoded` reads private and public texts, and every character in them is a character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

#: Spellings: pieces that continue a word begin with ##; pieces that begin one begin with ▁; or with Ġ, in the letters
#: that stand for bytes.
WORDPIECE, SENTENCEPIECE, BYTE_LEVEL = "wordpiece", "sentencepiece", "byte-level"
WAYS = (WORDPIECE, SENTENCEPIECE, BYTE_LEVEL)
#: Byte for which SentencePiece has no piece.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: Letters that few vocabularies have (cuneiform, hieroglyphs), and the number of times that a text is opened while its
#: pieces are still special ones.
_RARE, _TRIES = ("\U00012219", "\U00013080"), 8

#: Text, or a pair of two.
Text = str | tuple[str, str]


def byte_letters() -> dict[str, int]:
    """Return the byte of each letter of a byte-level piece (Radford et al. 2019).

    Printable bytes stand for themselves. The others have, in their order, letters from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_LETTERS = byte_letters()


def spelled(pieces: Sequence[str], way: str) -> str:
    """Return the text that pieces spell, with single spaces. It never fails: an invalid character becomes U+FFFD."""
    if way == WORDPIECE:
        text = " ".join(pieces).replace(" ##", "")
    else:
        of_bytes = way == BYTE_LEVEL
        text = b"".join(_bytes(piece, of_bytes) for piece in pieces).decode("utf-8", "replace")
    return " ".join(text.split())


def _bytes(piece: str, of_bytes: bool) -> bytes:
    if of_bytes and all(letter in _LETTERS for letter in piece):
        return bytes(_LETTERS[letter] for letter in piece)
    match = _BYTE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode("utf-8", "replace")


def read_as_text(tokenizer: Any, special: Collection[int] = ()) -> dict[int, str]:
    """Make a `tokenizers.Tokenizer` read the names of special pieces as characters.

    The setting is not part of what the tokenizer saves. It has no effect on a model whose own table has the names and
    which does not divide a text at punctuation, as SentencePiece's unigram model.

    Args:
        tokenizer: Tokenizer to be changed.
        special: More pieces that no text may have, beside those that the tokenizer declares or puts around a text.

    Returns:
        Special pieces that a text can spell all the same, by their numbers, for `encoded`.
    """
    tokenizer.encode_special_tokens = True
    added = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    named = {number: tokenizer.id_to_token(number) for number in added.union(special, tokenizer.encode("").ids)}
    unknown = {number for rare in _RARE for number in tokenizer.encode(rare, add_special_tokens=False).ids}
    unknown.add(tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or ""))
    names = {
        number: name if number in unknown else ""
        for number, name in ((number, name.strip()) for number, name in named.items() if name)
        if number in tokenizer.encode(name, add_special_tokens=False).ids
    }
    return {
        number: name
        for number, name in names.items()
        if not name or _typed(tokenizer.encode(name, add_special_tokens=False), name, {number: name})
    }


def encoded(tokenizer: Any, texts: Sequence[Text], special: Mapping[int, str], *, around: bool = True) -> list[Any]:
    """Return the `tokenizers.Encoding` of each text, without pieces of `special` except those put around.

    Args:
        tokenizer: Tokenizer after `read_as_text`.
        texts: Texts, or pairs of two.
        special: Result of `read_as_text`. For each piece its name if it also stands for characters that the model does
            not know, else "". A text that spells one is read with a space inside it.
        around: Whether the tokenizer's own pieces are put around a text.
    """
    encodings: list[Any] = tokenizer.encode_batch(list(texts), add_special_tokens=around)
    if special:
        for i, encoding in enumerate(encodings):
            if _typed(encoding, texts[i], special):
                sides = _sides(opened(tokenizer, texts[i], special))
                encodings[i] = tokenizer.encode(*sides, add_special_tokens=around)
    return encodings


def opened(tokenizer: Any, text: Text, special: Mapping[int, str]) -> Text:
    """Return a text without the names of special pieces: each gets a space inside."""
    for _ in range(_TRIES):
        sides = list(_sides(text))
        spans = _typed(tokenizer.encode(*sides, add_special_tokens=False), text, special)
        if not spans:
            return text
        for side, start, end in sorted(spans, reverse=True):
            first = start + (end - start > 1)
            sides[side] = f"{sides[side][:first]} {sides[side][max(first, start + 1) :]}"
        text = sides[0] if isinstance(text, str) else (sides[0], sides[1])
    return "" if isinstance(text, str) else ("", "")


def _sides(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _typed(encoding: Any, text: Text, special: Mapping[int, str]) -> list[tuple[int, int, int]]:
    """Return the places where a text spells a special piece: (side, start, end)."""
    if special.keys().isdisjoint(encoding.ids):
        return []
    sides, spans = _sides(text), []
    for number, own, side, (start, end) in zip(
        encoding.ids, encoding.special_tokens_mask, encoding.sequence_ids, encoding.offsets, strict=True
    ):
        if not own and number in special:
            name, written = special[number], sides[side or 0][start:end]
            if not name or unicodedata.normalize("NFKC", written).strip("▁ ") == name:
                spans.append((side or 0, start, end))
    return spans
