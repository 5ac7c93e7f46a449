"""Exported sentence encoder, identified by the hash of its content; needs only ONNX Runtime and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from client.models.clean_text import clean_text
from client.models.onnx import LONGEST, content_hash, cores, fields, last_token, load_checked, longest, tried
from mechanisms.checks import is_whole
from mechanisms.pieces import Text, encoded, read_as_text

FILES = ("model.onnx", "tokenizer.json", "encoder.json")
_POOLINGS = ("mean", "cls", "last", "mean-normalized", "cls-normalized", "last-normalized")
PRECISIONS = ("fp32", "int8", "int4")

#: The widest states there are.
_WIDEST = 2**16
#: Fields of encoder.json, and what each may be.
_RULES: dict[str, Callable[[Any], bool]] = {
    "pooling": lambda value: value in _POOLINGS,
    "max_length": lambda value: is_whole(value, 2, LONGEST),
    "dim": lambda value: is_whole(value, 2, _WIDEST),
    "precision": lambda value: value in PRECISIONS,
}
#: Tokens of a batch, about: the output of a layer stays in a core's cache.
_TOKENS = 1024
#: Texts that are tokenized at once: enough for full batches of every length, and a tokenized text is large.
_CHUNK = 1 << 14
#: Tokens of the texts that a graph is tried with.
_PROBE = 7


def identity(folder: Path | str) -> str:
    """Return the SHA-256 (hex) over the names and contents of an encoder's three files.

    Raises:
        ValueError: A file is missing.
    """
    return content_hash(folder, FILES, "encoder")


class Encoder:
    """Encoder in a folder: model.onnx, tokenizer.json and encoder.json.

    model.onnx maps token ids to the last hidden state. encoder.json is {"pooling": "mean" | "cls" | "last", each also
    with "-normalized" for unit length, "max_length": tokens, "dim": m, "precision": "fp32" | "int8" | "int4"}, with
    fp32 as the default. A prefix before every text, as "query: ", is part of the tokenizer.

    The encoder is a function of one text, whose every character is read as a character ("[SEP]" too,
    `mechanisms.pieces`). Batches hold texts of one length in tokens, so nothing is padded, and ONNX Runtime's CPU
    kernels then work row by row: the sums of a row run in the same order for any other rows in the batch and any number
    of threads. The bits of an embedding therefore depend on the text alone, not on its batch, and may be stored for
    each text.

    This property depends on the kernels of the installed ONNX Runtime, so it is checked on every start. A graph that
    fails the check is refused, because it would carry information of one user's text into another's embedding. An
    example is dynamic quantization, whose scale is that of a whole batch.

    Args:
        folder: Folder of the encoder.
        threads: Number of batches that are processed at once, each on one thread. None takes $OMP_NUM_THREADS if it is
            set, as in an actor that has one of the cores, and else all cores.

    Raises:
        ValueError: The folder holds no encoder, or one whose embeddings depend on the batch.
    """

    def __init__(self, folder: Path | str, *, threads: int | None = None) -> None:
        folder = self.folder = Path(folder)
        self.identity = identity(folder)
        about = fields("encoder", folder / "encoder.json", _RULES, precision="fp32")
        self.pooling, self.max_length, self.dim, self.precision = (about[name] for name in _RULES)
        self._tokenizer, (self._session,) = load_checked("encoder", folder, "model.onnx", threads=1)
        self.threads = cores() if threads is None else threads
        self._special = read_as_text(self._tokenizer)
        self._tokenizer.enable_truncation(self.max_length)
        self._inputs = [i.name for i in self._session.get_inputs()]
        self._refuse_a_dependence_on_the_batch()

    def encode(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return embeddings (n, m) float32 of texts or (first, second) pairs, in the given order.

        Texts are read as `clean_text` returns them. The embedding is 0 for a text without a token, if the tokenizer
        puts none around it. The same text has the same bits in any list.
        """
        embeddings = np.zeros((len(texts), self.dim), dtype=np.float32)
        with ThreadPoolExecutor(self.threads) as pool:
            run = map if self.threads == 1 else pool.map
            for start in range(0, len(texts), _CHUNK):
                batches = list(self._batches(texts[start : start + _CHUNK]))
                answers = run(self._batch, [encodings for _, encodings in batches])
                for (rows, _), answer in zip(batches, answers, strict=True):
                    embeddings[start + rows] = answer
        return embeddings

    def _batches(self, texts: Sequence[Text]) -> Iterator[tuple[NDArray[np.int64], list[Encoding]]]:
        """Yield positions and encodings of texts of one length in tokens; longest first, so the last ones are short."""
        encodings = encoded(self._tokenizer, [clean_text(text) for text in texts], self._special)
        for encoding in encodings:  # the tokenizer does not cut if its special tokens alone are longer
            encoding.truncate(self.max_length)
        lengths = np.array([len(e) for e in encodings])
        for length in np.unique(lengths[lengths > 0])[::-1].tolist():
            rows = np.flatnonzero(lengths == length)
            # a product with one row has a kernel of its own in int4, so texts of one token stay alone
            most = 1 if length == 1 else max(1, _TOKENS // length)
            for part in np.array_split(rows, -(-len(rows) // most)):
                yield part, [encodings[i] for i in part]

    def _batch(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        ids = np.array([e.ids for e in encodings], dtype=np.int64)
        return self._embed(ids, np.array([e.type_ids for e in encodings], dtype=np.int64))

    def _embed(self, ids: NDArray[np.int64], types: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return embeddings of texts (n, length) of token ids."""
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        hidden: NDArray[np.float32] = self._session.run(None, {name: feeds[name] for name in self._inputs})[0]
        kind, _, normalized = self.pooling.partition("-")
        pooled = hidden.mean(axis=1) if kind == "mean" else hidden[:, 0 if kind == "cls" else -1]
        if not normalized:
            return pooled
        # a row at a time: the sum of a row's squares must not depend on the number of rows
        lengths = np.array([[max(float(np.sqrt(row @ row)), 1e-12)] for row in pooled], dtype=np.float32)
        return (pooled / lengths).astype(np.float32, copy=False)

    def _refuse_a_dependence_on_the_batch(self) -> None:
        def embed(rows: NDArray[np.int64], length: int = min(_PROBE, self.max_length)) -> NDArray[np.float32]:
            ids = (rows[:, None] * length + np.arange(length)) % self._tokenizer.get_vocab_size()
            return self._embed(ids, np.zeros_like(ids))

        states = tried("encoder", self.folder, embed)
        if states.shape[1:] != (self.dim,) or states.dtype != np.float32:
            raise ValueError(f"encoder: {self.folder} holds a model that gives no float32 states of width {self.dim}")
        description = f"a text of max_length {self.max_length}"
        longest("encoder", self.folder, description, partial(embed, length=self.max_length))
        first = np.zeros((1, 1), dtype=np.int64)
        last_token("encoder", self.folder, self._tokenizer, lambda last: self._embed(first + last, first))


@lru_cache(maxsize=1)
def load(folder: Path | str) -> Encoder:
    """Return the encoder in a folder, kept for the life of the process: loading costs far more than a batch."""
    return Encoder(folder)
