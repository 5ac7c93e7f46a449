"""Addition of a user's records to an existing device, numbered behind the existing records.

A number that has a release is not assigned again, even if a shard was deleted in between: the ledger would repeat that
release for the new record. So new numbers are above those of all splits and of the ledger, and below those of the
sentences in inference requests. A device may be served meanwhile: it answers without the new records, or with all of
them.

Records are encoded here, and not when a server sends a request: the time of encoding reveals the length of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.models import encoder as encoders
from client.models.embeddings import embeddings_path, keeps_embeddings, read_embeddings, write_embeddings
from client.node import Node, changing, load_device
from client.shard import extend_shard
from client.store.ledger import ALL_RECORDS, LedgerError
from client.store.questions import QuestionRecords
from mechanisms.messages.request import SPLITS
from mechanisms.pieces import Text


def add_records(
    folder: Path, split: str, texts: Sequence[Text], labels: NDArray[np.int64] | None, user: int | None = None
) -> tuple[int, range]:
    """Add records durably for a user of the device in `folder`.

    Args:
        folder: Folder of the device.
        split: Split of the records.
        texts: Their texts, or pairs.
        labels: (n,) int64 class numbers, or None.
        user: The user. None takes the only user, or 0 if there is none yet.

    Returns:
        The user, and the numbers of the new records.

    Raises:
        ValueError: The device or its content does not allow it. The message is one line, and nothing is added.
    """
    node = load_device(folder, simulated=", whose records a study hands out")
    if split not in SPLITS:
        raise ValueError(f"{folder}: has no split {split}; its records are of {' or '.join(SPLITS)}")
    if node.encoder is None and keeps_embeddings(folder, split):
        raise ValueError(f"{folder}: keeps embeddings, and has no encoder for those of new records")
    with changing(folder):
        try:
            owner = _owner(node, user)
            numbers = _numbers(node, owner, len(texts))
            kept = _kept(node, split)
            extend_shard(
                folder, split, np.full(len(texts), owner, np.int64), np.array(numbers, np.int64), texts, labels
            )
            _encode(node, split, kept)
        except LedgerError as error:
            raise ValueError(f"{folder}: {error}; nothing was added") from error
        except OSError as error:
            raise ValueError(f"{folder}: cannot be written ({error.strerror or error}); nothing was added") from error
    return owner, numbers


def encode_records(node: Node) -> None:
    """Encode the records of a device that have no embeddings by its current encoder, before a request needs them.

    A full disk does not prevent answers: records are then encoded during the request.

    Raises:
        ValueError: The device's files cannot be read.
    """
    with changing(node.folder):
        for split in SPLITS:
            _encode(node, split, _kept(node, split))


def _kept(node: Node, split: str) -> NDArray[np.float32] | None:
    """Return the stored embeddings (k, m) of a split's first records; None if none fit the device's encoder."""
    if node.encoder is None:
        return None
    encoder = encoders.load(node.encoder)
    tables = read_embeddings(node.folder, split, encoder.identity, len(node.shard(split)))
    if tables is None or tables.width != encoder.dim:
        return None
    return tables.take(np.arange(len(node.shard(split))))


def _encode(node: Node, split: str, kept: NDArray[np.float32] | None) -> None:
    """Store embeddings of a split's records; `kept` are those of the first ones."""
    shard, count = node.shard(split), 0 if kept is None else len(kept)
    if node.encoder is None or not len(shard):
        return
    encoder = encoders.load(node.encoder)
    if count == len(shard) and embeddings_path(node.folder, split, encoder.identity).exists():
        return
    new = encoder.encode([shard.texts[i] for i in range(count, len(shard))])
    with suppress(OSError):
        write_embeddings(node.folder, split, encoder.identity, new if kept is None else np.concatenate([kept, new]))


def _owner(node: Node, user: int | None) -> int:
    if user is not None:
        if not 0 <= user < 2**63:
            raise ValueError(f"--user {user}: must be 0 or above, and below 2^63")
        return user
    users = {u for split in SPLITS for u in np.unique(node.shard(split).users).tolist()}
    if QuestionRecords.path_in(node.folder).exists():
        with QuestionRecords(node.folder) as questions:
            users.update(questions.users())
    if len(users) > 1:
        raise ValueError(f"{node.folder}: holds {len(users)} users; say by --user whose records these are")
    return users.pop() if users else 0


def _numbers(node: Node, user: int, n: int) -> range:
    shards = [node.shard(split) for split in SPLITS]
    with node.ledger("") as ledger:
        parts = [shard.records[shard.users == user] for shard in shards] + [ledger.records_of(user)]
    records = np.concatenate(parts)
    start = int(records[records < ALL_RECORDS].max(initial=-1)) + 1
    if start + n > ALL_RECORDS:
        raise ValueError(f"{node.folder}: there are no numbers left for {n:,} more records of user {user}")
    return range(start, start + n)
