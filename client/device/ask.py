"""Inference for a device's user: a deployed model classifies a sentence from its release alone.

The sentence is encoded, numbered as a record of its own, and sanitized and charged by the same code as any release. The
release then goes to the server, without the user and the record's number, and with the same length as any other. The
server returns its prediction. The same sentence under the same request repeats its release at no cost. The server can
tell that it is the same release.

A sentence is encoded before the server is contacted. So between the server's request and the answer, nothing here takes
longer for a longer sentence. Equal sentences are sent once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.device.https import MODEL, Server, ServerError
from client.device.statement import describe_cost
from client.models import encoder as encoders
from client.models.embeddings import Embeddings
from client.node import NODE, Node, load_device
from client.policy import Refused
from client.sanitizer import Sanitizer, due_of
from client.shard import Shard
from client.store.ledger import LedgerError
from client.store.questions import FIRST_RECORD, QuestionRecords, sentence_hash
from mechanisms.accounting.privacy_filter import Account
from mechanisms.messages.questions import EmbeddingQuestion
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import SPLITS, Request
from mechanisms.messages.sealed import seal
from mechanisms.messages.wire import (
    MAX_DESCRIPTION,
    record_from_bytes,
    record_to_bytes,
    reply_to_record,
    request_from_record,
    sealed_to_record,
)

log = logging.getLogger(__name__)

STAGE = "ask"
#: Sentences that are looked up together.
_LOOKED_UP = 4096
#: Releases of one message, at most; with many classes fewer, since an answer has no more numbers than these.
_RELEASES, _NUMBERS = 256, 2**18
#: Bytes of a request besides its arrays; of an answer besides its numbers; of a number, and a class's name, in JSON.
_FRAME, _ROOM, _NUMBER, _NAME = 2 * MAX_DESCRIPTION, 2**12, 32, 1024
#: Characters of a class's name.
_LETTERS = 128


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
            inference = _Inference(stack, Path(folder), sentences, server, root_certificates, user)
        except (ValueError, LedgerError, OSError) as error:
            raise ValueError(f"{_line(error, folder)}; nothing was charged") from error
        return inference.predictions()


def batch_size(classes: int) -> int:
    """Return the largest number of releases of a message."""
    return max(1, min(_RELEASES, _NUMBERS // classes))


class _Inference:
    """Inference under one request for some sentences of one user.

    Everything before the first charge is done here, so that failures occur here. Nothing is charged yet.

    Raises:
        ValueError: The device, the policy or the server does not allow all of it.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        sentences: Sequence[str],
        server: str,
        root_certificates: Path | str,
        user: int | None,
    ) -> None:
        self.node = _device(folder)
        self.model = stack.enter_context(Server(server, root_certificates, role=MODEL))
        self.questions = stack.enter_context(QuestionRecords(self.node.folder))
        self.user = _user(self.node, self.questions, user)
        self.hashes, self.rows, first = _distinct(sentences)
        if not self.hashes:
            raise ValueError("there is no sentence to ask about")
        assert self.node.encoder is not None
        encoder = encoders.load(self.node.encoder)
        self.vectors = encoder.encode([sentences[i] for i in first])
        self.request = _request(self.model, encoder.identity, encoder.dim)
        ((self.due, question),) = due_of(self.request).items()
        self.policy = self.node.policy("")
        self.cost = self.policy.cost(question.mechanism.guarantee)
        self.price = describe_cost(self.cost.epsilon)
        self.public = self.due.channel in self.policy.unprotected
        self.charged, self._certain = 0, True
        try:
            self.policy.check(self.request)
        except Refused as error:
            raise ValueError(
                f"{folder}: {error}; the server requests {question.mechanism.name}, {self.price}"
            ) from error
        self.ledger = stack.enter_context(self.node.ledger(""))
        self._check()

    def _check(self) -> None:
        """Raise ValueError unless the policy allows all new releases."""
        channel, new, again = self.due.channel, 0, 0
        for start in range(0, len(self.hashes), _LOOKED_UP):
            records = self.questions.record_numbers(self.user, self.hashes[start : start + _LOOKED_UP])
            records, unknown = records[records >= 0], int((records < 0).sum())
            fresh = records[~self._known(records)]
            new += unknown + len(fresh)
            spent = self.policy.spent_on(self.ledger, channel, self._people(len(fresh)), fresh)
            again += int((~self.policy.allows(spent.plus(self.cost, np.ones(len(fresh), np.int64)), channel)).sum())
        if again:
            raise ValueError(
                f"{self.node.folder}: {again:,} of the sentences {'was' if again == 1 else 'were'} asked about before "
                f"under another question, and the policy allows one sentence ε up to {self.policy.embedding:.4g}"
            )
        account, policy = self._account(), self.policy
        allowed = policy.affords(account, self.cost, channel if self.public else "total")
        count = f"{new:,} {'sentence is' if new == 1 else 'sentences are'} new, at {self.price} each"
        if new > allowed:
            raise ValueError(
                f"{self.node.folder}: {count}, and of its policy's total {policy.left(account, self.public)} are left, "
                f"enough for {allowed:,}"
            )
        log.info(f"{count}; the policy allows {allowed:,}")

    def predictions(self) -> Predictions:
        """Charge and send the releases, a message at a time, and return the predictions.

        Raises:
            ValueError: The inference failed. The message states the charges.
        """
        step, classes, parts = batch_size(self.request.classes), tuple[str, ...](), []
        try:
            above = int(self.ledger.records_of(self.user).max(initial=-1))  # later numbers are the questions' own
            for start in range(0, len(self.hashes), step):
                part = slice(start, start + step)
                records = self.questions.assign(self.user, self.hashes[part], above=above)
                message = self._message(self._released(records, self.vectors[part]))
                names, probabilities = _answer(self.model, message, len(records), self.request.classes)
                if classes not in ((), names):
                    raise ValueError(f"{self.model.address}: calls its classes otherwise than a moment ago")
                classes = names
                parts.append(probabilities)
            spent = float(self._account().epsilon[0])
        except (ValueError, LedgerError, Refused, OSError) as error:
            raise ValueError(f"{_line(error, self.node.folder)}; {self._charges()}") from error
        return Predictions(
            classes,
            np.concatenate(parts),
            self.rows,
            self.charged,
            self.request,
            self.cost.epsilon,
            self.policy.delta,
            self.public,
            spent,
        )

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
        return self.ledger.recall(self.due, self._people(len(records)), records).known

    def _people(self, n: int) -> NDArray[np.int64]:
        return np.full(n, self.user, np.int64)

    def _charges(self) -> str:
        if not self._certain:
            return "what was charged, `sottovoce device ledger` tells when the ledger can be read"
        if not self.charged:
            return "nothing was charged"
        if self.charged == 1:
            return f"1 sentence was charged ({self.price}), and costs nothing when it is asked about again"
        return (
            f"{self.charged:,} sentences were charged ({self.price} each), and cost nothing when they are asked about "
            "again"
        )

    def _account(self) -> Account:
        """Return all charges of the user."""
        return self.policy.spent(self.ledger, self._people(1))


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


def _line(error: Exception, folder: Path | str) -> str:
    """Return the message for people: errors of this package name the file or the server."""
    return str(error) if isinstance(error, ValueError) else f"{folder}: {getattr(error, 'strerror', None) or error}"


# -- the model, which may be hostile ----------------------------------------------------------------------------------


def _request(model: Server, encoder: str, width: int) -> Request:
    """Return the model's request: the embedding of a sentence, alone, by the encoder of that hash and width.

    The policy decides whether the request is allowed. Raise ServerError if the server sends anything else.
    """
    data = model.get("/v1/question", limit=4 * width * (width + 1) + _FRAME)  # mean, and m1 at its largest
    try:
        request = request_from_record(record_from_bytes(data))
    except ValueError:
        raise ServerError(f"{model.address}: its question cannot be read") from None
    plain = (request.arm, request.stage, request.split, request.part, request.minimum_users)
    if plain != ("", STAGE, "test", (0, 1), 0) or [type(q) for q in request.questions] != [EmbeddingQuestion]:
        raise ServerError(f"{model.address}: asks for something else than the embedding of one sentence")
    if request.encoder != encoder:
        raise ServerError(
            f"{model.address}: asks for embeddings of the encoder {request.encoder[:16]}…, and this device has "
            f"{encoder[:16]}…; install the bundle of that model"
        )
    if request.question(EmbeddingQuestion).projection.width != width:
        raise ServerError(f"{model.address}: its maps do not fit the encoder")
    return request


def _answer(model: Server, message: bytes, n: int, classes: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return names of the classes and probabilities (n, K) for a message with n releases.

    Raise ServerError if there is no answer that is exactly as specified.
    """
    data = model.post("/v1/ask", message, limit=_ROOM + classes * (_NAME + _NUMBER * n))
    try:
        return _read(json.loads(data), n, classes)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise ServerError(f"{model.address}: its answer cannot be read") from None


def _read(answer: dict[str, object], n: int, classes: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    names, rows = answer["classes"], answer["probabilities"]
    if set(answer) != {"classes", "probabilities"} or not (isinstance(names, list) and isinstance(rows, list)):
        raise ValueError("answer: its keys")
    if len(names) != classes or not all(map(_printable, names)) or len(set(names)) != classes:
        raise ValueError("answer: its classes")
    if len(rows) != n or not all(isinstance(row, list) and len(row) == classes for row in rows):
        raise ValueError("answer: its rows")
    if not all(type(value) in (int, float) for row in rows for value in row):
        raise ValueError("answer: its numbers")
    values = np.array(rows, dtype=np.float64)
    if not ((values >= 0).all() and (np.abs(values.sum(axis=1) - 1) < 1e-6).all()):
        raise ValueError("answer: its probabilities")
    return tuple(names), values


def _printable(text: object) -> bool:
    """Return whether a name may be shown: a terminal interprets some characters."""
    return isinstance(text, str) and 0 < len(text) <= _LETTERS and text.isprintable()
