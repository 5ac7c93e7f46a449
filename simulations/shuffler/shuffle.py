"""Shuffler between clients and server: it hides who sent which row, and holds a batch until enough users are in it.

It is trusted to shuffle and not to collude. Its amplification follows from the number of distinct users delivered. In a
simulation it also reports the origin of each row (`Origin`), only to the owner of the true labels, so that test
predictions can be scored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.batch import Batch
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply


@dataclass(frozen=True)
class Origin:
    """Users and records of a batch's rows, in its order, only for the true labels of a simulation."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]


def shuffle(replies: Iterable[Reply], *, minimum_users: int, rng: np.random.Generator) -> tuple[Batch, Origin]:
    """Collect validated replies of one stage, keep one row for each (user, record), and permute all rows.

    The first of repeated rows counts; the others are dropped and counted. The embedding and the label of one record
    stay together: they are one joint release. Below `minimum_users` distinct users the batch is discarded; its users
    stay charged, because their releases have left. Rows are sorted by (user, record) before they are permuted. The
    result therefore does not depend on the order in which messages came.
    """
    replies = [r for r in replies if len(r.users)]
    if not replies:
        none = np.zeros(0, np.int64)
        return Batch((), 0, 0, "no release arrived"), Origin(none, none)
    users = np.concatenate([r.users for r in replies])
    records = np.concatenate([r.records for r in replies])
    kept, distinct = _one_of_each(users, records)
    duplicates = len(users) - len(kept)
    if distinct < minimum_users:
        none = np.zeros(0, np.int64)
        return Batch((), 0, duplicates, too_few(distinct, minimum_users)), Origin(none, none)
    kept = kept[rng.permutation(len(kept))]
    # The place of each received row, -1 if it is dropped. Rows are placed message by message, so that no channel is
    # ever held twice.
    place = np.full(len(users), -1, np.int32 if len(users) < 2**31 else np.int64)
    place[kept] = np.arange(len(kept))
    origin = Origin(users[kept], records[kept])
    del users, records, kept
    channels = []
    for position, pattern in enumerate(replies[0].releases):
        parts = [r.releases[position].payload for r in replies]
        payload = {name: _placed([part[name] for part in parts], place, len(origin.users)) for name in pattern.payload}
        channels.append(Release(payload, pattern.channel, pattern.stage, pattern.guarantee, pattern.digest))
    return Batch(tuple(channels), distinct, duplicates), origin


def too_few(users: int, minimum_users: int) -> str:
    """Return the reason for a discarded batch, in words."""
    return f"{users} users are fewer than the {minimum_users} a batch must have"


def _one_of_each(users: NDArray[np.int64], records: NDArray[np.int64]) -> tuple[NDArray[np.intp], int]:
    """Return the first row of each (user, record), sorted by these, and the number of distinct users."""
    order = np.lexsort((records, users))
    first, another = np.ones(len(order), bool), np.ones(len(order), bool)
    another[1:] = np.diff(users[order]) != 0
    first[1:] = another[1:] | (np.diff(records[order]) != 0)
    return order[first], int(another.sum())


def _placed(parts: list[NDArray[Any]], place: NDArray[np.signedinteger[Any]], n: int) -> NDArray[Any]:
    """Return the rows (n, ...) of the parts, each at its place."""
    whole = np.empty((n, *parts[0].shape[1:]), parts[0].dtype)
    start = 0
    for part in parts:
        where = place[start : start + len(part)]
        kept = where >= 0
        whole[where[kept]] = part[kept]
        start += len(part)
    return whole
