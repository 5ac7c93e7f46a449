"""Clients of the audit: nodes in folders, the records of their users, and their ledgers' charges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from mechanisms.channels import CHANNELS
from mechanisms.guarantee import EXPOSURES
from mechanisms.messages.questions import (
    QUESTIONS,
    AnswerQuestion,
    EmbeddingQuestion,
    LabelQuestion,
    Projection,
    Question,
    TextQuestion,
    VectorQuestion,
)
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys, open_envelope
from mechanisms.messages.signature import public_of
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    request_identity,
    request_to_record,
    sealed_from_record,
)
from mechanisms.vocabulary import Vocabulary
from server.sealed_batches import open_batch
from server.training.statistic_head import simplex_codes
from simulations.errors import UserError
from sottovoce.adversary.audit.games import words

IntArray = NDArray[np.int64]

ENCODER = "ab" * 32
ARM = "audit"
#: Width of the encoder, dimension of the maps, number of labels.
WIDTH, DIM, CLASSES = 8, 4, 3
EMBEDDING = {"mechanism": "purkayastha", "epsilon": 0.5, "dim": DIM}
LABEL = {"mechanism": "randomized-response", "epsilon": 1.0}
#: Little ε for each word, so that a word in clear is visible among five.
TEXT = {"mechanism": "santext", "epsilon": 0.25, "tokens": 5, "length": 0.1}
STATISTIC = {"mechanism": "privunit", "epsilon": 2.0}
ANSWER = {"mechanism": "randomized-response", "epsilon": 1.5}
#: Number of labels of a text: each label is rare, so that one in clear is visible.
MANY = 1000
RARE = {"mechanism": "randomized-response", "epsilon": 0.5}
#: Texts of all sorts, beside which a label is released: a client's behaviour may depend on them.
TEXTS = (
    "",
    " ",
    "a",
    "A",
    "the film",
    "The Film",
    "THE FILM",
    "word0",
    "word0 word1",
    "the of word0 word1 the of",
    "a good film",
    "a bad film",
    "not a good film",
    "I did not like it.",
    "I loved it!",
    "Why?",
    "3",
    "3.14 and 1,000",
    "it's",
    "do n't",
    "...",
    "?!",
    "name@example.org",
    "+49 30 1234567",
    "naïve café",
    "Ünïcödé",
    "Ελληνικά",
    "漢字",
    "🙂",
    "a\tb\nc",
    "zzyzxq zzyzxq",
    " ".join(["word"] * 60),
)


def few_words() -> Vocabulary:
    """Return the vocabulary of the clients' texts, so small that all outcomes of a text can be listed."""
    return words(4)


def request(channel: str, *, stage: str = "train", arm: str = ARM) -> Request:
    """Return the request of a channel. "embedding" includes the label, and "label" includes a text.

    Args:
        channel: Name of the channel.
        stage: Name of the stage.
        arm: Name of the arm; "" for a device.
    """

    def text() -> Question:
        vocabulary = few_words()
        return TextQuestion(TEXT | {"vocabulary": vocabulary.identity}, classes=MANY, vocabulary=vocabulary)

    def answer() -> Question:  # the model's first class is the first axis, its second class the opposite one
        head = np.zeros((DIM, CLASSES), np.float32), np.zeros(CLASSES, np.float32)
        head[0][0, :2] = 1.0, -1.0
        return AnswerQuestion(ANSWER, projection=maps, head=head)

    maps = Projection(ENCODER, np.zeros(WIDTH, np.float32), np.eye(WIDTH, DIM, dtype=np.float32))
    makers: dict[type[Question], Callable[[], tuple[Question, ...]]] = {
        TextQuestion: lambda: (text(),),
        LabelQuestion: lambda: (text(), LabelQuestion(RARE, classes=MANY)),
        VectorQuestion: lambda: (VectorQuestion(STATISTIC, projection=maps, codes=simplex_codes(2)),),
        AnswerQuestion: lambda: (answer(),),
        EmbeddingQuestion: lambda: (
            EmbeddingQuestion(EMBEDDING, projection=maps, classes=CLASSES),
            LabelQuestion(LABEL, classes=CLASSES),
        ),
    }
    return Request(arm=arm, stage=stage, split="train", minimum_users=0, questions=makers[QUESTIONS[channel]]())


@dataclass(frozen=True)
class Charged:
    """Number of releases of a client, and number of them in its ledger.

    Args:
        releases: Releases that were sent.
        charges: Releases in the ledger with their bytes, charged at least their worst case.
    """

    releases: int
    charges: int


#: Total of a device: more than any audit spends.
_TOTAL = 1e12


@dataclass(eq=False)
class Clients:
    """Nodes, each in its own folder below this one, with all their replies.

    Args:
        folder: Folder of the nodes.
        deployed: True for nodes as on a device: randomness of the operating system, a durable ledger, and sealed
            releases that the audit opens like a server. False for nodes simulated from a seed.
        answered: Replies with the names of their nodes.
    """

    folder: Path
    deployed: bool = False
    answered: list[tuple[str, Reply]] = field(default_factory=list)
    _keys: tuple[bytes, bytes] = field(default_factory=generate_keys)
    _shuffler: tuple[bytes, bytes] = field(default_factory=generate_keys)

    @property
    def arm(self) -> str:
        """Return the arm's name; "" for a device."""
        return "" if self.deployed else ARM

    def request(self, channel: str, *, stage: str = "train") -> Request:
        """Return the request of a channel to these nodes: see `request`."""
        return request(channel, stage=stage, arm=self.arm)

    def write(
        self,
        name: str,
        users: IntArray,
        records: IntArray,
        *,
        texts: Sequence[str],
        labels: IntArray | None = None,
        embeddings: NDArray[np.float32] | None = None,
        seed: int,
    ) -> None:
        """Write a node whose users agree to everything.

        Args:
            name: Name of the node.
            users: Users (n,).
            records: Records (n,).
            texts: n texts.
            labels: Labels (n,), if any.
            embeddings: Embeddings (n, WIDTH), if any.
            seed: Seed of a simulated node.
        """
        folder, installed = self.folder / name, self.folder / "words"
        if not installed.exists():
            vocabularies.save(few_words(), installed)
        encoder = None if embeddings is None else ENCODER
        write_shard(folder, "train", users, records, texts, labels, embeddings=embeddings, identity=encoder)
        shown = tuple(f"{exposed}: what the audit measures is the rest" for exposed in EXPOSURES)
        limits: dict[str, Any] = dict.fromkeys(CHANNELS, math.inf)
        everything = Policy(**limits, total=_TOTAL, accept_unprotected=shown)
        if self.deployed:
            seal, shuffler_seal = self._keys[1], self._shuffler[1]
            write_node(
                folder, vocabulary=installed.resolve(), policy=everything, seal=seal, shuffler_seal=shuffler_seal
            )
        else:
            write_node(folder, vocabulary=installed.resolve(), seed=seed, arms={ARM: everything})

    def ask(self, name: str, asked: Request) -> Reply:
        """Return the reply of a node to a request, over the wire.

        Raises:
            UserError: It does not answer, or a sealed row does not open.
        """
        try:
            content = answer(request_to_record(asked), load_node(self.folder / name))
        except Exception as error:  # of any type: nothing left the node, so there is nothing to measure
            raise UserError(f"audit: a client does not answer ({type(error).__name__})") from error
        record = record_from_bytes(record_to_bytes(content))
        if self.deployed:
            device, about = load_node(self.folder / name).device_key, request_identity(request_to_record(asked))
            sealed = open_envelope(sealed_from_record(record), about, self._shuffler[0], public_of(device))
            opened, dropped = open_batch(sealed.rows, asked, self._keys[:1])
            if len(opened) != len(sealed):
                raise UserError(f"audit: sealed releases of a device are no releases to a server: {dict(dropped)}")
            reply = Reply(sealed.users, sealed.records, opened.releases)
        else:
            reply = reply_from_record(record)
        self.answered.append((name, reply))
        return reply

    def charged(self) -> Charged:
        """Check the ledgers for all replies.

        A release counts as charged if its bytes are in the ledger and its record was charged the worst case of all its
        releases.
        """
        releases = charges = 0
        for name in dict.fromkeys(name for name, _ in self.answered):
            replies = [reply for asked, reply in self.answered if asked == name]
            with load_node(self.folder / name).ledger(self.arm) as ledger:
                for reply in replies:
                    for release in reply.releases:
                        kept = _kept(ledger, release, reply) & _paid(ledger, release.channel, reply, replies)
                        releases, charges = releases + len(kept), charges + int(kept.sum())
        return Charged(releases, charges)


def _kept(ledger: Ledger, release: Release, reply: Reply) -> NDArray[np.bool_]:
    """Return True for each row of a release that is in the ledger, byte by byte, (n,)."""
    result = ledger.recall(release.stage, release.channel, release.digest, reply.users, reply.records)
    (values,) = release.payload.values()
    sent = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(len(reply), -1).view(np.uint8)
    if result.payloads.shape != sent.shape:
        return np.zeros(len(reply), dtype=bool)
    kept: NDArray[np.bool_] = result.known & (result.payloads == sent).all(axis=1)
    return kept


def _paid(ledger: Ledger, channel: str, reply: Reply, replies: list[Reply]) -> NDArray[np.bool_]:
    """Return True for each of a reply's records that was charged for all its releases in `replies`, (n,)."""
    price = np.zeros(len(reply))
    for other in replies:
        for release in other.releases:
            if release.channel == channel:
                price += release.guarantee.worst_case(declared=EXPOSURES) * _among(reply, other)
    charged = ledger.spent_on(channel, reply.users, reply.records, delta=0.0, declared=frozenset(EXPOSURES))
    paid: NDArray[np.bool_] = charged.epsilon >= price * (1 - 1e-12)
    return paid


def _among(reply: Reply, other: Reply) -> NDArray[np.bool_]:
    """Return True for each record of a reply that is in another reply too, (n,)."""
    if other is reply:
        return np.ones(len(reply), dtype=bool)
    pairs = {*zip(other.users.tolist(), other.records.tolist(), strict=True)}
    return np.array([pair in pairs for pair in zip(reply.users.tolist(), reply.records.tolist(), strict=True)], bool)


def values_of(reply: Reply, channel: str) -> NDArray[Any]:
    """Return the releases on a channel in transport form, (n, ...)."""
    (release,) = (r for r in reply.releases if r.channel == channel)
    values: NDArray[Any]
    (values,) = release.payload.values()
    return values
