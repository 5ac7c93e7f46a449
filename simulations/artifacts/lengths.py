"""How long texts are for an encoder, in its own tokens, before anything is cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.legible import legible
from client.store.text_column import Text
from mechanisms.pieces import encoded, read_as_text
from server.checkpoint_files import resolve

_AT_ONCE = 1 << 12


def token_lengths(model: str, texts: Sequence[Text]) -> NDArray[np.int64]:
    """Tokens of each text under a checkpoint's tokenizer, with those that it puts around a text, int64 (n,).

    Raises ValueError where the checkpoint has no tokenizer that can be read.
    """
    tokenizer = _tokenizer(model)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = read_as_text(tokenizer)
    lengths: list[int] = []
    for start in range(0, len(texts), _AT_ONCE):
        part = [legible(text) for text in texts[start : start + _AT_ONCE]]
        lengths += map(len, encoded(tokenizer, part, special))
    return np.array(lengths, dtype=np.int64)


def _tokenizer(model: str) -> Any:
    from tokenizers import Tokenizer

    source = Path(resolve(model))
    if (source / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(source / "tokenizer.json"))
    from server.checkpoint import load  # torch: a hub's model, or a folder with a vocabulary alone

    return load(model)[1].backend_tokenizer
