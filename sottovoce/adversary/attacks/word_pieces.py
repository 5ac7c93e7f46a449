"""Vocabulary of inversion: word pieces of the encoder that occur in public texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.stop_words import STOP_WORDS

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

#: Number of the most frequent pieces of public texts that are used.
_MOST = 2500


@dataclass(frozen=True, eq=False)
class Pieces:
    """Word pieces of public texts.

    Args:
        tokenizer: Tokenizer of the encoder.
        numbers: Numbers (U,) of the pieces that texts are assumed to consist of.
        content: Pieces to guess (U,), V in all: no stop words, punctuation, or parts of words.
        public: Guessed pieces (p, V) in each public text.
        table: Input embeddings (U, m).
        lower: Mean input embedding (p, m) over all pieces of each public text.
    """

    tokenizer: Any
    numbers: IntArray
    content: BoolArray
    public: BoolArray
    table: NDArray[np.float32]
    lower: NDArray[np.float32]

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, checkpoint: str, texts: tuple[str, ...]) -> Pieces:
        """Return the pieces of public texts.

        Raises:
            ValueError: The checkpoint cannot be read, or public texts hold nothing to guess.
        """
        from server.checkpoint import load  # torch, which a report on attacks does without
        from server.text_batches import pieces_of

        model, tokenizer = load(checkpoint)
        table = model.get_input_embeddings().weight.detach().numpy()
        rows = pieces_of(tokenizer, texts)
        piece_ids = np.concatenate([np.unique(row) for row in rows]).astype(np.int64)
        distinct, counts = np.unique(piece_ids, return_counts=True)
        numbers = np.sort(distinct[np.argsort(-counts, kind="stable")[:_MOST]])
        content = _content(tokenizer, numbers)
        if not content.any():
            raise ValueError("the public texts hold no content word")
        lower = np.stack([table[row].mean(axis=0) if len(row) else np.zeros_like(table[0]) for row in rows])
        return cls(tokenizer, numbers, content, _held(rows, numbers[content]), table[numbers], lower)

    def truth(self, texts: Sequence[str]) -> tuple[BoolArray, IntArray]:
        """Return the guessed pieces in each text, (n, V), and the number of its other content words, (n,)."""
        from server.text_batches import pieces_of

        rows = pieces_of(self.tokenizer, texts)
        distinct = [np.unique(np.array(row, dtype=np.int64)) for row in rows]
        totals = np.array([int(_content(self.tokenizer, row).sum()) for row in distinct], dtype=np.int64)
        presence = _held(distinct, self.numbers[self.content])
        return presence, totals - presence.sum(axis=1)


def _content(tokenizer: Any, numbers: IntArray) -> BoolArray:
    names = tokenizer.convert_ids_to_tokens(numbers.tolist())
    special = set(tokenizer.all_special_tokens)
    return np.array(
        [name[:1].isalnum() and name not in STOP_WORDS and name not in special for name in names], dtype=bool
    )


def _held(rows: Sequence[Any], numbers: IntArray) -> BoolArray:
    mask = np.zeros((len(rows), len(numbers)), dtype=bool)
    for i, row in enumerate(rows):
        at = np.searchsorted(numbers, row)
        at[at == len(numbers)] = 0
        mask[i, at[numbers[at] == row]] = True
    return mask
