"""What has to be so after a deployment's rough day, whatever happened on it: each finding is a line, and none is good.

A row is *acknowledged* once the shuffler counts its user to the training server: from then on it may be all that is
left of it, since its device may never come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Owner = tuple[int, int]
#: Seconds of a process's life in which it loads what it needs, unless a check says otherwise.
SETTLING = 10.0


@dataclass
class Gathered:
    """A stage in the end. owners, rows, payloads: of each row of its batch, whose it is, as it was sealed, and what it
    says by channel. errors: of how many devices the shuffler says that they did not answer, by the reason."""

    owners: list[Owner]
    rows: list[bytes]
    payloads: list[dict[str, bytes]]
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Held:
    """What a shuffler's store held when its process was killed, of a stage that was open. told: how many users the
    shuffler had said by then that there are. rows: by owner."""

    stage: str
    told: int
    rows: dict[Owner, bytes]


@dataclass
class Told:
    """What a shuffler has said of its stages: how many users at most so far, and the batch's identity."""

    users: Counter[str] = field(default_factory=Counter)
    batches: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def of(self, stage: str, users: int) -> None:
        """It says that there are so many users."""
        if users < self.users[stage]:
            self.wrong.append(f"{stage}: lost: of {self.users[stage]} users that were acknowledged {users} are left")
        self.users[stage] = max(users, self.users[stage])

    def closed(self, stage: str, users: int, batch: str) -> None:
        """It gives a batch."""
        self.of(stage, users)
        if self.batches.setdefault(stage, batch) != batch:
            self.wrong.append(f"{stage}: another batch than before")


def twice(stage: str, got: Gathered) -> Iterator[str]:
    """A record's release, or the very bytes of one, that counts more than once."""
    for what, of in (
        ("owner", got.owners),
        ("row", got.rows),
        ("release", [tuple(sorted(p.items())) for p in got.payloads]),
    ):
        for one, n in Counter(of).items():
            if n > 1:
                yield f"{stage}: {n} times: {what} {one!r}"


def lost(
    stage: str, got: Gathered, devices: Sequence[Sequence[Owner]], held: Sequence[Held], full: frozenset[int]
) -> Iterator[str]:
    """A row that was acknowledged, or a device that nobody says is missing. full: devices whose disk was full once:
    those may refuse a stage, since they cannot charge it, and the shuffler counts them."""
    there = dict(zip(got.owners, got.rows, strict=True))
    for before in (h for h in held if h.stage == stage):
        if len({user for user, _ in before.rows}) < before.told:
            yield f"{stage}: lost: {before.told} users were acknowledged, and the store holds fewer"
        for owner, row in before.rows.items():
            if there.get(owner) != row:
                yield f"{stage}: lost: what was stored of {owner}"
    missing = {i for i, owners in enumerate(devices) if not set(owners) & set(there)}
    for i, owners in enumerate(devices):
        if i not in missing and not set(owners) <= set(there):
            yield f"{stage}: lost: a part of device {i}"
    if not missing <= full or len(missing) != sum(got.errors.values()):
        yield f"{stage}: lost: devices {sorted(missing)}; the shuffler says {dict(got.errors)}"
    if strangers := set(there) - {owner for owners in devices for owner in owners}:
        yield f"{stage}: of nobody's: {sorted(strangers)}"


def uncharged(stage: str, got: Gathered, charged: Mapping[tuple[str, int, int, str], Sequence[bytes]]) -> Iterator[str]:
    """A release that left and is not on its device's ledger, to the byte and once. charged: payloads by stage, user,
    record, channel."""
    for (user, record), payload in zip(got.owners, got.payloads, strict=True):
        for channel, data in payload.items():
            found = charged.get((stage, user, record, channel), ())
            if list(found) != [data]:
                yield f"{stage}: uncharged: {channel} of user {user}, record {record}: {len(found)} on the ledger"


@dataclass(frozen=True)
class Sample:
    """A process's own memory. life: which process it was; age: its seconds then; at: minutes since the start."""

    life: int
    age: float
    at: float
    megabytes: float


def slope(samples: Sequence[Sample], settling: float = SETTLING) -> float | None:
    """By how many MB a minute a party's memory grows once its processes are `settling` seconds old: one line's slope
    for all of them, each with a height of its own, by least squares. Of those that lived twice as long, or it would be
    that of their last moments; None where there is none."""
    across = down = 0.0
    for life in {s.life for s in samples if s.age >= 2 * settling}:
        x, y = np.array([(s.at, s.megabytes) for s in samples if s.life == life and s.age >= settling]).T
        across += float(((x - x.mean()) * (y - y.mean())).sum())
        down += float(((x - x.mean()) ** 2).sum())
    return across / down if down > 0 else None
