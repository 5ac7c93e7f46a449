"""Rounds of a shuffler: request sealed releases from nodes, and store the rows that each node may send.

The shuffler accepts a reply only if the node's device has signed it for this very request, and only rows of users who
are enrolled there. It opens the outer layer of a row (`mechanisms.messages.sealed.envelop`), never its content: that is
sealed to the training server. The deadline of a stage starts again with the process. Nodes repeat their releases at no
cost, and the first of each counts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from mechanisms.checks import is_slug
from mechanisms.messages.refusals import describe_error
from mechanisms.messages.sealed import OVERHEAD, Sealed, open_envelope
from mechanisms.messages.wire import record_from_bytes, request_identity, sealed_from_record
from simulations.shuffler.core import LATE, TOO_MANY
from simulations.shuffler.enrolment import Enrolment
from simulations.shuffler.store import Stage, Store

log = logging.getLogger(__name__)

#: Error of `ask` for a node that the SuperLink does not know yet, and seconds until the next attempt.
_ABSENT, _AGAIN = "no answer", 1.0

#: Function that sends a request to nodes and yields their replies or errors (`sottovoce.deployment.superlink.ask`).
Answer = tuple[int, RecordDict | None, str | None]
Ask = Callable[[RecordDict, Mapping[int, int], float], Iterator[Answer]]
#: Bytes that a reply may have beside its rows, and bytes of user and record for each row.
_BESIDE, _IDS = 2**20, 16


@dataclass(frozen=True)
class StageTerms:
    """Terms of a request that concern a shuffler: stage, minimum batch size and part of the users."""

    stage: str
    minimum_users: int
    part: tuple[int, int]


class Rounds:
    """Loop that requests the open stages from the nodes, one after another, and closes them.

    Args:
        enrolled: Users and key of each node, by node id. The shuffler sends requests to these nodes.
        private_key: Key to which devices seal their replies.
        ask: Function that reaches the nodes. It gets the maximum size in bytes of each node's reply.
    """

    def __init__(self, store: Store, enrolled: Enrolment, ask: Ask, private_key: bytes) -> None:
        self.store = store
        self._enrolled = enrolled
        self._ask = ask
        self._private_key = private_key
        self._answered = 0
        self._stage = ""

    @property
    def nodes(self) -> int:
        """Return the number of nodes that get requests."""
        return len(self._enrolled)

    def answered(self, stage: str) -> int:
        """Return the number of nodes that have answered an open stage, or failed to."""
        return self._answered if stage == self._stage else 0

    def work(self) -> int:
        """Send requests for every stage that is open now, close these stages, and return their number."""
        stages = self.store.open_stages()
        for stage in stages:
            self._serve(stage)
        return len(stages)

    def _serve(self, stage: Stage) -> None:
        self._stage, self._answered = stage.name, 0
        log.info(f"stage {stage.name}: {self.nodes} nodes are asked")
        record = record_from_bytes(stage.request)
        part, identity = read_request(record).part, request_identity(record)
        dropped: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for node, reply, error in self._answers(record, stage):
            try:
                if reply is None:
                    errors[_describe(error)] += 1
                else:
                    key, outer = self._enrolled[node].key, sealed_from_record(reply)
                    self._take(stage, part, node, open_envelope(outer, identity, self._private_key, key), dropped)
            except ValueError:
                errors["a reply that is not sealed and signed for this request, or unreadable"] += 1
            self._answered += 1
        done = self.store.close(stage.name, dropped=+dropped, errors=errors)
        log.info(f"stage {stage.name}: {done.state}, {done.rows:,} rows of {done.users:,} users")

    def _answers(self, record: RecordDict, stage: Stage) -> Iterator[Answer]:
        """Yield the answers that nodes give in time.

        A missing node gets the request again once the others have answered: it may still come.
        """
        end, remainder = time.monotonic() + stage.timeout, stage.timeout
        waiting = {
            node: _BESIDE + int(entry.records.sum()) * (stage.row_bytes + OVERHEAD + _IDS)
            for node, entry in self._enrolled.items()
        }
        while waiting:
            absent = {}
            for node, reply, error in self._ask(record, waiting, remainder):
                if error == _ABSENT and time.monotonic() + _AGAIN < end:
                    absent[node] = waiting[node]
                else:
                    yield node, reply, error
            waiting = absent
            if waiting:
                time.sleep(_AGAIN)
                remainder = end - time.monotonic()

    def _take(self, stage: Stage, part: tuple[int, int], node: int, reply: Sealed, dropped: Counter[str]) -> None:
        """Store the rows of a reply that this node may send, and count the others, each under its first fault."""
        if len(reply) and reply.rows.shape[1] != stage.row_bytes:
            dropped["of another length"] += len(reply)
            return
        good = np.ones(len(reply), np.bool_)
        entry = self._enrolled[node]
        for reason, passed in (
            ("not enrolled there", np.isin(reply.users, entry.users)),
            ("user of another part", reply.users % part[1] == part[0]),
            ("record below 0", reply.records >= 0),
        ):
            dropped[reason] += int((good & ~passed).sum())
            good &= passed
        if good.any():
            most = entry.records[np.searchsorted(entry.users, reply.users[good])]
            admission = self.store.add(
                stage.name, Sealed(reply.users[good], reply.records[good], reply.rows[good]), most
            )
            dropped += Counter({TOO_MANY: admission.refused, LATE: admission.late})


def read_request(record: RecordDict) -> StageTerms:
    """Return the terms of a request that a shuffler needs; nodes check all of it.

    Raises:
        ValueError: The terms are missing or not valid.
    """
    about = record.get("request.about")
    if not isinstance(about, ConfigRecord) or set(record) != {"request.about", "request.arrays"}:
        raise ValueError("shuffler: no request")
    stage, numbers = about.get("stage"), [about.get(k) for k in ("minimum_users", "part_index", "part_count")]
    if not (is_slug(stage) and all(type(n) is int for n in numbers)):
        raise ValueError("shuffler: a request without stage, smallest batch or part")
    minimum, index, count = (int(n) for n in numbers if isinstance(n, int))
    if not (0 <= minimum <= 2**53 and 0 <= index < count <= 2**31):
        raise ValueError("shuffler: a request's smallest batch or part is out of range")
    return StageTerms(stage, minimum, (index, count))


def _describe(error: str | None) -> str:
    """Return the meaning of an error as a constant text: the number of an unknown error could carry information."""
    meaning = describe_error(str(error))
    return "another error" if meaning.startswith("code ") else meaning
