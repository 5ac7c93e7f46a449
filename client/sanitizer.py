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
from client.draw import draw, statistic_means
from client.models import language_models
from client.policy import Policy, Refused
from client.shard import Shard
from client.store.ledger import Charge, Ledger, LedgerError, Recalled
from mechanisms.accounting.privacy_filter import FREE, Account
from mechanisms.guarantee import Guarantee
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
        with ExitStack() as held:
            books = self._books(request, shard)
            for book in books:
                held.enter_context(book.ledger.exclusive())
            answering = _Answering.of(request, shard)
            recalled = {
                channel: [book.recall(channel, answering) for book in books] for channel in request.channels
            }
            paid, stood_for = self._affordable(request, answering, recalled)
            there = paid | stood_for
            answering, paid = answering.take(there), paid[there]
            payloads: dict[str, NDArray[Any]] = {}
            for channel in request.channels:
                known = [_part(each, there) for each in recalled.pop(channel)]
                payloads[channel] = self._release(request, answering, channel, books, known, paid, payloads)
            for book in reversed(books):  # free releases first: a charge is the last step that may fail
                book.ledger.commit(book.charges)
        return Reply(
            answering.users,
            answering.records,
            tuple(
                Release(
                    payload={request.payload_form(channel)[0]: values},
                    channel=channel,
                    stage=request.stage,
                    guarantee=request.mechanism(channel).guarantee,
                    digest=request.digest(channel),
                )
                for channel, values in payloads.items()
            ),
        )

    def _books(self, request: Request, shard: Shard) -> list[_Book]:
        """Return the book of the users' data, and, if dummy releases are possible, the book of these."""
        books = [_Book(self.ledger, request, shard, self.streams)]
        if self.stand_ins is not None:
            books.append(_StandIns(self.stand_ins, request, shard, dummy_release.apart(self.streams, "stand-in")))
        return books

    def _affordable(
        self, request: Request, answering: _Answering, recalled: Mapping[str, list[Recalled]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return a mask of rows whose users can pay for all new releases, and one of rows for dummy releases.

        Raise Refused if there were rows and none is left.
        """
        people, person = np.unique(answering.users, return_inverse=True)
        policy, declared = self.policy, self.policy.unprotected
        bill = Account.empty(len(answering))
        paid = np.zeros(len(answering), dtype=bool)
        within = np.ones(len(people), dtype=bool)
        for channel in request.channels:
            new = ~np.any([each.known for each in recalled[channel]], axis=0)
            if channel in declared:
                bill = bill.plus(FREE, new)
                continue
            cost = policy.cost(request.mechanism(channel).guarantee)
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
        request: Request,
        answering: _Answering,
        channel: str,
        books: list[_Book],
        recalled: list[Recalled],
        paid: NDArray[np.bool_],
        released: dict[str, NDArray[Any]],
    ) -> NDArray[Any]:
        """Return a channel's payload for all rows.

        Earlier releases are repeated, dummy or not. New draws are charged to their book: that of the users' data for
        paid rows.
        """
        _, dtype, shape = request.payload_form(channel)
        payload = np.empty((len(answering), *shape), dtype=dtype)
        known = np.any([each.known for each in recalled], axis=0)
        for book, each, due in zip(books, recalled, (paid, ~paid), strict=False):
            book.repeat(payload, each)
            book.draw(channel, payload, answering, ~known & due, each.earlier, self.policy, released)
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

    def guarantee(self, channel: str) -> Guarantee:
        """Return the guarantee that a release on this book is charged for."""
        return self.request.mechanism(channel).guarantee

    def values(self, channel: str) -> Callable[[_Answering, int], Any]:
        """Return a function from rows and a step of their streams to the inputs that `client.draw.draw` takes."""
        values = _Values(self.request, self.shard, channel)
        return lambda part, step: values.of(part)

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
        self, channel: str, payload: NDArray[Any], answering: _Answering, missing: NDArray[np.bool_],
        earlier: NDArray[np.int64], policy: Policy, released: Mapping[str, NDArray[Any]],
    ) -> None:  # fmt: skip
        """Draw missing releases into the payload, and charge them.

        Args:
            channel: The channel.
            payload: Payload of all rows.
            answering: The rows.
            missing: Mask of the rows to draw.
            earlier: Number of earlier releases of each row under other digests.
            policy: Policy that prices the charges.
            released: Embeddings of the rows, for a label's prior.
        """
        if not missing.any():
            return
        request, guarantee = self.request, self.guarantee(channel)
        # of a class, the draw holds a number for each class there is
        held = 8 * request.classes if channel in ("answer", "label") else 0
        width = payload.dtype.itemsize * int(np.prod(payload.shape[1:]))
        values = self.values(channel)
        with_prior = channel == "label" and request.prior is not None
        # A record that is requested again under another digest draws from its next stream, never from the same one.
        for step in np.unique(earlier[missing]).tolist():
            due = np.flatnonzero(missing & (earlier == step))
            for here in answering.pieces(due, max(width, held)):
                part = answering.take(here)
                payload[here] = draw(
                    request, channel, values(part, step), part.users, part.records, streams=self.streams, step=step,
                    released=released["embedding"][here] if with_prior else None, masked_lm=self.shard.masked_lm,
                )  # fmt: skip
        new = payload[missing].astype(payload.dtype.newbyteorder("<"), copy=False)
        self.charges.append(
            Charge(
                stage=request.stage,
                channel=channel,
                digest=request.digest(channel),
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

    def guarantee(self, channel: str) -> Guarantee:
        """Return the guarantee of a dummy release, which has no cost."""
        return dummy_release.NOTHING_OF_THE_USERS

    def values(self, channel: str) -> Callable[[_Answering, int], Any]:
        """Return a function that makes random inputs."""
        return lambda part, step: dummy_release.values(
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


def _part(recalled: Recalled, rows: NDArray[np.bool_]) -> Recalled:
    return Recalled(recalled.known[rows], recalled.payloads[rows], recalled.earlier[rows])
