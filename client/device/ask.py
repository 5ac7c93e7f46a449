"""Inference for a device's user: a deployed model classifies a sentence from its release alone.

The sentence is encoded, numbered as a record of its own, and sanitized and charged by the same code as any release. The
release then goes to the server, without the user and the record's number, and with the same length as any other. The
server returns its prediction. The same sentence under the same request repeats its release at no cost. The server can
tell that it is the same release.

A sentence is encoded before the server is contacted. So between the server's request and the answer, nothing here takes
longer for a longer sentence. Equal sentences are sent once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.device.https import MODEL
from client.device.model import STAGE, Model, batch_size
from client.device.statement import describe_cost
from client.models import encoder as encoders
from client.models.embeddings import Embeddings
from client.node import NODE, Node, load_device
from client.policy import Refused
from client.sanitizer import Sanitizer
from client.shard import Shard
from client.store.ledger import Ledger, LedgerError
from client.store.questions import FIRST_RECORD, QuestionRecords, sentence_hash
from mechanisms.accounting.privacy_filter import Account
from mechanisms.messages.questions import EmbeddingQuestion
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import SPLITS, Request
from mechanisms.messages.sealed import seal
from mechanisms.messages.wire import record_to_bytes, reply_to_record, sealed_to_record

log = logging.getLogger(__name__)

#: Sentences that are looked up together.
_LOOKED_UP = 4096


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model for n sentences, d of them different and not empty.

    Attributes:
        classes: K names.
        probabilities: (d, K) float64.
        rows: (n,) int64, the row of each sentence in `probabilities`, -1 for an empty sentence.
        charged: Number of new releases.
        request: Request that the releases answer.
        epsilon: Worst case of each release at the policy's delta; infinite without a guarantee.
        public: Whether the policy declares embeddings public.
        spent: Total charge of the user so far at that delta, without channels and exposures that are declared public.
    """

    classes: tuple[str, ...]
    probabilities: NDArray[np.float64]
    rows: NDArray[np.int64]
    charged: int
    request: Request
    epsilon: float
    delta: float
    public: bool
    spent: float


def ask(
    folder: Path | str, sentences: Sequence[str], *, server: str, root_certificates: Path | str, user: int | None = None
) -> Predictions:
    """Return the predictions of the model at `server` for sentences of a user of the device in `folder`.

    Args:
        folder: Folder of the device.
        sentences: The sentences.
        server: https://HOST:PORT.
        root_certificates: PEM file of the only authority that may sign the server's certificate.
        user: User of the sentences. None takes the only user, or 0 if there is none yet.

    Raises:
        ValueError: The device, the policy, the ledger or the server does not allow the inference. The message is one
            line that states the charges. They stay charged, and the same sentences cost nothing in a later call.
    """
    with ExitStack() as stack:
        try:
            asking, hashes, rows, vectors = _prepared(stack, Path(folder), sentences, server, root_certificates, user)
        except (ValueError, LedgerError, OSError) as error:
            raise ValueError(f"{_line(error, folder)}; nothing was charged") from error
        classes, probabilities, spent = asking.all(hashes, vectors)
    return Predictions(
        classes,
        probabilities,
        rows,
        asking.charged,
        asking.request,
        asking.cost.epsilon,
        asking.policy.delta,
        asking.public,
        spent,
    )


def _prepared(
    held: ExitStack,
    folder: Path,
    sentences: Sequence[str],
    server: str,
    root_certificates: Path | str,
    user: int | None,
) -> tuple[_Asking, list[bytes], NDArray[np.int64], NDArray[np.float32]]:
    """Do everything that comes before the first charge, so that failures occur here.

    Returns:
        The request, checked; hashes of the different sentences; the row of each sentence; embeddings.
    """
    node = _device(folder)
    model = held.enter_context(Model(server, root_certificates, role=MODEL))
    questions = held.enter_context(QuestionRecords(node.folder))
    user = _user(node, questions, user)
    hashes, rows, first = _distinct(sentences)
    if not hashes:
        raise ValueError("there is no sentence to ask about")
    assert node.encoder is not None
    encoder = encoders.load(node.encoder)
    vectors = encoder.encode([sentences[i] for i in first])
    request = model.question(encoder=encoder.identity, width=encoder.dim)
    policy = node.policy("")
    try:
        policy.check(request)
    except Refused as error:
        mechanism = request.question(EmbeddingQuestion).mechanism
        cost = describe_cost(policy.cost(mechanism.guarantee).epsilon)
        raise ValueError(f"{folder}: {error}; the server requests {mechanism.name}, {cost}") from error
    asking = _Asking(node, held.enter_context(node.ledger("")), questions, model, request, user)
    asking.check(hashes)
    return asking, hashes, rows, vectors


# -- the device -------------------------------------------------------------------------------------------------------


def _device(folder: Path) -> Node:
    node = load_device(
        folder, missing=f"name the one that holds {NODE}", simulated="; a sentence is asked about by a device"
    )
    if node.encoder is None:
        raise ValueError(f"{folder}: this device has no encoder, and a sentence is asked about by its embedding")
    if node.seal is not None and node.model_seal is None:
        raise ValueError(
            f"{folder}: seals to the training server, and has no key of the model's to seal a question to; install a "
            "bundle made with --model-seal-to"
        )
    return node


def _user(node: Node, questions: QuestionRecords, user: int | None) -> int:
    """Return the user of the sentences. Raise ValueError if it is unclear, or if record numbers would collide."""
    shards = [node.shard(split) for split in SPLITS]
    users = sorted({*questions.users(), *(u for shard in shards for u in np.unique(shard.users).tolist())})
    if any((shard.records >= FIRST_RECORD).any() for shard in shards):
        raise ValueError(f"{node.folder}: has a record numbered {FIRST_RECORD} or above, where sentences' numbers are")
    listing = ", ".join(map(str, users[:5])) + (", …" if len(users) > 5 else "")
    if user is None:
        if len(users) > 1:
            raise ValueError(f"{node.folder}: holds {len(users)} users ({listing}); say by --user whose sentence it is")
        return users[0] if users else 0
    if user < 0 or (users and user not in users):
        raise ValueError(f"{node.folder}: has no user {user}; it has {listing or 'none yet: give 0 or above'}")
    return user


def _distinct(sentences: Sequence[str]) -> tuple[list[bytes], NDArray[np.int64], list[int]]:
    """Return hashes of the different sentences, and indices in both directions.

    Returns:
        The hashes; for each sentence, the index of its hash, -1 if it is empty; for each hash, the index of a sentence.
    """
    places: dict[bytes, int] = {}
    rows, first = np.full(len(sentences), -1, np.int64), list[int]()
    for i, sentence in enumerate(sentences):
        if not sentence.strip():
            continue
        try:
            row = places.setdefault(sentence_hash(sentence), len(places))
        except UnicodeEncodeError:
            raise ValueError(f"sentence {i + 1}: is not Unicode") from None
        if row == len(first):
            first.append(i)
        rows[i] = row
    return list(places), rows, first


# -- charging and sending ---------------------------------------------------------------------------------------------


class _Asking:
    """Inference under one request for some sentences of one user."""

    def __init__(
        self, node: Node, ledger: Ledger, questions: QuestionRecords, model: Model, request: Request, user: int
    ) -> None:
        self.node, self.ledger, self.questions, self.model, self.request = node, ledger, questions, model, request
        self.user = user
        self.policy = node.policy("")
        self.cost = self.policy.cost(request.question(EmbeddingQuestion).mechanism.guarantee)
        self.public = EmbeddingQuestion.channel in self.policy.unprotected
        self.charged, self._certain = 0, True
        self._classes: tuple[str, ...] = ()

    def check(self, hashes: Sequence[bytes]) -> None:
        """Raise ValueError unless the policy allows all new releases; nothing is charged yet."""
        new = again = 0
        for start in range(0, len(hashes), _LOOKED_UP):
            records = self.questions.record_numbers(self.user, hashes[start : start + _LOOKED_UP])
            records, unknown = records[records >= 0], int((records < 0).sum())
            fresh = records[~self._known(records)]
            new += unknown + len(fresh)
            spent = self.policy.spent_on(self.ledger, EmbeddingQuestion.channel, self._people(len(fresh)), fresh)
            more = spent.plus(self.cost, np.ones(len(fresh), np.int64))
            again += int((~self.policy.allows(more, EmbeddingQuestion.channel)).sum())
        if again:
            raise ValueError(
                f"{self.node.folder}: {again:,} of the sentences {'was' if again == 1 else 'were'} asked about before "
                f"under another question, and the policy allows one sentence ε up to {self.policy.embedding:.4g}"
            )
        account, policy, price = self._account(), self.policy, describe_cost(self.cost.epsilon)
        allowed = policy.affords(account, self.cost, EmbeddingQuestion.channel if self.public else "total")
        count = f"{new:,} {'sentence is' if new == 1 else 'sentences are'} new, at {price} each"
        if new > allowed:
            raise ValueError(
                f"{self.node.folder}: {count}, and of its policy's total {policy.left(account, self.public)} are left, "
                f"enough for {allowed:,}"
            )
        log.info(f"{count}; the policy allows {allowed:,}")

    def all(
        self, hashes: Sequence[bytes], vectors: NDArray[np.float32]
    ) -> tuple[tuple[str, ...], NDArray[np.float64], float]:
        """Return classes, the probabilities of all sentences, and the user's total charge afterwards.

        Raises:
            ValueError: The inference failed. The message states the charges.
        """
        step = batch_size(self.request.classes)
        try:
            rows = [slice(start, start + step) for start in range(0, len(hashes), step)]
            probabilities = np.concatenate([self._some(hashes[part], vectors[part]) for part in rows])
            return self._classes, probabilities, float(self._account().epsilon[0])
        except (ValueError, LedgerError, Refused, OSError) as error:
            raise ValueError(f"{_line(error, self.node.folder)}; {self._charges()}") from error

    def _some(self, hashes: Sequence[bytes], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probabilities (n, K) of a message's sentences."""
        records = self.questions.assign(self.user, hashes, above=self.ledger.last_record(self.user))
        reply = self._released(records, vectors)
        classes, probabilities = self.model.answer(self._message(reply), len(records), self.request.classes)
        if self._classes not in ((), classes):
            raise ValueError(f"{self.model.address}: calls its classes otherwise than a moment ago")
        self._classes = classes
        return probabilities

    def _released(self, records: NDArray[np.int64], vectors: NDArray[np.float32]) -> Reply:
        """Return the releases of the sentences, charged. Texts are no longer needed, only their embeddings."""
        shard = Shard(
            self._people(len(records)),
            records,
            None,
            [""] * len(records),
            self.node.folder,
            "test",
            given=(self.request.encoder, Embeddings(vectors.shape[1], vectors.__getitem__)),
        )
        before = int(self._known(records).sum())
        try:
            return Sanitizer(self.policy, self.ledger, self.node.streams).answer(self.request, shard)
        finally:  # an error may also follow the commit: the rollback guard cannot be written
            self._certain = False
            self.charged += int(self._known(records).sum()) - before
            self._certain = True

    def _message(self, reply: Reply) -> bytes:
        """Return the releases without their user and records: every message says user 0 and records 0, 1, ..."""
        nobody = Reply(np.zeros(len(reply), np.int64), np.arange(len(reply), dtype=np.int64), reply.releases)
        if self.node.model_seal is None:
            return record_to_bytes(reply_to_record(nobody))
        return record_to_bytes(sealed_to_record(seal(nobody, self.request, self.node.model_seal)))

    def _known(self, records: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the numbers that have a release under this request."""
        question, people = self.request.question(EmbeddingQuestion), self._people(len(records))
        key, theorem = (STAGE, question.channel, self.request.digest(question.channel)), question.mechanism.guarantee
        former = partial(question.former_digest, self.request.split)
        return self.ledger.recall(*key, people, records, guarantee=theorem, former=former).known

    def _people(self, n: int) -> NDArray[np.int64]:
        return np.full(n, self.user, np.int64)

    def _charges(self) -> str:
        if not self._certain:
            return "what was charged, `sottovoce device ledger` tells when the ledger can be read"
        if not self.charged:
            return "nothing was charged"
        price = describe_cost(self.cost.epsilon)
        if self.charged == 1:
            return f"1 sentence was charged ({price}), and costs nothing when it is asked about again"
        return (
            f"{self.charged:,} sentences were charged ({price} each), and cost nothing when they are asked about again"
        )

    def _account(self) -> Account:
        """Return all charges of the user."""
        return self.policy.spent(self.ledger, self._people(1))


def _line(error: Exception, folder: Path | str) -> str:
    """Return the message for people: errors of this package name the file or the server."""
    return str(error) if isinstance(error, ValueError) else f"{folder}: {getattr(error, 'strerror', None) or error}"
