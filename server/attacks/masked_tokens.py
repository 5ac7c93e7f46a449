"""Mask-token inference: each released word is masked in turn, and a language model guesses what stood there.

The attack of Yue et al. 2021 (section 6.3) and Fu 2024 (section 6): the guess is the word that a masked language model
finds most likely in the released words around it. It does not look at the released word itself, and reads what the
tokens of a text tell of each other, which no attack on single tokens does. (The query attack that Fu names beside it is
not described there.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING, Vocabulary
from server.masked_lm import inputs_of, layout, load, logits_at

IntArray = NDArray[np.int64]
Progress = Callable[[str], None]

_BATCH = 64


class MaskAttack:
    """checkpoint: what `server.masked_lm.load` reads, with a prediction head. Words of several of its pieces are read
    but never guessed. ValueError where the checkpoint cannot be read, or spells no word of the vocabulary."""

    def __init__(self, checkpoint: str | Path, vocabulary: Vocabulary) -> None:
        self._model, tokenizer = load(checkpoint)
        self._about = layout(self._model, tokenizer)
        special = set(self._about["special"])
        spelled = tokenizer(list(vocabulary.words), add_special_tokens=False)["input_ids"]
        self._pieces = [ids or [self._about["unknown"]] for ids in spelled]
        alone = [(ids[0], word) for word, ids in enumerate(spelled) if len(ids) == 1 and ids[0] not in special]
        pieces: dict[int, int] = {}
        for piece, word in alone:  # of several words that one piece spells, the first
            pieces.setdefault(piece, word)
        if not pieces:
            raise ValueError(f"masked-lm: no word of the vocabulary is a single piece of {checkpoint}")
        self._columns = torch.tensor(list(pieces), dtype=torch.int64)
        self._words = np.array(list(pieces.values()), dtype=np.int64)
        longest = int(getattr(self._model.config, "max_position_embeddings", 512))
        self._room = longest - len(self._about["before"]) - len(self._about["after"]) - 2  # some models count from 2

    def guesses(self, released: IntArray, *, progress: Progress = lambda line: None) -> IntArray:
        """The guess for each released word, (n, L) -> (n, L); NOTHING where there is none, and behind what the model
        can read at once."""
        out = np.full(released.shape, NOTHING, dtype=np.int64)
        waiting: list[tuple[int, int, list[int], int]] = []
        for row, numbers in enumerate(released):
            there = np.flatnonzero(numbers != NOTHING)
            ids = [self._pieces[number] for number in numbers[there]]
            starts = np.concatenate([[0], np.cumsum([len(piece) for piece in ids])]).astype(int)
            for i, place in enumerate(there):
                masked = [p for piece in (*ids[:i], [self._about["mask"]], *ids[i + 1 :]) for p in piece]
                if starts[i] < self._room:
                    waiting.append((row, int(place), masked[: self._room], int(starts[i])))
        waiting.sort(key=lambda each: len(each[2]))  # rows of a batch are alike in length
        for at in range(0, len(waiting), _BATCH):
            batch = waiting[at : at + _BATCH]
            rows, places = [w[0] for w in batch], [w[1] for w in batch]
            out[rows, places] = self._best([(w[2], w[3]) for w in batch])
            if at // 4096 != (at + _BATCH) // 4096:
                progress(f"{at + _BATCH:,} of {len(waiting):,} words masked")
        return out

    @torch.no_grad()
    def _best(self, masked: list[tuple[list[int], int]]) -> IntArray:
        inputs, starts = inputs_of(self._about, [(None, ids) for ids, _ in masked])
        columns = torch.tensor([start + at for start, (_, at) in zip(starts, masked, strict=True)])
        logits = logits_at(self._model, inputs, torch.arange(len(masked)), columns)
        return self._words[logits[:, self._columns].argmax(dim=1).numpy()]
