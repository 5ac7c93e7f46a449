"""Lengths of texts for an encoder, in its own tokens, before anything is cut; and shares of words it does not know."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.clean_text import clean_text
from client.models.tokens import sides_of, word_ids
from mechanisms.pieces import Text, encoded, read_as_text
from mechanisms.vocabulary import Vocabulary
from server.checkpoint_files import resolve

_AT_ONCE = 1 << 12
#: Largest number of texts whose words are looked up; it determines a share to 2 %.
SAMPLE = 2000
#: Share of unknown words from which a warning is due: English has a tenth at most in an English vocabulary.
MANY_UNKNOWN = 0.2
#: Number of pieces from which a word is unknown to the encoder, by the size of its vocabulary: in one of several
#: languages, common words of each are in two pieces.
_PIECES = ((100_000, 2), (1 << 62, 3))
#: Characters that are words of their own, in scripts without spaces.
_HAN = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")


def token_lengths(model: str, texts: Sequence[Text]) -> NDArray[np.int64]:
    """Return the tokens of each text under a checkpoint's tokenizer, with those put around a text, int64 (n,).

    Raises:
        ValueError: The checkpoint has no tokenizer that can be read.
    """
    tokenizer = _tokenizer(model)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = read_as_text(tokenizer)
    lengths: list[int] = []
    for start in range(0, len(texts), _AT_ONCE):
        part = [clean_text(text, None) for text in texts[start : start + _AT_ONCE]]
        lengths += map(len, encoded(tokenizer, part, special))
    return np.array(lengths, dtype=np.int64)


def unknown_share(model: str, texts: Sequence[Text]) -> float:
    """Return the share of words, of a sample of the texts, that a checkpoint's tokenizer does not know.

    It has no piece for such a word, or cuts it into several. For English in an English vocabulary the share is a tenth
    at most, for another language mostly more than a third.

    Raises:
        ValueError: The checkpoint has no tokenizer that can be read.
    """
    tokenizer = _tokenizer(model)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    read_as_text(tokenizer)
    least = next(pieces for size, pieces in _PIECES if tokenizer.get_vocab_size() < size)
    words = [word for text in sampled(texts) for word in _letters(text)]
    distinct = sorted(set(words))
    unknown = {tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "<unk>")}
    read = tokenizer.encode_batch([" " + word for word in distinct], add_special_tokens=False)
    bad = {
        word
        for word, item in zip(distinct, read, strict=True)
        if len(item.ids) >= least or not unknown.isdisjoint(item.ids)
    }
    return sum(word in bad for word in words) / max(1, len(words))


def outside(vocabulary: Vocabulary, texts: Sequence[str]) -> float:
    """Return the share of the words of texts that are outside a vocabulary."""
    ids = [word for text in texts for word in word_ids(text, vocabulary)]
    return ids.count(vocabulary.unknown) / max(1, len(ids))


def sampled(texts: Sequence[Text]) -> list[str]:
    """Return at most SAMPLE of the texts, evenly over all, as far as models read them; a pair as two."""
    step = -(-len(texts) // SAMPLE) or 1
    return [side for i in range(0, len(texts), step) for side in sides_of(clean_text(texts[i]), 2) if side]


def _letters(text: str) -> list[str]:
    """Return the runs of letters in a text, with the marks that they bear; for Han and Kana each character."""
    kept = "".join(sign if unicodedata.category(sign)[0] in "LM" else " " for sign in text)
    return _HAN.sub(r" \1 ", kept).split()


def _tokenizer(model: str) -> Any:
    from tokenizers import Tokenizer

    source = Path(resolve(model))
    if (source / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(source / "tokenizer.json"))
    from server.checkpoint import load  # torch: a hub's model, or a folder with a vocabulary alone

    return load(model)[1].backend_tokenizer
