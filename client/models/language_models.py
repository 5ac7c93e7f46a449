"""Exported language models, identified by the hash of their content; they need only ONNX Runtime and tokenizers.

A text mechanism names the kind of model that it reads. The folder that a node has is that model, or holds a subfolder
for each kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from client.models import onnx
from client.models.clean_text import clean_text
from mechanisms.checks import is_whole
from mechanisms.pieces import encoded, read_as_text
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.language_model import Scores

#: Kinds of models, as a word mechanism names them (`model`).
MASKED_LM, GENERATOR, PARAPHRASER = "masked-lm", "generator", "paraphraser"
#: Names of the kinds for people.
SAID = {MASKED_LM: "masked language model", GENERATOR: "generating model", PARAPHRASER: "paraphrasing model"}
MASKED_LM_FILES = ("model.onnx", "tokenizer.json", "masked_lm.json")
GENERATOR_FILES = ("model.onnx", "tokenizer.json", "generator.json")
#: Of a generating model in two parts, beside those: the first part.
ENCODER = "encoder.onnx"

#: Inputs of a batch, at most.
_BATCH = 32
#: Inputs are padded to the next multiple. The width of an input then depends on its own text alone, and a row has the
#: same last bits in every batch of its width (tested), so that a text is sanitized alike alone and in a cohort.
_STEP = 8
#: Texts whose prompts' states are held at once.
_HELD = 256
#: The pieces of each column of a text; none where there is NOTHING.
Columns = list[tuple[int, ...]]


def kind_of(mechanism: Any) -> str:
    """Return the kind of model that a text or word mechanism, or the class of one, reads."""
    return str(getattr(getattr(mechanism, "word", mechanism), "model", MASKED_LM))


def part(folder: Path | str, kind: str) -> Path:
    """Return the folder of a model of that kind: the subfolder of its name if there is one, else the folder itself."""
    inside = Path(folder) / kind
    return inside if inside.is_dir() else Path(folder)


def files(folder: Path | str, kind: str) -> tuple[str, ...]:
    """Return the names of the files of the model of that kind."""
    if kind == MASKED_LM:
        return MASKED_LM_FILES
    return (*GENERATOR_FILES, ENCODER) if (part(folder, kind) / ENCODER).is_file() else GENERATOR_FILES


def identity(folder: Path | str, kind: str) -> str:
    """Return the SHA-256 (hex) over the files of the model of that kind.

    Raises:
        ValueError: A file is missing.
    """
    return onnx.content_hash(part(folder, kind), files(folder, kind), kind)


def load(folder: Path | str, kind: str) -> MaskedLM | Generator:
    """Return the model of that kind, kept for the life of the process.

    Raises:
        ValueError: There is none. The message is one line.
    """
    if kind not in SAID:
        raise ValueError(f"text: reads a language model of the kind {kind!r}; known: {', '.join(SAID)}")
    return _loaded(part(folder, kind), kind == MASKED_LM)


@lru_cache(maxsize=3)
def _loaded(folder: Path, masked: bool) -> MaskedLM | Generator:
    return MaskedLM(folder) if masked else Generator(folder)


def known(folder: Path | str | None, mechanism: Any, name: str) -> bool:
    """Return whether the folder has the model that a text mechanism reads, with the identity `name`."""
    try:
        return folder is not None and load(folder, kind_of(mechanism)).identity == name
    except ValueError:  # it holds another kind
        return False


def said(kind: Any, model: MaskedLM | Generator) -> dict[str, Any]:
    """Return the bounds of the model's logits, if a class of word mechanisms takes them as public parameters."""
    takes = {f.name for f in fields(kind)}
    return {name: value for name, value in (("low", model.low), ("high", model.high)) if name in takes}


@dataclass(frozen=True)
class Pieces:
    """Vocabulary in the model's pieces.

    Attributes:
        ids: Pieces of each word id, V + 1 of them.
        single: (V,), the piece that a word is, or -1.
    """

    ids: Columns
    single: NDArray[np.int64]


def _batches(sizes: Sequence[tuple[int, ...]], at_once: int = _BATCH) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
    """Yield indices of inputs of the same widths, at most `at_once`, and these widths, each a function of one input."""
    widths = np.array([[-(-size // _STEP) * _STEP for size in row] for row in sizes], dtype=np.int64)
    for width in np.unique(widths, axis=0) if len(widths) else ():
        same = np.flatnonzero((widths == width).all(axis=1))
        for begin in range(0, len(same), at_once):
            yield same[begin : begin + at_once], width.tolist()


class _LanguageModel:
    """Model in a folder: its public bounds, and what its tokenizer makes of a vocabulary.

    Attributes:
        identity: SHA-256 (hex) over its files.
        max_length: Largest number of pieces of its texts and of what stands around them.
        low: Lower bound of its logits, calibrated on public text.
        high: Upper bound of its logits, calibrated on public text.
    """

    #: First word of errors, number of texts in an input, and for each field of the folder's description what it may be.
    _kind: ClassVar[str]
    _texts: ClassVar[int]
    _rules: ClassVar[Mapping[str, Callable[[Any], bool]]]

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.identity = onnx.content_hash(folder, names, self._kind)
        self._about = about = onnx.fields(self._kind, folder / names[2], self._rules)
        self._around = [i for name in ("before", "between", "after") for i in about.get(name, ())]
        tokens = [*self._around, *(about.get(name) or 0 for name in ("start", "end", "padding"))]
        inside = max(tokens) < about.get("pieces", math.inf) and onnx.bounds(about["low"], about["high"])
        if not (inside and is_whole(about["max_length"], len(self._around) + self._texts, onnx.LONGEST)):
            raise ValueError(f"{self._kind}: {folder / names[2]}: a token, max_length or low and high are out of range")
        self.low, self.high, self.max_length = float(about["low"]), float(about["high"]), int(about["max_length"])
        self._room = self.max_length - len(self._around)
        graphs = [name for name in names if name.endswith(".onnx")]
        self._tokenizer, (self._session, *self._others) = onnx.load_checked(self._kind, folder, *graphs)
        self._special = read_as_text(self._tokenizer, about["special"])
        self._known: dict[str, Pieces] = {}

    def _pieces(self, vocabulary: Vocabulary) -> Pieces:
        """Return a vocabulary in the pieces of the model; one of pieces is looked up by name.

        A word of pieces that the model lacks, or that are no words, is the unknown one.
        """
        if vocabulary.identity in self._known:
            return self._known[vocabulary.identity]
        about, tokenizer = self._about, self._tokenizer
        most, special = about.get("pieces", math.inf), {*about["special"]} - {about.get("end")}
        unknown = () if about["unknown"] is None or about["unknown"] >= most else (about["unknown"],)
        of_words = json.loads(tokenizer.to_str())["model"]["type"] in ("WordPiece", "WordLevel")
        ids: Columns = []
        single = np.full(len(vocabulary), -1, dtype=np.int64)
        encodings = []
        if not vocabulary.pieces:
            # a space before: byte-level pieces of whole words begin with one, and others do not mind it
            encodings = tokenizer.encode_batch([" " + word for word in vocabulary.words], add_special_tokens=False)
        for word_id, word in enumerate(vocabulary.words):
            named = tokenizer.token_to_id(word) if of_words or vocabulary.pieces else None
            pieces = (named,) if named is not None else tuple(encodings[word_id].ids) if encodings else ()
            if not pieces or special & set(pieces) or max(pieces) >= most:
                pieces = unknown
            elif len(pieces) == 1:
                single[word_id] = pieces[0]
            ids.append(pieces)
        if not (single >= 0).any():
            raise ValueError(f"{self._kind}: no word of the vocabulary is a piece of this model; take its own words")
        self._known[vocabulary.identity] = Pieces([*ids, unknown], single)
        return self._known[vocabulary.identity]

    def _table(
        self, vocabulary: Vocabulary, rows: int, logits: Iterable[tuple[NDArray[np.int64], NDArray[np.float32]]]
    ) -> NDArray[np.float64]:
        """Return logits (rows, V) of words from those of pieces; -inf for a word that is no single piece."""
        single = self._pieces(vocabulary).single
        words, table = np.flatnonzero(single >= 0), np.full((rows, len(vocabulary)), -np.inf)
        for batch, values in logits:
            table[np.ix_(batch, words)] = values[:, single[words]]
        return table

    def _padded(self, rows: Sequence[list[int]], width: int) -> NDArray[np.int64]:
        ids = np.full((len(rows), width), self._about["padding"], dtype=np.int64)
        for row, row_ids in enumerate(rows):
            ids[row, : len(row_ids)] = row_ids
        return ids

    def _masked(self, rows: Sequence[list[int]], width: int) -> dict[str, NDArray[np.int64]]:
        mask = np.arange(width)[None] < np.array([len(ids) for ids in rows])[:, None]
        return {"input_ids": self._padded(rows, width), "attention_mask": mask.astype(np.int64)}


class MaskedLM(_LanguageModel):
    """Masked language model in a folder that `server.masked_lm.export_masked_lm` wrote.

    Args:
        folder: Folder of the model.

    Raises:
        ValueError: The folder holds no masked language model.
    """

    _kind, _texts = MASKED_LM, 2
    _rules: ClassVar[Mapping[str, Callable[[Any], bool]]] = {
        **dict.fromkeys(("before", "between", "after", "special"), lambda value: onnx.numbers(value, 2**31)),
        **dict.fromkeys(("mask", "unknown", "padding"), lambda value: is_whole(value, 0, 2**31 - 1)),
        **dict.fromkeys(("segments", "aligned"), lambda value: value in (0, 1)),
        **dict.fromkeys(("max_length", "low", "high"), lambda value: isinstance(value, int | float)),
    }

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        super().__init__(folder, MASKED_LM_FILES)
        self._inputs = [i.name for i in self._session.get_inputs()]
        self._run_options = onnx.reached_alone()
        self._try(folder)

    def _try(self, folder: Path) -> None:
        """Raise ValueError unless short and long texts run, and a row has the same output alone and in a batch."""
        pieces = self._tokenizer.get_vocab_size()
        own = [*self._around, *(self._about[name] for name in ("mask", "unknown", "padding"))]

        def made(output: str, length: int) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
            def run(rows: NDArray[np.int64]) -> NDArray[np.float32]:
                ids = [[*own, *((row * 7 + np.arange(length)) % pieces).tolist()][:length] for row in rows]
                ((_, result),) = self._run([(row_ids, length // 2, length - 1) for row_ids in ids], output)
                if result.dtype != np.float32 or len(result) != len(rows):
                    raise ValueError("these are no rows")
                return result

            return run

        onnx.tried(self._kind, folder, made("logits", min(4 * _STEP, self.max_length)))
        for output in ("logits", "attention"):
            what = f"a text of max_length {self.max_length}"
            onnx.longest(self._kind, folder, what, made(output, self.max_length))
        onnx.last_token(self._kind, folder, self._tokenizer, lambda last: list(self._run([([last], 1, 0)], "logits")))

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

        def ask(
            positions: NDArray[np.int64], word_ids: NDArray[np.int64], rows: NDArray[np.int64]
        ) -> NDArray[np.float64]:
            pairs = [
                self._pair(originals[row], self._columns(word_ids[row], pieces), int(at))
                for at, row in zip(positions, rows, strict=True)
            ]
            return self._table(vocabulary, len(rows), self._run(pairs, "logits"))

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
        for batch, attention in self._run(inputs, "attention", at_once=1):
            for matrix, i in zip(attention, batch, strict=True):
                row, stretch = where[i]
                ends = start + np.cumsum([len(texts[row][j]) for j in stretch])
                inner = matrix[start : ends[-1], start : ends[-1]].astype(np.float64)
                received = np.add.reduceat(inner.sum(axis=0), np.concatenate([[start], ends[:-1]]) - start)
                result[row, stretch] = received / received.sum() * len(stretch)
        total = result.sum(axis=1, keepdims=True)
        shares: NDArray[np.float64] = np.divide(result, total, out=np.zeros_like(result), where=total > 0)
        return shares

    def _columns(self, row: NDArray[np.int64], pieces: Pieces) -> Columns:
        return [pieces.ids[i][: self._room // 2] if i != NOTHING else () for i in row.tolist()]

    def _pair(self, first: Columns, second: Columns, at: int) -> tuple[list[int], int, int]:
        """Return piece ids, the number of them before the second text, and the place of the mask."""
        second, room = [*second], self._room // 2
        second[at] = (self._about["mask"],)
        if sum(map(len, first)) + sum(map(len, second)) > 2 * room:
            low, high = _window(first, second, at, room)
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
        self, inputs: Sequence[tuple[list[int], int, int]], output: str, *, at_once: int = _BATCH
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield input indices and their output, for inputs of one width.

        Args:
            inputs: Ids, start of the second text, and place.
            output: Name of the output.
            at_once: Inputs of a batch, at most.
        """
        for batch, (width,) in _batches([(len(ids),) for ids, _, _ in inputs], at_once):
            ids, starts, places = zip(*(inputs[i] for i in batch), strict=True)
            feeds = self._masked(ids, min(width, self.max_length))
            start = np.array(starts)[:, None]
            columns = np.arange(feeds["input_ids"].shape[1])
            second = (columns >= start) * feeds["attention_mask"]
            feeds |= {
                "token_type_ids": second * int(self._about["segments"]),
                # a model that is not aligned has no such input
                "position_ids": columns - second * (start - len(self._about["before"])),
                "positions": np.array(places, dtype=np.int64),
            }
            yield batch, self._session.run([output], {name: feeds[name] for name in self._inputs}, self._run_options)[0]


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


class Generator(_LanguageModel):
    """Generating model in a folder that `server.generation.export_generator` wrote, causal or of two parts.

    Args:
        folder: Folder of the model.

    Attributes:
        end: Token that ends a text; "" if there is none.

    Raises:
        ValueError: The folder holds no generating model.
    """

    _kind, _texts = GENERATOR, 1
    _rules: ClassVar[Mapping[str, Callable[[Any], bool]]] = {
        **dict.fromkeys(("before", "after", "special"), lambda value: onnx.numbers(value, 2**31)),
        **dict.fromkeys(("start", "end", "unknown"), lambda value: value is None or is_whole(value, 0, 2**31)),
        "padding": lambda value: is_whole(value, 0, 2**31),
        "pieces": lambda value: is_whole(value, 1, 2**31 - 1),
        **dict.fromkeys(("max_length", "low", "high"), lambda value: isinstance(value, int | float)),
        "history": lambda value: is_whole(value, 1, onnx.LONGEST),
        "spelling": lambda value: isinstance(value, str),
    }

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        super().__init__(folder, names := files(folder, GENERATOR))
        if (self._about["start"] is None) == (ENCODER in names):
            raise ValueError(f"generator: {folder} has {ENCODER}, or a token to start with, and not both")
        self._encoder = self._others[0] if self._others else None
        self._try(folder)

    def _try(self, folder: Path) -> None:
        """Raise ValueError unless short and long texts run, and a row has the same output alone and in a batch."""
        about = self._about

        def logits(rows: NDArray[np.int64], length: int = min(2 * _STEP, self._room), written: int = 3) -> Any:
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

        onnx.tried(self._kind, folder, logits)
        description = f"a prompt of max_length {self.max_length} with a history of {about['history']} behind it"
        onnx.longest(self._kind, folder, description, partial(logits, length=self._room, written=about["history"]))

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
        pieces, history = self._pieces(vocabulary), self._about["history"]
        before, after = self._about["before"], self._about["after"]
        prompts = [[*before, *self._plain(text)[: self._room], *after] for text in texts]
        read: dict[int, NDArray[np.float32]] = {}

        def ask(
            positions: NDArray[np.int64], word_ids: NDArray[np.int64], rows: NDArray[np.int64]
        ) -> NDArray[np.float64]:
            drawn = [
                [i for word in word_ids[row, :at] if word != NOTHING for i in pieces.ids[word]][-history:]
                for at, row in zip(positions, rows, strict=True)
            ]
            return self._table(vocabulary, len(rows), self._next(read, prompts, rows, drawn))

        return ask

    def _plain(self, text: str) -> list[int]:
        read = encoded(self._tokenizer, [str(clean_text(text))], self._special, around=False) if text else []
        ids = read[0].ids if read else []
        return [i if i < self._about["pieces"] else self._about["padding"] for i in ids]  # none that the model lacks

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
        for batch, width in _batches([(len(ids),) for ids in inputs]):
            ids = [inputs[i] for i in batch]
            feeds = self._masked(ids, min(width[0], self.max_length + self._about["history"]))
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
        for batch, width in _batches([(len(s), len(w)) for (s, _), w in zip(prompts, written, strict=True)]):
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
        for batch, width in _batches([(len(prompts[row]),) for row in missing]):
            ids = [prompts[missing[i]] for i in batch]
            states = self._encoder.run(["states"], self._masked(ids, min(width[0], self.max_length)))[0]
            read.update({missing[i]: row_states for i, row_states in zip(batch, states, strict=True)})
