"""Conversion of private records to releases, the only place where it happens.

Nothing here may fail, or give a different kind of answer, because of a record's content. An embedding that cannot be
normalized and a label outside the classes are mapped into the mechanism's domain, where its theorem covers them. A
refusal would reveal them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client import dummy_release
from client.draw import draw
from client.models import language_models
from client.policy import Policy, Refused
from client.shard import Shard
from client.store.ledger import Charge, Ledger, LedgerError, Recalled
from client.store.text_column import Text
from mechanisms.accounting.privacy_filter import FREE, Account
from mechanisms.guarantee import Guarantee
from mechanisms.messages.questions import Projection, Question
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.streams import SecureStreams, SimulationStreams

#: Records that are drawn at once: their embeddings and float64 intermediates determine the memory of a cohort.
_AT_ONCE = 2**14
#: Bytes of payload that are drawn at once: a user vector may have thousands of coordinates.
_BYTES = 2**22


@dataclass(frozen=True)
class Sanitizer:
    """Answers to requests about a shard, under a policy, on a ledger, with a source of randomness.

    Attributes:
        policy: Policy of the client.
        ledger: Ledger of the users' releases.
        streams: Source of randomness.
        stand_ins: Ledger of dummy releases (`client.dummy_release`). With None, users who cannot pay are left out under
            any policy.
    """

    policy: Policy
    ledger: Ledger
    streams: SimulationStreams | SecureStreams
    stand_ins: Ledger | None = None

    def answer(self, request: Request, shard: Shard) -> Reply:
        """Return releases of the requested records, or one user vector for each user; charged before this returns.

        Releases under the same key are repeated from the ledger at no cost. The rest is drawn in memory, committed with
        its charge in one transaction, and only then returned. Users whose budget does not cover the new releases are
        left out with all their records, or get dummy releases, as far as the policy allows. Every row depends on its
        own records, ledger rows and stream only: a cohort answers as its users would alone.

        Raises:
            Refused: No user is left, or the policy refuses the request itself.
            LedgerError: A ledger cannot be trusted. Nothing leaves.
        """
        self.policy.check(request)
        for question in request.questions:
            if question.reads_labels and shard.labels is None and len(shard):
                raise Refused("no-labels")
            if question.masked_lm and not language_models.known(
                shard.masked_lm, question.mechanism, question.masked_lm
            ):
                raise Refused("masked-lm")
        with ExitStack() as held:
            books = self._books(request, shard)
            for book in books:
                held.enter_context(book.ledger.exclusive())
            answering = _Answering.of(request, shard)
            recalled = {
                question: [book.recall(question.channel, answering) for book in books] for question in request.questions
            }
            paid, stood_for = self._affordable(request, answering, recalled)
            there = paid | stood_for
            answering, paid = answering.take(there), paid[there]
            payloads: dict[Question, NDArray[Any]] = {}
            for question in request.questions:
                known = [_part(each, there) for each in recalled.pop(question)]
                payloads[question] = self._release(question, answering, books, known, paid, payloads)
            for book in reversed(books):  # free releases first: a charge is the last step that may fail
                book.ledger.commit(book.charges)
        return Reply(
            answering.users,
            answering.records,
            tuple(request.release(question, values) for question, values in payloads.items()),
        )

    def _books(self, request: Request, shard: Shard) -> list[_Book]:
        """Return the book of the users' data, and, if dummy releases are possible, the book of these."""
        books = [_Book(self.ledger, request, shard, self.streams)]
        if self.stand_ins is not None:
            books.append(_StandIns(self.stand_ins, request, shard, dummy_release.apart(self.streams, "stand-in")))
        return books

    def _affordable(
        self, request: Request, answering: _Answering, recalled: Mapping[Question, list[Recalled]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return a mask of rows whose users can pay for all new releases, and one of rows for dummy releases.

        Raise Refused if there were rows and none is left.
        """
        people, person = np.unique(answering.users, return_inverse=True)
        policy, declared = self.policy, self.policy.unprotected
        bill = Account.empty(len(answering))
        paid = np.zeros(len(answering), dtype=bool)
        within = np.ones(len(people), dtype=bool)
        for question in request.questions:
            channel = question.channel
            new = ~np.any([each.known for each in recalled[question]], axis=0)
            if channel in declared:
                bill = bill.plus(FREE, new)
                continue
            cost = policy.cost(question.mechanism.guarantee)
            bill, paid = bill.plus(cost, new), paid | new
            spent = policy.spent_on(self.ledger, channel, answering.users, answering.records)
            within[person[new & ~policy.allows(spent.plus(cost, new), channel)]] = False
        users_bill = bill.sum_by(person, len(people))
        account = policy.spent(self.ledger, people) + users_bill
        counted = (users_bill.releases == 0) | policy.allows_number(account)
        solvent = (np.bincount(person[paid], minlength=len(people)) == 0) | policy.allows(account, "total")
        kept = within & solvent & counted
        stood_for = np.zeros_like(kept)
        if self.stand_ins is not None:
            given = self.stand_ins.spent(people).releases + users_bill.releases
            stood_for = ~kept & (given <= policy.stand_ins)
        if len(answering) and not (kept | stood_for).any():
            raise Refused("channel" if not within.any() else "total" if not (within & solvent).any() else "releases")
        return kept[person], stood_for[person]

    def _release(
        self,
        question: Question,
        answering: _Answering,
        books: list[_Book],
        recalled: list[Recalled],
        paid: NDArray[np.bool_],
        released: Mapping[Question, NDArray[Any]],
    ) -> NDArray[Any]:
        """Return a question's payload for all rows.

        Earlier releases are repeated, dummy or not. New draws are charged to their book: that of the users' data for
        paid rows.
        """
        _, dtype, shape = question.payload_form
        payload = np.empty((len(answering), *shape), dtype=dtype)
        known = np.any([each.known for each in recalled], axis=0)
        for book, each, due in zip(books, recalled, (paid, ~paid), strict=False):
            book.repeat(payload, each)
            book.draw(question, payload, answering, ~known & due, each.earlier, self.policy, released)
        return payload


@dataclass(frozen=True)
class _Book:
    """Ledger of the users' data, and the way its releases are drawn.

    Attributes:
        charges: Draws that are not committed yet.
    """

    ledger: Ledger
    request: Request
    shard: Shard
    streams: SimulationStreams | SecureStreams
    charges: list[Charge] = field(default_factory=list)

    def guarantee(self, question: Question) -> Guarantee:
        """Return the guarantee that a release on this book is charged for."""
        return question.mechanism.guarantee

    def values(self, question: Question) -> Callable[[_Answering, int], Any]:
        """Return a function from rows and a step of their streams to the inputs that `client.draw.draw` takes."""
        records = _Records(self.shard)
        return lambda part, step: question.values(records, part.rows, part.starts)

    def recall(self, channel: str, answering: _Answering) -> Recalled:
        """Return the releases of each row on this book."""
        return self.ledger.recall(
            self.request.stage, channel, self.request.digest(channel), answering.users, answering.records
        )

    def repeat(self, payload: NDArray[Any], recalled: Recalled) -> None:
        """Put known releases into the payload."""
        if not recalled.known.any():
            return
        if recalled.payloads.shape[1] != payload.dtype.itemsize * int(np.prod(payload.shape[1:])):
            raise LedgerError("ledger: a payload does not have its length")
        stored = recalled.payloads[recalled.known].view(payload.dtype.newbyteorder("<"))
        payload[recalled.known] = stored.reshape(-1, *payload.shape[1:])

    def draw(
        self, question: Question, payload: NDArray[Any], answering: _Answering, missing: NDArray[np.bool_],
        earlier: NDArray[np.int64], policy: Policy, released: Mapping[Question, NDArray[Any]],
    ) -> None:  # fmt: skip
        """Draw missing releases into the payload, and charge them.

        Args:
            question: The question.
            payload: Payload of all rows.
            answering: The rows.
            missing: Mask of the rows to draw.
            earlier: Number of earlier releases of each row under other digests.
            policy: Policy that prices the charges.
            released: Releases of all rows, by the questions before this one.
        """
        if not missing.any():
            return
        request, guarantee = self.request, self.guarantee(question)
        width = payload.dtype.itemsize * int(np.prod(payload.shape[1:]))
        values = self.values(question)
        read = None if question.given is None else released[question.given]
        # A record that is requested again under another digest draws from its next stream, never from the same one.
        for step in np.unique(earlier[missing]).tolist():
            due = np.flatnonzero(missing & (earlier == step))
            for here in answering.pieces(due, max(width, question.bytes_in_draw)):
                part = answering.take(here)
                payload[here] = draw(
                    question, values(part, step), part.users, part.records, stage=request.stage, streams=self.streams,
                    step=step, released=None if read is None else read[here], masked_lm=self.shard.masked_lm,
                )  # fmt: skip
        new = payload[missing].astype(payload.dtype.newbyteorder("<"), copy=False)
        self.charges.append(
            Charge(
                stage=request.stage,
                channel=question.channel,
                digest=request.digest(question.channel),
                guarantee=guarantee,
                epsilon=policy.cost(guarantee).epsilon,
                delta=policy.delta,
                users=answering.users[missing],
                records=answering.records[missing],
                payloads=new.reshape(len(new), -1).view(np.uint8),
            )
        )


class _StandIns(_Book):
    """Book of dummy releases."""

    def guarantee(self, question: Question) -> Guarantee:
        """Return the guarantee of a dummy release, which has no cost."""
        return dummy_release.NOTHING_OF_THE_USERS

    def values(self, question: Question) -> Callable[[_Answering, int], Any]:
        """Return a function that makes random inputs."""
        return lambda part, step: dummy_release.values(
            question, part.users, part.records, stage=self.request.stage, streams=self.streams, step=step
        )


@dataclass(frozen=True, eq=False)
class _Answering:
    """Rows of a reply: row i answers for user users[i] and their record records[i].

    Attributes:
        rows: Rows of the shard. Row i of the reply is made from those at starts[i] to starts[i + 1]: one, or, for user
            vectors, all of the user's, which are then their record 0 on the ledger.
    """

    users: NDArray[np.int64]
    records: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, request: Request, shard: Shard) -> _Answering:
        """Return the rows that a request selects from a shard."""
        index, count = request.part
        rows = np.flatnonzero(shard.users % count == index).astype(np.int64)
        if not request.of_users:
            return cls(shard.users[rows], shard.records[rows], rows, np.arange(len(rows) + 1, dtype=np.int64))
        rows = rows[np.lexsort((shard.records[rows], shard.users[rows]))]
        people, first = np.unique(shard.users[rows], return_index=True)
        starts = np.append(first, len(rows)).astype(np.int64)
        return cls(people, np.zeros(len(people), np.int64), rows, starts)

    def __len__(self) -> int:
        return len(self.users)

    def take(self, which: NDArray[Any]) -> _Answering:
        """Return some of the rows, by a mask or by rising positions."""
        chosen = np.flatnonzero(which) if which.dtype == bool else which
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        return _Answering(self.users[chosen], self.records[chosen], self.rows[places], starts)

    def pieces(self, due: NDArray[np.intp], width: int) -> Iterator[NDArray[np.intp]]:
        """Yield the positions `due` in pieces of bounded memory.

        Args:
            due: The positions.
            width: Bytes of a row, as it is drawn or released.
        """
        at_once = max(1, min(_AT_ONCE, _BYTES // width))
        held = np.cumsum(np.diff(self.starts)[due]) if len(due) else np.zeros(0, np.int64)
        piece = held // at_once
        yield from np.split(due, np.flatnonzero(np.diff(piece)) + 1) if len(due) else ()


class _Records:
    """Records of a shard, as questions read them (`mechanisms.messages.questions.question.Records`)."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._embeddings: Any = None

    def texts(self, rows: NDArray[np.int64]) -> list[Text]:
        """Return texts or pairs."""
        return [self._shard.texts[i] for i in rows]

    def labels(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return labels."""
        assert self._shard.labels is not None
        return self._shard.labels[rows]

    def embeddings(self, rows: NDArray[np.int64], projection: Projection) -> NDArray[np.float32]:
        """Return embeddings. Raise Refused if the node lacks the encoder, or if its width is another one."""
        if self._embeddings is None:
            self._embeddings = self._shard.embeddings(projection.encoder)
        if self._embeddings.width != projection.width:
            raise Refused("malformed")
        taken: NDArray[np.float32] = self._embeddings.take(rows)
        return taken


def _part(recalled: Recalled, rows: NDArray[np.bool_]) -> Recalled:
    return Recalled(recalled.known[rows], recalled.payloads[rows], recalled.earlier[rows])
