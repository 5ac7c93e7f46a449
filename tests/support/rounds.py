"""Rounds of a shuffler without Flower: what nodes answer, and a stage as the service opens it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import RecordDict

from mechanisms.messages import signature
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import Sealed, envelop, generate_keys, seal, sealed_bytes
from mechanisms.messages.wire import (
    record_to_bytes,
    request_from_record,
    request_identity,
    request_to_record,
    sealed_to_record,
)
from simulations.shuffler.enrolment import Enrolled
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import Store
from tests.support.clients import honest, request

PRIVATE, PUBLIC = generate_keys()
#: Keys of the shuffler.
OPENS, SHUFFLER = generate_keys()


def device(node: int) -> tuple[bytes, bytes]:
    """The private and the public key of a node's device."""
    private = sha256(str(node).encode()).digest()
    return private, signature.public_of(private)


#: Each user with two records.
ENROLLED = {
    node: Enrolled(np.arange(first, first + 4), np.full(4, 2), device(node)[1])
    for node, first in ((11, 100), (2**63 + 5, 104))
}
ONE, TWO = ENROLLED
Answer = tuple[int, RecordDict | None, str | None]


def wanted(**changes: Any) -> Request:
    return request(**({"arm": "", "minimum_users": 3} | changes))


def answer(asked: Request, users: Collection[int], *, records: Collection[int] | None = None, seed: int = 1) -> Sealed:
    """An honest node's sealed reply."""
    reply = seal(honest(asked, len(users), seed), asked, PUBLIC)
    numbers = np.zeros(len(users), np.int64) if records is None else np.array(records, np.int64)
    return Sealed(np.array(users, np.int64), numbers, reply.rows)


def enveloped(reply: Sealed, record: RecordDict, node: int) -> RecordDict:
    """What a node's device sends: the sealed reply in its envelope."""
    return sealed_to_record(envelop(reply, request_identity(record), SHUFFLER, device(node)[0]))


@dataclass
class Nodes:
    """Nodes without Flower: what each answers, and what they were asked."""

    replies: dict[int, Any] = field(default_factory=dict)
    asked: list[tuple[Request, tuple[int, ...], float]] = field(default_factory=list)
    hold: threading.Event | None = None

    def ask(self, record: RecordDict, nodes: Mapping[int, int], timeout: float) -> Iterator[Answer]:
        self.asked.append((request_from_record(record), tuple(nodes), timeout))
        for node in nodes:
            reply = self.replies.get(node)
            if reply is None:
                yield node, None, "no answer"
            elif isinstance(reply, str):
                yield node, None, reply
            else:
                yield node, enveloped(reply, record, node) if isinstance(reply, Sealed) else reply, None
            if self.hold is not None:
                self.hold.wait(20)


def opened(store: Store, asked: Request, timeout: float = 0.5) -> None:
    """A stage, as the service opens it."""
    body = record_to_bytes(request_to_record(asked))
    store.open_stage(
        asked.stage, body, row_bytes=sealed_bytes(asked), minimum_users=asked.minimum_users, timeout=timeout
    )


def served(
    store: Store,
    nodes: Nodes | Callable[..., Iterator[Answer]],
    asked: Request | None = None,
    *,
    enrolled: Mapping[int, Enrolled] = ENROLLED,
    timeout: float = 0.5,
) -> Any:
    """The stage after its round, in which a function may answer in place of nodes."""
    asked = wanted() if asked is None else asked
    opened(store, asked, timeout)
    ask = nodes.ask if isinstance(nodes, Nodes) else nodes
    assert Rounds(store, enrolled, ask, OPENS).work() == 1
    return store.stage(asked.stage)
