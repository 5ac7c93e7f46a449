"""Driver of a protocol: it sends the protocol's requests to users, returns their batches, and counts deliveries."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import LabelQuestion
from mechanisms.messages.request import Request
from server.protocols.models import Model
from server.protocols.protocol import Conversation, Encoding, Publish

log = logging.getLogger(__name__)


@dataclass
class Collected:
    """Result of one request.

    Args:
        batch: Shuffled, validated batch.
        dropped: Rejected rows, by reason.
        errors: Failed nodes, by reason.
    """

    batch: Batch
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Users(Protocol):
    """Users who answer: those of a simulation, those behind a deployment's shuffler, or made-up ones."""

    def collect(self, request: Request) -> Collected:
        """Return the shuffled, validated batch of users' releases."""
        ...

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        """Give an exported encoder to the users of the splits, and return the same encoder for the server.

        Raises:
            ValueError: These users cannot receive an encoder.
        """
        ...


@dataclass
class Delivery:
    """Counts of what reached the server and what did not.

    Args:
        users: Users in all.
        stages: Users, by the stage's name.
        requests: Requests, by the stage's name.
        classes: Rows of the smallest class among the labels, by the stage's name. Absent classes do not count.
        rows: Rows of releases.
        bytes: Bytes of releases.
        dropped: Rejected rows, by reason.
        errors: Failed nodes, by reason.
    """

    users: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Driver:
    """Driver that sends a protocol's requests to users, and counts deliveries.

    `teaching` counts what training users delivered, and `asking` what users of the trained model delivered.

    Args:
        users: Users who answer.
        name: Name of the arm in lines of progress.
        before: Function that receives every request before the users do; it may raise.

    A complete protocol, which learns the most frequent label, and six users who hold theirs in memory:

    >>> import numpy as np
    >>> from mechanisms.messages.batch import Batch
    >>> from mechanisms.messages.questions import LabelQuestion
    >>> from mechanisms.messages.release import Release
    >>> from mechanisms.messages.request import Request
    >>> from mechanisms.streams import SeededUniforms
    >>> from server.protocols.drive import Collected, Driver
    >>> def frequent(classes, epsilon):
    ...     coin = {"mechanism": "randomized-response", "epsilon": epsilon, "classes": classes}
    ...     question = LabelQuestion(coin, classes=classes)
    ...     batch = yield Request("toy", "train", "train", minimum_users=2, questions=(question,))
    ...     return int(np.bincount(batch.of(LabelQuestion).values).argmax())
    >>> class InMemory:
    ...     labels = np.array([2, 1, 2, 2, 0, 2])
    ...     def collect(self, request):
    ...         coin = request.question(LabelQuestion).mechanism
    ...         values = {"y": coin.sample(self.labels, rng=SeededUniforms(7))}
    ...         release = Release(values, "label", request.stage, coin.guarantee, request.digest("label"))
    ...         return Collected(Batch((release,), users=6, duplicates=0))
    >>> driver = Driver(InMemory())
    >>> driver.train(frequent(classes=3, epsilon=2.0)), driver.teaching.users
    (2, 6)
    """

    def __init__(
        self, users: Users, *, name: str = "", before: Callable[[Request], None] = lambda request: None
    ) -> None:
        self._users = users
        self._name = name
        self._before = before
        self.teaching = Delivery()
        self.asking = Delivery()

    def train(self, protocol: Conversation) -> Model | None:
        """Run the protocol, and return its model.

        It raises the errors of `before`, the users and the protocol.
        """
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
        """Return the releases of users who query a trained model."""
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
        if (label := batch.of(LabelQuestion)) is not None:
            rows = np.unique(label.values, return_counts=True)[1]
            delivery.classes[request.stage] = int(rows.min(initial=len(label)))
        if batch.releases:
            delivery.rows += len(batch.releases[0])
            delivery.bytes += sum(r.bytes_per_row * len(r) for r in batch.releases)
        reached = f"{self._name}: stage {request.stage}: {batch.users:,} users delivered"
        log.info(reached + (f"; {batch.discarded}" if batch.discarded else ""))
        return batch
