"""Exported masked language model, identified by the hash of its content; needs only ONNX Runtime and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.content import content_hash
from client.models.onnx import LONGEST, bounds, fields, last_token, load_checked, longest, numbers, reached_alone, tried
from client.models.pieces import BATCH, STEP, Columns, Pieces, batches, in_pieces
from mechanisms.checks import is_whole
from mechanisms.pieces import read_as_text
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.language_model import Scores

FILES = ("model.onnx", "tokenizer.json", "masked_lm.json")
#: Fields of masked_lm.json, and what each may be.
_RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("before", "between", "after", "special"), lambda value: numbers(value, 2**31)),
    **dict.fromkeys(("mask", "unknown", "padding"), lambda value: is_whole(value, 0, 2**31 - 1)),
    **dict.fromkeys(("segments", "aligned"), lambda value: value in (0, 1)),
    **dict.fromkeys(("max_length", "low", "high"), lambda value: isinstance(value, int | float)),
}


class MaskedLM:
    """Masked language model in a folder that `server.masked_lm.export_masked_lm` wrote.

    Args:
        folder: Folder of the model.

    Attributes:
        low: Lower bound of its logits, calibrated on public text.
        high: Upper bound of its logits, calibrated on public text.

    Raises:
        ValueError: The folder holds no masked language model.
    """

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        self.identity = content_hash(folder, FILES, "masked-lm")
        self._about = about = fields("masked-lm", folder / "masked_lm.json", _RULES)
        least = sum(len(about[name]) for name in ("before", "between", "after")) + 2  # around two texts
        if not (is_whole(about["max_length"], least, LONGEST) and bounds(about["low"], about["high"])):
            raise ValueError(f"masked-lm: {folder / 'masked_lm.json'}: max_length or low and high are out of range")
        self.low, self.high = float(self._about["low"]), float(self._about["high"])
        self.max_length = int(self._about["max_length"])
        self._tokenizer, (self._session,) = load_checked("masked-lm", folder, "model.onnx")
        read_as_text(self._tokenizer, self._about["special"])
        self._inputs = [i.name for i in self._session.get_inputs()]
        self._run_options = reached_alone()
        self._known: dict[str, Pieces] = {}
        self._try(folder)

    def _try(self, folder: Path) -> None:
        """Raise ValueError unless short and long texts run, and a row has the same output alone and in a batch."""
        pieces, about = self._tokenizer.get_vocab_size(), self._about
        own = [i for name in ("before", "between", "after") for i in about[name]]
        own += [about[name] for name in ("mask", "unknown", "padding")]

        def made(output: str, length: int) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
            def run(rows: NDArray[np.int64]) -> NDArray[np.float32]:
                ids = [[*own, *((row * 7 + np.arange(length)) % pieces).tolist()][:length] for row in rows]
                ((_, (result,)),) = self._run([(row_ids, length // 2, length - 1) for row_ids in ids], output)
                if result.dtype != np.float32 or len(result) != len(rows):
                    raise ValueError("these are no rows")
                return result

            return run

        tried("masked-lm", folder, made("logits", min(4 * STEP, self.max_length)))
        for output in ("logits", "attention"):
            longest("masked-lm", folder, f"a text of max_length {self.max_length}", made(output, self.max_length))
        last_token("masked-lm", folder, self._tokenizer, lambda last: list(self._run([([last], 1, 0)], "logits")))

    def scores(self, x: NDArray[Any], vocabulary: Vocabulary) -> Scores:
        """Return the function that `DpMlm.sample` calls for raw logits of the vocabulary's words.

        The input is the original text, then the current text with its position masked (Meisenbacher et al. 2024,
        Algorithm 1). If both do not fit into max_length pieces, a window around the position is cut from both, word by
        word. A word that is no single piece of this model has the logit -inf, which is then clipped to the lower bound.
        In a text it is read as all its pieces, and an unknown word as the model's own.

        Args:
            x: Word ids (n, L) of the original texts, unknown ones included, NOTHING after the end.
            vocabulary: Vocabulary of the mechanism.

        Raises:
            ValueError: The vocabulary has no word in common with the model.
        """
        pieces = self._pieces(vocabulary)
        originals = [self._columns(row, pieces) for row in np.asarray(x)]
        single_ids = np.flatnonzero(pieces.single >= 0)

        def ask(
            positions: NDArray[np.int64], word_ids: NDArray[np.int64], rows: NDArray[np.int64]
        ) -> NDArray[np.float64]:
            pairs = [
                self._pair(originals[row], self._columns(word_ids[row], pieces), int(at))
                for at, row in zip(positions, rows, strict=True)
            ]
            table = np.full((len(rows), len(vocabulary)), -np.inf)
            for batch, (logits,) in self._run([(ids, first, at) for ids, first, at in pairs], "logits"):
                table[np.ix_(batch, single_ids)] = logits[:, pieces.single[single_ids]]
            return table

        return ask

    def importance(self, x: NDArray[Any], vocabulary: Vocabulary) -> NDArray[np.float64]:
        """Return the attention that each word gets from the words of its text, (n, L), with sum 1 for each text.

        It is the average over heads and layers, without special tokens (Fu 2024, section 5). The attention of a word is
        that of its pieces together. It is 0 at NOTHING. A long text is read in stretches that fit, each with a share in
        proportion to its words. Each stretch is read by itself: in a batch, the mean over layers and heads has other
        last bits, and two nearly equal words could change places because of other users' texts.

        Args:
            x: Word ids (n, L).
            vocabulary: Vocabulary of the mechanism.
        """
        pieces = self._pieces(vocabulary)
        texts = [self._columns(row, pieces) for row in np.asarray(x)]
        result = np.zeros(np.shape(x))
        where: list[tuple[int, list[int]]] = []
        inputs = []
        for row, columns in enumerate(texts):
            for stretch in self._stretches(columns):
                ids = [*self._about["before"], *(i for j in stretch for i in columns[j]), *self._about["after"]]
                inputs.append((ids, len(ids), 0))
                where.append((row, stretch))
        start = len(self._about["before"])
        for batch, (attention,) in self._run(inputs, "attention", at_once=1):
            for matrix, i in zip(attention, batch, strict=True):
                row, stretch = where[i]
                ends = start + np.cumsum([len(texts[row][j]) for j in stretch])
                inner = matrix[start : ends[-1], start : ends[-1]].astype(np.float64)
                received = np.add.reduceat(inner.sum(axis=0), np.concatenate([[start], ends[:-1]]) - start)
                result[row, stretch] = received / received.sum() * len(stretch)
        total = result.sum(axis=1, keepdims=True)
        shares: NDArray[np.float64] = np.divide(result, total, out=np.zeros_like(result), where=total > 0)
        return shares

    def _pieces(self, vocabulary: Vocabulary) -> Pieces:
        if vocabulary.identity not in self._known:
            self._known[vocabulary.identity] = in_pieces(
                "masked-lm",
                vocabulary,
                self._tokenizer,
                special=frozenset(self._about["special"]),
                unknown=(self._about["unknown"],),
            )
        return self._known[vocabulary.identity]

    def _columns(self, row: NDArray[np.int64], pieces: Pieces) -> Columns:
        room = self._room
        return [pieces.ids[i][:room] if i != NOTHING else () for i in row.tolist()]

    @property
    def _room(self) -> int:
        """Return the number of pieces for each of two texts."""
        return (self.max_length - sum(len(self._about[name]) for name in ("before", "between", "after"))) // 2

    def _pair(self, first: Columns, second: Columns, at: int) -> tuple[list[int], int, int]:
        """Return piece ids, the number of them before the second text, and the place of the mask."""
        second = [*second]
        second[at] = (self._about["mask"],)
        if sum(map(len, first)) + sum(map(len, second)) > 2 * self._room:
            low, high = _window(first, second, at, self._room)
            first, second, at = first[low:high], second[low:high], at - low
        ids = [*self._about["before"], *(i for word in first for i in word), *self._about["between"]]
        start = len(ids)
        ids += [i for word in second for i in word]
        return [*ids, *self._about["after"]], start, start + sum(map(len, second[:at]))

    def _stretches(self, columns: Columns) -> Iterator[list[int]]:
        """Yield the columns that hold a word, cut when max_length is reached."""
        room = self.max_length - len(self._about["before"]) - len(self._about["after"])
        stretch: list[int] = []
        used = 0
        for j, word in enumerate(columns):
            if word and used + len(word) > room:
                yield stretch
                stretch, used = [], 0
            if word:
                stretch.append(j)
                used += len(word)
        if stretch:
            yield stretch

    def _run(
        self, inputs: Sequence[tuple[list[int], int, int]], output: str, *, at_once: int = BATCH
    ) -> Iterator[tuple[NDArray[np.int64], list[NDArray[np.float32]]]]:
        """Yield input indices and their output, for inputs of one width.

        Args:
            inputs: Ids, start of the second text, and place.
            output: Name of the output.
            at_once: Inputs of a batch, at most.
        """
        for batch, (width,) in batches([(len(ids),) for ids, _, _ in inputs], at_once):
            shape = (len(batch), min(width, self.max_length))
            feeds = {
                "input_ids": np.full(shape, self._about["padding"], dtype=np.int64),
                "attention_mask": np.zeros(shape, dtype=np.int64),
                "token_type_ids": np.zeros(shape, dtype=np.int64),
                "position_ids": np.tile(np.arange(shape[1]), (shape[0], 1)),
                "positions": np.array([inputs[i][2] for i in batch], dtype=np.int64),
            }
            for row, i in enumerate(batch):
                ids, start, _ = inputs[i]
                feeds["input_ids"][row, : len(ids)] = ids
                feeds["attention_mask"][row, : len(ids)] = 1
                feeds["token_type_ids"][row, start : len(ids)] = int(self._about["segments"])
                # a model that is not aligned has no such input
                feeds["position_ids"][row, start : len(ids)] -= start - len(self._about["before"])
            inputs_of_graph = {name: feeds[name] for name in self._inputs}
            yield batch, self._session.run([output], inputs_of_graph, self._run_options)


def _window(first: Columns, second: Columns, at: int, room: int) -> tuple[int, int]:
    """Return columns [low, high) around `at` that fit into `room` pieces in both texts, extended on alternate sides."""
    length = max(len(first), len(second))
    sizes = np.zeros((2, length), dtype=np.int64)
    for row, columns in enumerate((first, second)):
        sizes[row, : len(columns)] = [len(word) for word in columns]
    low, high = at, at + 1
    used = sizes[:, at].copy()
    open_ = True
    while open_:
        open_ = False
        for column in (high if high < length else None, low - 1 if low > 0 else None):
            if column is not None and (used + sizes[:, column] <= room).all():
                used += sizes[:, column]
                low, high = min(low, column), max(high, column + 1)
                open_ = True
    return low, high


@lru_cache(maxsize=1)
def load(folder: Path | str) -> MaskedLM:
    """Return the masked language model in a folder, kept for the life of the process."""
    return MaskedLM(folder)
