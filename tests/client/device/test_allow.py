"""A device answers the requests that its policy lists. Any other is its publisher's to allow."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.app import respond
from client.device.signed_request import allow, write_request
from client.node import changing, load_node, write_node
from client.policy import Policy, Refused
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys as sealing_keys
from mechanisms.messages.signature import generate_keys
from sottovoce.cli import main as cli
from tests.support.answers import ask, ledger_rows, reason, refusal
from tests.support.clients import CLASSES, DIM, M, make_node, message, request
from tests.support.devices import PUBLISHER, SIGNER
from tests.support.requests import changed

LISTED = request(arm="", label=None)
LIMITS = Policy(embedding=32.0, statistic=4.0, total=100.0, mechanisms=("purkayastha", "planar-laplace", "privunit"))
PINNED = replace(LIMITS, questions=(LISTED.digest("embedding"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A device of eight users that may be asked for their embeddings under one pair of maps."""
    place = make_node(tmp_path / "node", seed=None)
    write_node(place, policy=PINNED, publisher=PUBLISHER)
    return place


def own_maps(seed: int = 5) -> Request:
    """As a server asks that has chosen its maps: to find out one thing, under the very mechanism that is listed."""
    return changed(LISTED, m1=np.random.default_rng(seed).normal(size=(M, DIM)).astype(np.float32))


def command(*arguments: object) -> int:
    return cli.main(["device", "allow", *map(str, arguments)])


# -- what is listed ---------------------------------------------------------------------------------------------------

CHANGED: dict[str, Request] = {
    "maps": own_maps(),
    "mean": changed(LISTED, mean=np.ones(M, np.float32)),
    "a smaller epsilon": changed(LISTED, embedding={"mechanism": "purkayastha", "epsilon": 1.0}),
    "another mechanism": changed(LISTED, embedding={"mechanism": "planar-laplace", "epsilon": 5.0}),
    "fewer coordinates": changed(LISTED, m1=LISTED.projection.m1[:, :2]),
    "the other split": replace(LISTED, split="test"),
    "another encoder": changed(LISTED, encoder="cd" * 32),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_question_that_is_not_listed_is_not_answered(folder: Path, what: str) -> None:
    """However little it costs: each differs from the listed one in one thing, and all are within the limits."""
    assert LIMITS.check(CHANGED[what]) is None
    assert reason(respond(message(CHANGED[what]), folder)) == "question"
    assert not ledger_rows(folder)


def test_the_codes_the_cap_and_the_head_are_listed_too(folder: Path) -> None:
    codes = np.eye(CLASSES, dtype=np.float32)
    vector = changed(LISTED, embedding=None, statistic={"mechanism": "privunit", "epsilon": 4.0}, codes=codes)
    policy = replace(LIMITS, questions=(vector.digest("statistic"),))
    policy.check(vector)
    own = dict(vector.named("statistic").spec)
    for other in (
        changed(vector, codes=codes[::-1].copy()),
        changed(vector, m1=own_maps().projection.m1),
        changed(vector, statistic=own | {"epsilon": 3.0}),
        changed(vector, statistic=own | {"cap_probability": 0.9}),
    ):
        LIMITS.check(other)
        with pytest.raises(Refused, match="does not list"):
            policy.check(other)


def test_what_is_listed_is_answered_under_any_name(folder: Path) -> None:
    assert len(ask(folder, LISTED)) == 8
    assert refusal(folder, replace(LISTED, stage="later")) == "spent"  # again, and it would cost again


def test_a_question_beyond_the_limits_is_refused_for_that(folder: Path) -> None:
    assert refusal(folder, changed(own_maps(), embedding={"mechanism": "purkayastha", "epsilon": 11.0})) == "channel"


@pytest.mark.parametrize("bad", ["", "x", ["ab"], ["AB" * 32], [7], 7, {}, ["ab" * 32 + "\n"]])
def test_a_list_of_questions_is_of_digests(bad: object) -> None:
    with pytest.raises(ValueError, match="questions must be a list of digests"):
        Policy.from_dict({"questions": bad})
    for good in (None, (), ("ab" * 32,)):
        policy = Policy(questions=good)
        assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


# -- the publisher ----------------------------------------------------------------------------------------------------


def test_a_question_of_the_publisher_is_allowed_and_one_of_a_stranger_is_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test.signed"
    stranger, _ = generate_keys()
    for signer in (stranger, None):
        write_request(file, own_maps(), signer)
        assert command(folder, "--question", file) == 2 and "is not signed by" in capsys.readouterr().err
    write_request(file, own_maps(), SIGNER)
    signed = file.read_bytes()
    write_request(file, own_maps(6))
    file.write_bytes(signed[:64] + file.read_bytes()[64:])  # the signature of another question
    assert command(folder, "--question", file) == 2 and "is not signed by" in capsys.readouterr().err
    assert refusal(folder, own_maps()) == "question" and not ledger_rows(folder)
    file.write_bytes(signed)
    assert command(folder, "--question", file) == 0
    told = capsys.readouterr().out
    assert f"in {DIM} coordinates; ε = 31.42 at worst (ε = 10·d_angular)" in told
    assert "the maps are the server's" in told
    assert len(ask(folder, own_maps())) == len(ledger_rows(folder)) == 8
    node = load_node(folder)
    assert node.publisher == PUBLISHER and node.policy("").embedding == 32.0
    assert refusal(folder, own_maps(6)) == "question"
    write_request(file, changed(own_maps(), embedding={"mechanism": "purkayastha", "epsilon": 11.0}), SIGNER)
    assert command(folder, "--question", file) == 2
    assert "does not allow this question in any case: the policy does not allow so large" in capsys.readouterr().err


def test_one_at_a_time_changes_a_device(folder: Path, tmp_path: Path) -> None:
    """Whoever waits for a change that replaces node.json comes after the next one too, which locks the new file."""
    file = tmp_path / "test.signed"
    write_request(file, own_maps(), SIGNER)
    _, key = sealing_keys()
    order: list[str] = []
    inside, leave, held = threading.Event(), threading.Event(), threading.Event()

    def waiting() -> None:
        with changing(folder):
            order.append("waited")
            held.set()
            leave.wait(10)
            order.append("gone")

    waiter = threading.Thread(target=waiting)
    with changing(folder):
        waiter.start()
        inside.wait(0.05)  # time to find the file locked
        sealed = {"seal": key, "shuffler_seal": sealing_keys()[1]}
        write_node(folder, policy=replace(PINNED, total=50.0), publisher=PUBLISHER, **sealed)
    assert held.wait(10)
    third = threading.Thread(target=lambda: allow(folder, file))
    third.start()
    third.join(0.1)
    assert third.is_alive() and order == ["waited"]
    leave.set()
    waiter.join(10)
    third.join(10)
    assert not third.is_alive()
    node = load_node(folder)  # what was installed meanwhile stays
    assert node.policy("").total == 50.0 and node.seal == key and node.policy("").lists(own_maps())


def test_what_is_no_question_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    for data in (b"", b"x" * 100, bytes(64) + b"\xff" * 50):
        bad.write_bytes(data)
        assert command(folder, "--question", bad) == 2 and "is no question" in capsys.readouterr().err
    assert command(folder, "--question", tmp_path / "none") == 2 and "cannot be read" in capsys.readouterr().err
    assert command(tmp_path, "--question", bad) == 2 and "is no device's folder" in capsys.readouterr().err
    write_request(bad, LISTED)
    write_node(folder, policy=LIMITS)
    assert command(folder, "--question", bad) == 2 and "answers any within" in capsys.readouterr().err
    make_node(tmp_path / "simulated")
    assert command(tmp_path / "simulated", "--question", bad) == 2
    assert "whose users are asked nothing" in capsys.readouterr().err
