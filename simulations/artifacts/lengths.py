"""Lengths of texts in an encoder's tokens, before anything is cut, and the share of words that a vocabulary lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.clean_text import clean_text
from client.models.tokens import word_ids
from mechanisms.pieces import Text, encoded, read_as_text
from mechanisms.vocabulary import Vocabulary
from server.checkpoint_files import resolve

_AT_ONCE = 1 << 12
#: Largest number of texts whose words are looked up; it determines a share to 2 %.
SAMPLE = 2000
#: Share of unknown words from which a warning is due: English has a tenth at most in an English vocabulary.
MANY_UNKNOWN = 0.2


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


def outside(vocabulary: Vocabulary, texts: Sequence[str]) -> float:
    """Return the share of the words of texts that are outside a vocabulary."""
    ids = [word for text in texts for word in word_ids(text, vocabulary)]
    return ids.count(vocabulary.unknown) / max(1, len(ids))


def _tokenizer(model: str) -> Any:
    from tokenizers import Tokenizer

    source = Path(resolve(model))
    if (source / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(source / "tokenizer.json"))
    from server.checkpoint import load  # torch: a hub's model, or a folder with a vocabulary alone

    return load(model)[1].backend_tokenizer
