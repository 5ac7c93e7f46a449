"""Shuffler between clients and server: it hides who sent which row, and holds a batch until enough users are in it.

It is trusted to shuffle and not to collude. Its amplification follows from the number of distinct users delivered. It
applies the rules of the deployed shuffler (`core`) to rows in clear. It also reports the origin of each row (`Origin`),
only to the owner of the true labels, so that test predictions can be scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.batch import Batch
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from simulations.shuffler.core import admit, shortfall


@dataclass(frozen=True)
class Origin:
    """Users and records of a batch's rows, in its order, only for the true labels of a simulation."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]


class Shuffled(NamedTuple):
    """Result of a stage.

    Attributes:
        batch: Batch for the server.
        origin: Origin of its rows.
        late: Number of users who were late.
    """

    batch: Batch
    origin: Origin
    late: int


def shuffle(
    replies: Iterable[Reply],
    *,
    minimum_users: int,
    rng: np.random.Generator,
    late: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None = None,
) -> Shuffled:
    """Collect validated replies of one stage, keep the rows that count (`core`), and permute them.

    The embedding and the label of one record stay together: they are one joint release. Rows are sorted by user and
    record before they are permuted. The result therefore does not depend on the order in which messages came.

    Args:
        replies: Replies in the order of arrival.
        minimum_users: Distinct users below which the batch is discarded.
        rng: Generator that permutes the rows.
        late: Clock of the simulation: a mask of the late among distinct users.
    """
    replies = [r for r in replies if len(r.users)]
    none = np.zeros(0, np.int64)
    users = np.concatenate([none, *(r.users for r in replies)])
    records = np.concatenate([none, *(r.records for r in replies)])
    people = np.unique(users) if late is not None else none
    after = None if late is None else np.isin(users, people[late(people)])
    admission = admit(users, records, late=after)
    if (reason := shortfall(admission.users, minimum_users)) is not None:
        return Shuffled(Batch((), 0, admission.again, reason), Origin(none, none), admission.late)
    kept = admission.rows[rng.permutation(len(admission.rows))]
    # The place of each received row, -1 if it is dropped. Rows are placed message by message, so that no channel is
    # ever held twice.
    place: NDArray[Any] = np.full(len(users), -1, np.int32 if len(users) < 2**31 else np.int64)
    place[kept] = np.arange(len(kept))
    origin = Origin(users[kept], records[kept])
    del users, records, kept
    channels = []
    for position, pattern in enumerate(replies[0].releases):
        parts = [r.releases[position].payload for r in replies]
        payload = {name: _placed([part[name] for part in parts], place, len(origin.users)) for name in pattern.payload}
        channels.append(Release(payload, pattern.channel, pattern.stage, pattern.guarantee, pattern.digest))
    return Shuffled(Batch(tuple(channels), admission.users, admission.again), origin, admission.late)


def _placed(parts: list[NDArray[Any]], place: NDArray[Any], n: int) -> NDArray[Any]:
    """Return the rows (n, ...) of the parts, each at its place."""
    result = np.empty((n, *parts[0].shape[1:]), parts[0].dtype)
    start = 0
    for part in parts:
        where = place[start : start + len(part)]
        kept = where >= 0
        result[where[kept]] = part[kept]
        start += len(part)
    return result
