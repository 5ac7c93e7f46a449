"""The clients that the audit asks: nodes in folders, what their users hold, and what their ledgers say of what left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.app import answer
from client.models import vocabulary as vocabularies
from client.node import load_node, write_node
from client.policy import Policy
from client.shard import write_shard
from mechanisms.messages.release import CHANNELS
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_from_record, request_to_record
from server.training.statistic_head import simplex_codes
from simulations.audit.games import words

IntArray = NDArray[np.int64]

ENCODER = "ab" * 32
ARM = "audit"
#: Of the encoder, of the maps, of the labels.
WIDTH, DIM, CLASSES = 8, 4, 3
EMBEDDING = {"mechanism": "purkayastha", "epsilon": 0.5, "dim": DIM}
LABEL = {"mechanism": "randomized-response", "epsilon": 1.0}
TEXT = {"mechanism": "santext", "epsilon": 1.0, "tokens": 1, "length": 1.0}
STATISTIC = {"mechanism": "privunit", "epsilon": 2.0}
ANSWER = {"mechanism": "randomized-response", "epsilon": 1.5}


def request(channel: str, *, stage: str = "train", text: dict[str, Any] = TEXT, louder: float = 1.0) -> Request:
    """What is asked of a channel; "embedding" is asked for with the label. text: a text's mechanism. louder: what every
    ε is multiplied by."""

    def asked(spec: dict[str, Any]) -> dict[str, Any]:
        return spec | {"epsilon": spec["epsilon"] * louder}

    if channel == "text":
        vocabulary = words()
        spec = asked(text) | {"vocabulary": vocabulary.identity}
        return Request(ARM, stage, "train", "", None, None, None, None, 2, 0, text=spec, vocabulary=vocabulary)
    mean, m1 = np.zeros(WIDTH, np.float32), np.eye(WIDTH, DIM, dtype=np.float32)
    if channel == "statistic":
        return Request(
            ARM, stage, "train", ENCODER, mean, m1, None, None, 2, 0, statistic=asked(STATISTIC),
            codes=simplex_codes(2),
        )  # fmt: skip
    if channel == "answer":  # a model that calls the first axis the first class and its opposite the second
        head = np.zeros((DIM, CLASSES), np.float32), np.zeros(CLASSES, np.float32)
        head[0][0, :2] = 1.0, -1.0
        return Request(ARM, stage, "train", ENCODER, mean, m1, None, None, CLASSES, 0, answer=asked(ANSWER), head=head)
    return Request(ARM, stage, "train", ENCODER, mean, m1, asked(EMBEDDING), asked(LABEL), CLASSES, 0)


@dataclass(frozen=True)
class Charged:
    """What left a client, and what its ledger says of it: releases sent, and those of them that are charged, with
    their bytes, at no less than the worst case."""

    releases: int
    charges: int


@dataclass(eq=False)
class Clients:
    """Nodes, each in a folder below this one by its name, and all that they answered."""

    folder: Path
    answered: list[tuple[str, Reply]] = field(default_factory=list)

    def write(
        self, name: str, users: IntArray, records: IntArray, *, texts: Sequence[str], labels: IntArray | None = None,
        embeddings: NDArray[np.float32] | None = None, seed: int,
    ) -> None:  # fmt: skip
        """A node whose users agree to everything. users, records, labels: (n,); embeddings: (n, WIDTH)."""
        folder, installed = self.folder / name, self.folder / "words"
        if not installed.exists():
            vocabularies.save(words(), installed)
        known = {} if embeddings is None else {"embeddings": embeddings, "identity": ENCODER}
        write_shard(folder, "train", users, records, texts, labels, **known)
        everything = Policy(**{channel: math.inf for channel in CHANNELS})
        write_node(folder, vocabulary=installed.resolve(), seed=seed, arms={ARM: everything})

    def ask(self, name: str, asked: Request) -> Reply:
        """What a node answers, over the wire."""
        reply = reply_from_record(answer(request_to_record(asked), load_node(self.folder / name)))
        self.answered.append((name, reply))
        return reply

    def charged(self) -> Charged:
        """Of everything that any node answered: is it in the ledger, at its price and with its bytes?"""
        releases = charges = 0
        for name, reply in self.answered:
            with load_node(self.folder / name).ledger(ARM) as ledger:
                rows = {(r.user, r.record, r.stage, r.channel, r.digest): r for r in ledger.rows()}
            for release in reply.releases:
                (values,) = release.payload.values()
                price = release.guarantee.worst_case()
                sent = zip(reply.users.tolist(), reply.records.tolist(), values, strict=True)
                for user, record, value in sent:
                    row = rows.get((user, record, release.stage, release.channel, release.digest))
                    releases += 1
                    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
                    charges += row is not None and row.payload == data and row.epsilon >= price
        return Charged(releases, charges)


def values_of(reply: Reply, channel: str) -> NDArray[Any]:
    """What was released on a channel, as it travels, (n, ...)."""
    (release,) = (r for r in reply.releases if r.channel == channel)
    values: NDArray[Any]
    (values,) = release.payload.values()
    return values
