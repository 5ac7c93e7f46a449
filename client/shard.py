"""The private records of a node: one JSON line for each, and cached embeddings beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client import encoder as encoders
from client.encoder import Text
from client.policy import Refused

_RECORDS = 2**32  # a random stream's counter has 32 bits for the record


@dataclass(frozen=True, eq=False)
class Shard:
    """Records of one or more users. users, records: (n,) int64, and no pair occurs twice; a user's records
    are numbered uniquely *over all splits*. labels: (n,) int64, or None where there are none. texts: n texts
    or pairs.

    folder, split: where it lies. encoder, masked_lm: the folders of the node's encoder and of its masked language
    model, if it has them.
    """

    users: NDArray[np.int64]
    records: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    texts: Sequence[Text]
    folder: Path
    split: str
    encoder: Path | None = None
    masked_lm: Path | None = None

    def __post_init__(self) -> None:
        n = len(self.texts)
        ids = (self.users, self.records) if self.labels is None else (self.users, self.records, self.labels)
        if any(a.dtype != np.int64 or a.shape != (n,) for a in ids):
            raise ValueError("shard: users, records and labels must be int64, one for each text")
        if (self.users < 0).any() or (self.records < 0).any() or (self.records >= _RECORDS).any():
            raise ValueError("shard: a user or record number is out of range")
        if len(set(zip(self.users.tolist(), self.records.tolist(), strict=True))) != n:
            raise ValueError("shard: a record of a user occurs twice")

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def load(
        cls, folder: Path | str, split: str, encoder: Path | None = None, masked_lm: Path | None = None
    ) -> Shard:
        """The shard of a split; a node without the file has no records. Raises ValueError on a bad line."""
        path = Path(folder) / f"{split}.jsonl"
        rows = [_line(text, path) for text in path.read_text().splitlines()] if path.exists() else []
        labelled = [r["label"] is not None for r in rows]
        if any(labelled) and not all(labelled):
            raise ValueError(f"shard: {path}: some records have a label and some have none")
        return cls(
            users=np.array([r["user"] for r in rows], dtype=np.int64),
            records=np.array([r["record"] for r in rows], dtype=np.int64),
            labels=np.array([r["label"] for r in rows], dtype=np.int64) if all(labelled) else None,
            texts=[r["text"] for r in rows],
            folder=Path(folder),
            split=split,
            encoder=encoder,
            masked_lm=masked_lm,
        )

    def lines(self, rows: NDArray[np.intp]) -> list[str]:
        """The texts of some rows; a pair as its two texts with a space between."""
        return [t if isinstance(t, str) else " ".join(t) for t in (self.texts[i] for i in rows)]

    def embeddings(self, identity: str) -> NDArray[np.float32]:
        """Embeddings (n, m) float32 by the encoder of that hash: from the cache, else computed. Raises
        Refused where the node has neither."""
        path = embeddings_path(self.folder, self.split, identity)
        if path.exists():
            values = np.load(path, allow_pickle=False)
            if values.dtype != np.float32 or values.ndim != 2 or len(values) != len(self):
                raise ValueError(f"shard: {path} does not fit its records")
            return values
        if self.encoder is None or encoders.load(self.encoder).identity != identity:
            raise Refused("encoder")
        return encoders.load(self.encoder).encode(self.texts)


def embeddings_path(folder: Path | str, split: str, identity: str) -> Path:
    """Where a node keeps the embeddings of a split by the encoder of that hash."""
    return Path(folder) / f"{split}-{identity}.npy"


def write_shard(
    folder: Path | str,
    split: str,
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    texts: Sequence[Text],
    labels: NDArray[np.int64] | None,
    *,
    embeddings: NDArray[np.float32] | None = None,
    identity: str | None = None,
) -> Shard:
    """Write a node's records of one split, and their embeddings by the encoder of hash `identity` where
    given."""
    shard = Shard(users, records, labels, texts, Path(folder), split)
    shard.folder.mkdir(parents=True, exist_ok=True)
    with open(shard.folder / f"{split}.jsonl", "w") as file:
        for i, text in enumerate(texts):
            row: dict[str, Any] = {"user": int(users[i]), "record": int(records[i]), "text": text}
            if labels is not None:
                row["label"] = int(labels[i])
            file.write(json.dumps(row) + "\n")
    if embeddings is not None:
        if identity is None or embeddings.dtype != np.float32 or len(embeddings) != len(shard):
            raise ValueError("shard: embeddings must be float32, one for each text, with the encoder's hash")
        np.save(embeddings_path(folder, split, identity), embeddings, allow_pickle=False)
    return shard


def _line(line: str, path: Path) -> dict[str, Any]:
    """One record. The error does not quote the line: it is private."""
    try:
        row = json.loads(line)
        user, record, text, label = row["user"], row["record"], row["text"], row.get("label")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"shard: {path} has a line that is not a record") from None
    pair = isinstance(text, list) and len(text) == 2 and all(isinstance(t, str) for t in text)
    integers = (user, record, 0 if label is None else label)
    numbers = all(type(n) is int and -(2**63) <= n < 2**63 for n in integers)
    if not (numbers and (pair or isinstance(text, str))):
        raise ValueError(f"shard: {path} has a record with a field of the wrong kind")
    return {"user": user, "record": record, "text": tuple(text) if pair else text, "label": label}
