"""Faults of clients, one by one: each is counted under a constant reason, and the round goes on without it.

A process that is killed between charge and send is in test_kills.py, nodes that die in Flower in test_ray.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict

from client import app as client_app
from client.node import write_node
from client.policy import Policy
from client.shard import records_path
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.reply import Reply
from mechanisms.messages.wire import reply_from_record, reply_to_record
from tests.support.answers import ledger_rows
from tests.support.studies import (
    PER_NODE,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    LocalGrid,
    experiment,
    make_nodes,
    run_arms,
    use_folder,
)

#: Nodes are numbered from 1, their folders from 0.
NODES = 8
USERS = NODES * PER_NODE
STUDY = experiment({"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}, population={"users": USERS})
TESTS = TEST // NODES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_folder(tmp_path, monkeypatch)
    assert make_nodes(STUDY, tmp_path) == NODES
    return tmp_path


def run(grid: LocalGrid | None = None) -> dict[str, Any]:
    return run_arms(STUDY, grid or LocalGrid(NODES))["a"].line


def stages(folder: Path, node: int) -> list[str]:
    """The stages in which the node's users were charged, a row for each release."""
    return [row.stage for row in ledger_rows(folder / str(node - 1))]


def test_clients_that_fail_or_refuse(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(records_path(folder / "0", "train"), np.array(["HIV positive"]))  # the test part is whole
    (folder / "1" / "node.json").write_text('{"HIV positive": 1}')
    (folder / "2" / "ledger-a.sqlite").write_bytes(b"HIV positive" * 1000)
    policy = Policy(embedding=32.0, label=5.0, minimum_users=10)
    # within this total is a test sentence alone, without a label
    write_node(folder / "3", seed=STUDY.seed, arms={"a": replace(policy, total=33.0)})
    write_node(folder / "4", seed=STUDY.seed, arms={"a": replace(policy, minimum_users=11)})

    def dying(question: Message, context: Context) -> Message:
        if context.node_config["partition-id"] != 5:
            return client_app.release(question, context)
        return Message(Error(77, "KeyError: 'HIV'"), reply_to=question)

    monkeypatch.setattr("tests.support.studies.release", dying)
    grid = LocalGrid(NODES)
    with caplog.at_level(logging.INFO):
        line = run(grid)
    refused = {REFUSALS[name][1]: count for name, count in (("failed", 5), ("spent", 1), ("minimum-users", 2))}
    assert line["errors"] == refused | {"code 77": 2} and line["dropped"] == {}
    assert line["delivered"] == 2 * PER_NODE and line["accuracy"] > 0.5  # chance is 1/3
    assert set(stages(folder, 4)) == {"test"} and not stages(folder, 5)
    for message in (m for m in grid.sent if not m.has_error() or m.error.code != 77):
        sent = repr(message.error.__dict__) if message.has_error() else repr(message.content)
        assert "HIV" not in sent and str(folder) not in sent and "Error:" not in sent
    assert "HIV" not in repr(line) + caplog.text


def test_an_answer_that_is_lost_on_its_way_stays_charged_and_can_be_had_again(folder: Path) -> None:
    def lost(content: RecordDict, stage: str) -> RecordDict:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run(LocalGrid(NODES, tamper={2: lost}))
    charged = ledger_rows(folder / "1")
    assert len(charged) == 2 * PER_NODE
    assert run()["delivered"] == USERS
    assert [row for row in ledger_rows(folder / "1") if row.stage == "train"] == charged


def other_digest(reply: Reply) -> Reply:
    return replace(reply, releases=(replace(reply.releases[0], digest="0" * 64), *reply.releases[1:]))


def label_outside(reply: Reply) -> Reply:
    if len(reply.releases) == 1:
        return reply
    y = reply.releases[1].payload["y"].copy()
    y[:2] = 99
    return replace(reply, releases=(reply.releases[0], replace(reply.releases[1], payload={"y": y})))


def first_row_twice(reply: Reply) -> Reply:
    rows = np.r_[np.arange(len(reply)), 0]
    releases = tuple(replace(r, payload={k: v[rows] for k, v in r.payload.items()}) for r in reply.releases)
    return Reply(reply.users[rows], reply.records[rows], releases)


def not_enrolled(reply: Reply) -> Reply:
    return replace(reply, users=reply.users + 10**6)


def another_test_record(reply: Reply) -> Reply:
    return replace(reply, records=reply.records + 7) if len(reply.releases) == 1 else reply


def of_replies(change: Callable[[Reply], Reply]) -> Callable[[RecordDict, str], RecordDict]:
    return lambda content, stage: reply_to_record(change(reply_from_record(content)))


def test_bad_replies_are_counted_and_bad_rows_dropped(folder: Path) -> None:
    def none(content: RecordDict, stage: str) -> RecordDict:
        return RecordDict({"ids": content["ids"]} | {"HIV": content["ids"]})

    changes = (other_digest, label_outside, first_row_twice, not_enrolled, another_test_record)
    tamper = {node: of_replies(change) for node, change in enumerate(changes, 1)} | {6: none}
    line = run(LocalGrid(NODES, lost=[7], tamper=tamper))
    assert line["errors"] == {"unreadable reply": 2, "no answer": 2}
    rows = {"embedding: digest": PER_NODE, "label: out of range": 2, "duplicate": 1, "unknown user": PER_NODE}
    tests = {"embedding: digest": TESTS, "duplicate": 1, "unknown user": TESTS, "unknown record": TESTS}
    assert line["dropped"] == rows | {f"test: {reason}": count for reason, count in tests.items()}
    assert line["delivered"] == 4 * PER_NODE - 2 and line["accuracy"] > 0.5
    assert not stages(folder, 7) and "HIV" not in repr(line)
