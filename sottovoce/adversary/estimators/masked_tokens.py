"""Mask-token inference: a language model guesses each released word from the words around it.

This is the attack of Yue et al. 2021 (section 5.3) and Fu 2024 (section 6). The guess is the likeliest word of a masked
language model in the place of each released word, given the released words around it. It ignores the released word
itself. It uses what the tokens of a text reveal about each other, which no attack on single tokens does. (Fu also names
a query attack without a description.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import NOTHING, Vocabulary
from server.accelerator import device, one_line_memory_error
from server.checkpoint import positions
from server.masked_lm import inputs_of, layout, load, logits_at

log = logging.getLogger(__name__)


_BATCH = 64


class MaskAttack:
    """Mask-token inference with one language model.

    Words of several pieces of the model are read but never guessed.

    Args:
        checkpoint: Checkpoint for `server.masked_lm.load`, with a prediction head.
        vocabulary: Vocabulary of the releases.

    Raises:
        ValueError: The checkpoint cannot be read, or spells no word of the vocabulary.
    """

    def __init__(self, checkpoint: str | Path, vocabulary: Vocabulary) -> None:
        self._model, tokenizer = load(checkpoint)
        where = device()
        with one_line_memory_error():
            self._model.to(where)  # for good: this object alone has the model, and reads a few words at a time
        self._about = layout(self._model, tokenizer)
        special = set(self._about["special"])
        piece_lists = tokenizer(list(vocabulary.words), add_special_tokens=False)["input_ids"]
        self._pieces = [ids or [self._about["unknown"]] for ids in [*piece_lists, []]]  # the unknown word is the last
        single_pieces = [
            (ids[0], word) for word, ids in enumerate(piece_lists) if len(ids) == 1 and ids[0] not in special
        ]
        pieces: dict[int, int] = {}
        for piece, word in single_pieces:  # of several words that one piece spells, the first counts
            pieces.setdefault(piece, word)
        if not pieces:
            raise ValueError(f"masked-lm: no word of the vocabulary is a single piece of {checkpoint}")
        self._columns = torch.tensor(list(pieces), dtype=torch.int64, device=where)
        self.words = np.array(list(pieces.values()), dtype=np.int64)
        longest = positions(self._model) or 512
        self._room = longest - len(self._about["before"]) - len(self._about["after"])

    def guesses(self, released: IntArray) -> IntArray:
        """Return the guess for each released word, (n, L).

        It is NOTHING where there is no word, and behind what the model can read at once.

        Args:
            released: Released words (n, L).
        """
        result = np.full(released.shape, NOTHING, dtype=np.int64)
        rows, places = np.nonzero(released != NOTHING)
        for item, logits in self._masked(released, rows, places):
            result[rows[item], places[item]] = self.words[logits.argmax(axis=1)]
        return result

    def _masked(self, texts: IntArray, rows: IntArray, places: IntArray) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield some of (rows, places), by number, and the logits of `words` with that place masked.

        Places behind what the model can read at once are left out.
        """
        queue: list[tuple[int, list[int], int]] = []
        for number, (row, place) in enumerate(zip(rows, places, strict=True)):
            word_places = np.flatnonzero(texts[row] != NOTHING)
            ids = [self._pieces[word] for word in texts[row, word_places]]
            i = int(np.searchsorted(word_places, place))
            start = sum(len(piece) for piece in ids[:i])
            if start < self._room:
                ids_with_mask = [p for piece in (*ids[:i], [self._about["mask"]], *ids[i + 1 :]) for p in piece]
                queue.append((number, ids_with_mask[: self._room], start))
        queue.sort(key=lambda entry: len(entry[1]))  # rows of a batch have similar lengths
        for at in range(0, len(queue), _BATCH):
            batch = queue[at : at + _BATCH]
            yield np.array([w[0] for w in batch]), self._logits([(ids, start) for _, ids, start in batch])
            if at // 4096 != (at + _BATCH) // 4096:
                log.info(f"{at + _BATCH:,} of {len(queue):,} words masked")

    def _logits(self, masked: list[tuple[list[int], int]]) -> FloatArray:
        inputs, starts = inputs_of(self._about, [(None, ids) for ids, _ in masked])
        columns = torch.tensor([start + at for start, (_, at) in zip(starts, masked, strict=True)])
        with one_line_memory_error(), torch.no_grad():
            logits = logits_at(self._model, inputs, torch.arange(len(masked)), columns)
            return logits[:, self._columns].double().cpu().numpy()
