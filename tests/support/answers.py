"""What a node on the disk answers and refuses, and what is on its ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.node import load_node
from client.policy import Refused
from client.sanitizer import Sanitizer
from client.store.ledger import LedgerRow
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request


def ask(folder: Path, asked: Request, arm: str = "a") -> Reply:
    """Refused where the node refuses."""
    node = load_node(folder)
    with node.ledger(arm) as ledger:
        return Sanitizer(node.policy(arm), ledger, node.streams).answer(asked, node.shard(asked.split))


def refusal(folder: Path, asked: Request) -> str:
    """The reason. Fails where the node answers."""
    with pytest.raises(Refused) as caught:
        ask(folder, asked)
    return caught.value.reason


def ledger_rows(folder: Path, arm: str = "a") -> list[LedgerRow]:
    with load_node(folder).ledger(arm) as ledger:
        return ledger.rows()
