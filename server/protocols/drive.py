"""Whoever has users drives a protocol: asks them what it wants to know, and counts what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from mechanisms.messages.batch import Batch
from mechanisms.messages.request import Request
from server.protocols.protocol import Conversation, Encoding, Model, Progress, Publish


@dataclass
class Collected:
    """What came of one request. dropped, errors: rows, and nodes, that came to nothing, by the reason."""

    batch: Batch
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Users(Protocol):
    """Whoever answers: a simulation's users, those behind a deployment's shuffler, made-up ones."""

    def collect(self, request: Request) -> Collected:
        """The shuffled, validated batch of what users release."""
        ...

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        """Gives the users of these splits an exported encoder, and the server the same. ValueError where these users
        can be given none."""
        ...


@dataclass
class Delivery:
    """What reached the server, and what did not. users: in all; stages, requests: by the stage's name. rows, bytes: of
    releases. dropped, errors: rows, and nodes, that came to nothing, by the reason. classes: by the stage's name, the
    rows of the smallest class among the labels; those that are not there are nobody's."""

    users: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Driver:
    """Has users answer a protocol, and counts.

    name: what lines of progress call the arm. before: is called with every request before users are; it may raise.
    teaching: what training users delivered; asking: what those did who asked the trained model.
    """

    def __init__(
        self, users: Users, *, name: str = "", before: Callable[[Request], None] = lambda request: None,
        progress: Progress = lambda line: None,
    ) -> None:  # fmt: skip
        self._users = users
        self._name = name
        self._before = before
        self._progress = progress
        self.teaching = Delivery()
        self.asking = Delivery()

    def train(self, protocol: Conversation) -> Model | None:
        """The protocol's model. Raises what `before`, the users and the protocol raise."""
        answer: Batch | Encoding | None = None
        try:
            while True:
                step = protocol.send(answer)
                if isinstance(step, Publish):
                    answer = self._users.publish(step.folder, step.splits)
                else:
                    answer = self._collect(step, self.teaching)
        except StopIteration as end:
            model: Model | None = end.value
            return model

    def ask(self, request: Request) -> Batch:
        """What users release who ask a trained model."""
        return self._collect(request, self.asking)

    def _collect(self, request: Request, delivery: Delivery) -> Batch:
        self._before(request)
        delivery.requests[request.stage] = request
        collected = self._users.collect(request)
        batch = collected.batch
        delivery.dropped.update(collected.dropped)
        delivery.errors.update(collected.errors)
        if batch.duplicates:
            delivery.dropped["duplicate"] += batch.duplicates
        if batch.discarded:
            delivery.dropped[f"batch discarded: {batch.discarded}"] += 1
        delivery.users += batch.users
        delivery.stages[request.stage] = batch.users
        if (label := batch.channel("label")) is not None:
            rows = np.unique(label.payload["y"], return_counts=True)[1]
            delivery.classes[request.stage] = int(rows.min(initial=len(label)))
        if batch.releases:
            delivery.rows += len(batch.releases[0])
            delivery.bytes += sum(r.bytes_per_row * len(r) for r in batch.releases)
        reached = f"{self._name}: stage {request.stage}: {batch.users:,} users delivered"
        self._progress(reached + (f"; {batch.discarded}" if batch.discarded else ""))
        return batch
