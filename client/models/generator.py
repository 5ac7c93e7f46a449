"""Exported generating language model, identified by the hash of its content; needs only ONNX Runtime and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.clean_text import clean_text
from client.models.content import content_hash
from client.models.onnx import LONGEST, bounds, fields, load_checked, longest, numbers, tried
from client.models.pieces import STEP, Pieces, batches, in_pieces
from mechanisms.checks import is_whole
from mechanisms.pieces import encoded, read_as_text
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.language_model import Scores

FILES = ("model.onnx", "tokenizer.json", "generator.json")
#: Of a model in two parts, beside those: the first part.
ENCODER = "encoder.onnx"
#: Fields of generator.json, and what each may be.
_RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("before", "after", "special"), lambda value: numbers(value, 2**31)),
    **dict.fromkeys(("start", "end", "unknown"), lambda value: value is None or is_whole(value, 0, 2**31)),
    "padding": lambda value: is_whole(value, 0, 2**31),
    "pieces": lambda value: is_whole(value, 1, 2**31 - 1),
    **dict.fromkeys(("max_length", "low", "high"), lambda value: isinstance(value, int | float)),
    "history": lambda value: is_whole(value, 1, LONGEST),
    "spelling": lambda value: isinstance(value, str),
}
#: Texts whose prompts' states are held at once.
_HELD = 256


def files(folder: Path | str) -> tuple[str, ...]:
    """Return the names of the files of the model in a folder."""
    return (*FILES, ENCODER) if (Path(folder) / ENCODER).is_file() else FILES


class Generator:
    """Generating model in a folder that `server.generation.export_generator` wrote, causal or of two parts.

    Args:
        folder: Folder of the model.

    Attributes:
        low: Lower bound of its logits, calibrated on public text.
        high: Upper bound of its logits, calibrated on public text.
        end: Token that ends a text; "" if there is none.

    Raises:
        ValueError: The folder holds no generating model.
    """

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        self.identity = content_hash(folder, files(folder), "generator")
        self._about = about = fields("generator", folder / "generator.json", _RULES)
        own = [*about["before"], *about["after"], *(about[name] or 0 for name in ("start", "end", "padding"))]
        least = len(about["before"]) + len(about["after"]) + 1
        inside = max(own) < about["pieces"] and is_whole(about["max_length"], least, LONGEST)
        if not (inside and bounds(about["low"], about["high"])):
            raise ValueError(f"generator: {folder / 'generator.json'}: a token, max_length or low are out of range")
        self.low, self.high = float(self._about["low"]), float(self._about["high"])
        parts = () if self._about["start"] is None else (ENCODER,)
        self._tokenizer, graphs = load_checked("generator", folder, "model.onnx", *parts)
        self._special = read_as_text(self._tokenizer, self._about["special"])
        self._session, self._encoder = graphs[0], graphs[1] if parts else None
        self._known: dict[str, Pieces] = {}
        self._try(folder)

    def _try(self, folder: Path) -> None:
        """Raise ValueError unless short and long texts run, and a row has the same output alone and in a batch."""
        about = self._about
        room = about["max_length"] - len(about["before"]) - len(about["after"])

        def logits(rows: NDArray[np.int64], length: int = min(2 * STEP, room), written: int = 3) -> Any:
            ids = [((row * 7 + np.arange(max(length, written))) % about["pieces"]).tolist() for row in rows]
            prompts = [[*about["before"], *row_ids[:length], *about["after"]] for row_ids in ids]
            answers = np.full((len(rows), about["pieces"]), np.nan, np.float32)
            read: dict[int, NDArray[np.float32]] = {}
            for batch, answer in self._next(
                read, prompts, np.arange(len(rows)), [row_ids[:written] for row_ids in ids]
            ):
                if answer.dtype != np.float32 or answer.shape != (len(batch), about["pieces"]):
                    raise ValueError("these are no logits")
                answers[batch] = answer
            return answers

        tried("generator", folder, logits)
        description = f"a prompt of max_length {about['max_length']} with a history of {about['history']} behind it"
        longest("generator", folder, description, partial(logits, length=room, written=about["history"]))

    @property
    def end(self) -> str:
        """Return the token that ends a text; "" if there is none."""
        end = self._about["end"]
        return "" if end is None else str(self._tokenizer.id_to_token(end))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the model's own tokens, mostly pieces of words, without special tokens except the end.

        The vectors are meaningless: no generating mechanism reads them.
        """
        out = set(self._about["special"]) - {self._about["end"]}
        named = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        names = tuple(name for name, i in named if name and i < self._about["pieces"] and i not in out)
        return Vocabulary(names, np.zeros((len(names), 1), np.float32), pieces=self._about["spelling"])

    def scores(self, texts: Sequence[str], vocabulary: Vocabulary) -> Scores:
        """Return the function that `DpPrompt.sample` calls for raw logits of the vocabulary's words as the next token.

        The logits are conditioned on the prompt with each private text, and on the words drawn so far. The private text
        is cut to the room in the prompt. Of the drawn words, the last pieces count, as many as the model has positions
        for. So no content of a text can make a draw fail. A word that is no single piece of this model has the logit
        -inf, which is then clipped to the lower bound. Once drawn, it is read as all its pieces.

        Raises:
            ValueError: The vocabulary has no word in common with the model.
        """
        pieces = self._pieces(vocabulary)
        single_ids = np.flatnonzero(pieces.single >= 0)
        before, after = self._about["before"], self._about["after"]
        room, history = self._about["max_length"] - len(before) - len(after), self._about["history"]
        prompts = [[*before, *self._plain(text)[:room], *after] for text in texts]
        read: dict[int, NDArray[np.float32]] = {}

        def ask(
            positions: NDArray[np.int64], word_ids: NDArray[np.int64], rows: NDArray[np.int64]
        ) -> NDArray[np.float64]:
            drawn = [
                [i for word in word_ids[row, :at] if word != NOTHING for i in pieces.ids[word]][-history:]
                for at, row in zip(positions, rows, strict=True)
            ]
            table = np.full((len(rows), len(vocabulary)), -np.inf)
            for batch, logits in self._next(read, prompts, rows, drawn):
                table[np.ix_(batch, single_ids)] = logits[:, pieces.single[single_ids]]
            return table

        return ask

    def _plain(self, text: str) -> list[int]:
        read = encoded(self._tokenizer, [str(clean_text(text))], self._special, around=False) if text else []
        ids = read[0].ids if read else []
        return [i if i < self._about["pieces"] else self._about["padding"] for i in ids]  # none that the model lacks

    def _pieces(self, vocabulary: Vocabulary) -> Pieces:
        if vocabulary.identity not in self._known:
            most, of = self._about["pieces"], self._about["unknown"]
            unknown = () if of is None or of >= most else (of,)
            special = frozenset(self._about["special"]) - {self._about["end"]}
            self._known[vocabulary.identity] = in_pieces(
                "generator", vocabulary, self._tokenizer, special=special, unknown=unknown, most=most
            )
        return self._known[vocabulary.identity]

    def _next(
        self,
        read: dict[int, NDArray[np.float32]],
        prompts: list[list[int]],
        rows: NDArray[np.int64],
        drawn: Sequence[list[int]],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield row indices and their logits behind these prompts, and behind the words drawn after each."""
        if self._encoder is None:
            return self._causal([[*prompts[row], *ids] for row, ids in zip(rows, drawn, strict=True)])
        self._read(read, prompts, rows.tolist())
        shown = [(read[row], len(prompts[row])) for row in rows.tolist()]
        return self._in_two_parts(shown, [[self._about["start"], *ids] for ids in drawn])

    def _causal(self, inputs: Sequence[list[int]]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield input indices and their logits behind the last token, for up to 32 inputs of one width."""
        for batch, width in batches([(len(ids),) for ids in inputs]):
            ids = [inputs[i] for i in batch]
            feeds = self._masked(ids, min(width[0], self._about["max_length"] + self._about["history"]))
            feeds["positions"] = np.array([len(row) - 1 for row in ids], dtype=np.int64)
            yield batch, self._session.run(["logits"], feeds)[0]

    def _in_two_parts(
        self, prompts: Sequence[tuple[NDArray[np.float32], int]], written: Sequence[list[int]]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the same as `_causal`, for a model in two parts.

        Args:
            prompts: States of each prompt, and how many of these are the prompt's.
            written: Tokens behind each prompt.
        """
        for batch, width in batches([(len(s), len(w)) for (s, _), w in zip(prompts, written, strict=True)]):
            last = [written[i] for i in batch]
            mask = np.arange(width[0])[None] < np.array([prompts[i][1] for i in batch])[:, None]
            states = np.zeros((len(batch), width[0], prompts[batch[0]][0].shape[1]), np.float32)
            for row, i in enumerate(batch):
                states[row, : len(prompts[i][0])] = prompts[i][0]
            feeds = {
                "states": states,
                "attention_mask": mask.astype(np.int64),
                "decoder_input_ids": self._padded(last, min(width[1], self._about["history"] + 1)),
                "positions": np.array([len(ids) - 1 for ids in last], dtype=np.int64),
            }
            yield batch, self._session.run(["logits"], feeds)[0]

    def _read(self, read: dict[int, NDArray[np.float32]], prompts: list[list[int]], rows: list[int]) -> None:
        """Put the states (length, d) of these prompts into `read`, each padded according to its own length.

        If there are too many, states of other prompts are dropped.
        """
        assert self._encoder is not None
        missing = [row for row in rows if row not in read]
        if missing and len(read) + len(missing) > _HELD:
            for row in [row for row in read if row not in set(rows)]:
                del read[row]
        for batch, width in batches([(len(prompts[row]),) for row in missing]):
            ids = [prompts[missing[i]] for i in batch]
            states = self._encoder.run(["states"], self._masked(ids, min(width[0], self._about["max_length"])))[0]
            read.update({missing[i]: row_states for i, row_states in zip(batch, states, strict=True)})

    def _masked(self, rows: Sequence[list[int]], width: int) -> dict[str, NDArray[np.int64]]:
        mask = np.arange(width)[None] < np.array([len(ids) for ids in rows])[:, None]
        return {"input_ids": self._padded(rows, width), "attention_mask": mask.astype(np.int64)}

    def _padded(self, rows: Sequence[list[int]], width: int) -> NDArray[np.int64]:
        ids = np.full((len(rows), width), self._about["padding"], dtype=np.int64)
        for row, row_ids in enumerate(rows):
            ids[row, : len(row_ids)] = row_ids
        return ids


@lru_cache(maxsize=2)
def load(folder: Path | str) -> Generator:
    """Return the generating model in a folder, kept for the life of the process."""
    return Generator(folder)
