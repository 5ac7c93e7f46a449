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
from client.store.ledger import Ledger
from mechanisms.messages.release import CHANNELS, Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_from_record, request_to_record
from mechanisms.vocabulary import Vocabulary
from server.training.statistic_head import simplex_codes
from simulations.audit.games import words

IntArray = NDArray[np.int64]

ENCODER = "ab" * 32
ARM = "audit"
#: Of the encoder, of the maps, of the labels.
WIDTH, DIM, CLASSES = 8, 4, 3
EMBEDDING = {"mechanism": "purkayastha", "epsilon": 0.5, "dim": DIM}
LABEL = {"mechanism": "randomized-response", "epsilon": 1.0}
#: Little for each word, so that a word in clear stands out among five.
TEXT = {"mechanism": "santext", "epsilon": 0.25, "tokens": 5, "length": 0.1}
STATISTIC = {"mechanism": "privunit", "epsilon": 2.0}
ANSWER = {"mechanism": "randomized-response", "epsilon": 1.5}


def few_words() -> Vocabulary:
    """The words of the clients' texts: so few that all that a text may come out as can be listed."""
    return words(4)


def request(channel: str, *, stage: str = "train", louder: float = 1.0) -> Request:
    """What is asked of a channel; "embedding" is asked for with the label. louder: what every ε is multiplied by."""

    def asked(spec: dict[str, Any]) -> dict[str, Any]:
        return spec | {"epsilon": spec["epsilon"] * louder}

    if channel == "text":
        vocabulary = few_words()
        spec = asked(TEXT) | {"vocabulary": vocabulary.identity}
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
            vocabularies.save(few_words(), installed)
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
        """Of everything that any node answered: is it in the ledger with its bytes, and has each record been charged
        the worst case of all that it released?"""
        releases = charges = 0
        for name in dict.fromkeys(name for name, _ in self.answered):
            replies = [reply for asked, reply in self.answered if asked == name]
            with load_node(self.folder / name).ledger(ARM) as ledger:
                for reply in replies:
                    for release in reply.releases:
                        kept = _kept(ledger, release, reply) & _paid(ledger, release.channel, reply, replies)
                        releases, charges = releases + len(kept), charges + int(kept.sum())
        return Charged(releases, charges)


def _kept(ledger: Ledger, release: Release, reply: Reply) -> NDArray[np.bool_]:
    """Which rows of a release lie in the ledger, byte by byte, (n,)."""
    found = ledger.recall(release.stage, release.channel, release.digest, reply.users, reply.records)
    (values,) = release.payload.values()
    sent = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(len(reply), -1).view(np.uint8)
    if found.payloads.shape != sent.shape:
        return np.zeros(len(reply), dtype=bool)
    kept: NDArray[np.bool_] = found.known & (found.payloads == sent).all(axis=1)
    return kept


def _paid(ledger: Ledger, channel: str, reply: Reply, replies: list[Reply]) -> NDArray[np.bool_]:
    """Which of a reply's records were charged for all that they released on a channel in `replies`, (n,)."""
    price = np.zeros(len(reply))
    for other in replies:
        for release in other.releases:
            if release.channel == channel:
                price += release.guarantee.worst_case() * _among(reply, other)
    charged = ledger.spent_on(channel, reply.users, reply.records, delta=0.0, declared=frozenset())
    paid: NDArray[np.bool_] = charged.epsilon >= price * (1 - 1e-12)
    return paid


def _among(reply: Reply, other: Reply) -> NDArray[np.bool_]:
    """Which records of a reply are in another too, (n,)."""
    if other is reply:
        return np.ones(len(reply), dtype=bool)
    pairs = [np.rec.fromarrays([r.users, r.records], names="user,record") for r in (reply, other)]
    return np.isin(*pairs)


def values_of(reply: Reply, channel: str) -> NDArray[Any]:
    """What was released on a channel, as it travels, (n, ...)."""
    (release,) = (r for r in reply.releases if r.channel == channel)
    values: NDArray[Any]
    (values,) = release.payload.values()
    return values


def rows_of(reply: Reply, channel: str, users: IntArray, records: IntArray) -> NDArray[Any]:
    """What was released on a channel of users (n,) and records (n,), each of which answered, (n, ...)."""
    place = {pair: i for i, pair in enumerate(zip(reply.users.tolist(), reply.records.tolist(), strict=True))}
    return values_of(reply, channel)[[place[pair] for pair in zip(users.tolist(), records.tolist(), strict=True)]]
