"""The Flower handler, called with a message: releases, or a constant text whatever happens."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from client import app as client_app
from client.app import NODES, app, release
from client.node import load_node
from client.policy import Policy
from client.shard import records_path
from client.store.ledger import Ledger
from mechanisms.messages import questions
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.wire import reply_from_record, request_to_record
from tests.support.clients import OPEN, context, make_node, message, request, with_prior


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    monkeypatch.setenv(NODES, str(tmp_path))
    return tmp_path


def reason(answer):
    """The reason of a refusal; and no refusal says or carries anything else."""
    assert answer.has_error() and not answer.has_content()
    (name,) = [n for n, (code, _) in REFUSALS.items() if code == answer.error.code]
    assert answer.error.reason == REFUSALS[name][1]
    return name


def charged(folder, arm="a"):
    with load_node(folder).ledger(arm) as ledger:
        return len(ledger.rows())


@pytest.mark.parametrize("users", [[3], [0, 1, 2, 3, 3, 9]])
@pytest.mark.parametrize("make", [request, with_prior])
def test_one_user_and_a_cohort(nodes, users, make):
    make_node(nodes / "0", users, [users[:i].count(u) for i, u in enumerate(users)])
    answer = release(message(make()), context(0))
    assert answer.has_content()
    reply = reply_from_record(answer.content)
    assert reply.users.tolist() == users
    assert charged(nodes / "0") == 2 * len(users)


def test_through_flower(nodes):
    make_node(nodes / "5", seed=None)
    answer = app(message(request(arm="")), context("5"))
    assert len(reply_from_record(answer.content)) == 8


def test_a_simulation_is_found_in_the_run_and_a_device_is_not(tmp_path, monkeypatch):
    monkeypatch.delenv(NODES, raising=False)
    make_node(tmp_path / "nodes" / "1")
    make_node(tmp_path / "nodes" / "2", seed=None)
    assert release(message(request()), context(1, out=str(tmp_path))).has_content()
    assert reason(release(message(request(arm="")), context(2, out=str(tmp_path)))) == "failed"
    assert reason(release(message(request()), context(1))) == "failed"
    assert reason(release(message(request()), context("../1", out=str(tmp_path)))) == "failed"


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        (Policy(), {}, "channel"),
        (replace(OPEN, total=1.0), {}, "total"),
        (replace(OPEN, mechanisms=()), {}, "mechanism"),
        (replace(OPEN, minimum_users=101), {}, "minimum-users"),
        (OPEN, {"embedding": {"mechanism": "identity"}}, "unprotected"),
        (OPEN, {"label": {"mechanism": "identity"}}, "unprotected"),
        (OPEN, {"encoder": "cd" * 32}, "encoder"),
        (OPEN, {"arm": "zzz"}, "arm"),
        (OPEN, {"arm": ""}, "arm"),
    ],
)
def test_requests_above_the_policy(nodes, policy, changes, expected):
    make_node(nodes / "0", policy=policy)
    assert reason(release(message(request(**changes)), context())) == expected
    assert charged(nodes / "0") == 0


def test_a_device_knows_no_arms(nodes):
    make_node(nodes / "0", seed=None)
    assert reason(release(message(request(arm="a")), context())) == "arm"
    assert not list((nodes / "0").glob("ledger*"))


def test_malformed_requests(nodes):
    make_node(nodes / "0")
    good = request_to_record(request())
    about = dict(good["request.about"])
    for content in (
        RecordDict(),
        RecordDict({"request.arrays": good["request.arrays"]}),
        RecordDict({"request.arrays": ArrayRecord(), "request.about": good["request.about"]}),
        RecordDict(dict(good) | {"request.about": ConfigRecord(about | {"embedding": '{"mechanism": "HIV"}'})}),
        RecordDict(dict(good) | {"request.about": ConfigRecord(about | {"arm": "../../x"})}),
        RecordDict(dict(good) | {"request.about": ConfigRecord(about | {"seed": 1})}),
    ):
        assert reason(release(message(content), context())) == "malformed"
    assert charged(nodes / "0") == 0


class Panic(BaseException):
    """As the tokenizers library raises them: not an Exception."""


@pytest.mark.parametrize(
    "error",
    [
        KeyError("HIV"),
        ValueError("HIV"),
        MemoryError("HIV"),
        Panic("HIV"),
        RecursionError("HIV"),
        OSError(5, "HIV"),
        sqlite3.OperationalError("HIV"),
    ],
)
def test_an_exception_does_not_speak(nodes, monkeypatch, error):
    make_node(nodes / "0")

    def raises(*_, **__):
        raise error

    for owner, name in ((questions, "project"), (Ledger, "commit"), (Ledger, "spent"), (client_app, "reply_to_record")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raises)
            answer = release(message(request()), context())
        assert reason(answer) == "failed"
        assert "HIV" not in repr(answer) + repr(answer.error.__dict__)
    # The last failure came after the commit: it stays charged, and what was drawn is what is sent later.
    assert charged(nodes / "0") == 16
    assert release(message(request()), context()).has_content()
    assert charged(nodes / "0") == 16


def test_private_data_that_cannot_be_read(nodes):
    make_node(nodes / "0")
    records_path(nodes / "0", "train").write_bytes(b"HIV")
    assert reason(release(message(request()), context())) == "failed"
    (nodes / "0" / "node.json").write_text(json.dumps({"HIV": 1}))
    assert reason(release(message(request()), context())) == "failed"
    assert reason(release(message(request()), context(77))) == "failed"


@pytest.mark.parametrize("damage", [b"", b"HIV" * 3000])
def test_a_damaged_ledger_answers_nothing(nodes, damage):
    make_node(nodes / "0")
    release(message(request()), context())
    (nodes / "0" / "ledger-a.sqlite").write_bytes(damage)
    assert reason(release(message(request()), context())) == "failed"
    assert (nodes / "0" / "ledger-a.sqlite").read_bytes() == damage


def test_a_device_whose_answers_leave_within_a_window_gives_none_at_once(nodes):
    """Flower's own SuperNode would send it when it is ready; `client.device.serve` waits."""
    make_node(nodes / "0", seed=None, policy=replace(OPEN, window=10.0))
    assert reason(release(message(request(arm="")), context())) == "failed"
    assert not list((nodes / "0").glob("ledger*"))


def test_a_device_without_its_ledger_answers_nothing(nodes):
    make_node(nodes / "0", seed=None)
    assert release(message(request(arm="")), context()).has_content()
    for path in (nodes / "0").glob("ledger*"):
        path.unlink()
    assert reason(release(message(request(arm="")), context())) == "failed"
    assert not list((nodes / "0").glob("ledger*"))


def test_arms_have_ledgers_of_their_own(nodes):
    make_node(nodes / "0")
    release(message(request(arm="a")), context())
    release(message(request(arm="b")), context())
    assert sorted(p.name for p in (nodes / "0").glob("ledger*")) == ["ledger-a.sqlite", "ledger-b.sqlite"]
