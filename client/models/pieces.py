"""Vocabularies in the pieces of a language model's tokenizer, and batches of its inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mechanisms.vocabulary import Vocabulary

#: Inputs of a batch, at most.
BATCH = 32
#: Inputs are padded to the next multiple. The width of an input then depends on its own text alone, and a row has the
#: same last bits in every batch of its width (tested), so that a text is sanitized alike alone and in a cohort.
STEP = 8
#: The pieces of each column of a text; none where there is NOTHING.
Columns = list[tuple[int, ...]]


@dataclass(frozen=True)
class Pieces:
    """Vocabulary in the model's pieces.

    Attributes:
        ids: Pieces of each word id, V + 1 of them.
        single: (V,), the piece that a word is, or -1.
    """

    ids: Columns
    single: NDArray[np.int64]


def in_pieces(
    owner: str,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    *,
    special: frozenset[int],
    unknown: tuple[int, ...],
    most: float = math.inf,
) -> Pieces:
    """Return a vocabulary in the pieces of a tokenizer.

    A vocabulary of pieces is looked up by name.

    Args:
        owner: First word of errors.
        vocabulary: The vocabulary.
        tokenizer: Tokenizer of the model.
        special: Pieces that are no words.
        unknown: Pieces of a word that has no others.
        most: Number of pieces of the model, if its tokenizer may know more.

    Raises:
        ValueError: No word is a single piece. The message begins with `owner`.
    """
    by_name = bool(vocabulary.pieces) or json.loads(tokenizer.to_str())["model"]["type"] in ("WordPiece", "WordLevel")
    ids: Columns = []
    single = np.full(len(vocabulary), -1, dtype=np.int64)
    encodings = []
    if not vocabulary.pieces:
        # a space before: byte-level pieces of whole words begin with one, and others do not mind it
        encodings = tokenizer.encode_batch([" " + word for word in vocabulary.words], add_special_tokens=False)
    for word_id, word in enumerate(vocabulary.words):
        named = tokenizer.token_to_id(word) if by_name else None
        pieces = (named,) if named is not None else tuple(encodings[word_id].ids) if encodings else ()
        if not pieces or special & set(pieces) or max(pieces) >= most:
            pieces = unknown
        elif len(pieces) == 1:
            single[word_id] = pieces[0]
        ids.append(pieces)
    if not (single >= 0).any():
        raise ValueError(f"{owner}: no word of the vocabulary is a piece of this model; take its own words")
    return Pieces([*ids, unknown], single)


def batches(sizes: Sequence[tuple[int, ...]], at_once: int = BATCH) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
    """Yield indices of inputs of the same widths, at most `at_once`, and these widths, each a function of one input."""
    widths = np.array([[-(-size // STEP) * STEP for size in row] for row in sizes], dtype=np.int64)
    for width in np.unique(widths, axis=0) if len(widths) else ():
        same = np.flatnonzero((widths == width).all(axis=1))
        for begin in range(0, len(same), at_once):
            yield same[begin : begin + at_once], width.tolist()
