"""The Flower handler: releases, or a constant text whatever happens; a device's noise is the operating system's."""

from __future__ import annotations

import ast
import math
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from client import app as client_app
from client.app import NODES, app, release
from client.node import load_node, write_node
from client.store.ledger import Ledger
from mechanisms import streams
from mechanisms.messages import questions
from mechanisms.messages.wire import reply_from_record, request_to_record
from tests.support.answers import ledger_rows, reason
from tests.support.clients import OPEN, context, make_node, message, request, with_prior
from tests.support.paths import ROOT

USERS = 8


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    monkeypatch.setenv(NODES, str(tmp_path))
    return tmp_path


def test_through_flower(nodes):
    make_node(nodes / "5", seed=None)
    answer = app(message(request(arm="")), context("5"))
    assert len(reply_from_record(answer.content)) == 8 and len(ledger_rows(nodes / "5")) == 16
    assert reason(app(message(request()), context("5"))) == "arm"


def test_a_simulation_is_found_in_the_run_and_a_device_is_not(tmp_path, monkeypatch):
    monkeypatch.delenv(NODES, raising=False)
    make_node(tmp_path / "nodes" / "1")
    make_node(tmp_path / "nodes" / "2", seed=None)
    assert release(message(request()), context(1, out=str(tmp_path))).has_content()
    assert reason(release(message(request(arm="")), context(2, out=str(tmp_path)))) == "failed"
    assert reason(release(message(request()), context("../1", out=str(tmp_path)))) == "failed"


def test_malformed_requests(nodes):
    make_node(nodes / "0")
    good = dict(request_to_record(request()))
    changes = ({"embedding": '{"mechanism": "HIV"}'}, {"arm": "../../x"}, {"seed": 1})
    abouts = [ConfigRecord(dict(good["request.about"]) | change) for change in changes]
    changed = [good | {"request.about": about} for about in abouts]
    for content in ({}, good | {"request.arrays": ArrayRecord()}, *changed):
        assert reason(release(message(RecordDict(content)), context())) == "malformed"
    assert len(ledger_rows(nodes / "0")) == 0


class Panic(BaseException):
    """As the tokenizers library raises them: not an Exception."""


@pytest.mark.parametrize("error", [ValueError("HIV"), Panic("HIV"), sqlite3.OperationalError("HIV")])
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
    assert len(ledger_rows(nodes / "0")) == 16
    assert release(message(request()), context()).has_content()
    assert len(ledger_rows(nodes / "0")) == 16


def test_a_device_whose_answers_leave_within_a_window_gives_none_at_once(nodes):
    """Flower's own SuperNode would send it when it is ready; `client.device.serve` waits."""
    make_node(nodes / "0", seed=None, policy=replace(OPEN, window=10.0))
    assert reason(release(message(request(arm="")), context())) == "failed"
    assert not list((nodes / "0").glob("ledger*"))


def test_arms_have_ledgers_of_their_own(nodes):
    make_node(nodes / "0")
    release(message(request(arm="a")), context())
    release(message(request(arm="b")), context())
    assert sorted(p.name for p in (nodes / "0").glob("ledger*")) == ["ledger-a.sqlite", "ledger-b.sqlite"]


# --- randomness


@pytest.mark.parametrize("make", [request, with_prior])
def test_all_of_a_devices_noise_is_the_operating_systems(nodes, monkeypatch, make):
    """If it gave the same bytes again, two devices would draw alike: nothing else is mixed in, and nothing is missing.
    That it is asked once for every call, for as many bytes as are used, leaves nothing over."""
    asked, answers = [], []

    def constant(n):
        asked.append(n)
        return np.random.default_rng(len(asked)).bytes(n)

    for i in (0, 1):
        make_node(nodes / str(i), range(USERS), seed=None)
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(streams.os, "urandom", constant)
            answers.append(reply_from_record(release(message(make(arm="")), context(i)).content))
    for one, other in zip(answers[0].releases, answers[1].releases, strict=True):
        for name in one.payload:
            np.testing.assert_array_equal(one.payload[name], other.payload[name])
    drawn = [n for n in asked if n != 16]  # the ledger's nonces are from there as well
    assert drawn and all(n % (8 * USERS) == 0 for n in drawn)


def test_a_device_whose_generator_fails_answers_nothing(nodes, monkeypatch):
    def fails(n):
        raise NotImplementedError("no source of randomness")

    make_node(nodes / "0", seed=None)
    load_node(nodes / "0").ledger("").close()
    with monkeypatch.context() as patch:
        patch.setattr(streams.os, "urandom", fails)
        assert release(message(request(arm="")), context(0)).has_error()
    assert len(ledger_rows(nodes / "0")) == 0


def test_only_a_simulations_node_makes_seeded_streams():
    """By name: in client/, the seeded source is made in one place, where node.json says that this is a simulation."""
    makers = []
    for path in sorted((ROOT / "client").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "SimulationStreams" in ast.unparse(node.func):
                makers.append(path.name)
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("np.random"):
                pytest.fail(f"{path.name}: {ast.unparse(node)}")
    assert makers == ["node.py"]


def test_what_a_server_configures_does_not_reach_the_noise(tmp_path, monkeypatch):
    """A run's configuration comes from the server: it names neither seed nor source, nor another folder."""
    run_config = {"seed": 1, "simulation": "1", "out": "."}
    monkeypatch.setenv(NODES, str(tmp_path / "device"))
    monkeypatch.chdir(tmp_path)
    make_node(tmp_path / "nodes" / "0", range(USERS))  # a simulation lies about
    answers = []
    for i in (0, 1):
        make_node(tmp_path / "device" / str(i), range(USERS), seed=None)
        answer = release(message(request(arm="")), context(i, **run_config))
        answers.append(reply_from_record(answer.content).releases[0].payload["z"])
    assert (answers[0] != answers[1]).any(axis=1).all()
    assert release(message(request()), context(0, **run_config)).has_error()  # nor the simulation's arm


def test_a_device_has_a_total(tmp_path):
    """Else a server may ask, within each record's limits, about as many records as there are."""
    write_node(tmp_path, policy=replace(OPEN, total=math.inf))
    with pytest.raises(ValueError, match="finite total"):
        load_node(tmp_path)
    write_node(tmp_path, seed=1, arms={"a": replace(OPEN, total=math.inf)})
    assert load_node(tmp_path).simulated
