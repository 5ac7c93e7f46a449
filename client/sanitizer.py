"""The one place where a private record becomes a release.

Nothing here may fail, or answer differently in kind, because of what a record says: an embedding that cannot be
normalized and a label outside the classes are mapped into the mechanism's domain, where its theorem covers them.
Refusing them would tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client import masked_lm, texts
from client.embeddings import Embeddings
from client.ledger import Charge, Ledger, LedgerError, Recalled
from client.policy import Policy, Refused
from client.shard import Shard
from mechanisms.projection import project, softmax
from mechanisms.release import Release
from mechanisms.reply import Reply
from mechanisms.request import Request
from mechanisms.streams import SecureStreams, SimulationStreams

#: Records that are drawn at once: their embeddings and float64 intermediates are what a cohort takes of memory.
_AT_ONCE = 2**14


@dataclass(frozen=True)
class Sanitizer:
    """Answers requests about a shard, under a policy, on a ledger, with a source of randomness."""

    policy: Policy
    ledger: Ledger
    streams: SimulationStreams | SecureStreams

    def answer(self, request: Request, shard: Shard) -> Reply:
        """Releases of the records asked for, charged before this returns.

        What was released under the same key is repeated from the ledger at no cost; the rest is drawn in
        memory, committed with its charge in one transaction, and only then returned. Users whose budget does
        not allow what is new are left out, all their records together; Refused is raised where that leaves
        nobody, or where the policy refuses the request itself. LedgerError: the ledger cannot be trusted,
        nothing leaves.
        Every row depends on its own record, ledger rows and stream only: a cohort answers as its users would
            alone.
        """
        self.policy.check(request)
        if "label" in request.channels and shard.labels is None and len(shard):
            raise Refused("no-labels")
        if request.masked_lm and (
            shard.masked_lm is None or masked_lm.load(shard.masked_lm).identity != request.masked_lm
        ):
            raise Refused("masked-lm")
        index, count = request.part
        asked = np.flatnonzero(shard.users % count == index)
        with self.ledger.exclusive():
            recalled = {channel: self._recall(request, shard, asked, channel) for channel in request.channels}
            kept = self._affordable(request, shard, asked, recalled)
            rows = asked[kept]
            charges: list[Charge] = []
            payloads: dict[str, NDArray[Any]] = {}
            for channel in request.channels:
                known = _part(recalled.pop(channel), kept)
                payloads[channel] = self._release(request, shard, rows, channel, known, payloads, charges)
            self.ledger.commit(charges)
        return Reply(
            shard.users[rows],
            shard.records[rows],
            tuple(
                Release(
                    payload={request.form(channel)[0]: values},
                    channel=channel,
                    stage=request.stage,
                    guarantee=request.mechanism(channel).guarantee,
                    digest=request.digest(channel),
                )
                for channel, values in payloads.items()
            ),
        )

    def _recall(self, request: Request, shard: Shard, rows: NDArray[np.intp], channel: str) -> Recalled:
        digest = request.digest(channel)
        return self.ledger.recall(request.stage, channel, digest, shard.users[rows], shard.records[rows])

    def _affordable(
        self, request: Request, shard: Shard, rows: NDArray[np.intp], recalled: Mapping[str, Recalled]
    ) -> NDArray[np.bool_]:
        """Which rows' users can pay for all that is new. Raises Refused where there were rows and none is left."""
        users, records = shard.users[rows], shard.records[rows]
        people, person = np.unique(users, return_inverse=True)
        delta, declared = self.policy.delta, self.policy.unprotected
        bill = np.zeros(len(people))
        within = np.ones(len(people), dtype=bool)
        for channel in request.channels:
            if channel in declared:
                continue
            new = ~recalled[channel].known
            cost = np.where(new, self.policy.cost(request.mechanism(channel).guarantee), 0.0)
            np.add.at(bill, person, cost)
            spent = self.ledger.spent_on(channel, users, records, delta=delta, declared=declared)
            within[person[new & ~self.policy.allows(spent + cost, channel)]] = False
        affordable = self.ledger.spent(people, delta=delta, without=declared, declared=declared) + bill
        solvent = (bill == 0) | self.policy.allows(affordable, "total")
        kept = (within & solvent)[person]
        if len(rows) and not kept.any():
            raise Refused("total" if within.any() else "channel")
        return kept

    def _release(
        self,
        request: Request,
        shard: Shard,
        rows: NDArray[np.intp],
        channel: str,
        recalled: Recalled,
        released: dict[str, NDArray[Any]],
        charges: list[Charge],
    ) -> NDArray[Any]:
        """A channel's payload for all rows; what had to be drawn is appended to the charges."""
        _, dtype, shape = request.form(channel)
        payload = np.empty((len(rows), *shape), dtype=dtype)
        missing = ~recalled.known
        width, stored = dtype.itemsize * int(np.prod(shape)), dtype.newbyteorder("<")
        if not missing.all():
            if recalled.payloads.shape[1] != width:
                raise LedgerError("ledger: a payload does not have its length")
            payload[~missing] = recalled.payloads[~missing].view(stored).reshape(-1, *shape)
        embeddings = shard.embeddings(request.encoder) if channel == "embedding" and missing.any() else None
        # A record asked again under another digest draws from its next stream, never again from the same one.
        for step in np.unique(recalled.earlier[missing]):
            due = np.flatnonzero(missing & (recalled.earlier == step))
            for start in range(0, len(due), _AT_ONCE):
                here = due[start : start + _AT_ONCE]
                if channel == "text":
                    payload[here] = self._draw_texts(request, shard, rows[here], int(step))
                elif embeddings is not None:
                    payload[here] = self._draw_embeddings(request, shard, rows[here], int(step), embeddings)
                else:
                    payload[here] = self._draw_labels(request, shard, rows[here], int(step), released, here)
        if missing.any():
            guarantee = request.mechanism(channel).guarantee
            new = payload[missing].astype(stored, copy=False)
            charges.append(
                Charge(
                    stage=request.stage,
                    channel=channel,
                    digest=request.digest(channel),
                    guarantee=guarantee,
                    epsilon=self.policy.cost(guarantee),
                    delta=self.policy.delta,
                    users=shard.users[rows[missing]],
                    records=shard.records[rows[missing]],
                    payloads=new.reshape(len(new), -1).view(np.uint8),
                )
            )
        return payload

    def _draw_texts(self, request: Request, shard: Shard, rows: NDArray[np.intp], step: int) -> NDArray[Any]:
        text: Any = request.mechanism("text")
        return texts.draw(
            text, shard.lines(rows), shard.users[rows], shard.records[rows], streams=self.streams,
            stage=request.stage, step=step, masked_lm=shard.masked_lm,
        )  # fmt: skip

    def _draw_embeddings(
        self, request: Request, shard: Shard, rows: NDArray[np.intp], step: int, embeddings: Embeddings
    ) -> NDArray[Any]:
        mechanism = request.mechanism("embedding")
        if request.mean is None or request.m1 is None or embeddings.width != len(request.mean):
            raise Refused("malformed")
        x = project(embeddings.take(rows), request.mean, request.m1)
        rng = self.streams.rows(
            shard.users[rows], shard.records[rows], stage=request.stage, channel="embedding", step=step
        )
        y = mechanism.sample(x, rng=rng)
        return y.astype(np.float32) if mechanism.grid is None else mechanism.grid.encode(y)

    def _draw_labels(
        self,
        request: Request,
        shard: Shard,
        rows: NDArray[np.intp],
        step: int,
        released: dict[str, NDArray[Any]],
        here: NDArray[np.intp],
    ) -> NDArray[Any]:
        assert shard.labels is not None
        mechanism: Any = request.mechanism("label")
        labels = shard.labels[rows]
        labels = np.where((labels >= 0) & (labels < request.classes), labels, 0)
        rng = self.streams.rows(
            shard.users[rows], shard.records[rows], stage=request.stage, channel="label", step=step
        )
        if request.prior is None:
            return mechanism.sample(labels, rng=rng)
        codes, grid = released["embedding"][here], request.mechanism("embedding").grid
        z = codes.astype(np.float64) if grid is None else grid.decode(codes)
        return mechanism.sample(labels, prior=softmax(z, *request.prior), rng=rng)


def _part(recalled: Recalled, rows: NDArray[np.bool_]) -> Recalled:
    return Recalled(recalled.known[rows], recalled.payloads[rows], recalled.earlier[rows])
