"""Device behind the page: the client's own sanitizer, policy and ledger, in a temporary folder."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.device.statement import describe_account, read_statement
from client.node import Node, load_node, write_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer, due_of
from client.shard import Shard
from client.store.questions import QuestionRecords, sentence_hash
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from sottovoce.explore.settings import MECHANISMS

#: Policy of a device made for the page: enough to look around, and to see refusals.
SCRATCH = Policy(
    embedding=40.0,
    text=600.0,
    statistic=12.0,
    label=5.0,
    total=800.0,
    releases=50,
    delta=1e-6,
    mechanisms=tuple(sorted({name for names in MECHANISMS.values() for name in names})),
    accept_unprotected=("length: on this page a text keeps its number of words, so that one can follow them",),
)
#: Number of the device's user.
_USER = 0
#: Meaning of a refusal for the device's user.
_WHY = {
    "channel": "one such release alone would cost more than the policy allows on its channel",
    "spent": "with this, the record, or all that this device has released, would cost more than the policy allows",
    "unprotected": "something would leave without protection: no finite ε holds for it",
    "mechanism": "the policy does not list this mechanism",
}


@dataclass(frozen=True, eq=False)
class Sent:
    """Release of the device.

    Args:
        request: Request that it answers.
        reply: Reply with the release.
        repeated: Whether the same bytes left before, at no new cost, by channel.
        wire: Bytes of the whole message.
    """

    request: Request
    reply: Reply
    repeated: dict[str, bool]
    wire: int

    def payload(self, channel: str) -> NDArray[Any]:
        """Return the one released row of a channel."""
        row: NDArray[Any] = next(r for r in self.reply.releases if r.channel == channel).values[0]
        return row


class Device:
    """Device of one user, made for the page in a new folder.

    Every request opens the ledger file and locks it. Other threads and tabs wait, and see its charges.

    Args:
        folder: Folder of the device.
    """

    def __init__(self, folder: Path) -> None:
        write_node(folder, policy=SCRATCH)
        self.folder = folder
        # one request at a time, so that the check for repeated bytes stays true until they are sent
        self._numbering, self._sending = threading.Lock(), threading.Lock()

    @property
    def node(self) -> Node:
        """Return the settings of the device."""
        return load_node(self.folder)

    @property
    def policy(self) -> Policy:
        """Return its policy."""
        return self.node.policy("")

    def send(self, request: Request, text: str, label: int, encoder: Path | None) -> Sent:
        """Release a sentence, charged before this returns.

        Args:
            request: Request to answer.
            text: The sentence.
            label: Its label.
            encoder: Folder of the encoder, if the request needs one.

        Raises:
            Refused: The policy does not permit it.
            LedgerError: The ledger cannot be used.
            QuestionRecordsError: The numbers of sentences cannot be read or written.
        """
        node = self.node
        person = np.array([_USER], np.int64)
        with self._sending, node.ledger("") as ledger:
            with self._numbering, QuestionRecords(self.folder) as questions:  # the same number for the same sentence
                record = questions.assign(_USER, [sentence_hash(text)], above=ledger.records_of(_USER).max(initial=-1))
            keys = np.zeros(1, np.int64) if request.of_users else record
            repeats = {due.channel: bool(ledger.recall(due, person, keys).known[0]) for due in due_of(request)}
            shard = Shard(
                person, record, np.array([label], np.int64), [text], self.folder / "typed", request.split, encoder
            )
            reply = Sanitizer(node.policy(""), ledger, node.streams).answer(request, shard)
        from client.app import outgoing  # loads Flower: slow
        from mechanisms.messages.wire import record_to_bytes, request_to_record

        size = len(record_to_bytes(outgoing(reply, request, request_to_record(request), node)))
        return Sent(request, reply, repeats, size)

    def statement(self) -> dict[str, Any]:
        """Return past releases and the remaining budget, as `sottovoce device ledger` prints them."""
        result = read_statement(self.folder)
        policy = Policy.from_dict(result["policy"])
        account = next((item for item in result["users"] if item["user"] == _USER), None)
        names = ("time", "stage", "channel", "records", "statement", "worst_case", "delta", "public")
        return {
            "answers": [{name: answer[name] for name in names} for answer in result["answers"]],
            "spent": {
                "epsilon": account["worst_case"] if account else 0.0,
                "releases": account["releases"] if account else 0,
            },
            "total": policy.total,
            "releases": policy.releases,
            "account": [line.strip() for line in describe_account(policy, account)],
            "limits": {channel: policy.limit(channel) for channel in MECHANISMS},
            "declared": policy.declared,
        }


def refusal(error: Refused) -> dict[str, Any]:
    """Return a refusal for the page: the server's message, and its meaning."""
    code, text = REFUSALS[error.reason]
    return {"reason": error.reason, "code": code, "text": text, "why": _WHY.get(error.reason, "")}
