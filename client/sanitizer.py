"""Conversion of private records to releases, the only place where it happens.

Nothing here may fail, or give a different kind of answer, because of a record's content. An embedding that cannot be
normalized and a label outside the classes are mapped into the mechanism's domain, where its theorem covers them. A
refusal would reveal them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.charging import Due, Payloads, release
from client.draw import draw
from client.models import language_models
from client.policy import Policy, Refused
from client.shard import Shard
from client.store.ledger import Ledger
from mechanisms.messages.questions import Projection, Question
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.pieces import Text
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
    """

    policy: Policy
    ledger: Ledger
    streams: SimulationStreams | SecureStreams

    def answer(self, request: Request, shard: Shard) -> Reply:
        """Return releases of the requested records, or one user vector for each user; charged before this returns.

        Releases under the same key are repeated from the ledger at no cost. The rest is drawn in memory, committed with
        its charge in one transaction, and only then returned. Users whose budget does not cover the new releases are
        left out with all their records. Every row depends on its own records, ledger rows and stream only: a cohort
        answers as its users would alone.

        Raises:
            Refused: No user is left, or the policy refuses the request itself.
            LedgerError: The ledger cannot be trusted. Nothing leaves.
        """
        self.policy.check(request)
        for question in request.questions:
            if question.reads_labels and shard.labels is None and len(shard):
                raise Refused("no-labels")
            if question.masked_lm and not language_models.known(
                shard.masked_lm, question.mechanism, question.masked_lm
            ):
                raise Refused("masked-lm")
        answering, records, due = _Answering.of(request, shard), _Records(shard), due_of(request)

        def draw_rows(one: Due, rows: NDArray[np.intp], step: int, before: Payloads) -> NDArray[Any]:
            question = due[one]
            drawn, start = np.empty((len(rows), *one.shape), one.dtype), 0
            width = one.dtype.itemsize * int(np.prod(one.shape))
            read = None
            if question.given is not None:
                (read,) = (payload for other, payload in before.items() if due[other] == question.given)
            for here in answering.pieces(rows, max(width, question.bytes_in_draw)):
                part = answering.take(here)
                drawn[start : start + len(here)] = draw(
                    question,
                    question.values(records, part.rows, part.starts),
                    part.users,
                    part.records,
                    stage=one.stage,
                    streams=self.streams,
                    step=step,
                    released=None if read is None else read[here],
                    masked_lm=shard.masked_lm,
                )
                start += len(here)
            return drawn

        rows, payloads = release(
            list(due), answering.users, answering.records, policy=self.policy, ledger=self.ledger, draw=draw_rows
        )
        return Reply(
            answering.users[rows],
            answering.records[rows],
            tuple(request.release(question, payloads[due_release]) for due_release, question in due.items()),
        )


def due_of(request: Request) -> dict[Due, Question]:
    """Return the releases that a request asks of each row, each with its question."""
    return {
        Due(
            request.stage,
            question.channel,
            request.digest(question.channel),
            question.mechanism.guarantee,
            *question.payload_form[1:],
            former=partial(question.former_digest, request.split),
        ): question
        for question in request.questions
    }


@dataclass(frozen=True, eq=False)
class _Answering:
    """Rows of a reply: row i answers for user users[i] and their record records[i].

    Attributes:
        rows: Rows of the shard. Row i of the reply is made from those at starts[i] to starts[i + 1]: one, or, for user
            vectors, all of the user's, which are then record 0 on the ledger.
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

    def take(self, chosen: NDArray[np.intp]) -> _Answering:
        """Return the rows at these positions."""
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
        totals = np.cumsum(np.diff(self.starts)[due]) if len(due) else np.zeros(0, np.int64)
        piece = totals // at_once
        yield from np.split(due, np.flatnonzero(np.diff(piece)) + 1) if len(due) else ()


class _Records:
    """Records of a shard, as questions read them (`mechanisms.messages.questions.Records`)."""

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
        embeddings: NDArray[np.float32] = self._embeddings.take(rows)
        return embeddings
