"""Reply of a client: releases, and the users and records to which they belong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechanisms.arrays import BoolArray, IntArray
from mechanisms.messages.release import Release


def require_ids(owner: str, *ids: object) -> None:
    """Raise ValueError unless these are int64 arrays of one axis."""
    if not all(isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1 for array in ids):
        raise ValueError(f"{owner}: users and records must be int64 arrays of one axis")


@dataclass(frozen=True, eq=False)
class Reply:
    """Stacked releases of one node, row i of each belonging to record records[i] of user users[i].

    Attributes:
        users: (n,) int64, pseudonyms of the population. The number of records of a user is public.
        records: (n,) int64.
        releases: At most one for each channel, n rows each. A user who refuses has no rows.
    """

    users: IntArray
    records: IntArray
    releases: tuple[Release, ...]

    def __post_init__(self) -> None:
        require_ids("reply", self.users, self.records)
        lengths = {len(self.users), len(self.records), *map(len, self.releases)}
        if len(lengths) != 1:
            raise ValueError("reply: users, records and releases differ in their number of rows")
        if len({r.channel for r in self.releases}) != len(self.releases):
            raise ValueError("reply: a channel occurs twice")

    def __len__(self) -> int:
        return len(self.users)

    def take(self, rows: BoolArray) -> Reply:
        """Return the reply of some rows alone, (n,) bool."""
        releases = tuple(
            Release({k: v[rows] for k, v in r.payload.items()}, r.channel, r.stage, r.guarantee, r.digest)
            for r in self.releases
        )
        return Reply(self.users[rows], self.records[rows], releases)
