"""Private records of a node in columns: numbers, texts, and stored embeddings beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.models import encoder as encoders
from client.models.embeddings import (
    Embeddings,
    TableEmbeddings,
    forget_embeddings,
    read_embeddings,
    write_embeddings,
)
from client.policy import Refused
from client.store.durable import private_file, replacing
from client.store.text_column import TextColumn
from mechanisms.pieces import Text

_RECORDS = 2**32  # a random stream's counter has 32 bits for the record
#: Endings of a split's files, each put in place after the files that it describes: the records last.
_FILES = ("texts", "texts.starts.npy", "records.npy")


@dataclass(frozen=True, eq=False)
class Shard:
    """Records of one or more users.

    Attributes:
        users: (n,) int64.
        records: (n,) int64. No pair of user and record occurs twice; a user's records are numbered uniquely *over all
            splits*.
        labels: (n,) int64, or None if there are none.
        texts: n texts or pairs.
        folder: Folder of the node.
        split: Split of the records.
        encoder: Folder of the node's encoder, if it has one.
        masked_lm: Folder of the node's masked language model, if it has one.
        given: Embeddings of the texts that were computed before, and the hash of their encoder.
    """

    users: NDArray[np.int64]
    records: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    texts: Sequence[Text]
    folder: Path
    split: str
    encoder: Path | None = None
    masked_lm: Path | None = None
    given: tuple[str, Embeddings] | None = None

    def __post_init__(self) -> None:
        n = len(self.texts)
        ids = (self.users, self.records) if self.labels is None else (self.users, self.records, self.labels)
        if any(a.dtype != np.int64 or a.shape != (n,) for a in ids):
            raise ValueError("shard: users, records and labels must be int64, one for each text")
        if (self.users < 0).any() or (self.records < 0).any() or (self.records >= _RECORDS).any():
            raise ValueError("shard: a user or record number is out of range")
        if _repeats(self.users, self.records):
            raise ValueError("shard: a record of a user occurs twice")

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def load(cls, folder: Path | str, split: str, encoder: Path | None = None, masked_lm: Path | None = None) -> Shard:
        """Return the shard of a split; a node without the file has no records.

        Raises:
            ValueError: The file holds no records.
        """
        path = records_path(folder, split)
        if path.exists():
            try:
                columns = np.load(path, allow_pickle=False)
            except (OSError, ValueError, EOFError):  # NumPy's texts may quote the file, which is private
                raise ValueError(f"shard: {path} cannot be read") from None
            if columns.dtype != np.int64 or columns.ndim != 2 or len(columns) not in (2, 3):
                raise ValueError(f"shard: {path} must hold int64 users, records and perhaps labels")
            texts = TextColumn.load(_texts_path(folder, split), columns.shape[1])
        else:
            columns, texts = np.zeros((3, 0), np.int64), TextColumn.of(())
        users, records, *labels = columns
        return cls(users, records, labels[0] if labels else None, texts, Path(folder), split, encoder, masked_lm)

    def embeddings(self, identity: str) -> Embeddings:
        """Return embeddings (n, m) float32 by the encoder of that hash, stored or computed.

        Raises:
            Refused: The node has neither the embeddings nor the encoder.
        """
        if self.given is not None and self.given[0] == identity:
            return self.given[1]
        cached = read_embeddings(self.folder, self.split, identity, len(self))
        if cached is not None:
            return cached
        encoder = None if self.encoder is None else encoders.load(self.encoder)
        if encoder is None or encoder.identity != identity:
            raise Refused("encoder")
        return Embeddings(encoder.dim, lambda rows: encoder.encode([self.texts[i] for i in rows.tolist()]))


def records_path(folder: Path | str, split: str) -> Path:
    """Return the path of the numbers of a split's records.

    The file is int64 (3, n), with the rows users, records and labels, or (2, n) without labels.
    """
    return Path(folder) / f"{split}.records.npy"


def _texts_path(folder: Path | str, split: str) -> Path:
    return Path(folder) / f"{split}.texts"


def write_shard(
    folder: Path | str,
    split: str,
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    texts: Sequence[Text],
    labels: NDArray[np.int64] | None,
    *,
    embeddings: NDArray[np.float32] | TableEmbeddings | None = None,
    identity: str | None = None,
) -> Shard:
    """Write a node's records of one split, and, if given, their embeddings by the encoder of hash `identity`."""
    column = TextColumn.of(texts)
    shard = Shard(users, records, labels, column, Path(folder), split)
    if embeddings is not None and (identity is None or len(embeddings) != len(shard)):
        raise ValueError("shard: embeddings must be one for each text, with the encoder's hash")
    shard.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    forget_embeddings(folder, split)
    column.save(_texts_path(folder, split))
    if embeddings is not None and identity is not None:
        write_embeddings(folder, split, identity, embeddings)
    _save_records(shard, records_path(folder, split))  # last: without it there are no records
    return shard


def extend_shard(
    folder: Path | str,
    split: str,
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    texts: Sequence[Text],
    labels: NDArray[np.int64] | None,
) -> None:
    """Append records to those of a split, durably: all of them, or none if this fails or the power goes.

    Stored embeddings of the split are dropped. A concurrent reader sees the shard without the new records or with all
    of them: existing texts stay in their place in the files, and the records, which are written last, state the number
    of texts. Only one process at a time may do this.

    Raises:
        ValueError: One side has labels and the other has none. Nothing is changed.
        OSError: A file cannot be written.
    """
    old = Shard.load(folder, split)
    if len(old) and (old.labels is None) != (labels is None):
        old_text, new_text = ("no labels", "have") if old.labels is None else ("labels", "have none")
        raise ValueError(
            f"shard: the records of the split {split} in {folder} have {old_text}, and the new ones {new_text}"
        )
    if labels is not None and old.labels is not None:
        labels = np.concatenate([old.labels, labels])
    users, records = np.concatenate([old.users, users]), np.concatenate([old.records, records])
    column = TextColumn.of(chain(old.texts, texts))
    shard = Shard(users, records, labels, column, Path(folder), split)
    with replacing(*(shard.folder / f"{split}.{name}" for name in _FILES)) as (draft_of_texts, _, draft_of_records):
        column.save(draft_of_texts)  # and the starts, in the draft that is named behind it
        _save_records(shard, draft_of_records)
        forget_embeddings(folder, split)


def _save_records(shard: Shard, path: Path) -> None:
    numbers = [shard.users, shard.records] + ([] if shard.labels is None else [shard.labels])
    with private_file(path) as file:
        np.save(file, np.stack(numbers), allow_pickle=False)


def _repeats(users: NDArray[np.int64], records: NDArray[np.int64]) -> bool:
    """Return whether a pair of user and record occurs twice."""
    if (users[1:] > users[:-1]).all():  # one record to a user is the common case, and cheap
        return False
    order = np.lexsort((records, users))
    return bool(((np.diff(users[order]) == 0) & (np.diff(records[order]) == 0)).any())
