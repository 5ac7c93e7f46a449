"""Conversion of private records to releases, the only place where it happens.

Nothing here may fail, or give a different kind of answer, because of a record's content. An embedding that cannot be
normalized and a label outside the classes are mapped into the mechanism's domain, where its theorem covers them. A
refusal would reveal them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client import dummy_release
from client.charging import Book, Due, Payloads, release
from client.draw import draw, statistic_means
from client.models import language_models
from client.policy import Policy, Refused
from client.shard import Shard
from client.store.ledger import Ledger
from mechanisms.messages.release import Release
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
        if {"label", "statistic"} & set(request.channels) and shard.labels is None and len(shard):
            raise Refused("no-labels")
        if request.masked_lm and not language_models.known(
            shard.masked_lm, request.mechanism("text"), request.masked_lm
        ):
            raise Refused("masked-lm")
        answering = _Answering.of(request, shard)
        due = [
            Due(request.stage, c, request.digest(c), request.mechanism(c).guarantee, *request.payload_form(c)[1:])
            for c in request.channels
        ]
        book = Book(self.ledger, _Draws(request, shard, answering, self.streams).draw)
        dummies = None
        if self.stand_ins is not None:
            draws = _Dummies(request, shard, answering, dummy_release.apart(self.streams, "stand-in"))
            dummies = Book(self.stand_ins, draws.draw, dummy_release.NOTHING_OF_THE_USERS)
        rows, payloads = release(
            due, answering.users, answering.records, policy=self.policy, book=book, dummies=dummies
        )
        return Reply(
            answering.users[rows],
            answering.records[rows],
            tuple(
                Release(
                    payload={request.payload_form(one.channel)[0]: payloads[one]},
                    channel=one.channel,
                    stage=one.stage,
                    guarantee=one.guarantee,
                    digest=one.digest,
                )
                for one in due
            ),
        )


@dataclass(frozen=True)
class _Draws:
    """Draws from the users' data.

    Attributes:
        answering: All rows of the reply.
    """

    request: Request
    shard: Shard
    answering: _Answering
    streams: SimulationStreams | SecureStreams

    def values(self, channel: str, step: int) -> Callable[[_Answering], Any]:
        """Return a function from rows to the inputs that `client.draw.draw` takes."""
        return _Values(self.request, self.shard, channel).of

    def draw(self, one: Due, rows: NDArray[np.intp], step: int, before: Payloads) -> NDArray[Any]:
        """Draw releases (`charging.Draw`)."""
        request, channel = self.request, one.channel
        drawn, start = np.empty((len(rows), *one.shape), one.dtype), 0
        # of a class, the draw holds a number for each class there is
        held = 8 * request.classes if channel in ("answer", "label") else 0
        width = one.dtype.itemsize * int(np.prod(one.shape))
        values = self.values(channel, step)
        embeddings = None
        if channel == "label" and request.prior is not None:
            (embeddings,) = (payload for other, payload in before.items() if other.channel == "embedding")
        for here in self.answering.pieces(rows, max(width, held)):
            part = self.answering.take(here)
            drawn[start : start + len(here)] = draw(
                request, channel, values(part), part.users, part.records, streams=self.streams, step=step,
                released=None if embeddings is None else embeddings[here], masked_lm=self.shard.masked_lm,
            )  # fmt: skip
            start += len(here)
        return drawn


class _Dummies(_Draws):
    """Draws of dummy releases."""

    def values(self, channel: str, step: int) -> Callable[[_Answering], Any]:
        """Return a function that makes random inputs."""
        return lambda part: dummy_release.values(
            self.request, channel, part.users, part.records, streams=self.streams, step=step
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
        held = np.cumsum(np.diff(self.starts)[due]) if len(due) else np.zeros(0, np.int64)
        piece = held // at_once
        yield from np.split(due, np.flatnonzero(np.diff(piece)) + 1) if len(due) else ()


class _Values:
    """Values of the shard that the draws of a channel read. Raise Refused if the node lacks the encoder."""

    def __init__(self, request: Request, shard: Shard, channel: str) -> None:
        self._request, self._shard, self._channel = request, shard, channel
        self._embeddings: Any = None
        if channel in ("embedding", "statistic", "answer"):
            self._embeddings = shard.embeddings(request.encoder)
            if request.mean is None or self._embeddings.width != len(request.mean):
                raise Refused("malformed")

    def of(self, part: _Answering) -> Any:
        """Return the values of these rows, as `client.draw.draw` takes them."""
        labels: Any = self._shard.labels
        if self._channel == "text":
            return [self._shard.texts[i] for i in part.rows]
        if self._channel == "label":
            return labels[part.rows]
        embeddings = self._embeddings.take(part.rows)
        if self._channel in ("embedding", "answer"):
            return embeddings
        return statistic_means(self._request, embeddings, labels[part.rows], part.starts)
