"""The one place where a private record becomes a release.

Nothing here may fail, or answer differently in kind, because of what a record says: an embedding that cannot be
normalized and a label outside the classes are mapped into the mechanism's domain, where its theorem covers them.
Refusing them would tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.draw import draw, statistic_means
from client.models import masked_lm
from client.policy import Policy, Refused
from client.shard import Shard
from client.store.ledger import Charge, Ledger, LedgerError, Recalled
from mechanisms.accounting.privacy_filter import FREE, Account
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.streams import SecureStreams, SimulationStreams

#: Records that are drawn at once: their embeddings and float64 intermediates are what a cohort takes of memory.
_AT_ONCE = 2**14
#: And bytes of payload: a statistic may have thousands of coordinates.
_BYTES = 2**22


@dataclass(frozen=True)
class Sanitizer:
    """Answers requests about a shard, under a policy, on a ledger, with a source of randomness."""

    policy: Policy
    ledger: Ledger
    streams: SimulationStreams | SecureStreams

    def answer(self, request: Request, shard: Shard) -> Reply:
        """Releases of the records asked for, or, of a statistic, one of each user; charged before this returns.

        What was released under the same key is repeated from the ledger at no cost; the rest is drawn in
        memory, committed with its charge in one transaction, and only then returned. Users whose budget does
        not allow what is new are left out, all their records together; Refused is raised where that leaves
        nobody, or where the policy refuses the request itself. LedgerError: the ledger cannot be trusted,
        nothing leaves.
        Every row depends on its own records, ledger rows and stream only: a cohort answers as its users would
            alone.
        """
        self.policy.check(request)
        if {"label", "statistic"} & set(request.channels) and shard.labels is None and len(shard):
            raise Refused("no-labels")
        if request.masked_lm and (
            shard.masked_lm is None or masked_lm.load(shard.masked_lm).identity != request.masked_lm
        ):
            raise Refused("masked-lm")
        with self.ledger.exclusive():
            answering = _Answering.of(request, shard)
            recalled = {channel: self._recall(request, answering, channel) for channel in request.channels}
            kept = self._affordable(request, answering, recalled)
            answering = answering.take(kept)
            charges: list[Charge] = []
            payloads: dict[str, NDArray[Any]] = {}
            for channel in request.channels:
                known = _part(recalled.pop(channel), kept)
                payloads[channel] = self._release(request, shard, answering, channel, known, payloads, charges)
            self.ledger.commit(charges)
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

    def _recall(self, request: Request, answering: _Answering, channel: str) -> Recalled:
        return self.ledger.recall(
            request.stage, channel, request.digest(channel), answering.users, answering.records
        )

    def _affordable(
        self, request: Request, answering: _Answering, recalled: Mapping[str, Recalled]
    ) -> NDArray[np.bool_]:
        """Which rows' users can pay for all that is new. Raises Refused where there were rows and none is left."""
        people, person = np.unique(answering.users, return_inverse=True)
        policy, declared = self.policy, self.policy.unprotected
        bill = Account.empty(len(answering))
        paid = np.zeros(len(answering), dtype=bool)
        within = np.ones(len(people), dtype=bool)
        for channel in request.channels:
            new = ~recalled[channel].known
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
        kept: NDArray[np.bool_] = (within & solvent & counted)[person]
        if len(answering) and not kept.any():
            raise Refused("channel" if not within.any() else "total" if not (within & solvent).any() else "releases")
        return kept

    def _release(
        self,
        request: Request,
        shard: Shard,
        answering: _Answering,
        channel: str,
        recalled: Recalled,
        released: dict[str, NDArray[Any]],
        charges: list[Charge],
    ) -> NDArray[Any]:
        """A channel's payload for all rows; what had to be drawn is appended to the charges."""
        _, dtype, shape = request.payload_form(channel)
        payload = np.empty((len(answering), *shape), dtype=dtype)
        missing = ~recalled.known
        # of a class, the draw holds a number for each class there is
        held = 8 * request.classes if channel in ("answer", "label") else 0
        width, stored = dtype.itemsize * int(np.prod(shape)), dtype.newbyteorder("<")
        if not missing.all():
            if recalled.payloads.shape[1] != width:
                raise LedgerError("ledger: a payload does not have its length")
            payload[~missing] = recalled.payloads[~missing].view(stored).reshape(-1, *shape)
        values = _Values(request, shard, channel) if missing.any() else None
        with_prior = channel == "label" and request.prior is not None
        # A record asked again under another digest draws from its next stream, never again from the same one.
        for step in np.unique(recalled.earlier[missing]):
            due = np.flatnonzero(missing & (recalled.earlier == step))
            assert values is not None
            for here in answering.pieces(due, max(width, held)):
                part = answering.take(here)
                payload[here] = draw(
                    request, channel, values.of(part), part.users, part.records, streams=self.streams, step=int(step),
                    released=released["embedding"][here] if with_prior else None, masked_lm=shard.masked_lm,
                )  # fmt: skip
        if missing.any():
            guarantee = request.mechanism(channel).guarantee
            new = payload[missing].astype(stored, copy=False)
            charges.append(
                Charge(
                    stage=request.stage,
                    channel=channel,
                    digest=request.digest(channel),
                    guarantee=guarantee,
                    epsilon=self.policy.cost(guarantee).epsilon,
                    delta=self.policy.delta,
                    users=answering.users[missing],
                    records=answering.records[missing],
                    payloads=new.reshape(len(new), -1).view(np.uint8),
                )
            )
        return payload


@dataclass(frozen=True, eq=False)
class _Answering:
    """Who answers a request, a row of the reply each: user users[i], for their record records[i].

    rows: rows of the shard, those that row i of the reply is made from at starts[i] to starts[i + 1]: one, or, of a
    statistic, all of the user's, which is then their record 0 on the ledger.
    """

    users: NDArray[np.int64]
    records: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, request: Request, shard: Shard) -> _Answering:
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
        """Some of them, by a mask or by rising positions."""
        chosen = np.flatnonzero(which) if which.dtype == bool else which
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        return _Answering(self.users[chosen], self.records[chosen], self.rows[places], starts)

    def pieces(self, due: NDArray[np.intp], width: int) -> Iterator[NDArray[np.intp]]:
        """The positions `due`, in pieces of bounded memory. width: bytes of a row, as it is drawn or released."""
        at_once = max(1, min(_AT_ONCE, _BYTES // width))
        held = np.cumsum(np.diff(self.starts)[due]) if len(due) else np.zeros(0, np.int64)
        piece = held // at_once
        yield from np.split(due, np.flatnonzero(np.diff(piece)) + 1) if len(due) else ()


class _Values:
    """What a channel's draws read of the shard. Raises Refused where the node does not have the request's encoder."""

    def __init__(self, request: Request, shard: Shard, channel: str) -> None:
        self._request, self._shard, self._channel = request, shard, channel
        self._embeddings: Any = None
        if channel in ("embedding", "statistic", "answer"):
            self._embeddings = shard.embeddings(request.encoder)
            if request.mean is None or self._embeddings.width != len(request.mean):
                raise Refused("malformed")

    def of(self, part: _Answering) -> Any:
        """Values of these rows, as `client.draw.draw` takes them."""
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
