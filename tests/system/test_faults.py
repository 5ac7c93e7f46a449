"""Faults of clients, one by one: each is counted under a constant reason, and the round goes on without it.

A process that is killed between charge and send is in test_sanitizer.py, nodes that die in Flower in
test_ray.py.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

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
from tests.support.studies import (
    NODES,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    USERS,
    LocalGrid,
    Ran,
    experiment,
    ledger_rows,
    make_nodes,
    run_arms,
    use_folder,
)

ARM = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}
BROKEN = 2  # the node (from 1) that has the fault; its folder is 1
OTHERS = USERS - USERS // NODES
BROKEN_TEST = sum(user % NODES == BROKEN - 1 for user in range(USERS, USERS + TEST))
STUDY = experiment(ARM)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_folder(tmp_path, monkeypatch)
    make_nodes(STUDY, tmp_path)
    return tmp_path


def run(grid: LocalGrid) -> Ran:
    return run_arms(STUDY, grid)["a"]


def on_node(folder: Path) -> list:
    return [r for r in ledger_rows(folder, "a") if r.user % NODES == BROKEN - 1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda node: np.save(records_path(node, "train"), np.array(["HIV positive"])),
        lambda node: (node / "node.json").write_text('{"HIV positive": 1}'),
        lambda node: (node / "ledger-a.sqlite").write_bytes(b"HIV positive" * 1000),
    ],
)
def test_a_client_that_raises(damage: Callable[[Path], object], folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(folder / str(BROKEN - 1))
    grid = LocalGrid(NODES)
    with caplog.at_level(logging.INFO):
        outcome = run(grid)
    stages = len([m for m in grid.sent if m.has_error()])  # a broken training shard says nothing of the test one
    assert stages in (1, 2)
    assert outcome.line["delivered"] == OTHERS and outcome.line["errors"] == {REFUSALS["failed"][1]: stages}
    assert outcome.line["dropped"] == {} and outcome.line["accuracy"] > 0.8
    for message in grid.sent:
        said = repr(message.error.__dict__) if message.has_error() else repr(message.content)
        assert "HIV" not in said and str(folder) not in said and "Error:" not in said
    assert "HIV" not in repr(outcome.line) + caplog.text


def test_an_error_that_is_not_the_clients_is_named_by_its_code_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(question: Message, context: Context) -> Message:
        if context.node_config["partition-id"] != BROKEN - 1:
            return client_app.release(question, context)
        return Message(Error(77, "KeyError: 'HIV'"), reply_to=question)

    monkeypatch.setattr("tests.support.studies.release", dying)
    line = run(LocalGrid(NODES)).line
    assert line["delivered"] == OTHERS and line["errors"] == {"code 77": 2}


def test_a_node_that_never_answers(folder: Path) -> None:
    line = run(LocalGrid(NODES, lost=[BROKEN])).line
    assert line["delivered"] == OTHERS and line["errors"] == {"no answer": 2}
    assert line["accuracy"] > 0.8
    assert not on_node(folder)


def test_an_answer_that_is_lost_on_its_way_stays_charged_and_can_be_had_again(folder: Path) -> None:
    def lost(content: RecordDict, stage: str) -> RecordDict:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run(LocalGrid(NODES, tamper={BROKEN: lost}))
    charged = on_node(folder)
    assert len(charged) == 2 * USERS // NODES
    assert run(LocalGrid(NODES)).line["delivered"] == USERS
    assert [r for r in on_node(folder) if r.stage == "train"] == charged


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"total": 33.0}, "spent"),
        ({"minimum_users": 11}, "minimum-users"),
    ],
)
def test_a_request_above_the_policy_of_some(change: dict, refusal: str, folder: Path) -> None:
    policy = dataclasses.replace(Policy(embedding=32.0, label=5.0, minimum_users=10), **change)
    write_node(folder / str(BROKEN - 1), seed=STUDY.seed, arms={"a": policy})
    line = run(LocalGrid(NODES)).line
    # A test sentence alone, without a label, is within a total of 33.
    assert line["errors"] == {REFUSALS[refusal][1]: 1 if refusal == "spent" else 2}
    assert line["delivered"] == OTHERS and line["dropped"] == {}
    assert {r.stage for r in on_node(folder)} == ({"test"} if refusal == "spent" else set())


def other_digest(reply: Reply) -> Reply:
    first = dataclasses.replace(reply.releases[0], digest="0" * 64)
    return dataclasses.replace(reply, releases=(first, *reply.releases[1:]))


def label_outside(reply: Reply) -> Reply:
    if len(reply.releases) == 1:
        return reply
    y = reply.releases[1].payload["y"].copy()
    y[:2] = 99
    labels = dataclasses.replace(reply.releases[1], payload={"y": y})
    return dataclasses.replace(reply, releases=(reply.releases[0], labels))


def first_row_twice(reply: Reply) -> Reply:
    rows = np.r_[np.arange(len(reply)), 0]
    releases = tuple(dataclasses.replace(r, payload={k: v[rows] for k, v in r.payload.items()}) for r in reply.releases)
    return Reply(reply.users[rows], reply.records[rows], releases)


ALL = (USERS // NODES, BROKEN_TEST)


@pytest.mark.parametrize(
    ("change", "dropped", "lost"),
    [
        (other_digest, {"embedding: digest": ALL[0], "test: embedding: digest": ALL[1]}, ALL[0]),
        (label_outside, {"label: out of range": 2}, 2),
        (first_row_twice, {"duplicate": 1, "test: duplicate": 1}, 0),
        (
            lambda reply: dataclasses.replace(reply, users=reply.users + 10**6),  # whom nobody enrolled
            {"unknown user": ALL[0], "test: unknown user": ALL[1]},
            ALL[0],
        ),
        (
            lambda reply: dataclasses.replace(reply, records=reply.records + 7) if len(reply.releases) == 1 else reply,
            {"test: unknown record": ALL[1]},
            0,
        ),
    ],
)
def test_bad_rows_are_dropped_and_counted(
    change: Callable[[Reply], Reply], dropped: dict[str, int], lost: int, folder: Path
) -> None:
    def tamper(content: RecordDict, stage: str) -> RecordDict:
        return reply_to_record(change(reply_from_record(content)))

    line = run(LocalGrid(NODES, tamper={BROKEN: tamper})).line
    assert line["dropped"] == dropped and line["errors"] == {} and line["delivered"] == USERS - lost
    assert line["accuracy"] > 0.8


def test_a_reply_that_is_none_is_counted(folder: Path) -> None:
    def tamper(content: RecordDict, stage: str) -> RecordDict:
        return RecordDict({"ids": content["ids"]} | {"HIV": content["ids"]})

    line = run(LocalGrid(NODES, tamper={BROKEN: tamper})).line
    assert line["errors"] == {"unreadable reply": 2} and line["delivered"] == OTHERS
    assert line["dropped"] == {} and "HIV" not in repr(line)
