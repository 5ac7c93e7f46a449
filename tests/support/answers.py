"""What a node on the disk answers and refuses, and what is on its ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from client.node import load_node
from client.policy import Refused
from client.sanitizer import Sanitizer
from client.store.ledger import LedgerRow
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request


def ask(folder: Path, asked: Request) -> Reply:
    """Refused where the node refuses."""
    node = load_node(folder)
    with node.ledger(asked.arm) as ledger:
        return Sanitizer(node.policy(asked.arm), ledger, node.streams).answer(asked, node.shard(asked.split))


def refusal(folder: Path, asked: Request) -> str:
    """The reason. Fails where the node answers."""
    with pytest.raises(Refused) as caught:
        ask(folder, asked)
    return caught.value.reason


def ledger_rows(folder: Path, arm: str | None = None) -> list[LedgerRow]:
    """Those of a node's first or only arm, if none is named."""
    node = load_node(folder)
    with node.ledger(next(iter(node.policies)) if arm is None else arm) as ledger:
        return ledger.rows()


def reason(answer: Message) -> str:
    """The reason of a refusal; and no refusal says or carries anything else."""
    assert answer.has_error() and not answer.has_content()
    (name,) = [n for n, (code, _) in REFUSALS.items() if code == answer.error.code]
    assert answer.error.reason == REFUSALS[name][1]
    return name
