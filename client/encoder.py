"""An exported sentence encoder, known by the hash of its content: ONNX Runtime and tokenizers, nothing
else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from client.onnx import session

FILES = ("model.onnx", "tokenizer.json", "encoder.json")
_POOLINGS = ("mean", "cls")
_BATCH = 32

Text = str | tuple[str, str]


def identity(folder: Path | str) -> str:
    """SHA-256 (hex) over the names and contents of an encoder's three files. Raises ValueError where one is
    missing."""
    whole = hashlib.sha256()
    for name in FILES:
        try:
            with open(Path(folder) / name, "rb") as file:
                part = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            raise ValueError(f"encoder: {Path(folder) / name} cannot be read") from None
        whole.update(f"{name} {part}\n".encode())
    return whole.hexdigest()


class Encoder:
    """The encoder in a folder: model.onnx (token ids to the last hidden state), tokenizer.json, and
    encoder.json: {"pooling": "mean" | "cls", "max_length": tokens, "dim": m}.

    threads: see `client.onnx.session`. Raises ValueError where the folder holds no
        encoder.
    """

    def __init__(self, folder: Path | str, *, threads: int | None = None) -> None:
        folder = Path(folder)
        self.identity = identity(folder)
        try:
            about = json.loads((folder / "encoder.json").read_text())
            self.pooling, self.max_length, self.dim = about["pooling"], about["max_length"], about["dim"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"encoder: {folder / 'encoder.json'} lacks pooling, max_length or dim") from None
        if self.pooling not in _POOLINGS:
            raise ValueError(f"encoder: pooling {self.pooling!r} is not one of {', '.join(_POOLINGS)}")
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._session = session(folder / "model.onnx", threads)
        except Exception:  # both libraries raise bare exceptions of their own
            raise ValueError(f"encoder: {folder} holds a model or tokenizer that cannot be loaded") from None
        self._tokenizer.enable_truncation(self.max_length)
        self._tokenizer.no_padding()
        self._padding = self._tokenizer.token_to_id("[PAD]") or 0
        self._inputs = [i.name for i in self._session.get_inputs()]

    def encode(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Embeddings of texts or (first, second) pairs, (n, m) float32, in the order given.

        Batches of 32 of like length. The last bits depend on the batch, so the same list gives the same bits,
        and another grouping need not.
        """
        if not len(texts):
            return np.empty((0, self.dim), dtype=np.float32)
        encodings = self._tokenizer.encode_batch(list(texts))
        order = np.argsort([len(e.ids) for e in encodings], kind="stable")
        embeddings = np.empty((len(encodings), self.dim), dtype=np.float32)
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            embeddings[rows] = self._batch([encodings[i] for i in rows])
        return embeddings

    def _batch(self, encodings: Sequence) -> NDArray[np.float32]:
        width = max(len(e.ids) for e in encodings)
        feeds = {
            "input_ids": np.full((len(encodings), width), self._padding, dtype=np.int64),
            "attention_mask": np.zeros((len(encodings), width), dtype=np.int64),
            "token_type_ids": np.zeros((len(encodings), width), dtype=np.int64),
        }
        for row, e in enumerate(encodings):
            feeds["input_ids"][row, : len(e.ids)] = e.ids
            feeds["attention_mask"][row, : len(e.ids)] = 1
            feeds["token_type_ids"][row, : len(e.ids)] = e.type_ids
        hidden = self._session.run(None, {name: feeds[name] for name in self._inputs})[0]
        if self.pooling == "cls":
            return hidden[:, 0]
        mask = feeds["attention_mask"][:, :, None].astype(np.float32)
        return (hidden * mask).sum(axis=1) / mask.sum(axis=1)


@lru_cache(maxsize=1)
def load(folder: Path | str, threads: int | None = None) -> Encoder:
    """The encoder in a folder, kept for the life of the process: loading costs far more than a batch."""
    return Encoder(folder, threads=threads)
