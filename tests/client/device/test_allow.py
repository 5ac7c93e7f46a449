"""A device answers the questions that its policy lists. Any other is its user's to allow, or its publisher's."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client import consent
from client.app import answer, respond
from client.consent import FOLDER, MOST, kept_questions, read_question, write_question
from client.device.ask import _refusal
from client.node import Node, changing, load_node, write_node
from client.policy import Policy, Refused
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys as sealing_keys
from mechanisms.messages.signature import generate_keys
from mechanisms.messages.wire import request_to_record
from sottovoce.cli import main as cli
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


def refusal(folder: Path, asked: Request) -> str | None:
    try:
        answer(request_to_record(asked), load_node(folder))
    except Refused as error:
        return error.reason
    return None


def charged(folder: Path) -> int:
    with load_node(folder).ledger("") as ledger:
        return len(ledger.rows())


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
    reply = respond(message(CHANGED[what]), folder)
    assert (reply.error.code, reply.error.reason) == REFUSALS["question"]
    assert charged(folder) == 0


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
    assert refusal(folder, LISTED) is None
    assert refusal(folder, replace(LISTED, stage="later")) == "channel"  # again, and it would cost again


def test_a_question_beyond_the_limits_is_refused_for_that_and_not_kept(folder: Path) -> None:
    """Nobody is asked about what they have ruled out."""
    assert refusal(folder, changed(own_maps(), embedding={"mechanism": "purkayastha", "epsilon": 11.0})) == "channel"
    assert not kept_questions(load_node(folder))


@pytest.mark.parametrize("bad", ["", "x", ["ab"], ["AB" * 32], [7], 7, {}, ["ab" * 32 + "\n"]])
def test_a_list_of_questions_is_of_digests(bad: object) -> None:
    with pytest.raises(ValueError, match="questions must be a list of digests"):
        Policy.from_dict({"questions": bad})
    for good in (None, (), ("ab" * 32,)):
        policy = Policy(questions=good)
        assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


# -- the user ---------------------------------------------------------------------------------------------------------


def test_a_question_waits_for_the_user_who_reads_it_in_words_and_agrees(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(folder) == 0 and "no question waits" in capsys.readouterr().out
    assert refusal(folder, own_maps()) == "question"
    assert refusal(folder, own_maps()) == "question"  # twice, and kept once
    (kept,) = kept_questions(load_node(folder))
    assert command(folder) == 0
    told = capsys.readouterr().out
    assert str(kept) in told and f"in {DIM} coordinates; ε = 31.42 at worst (ε = 10·d_angular)" in told
    assert "the maps are the server's" in told and f"sottovoce device allow {folder} --question FILE --yes" in told
    assert command(folder, "--question", kept) == 2
    line = capsys.readouterr().err
    assert "is not signed by the publisher" in line and "ε = 31.42 at worst" in line and line.count("\n") == 1
    assert refusal(folder, own_maps()) == "question"
    assert command(folder, "--question", kept, "--yes") == 0 and "you have agreed" in capsys.readouterr().out
    assert refusal(folder, own_maps()) is None and charged(folder) == 8
    node = load_node(folder)
    assert not kept_questions(node) and node.publisher == PUBLISHER and node.policy("").embedding == 32.0
    assert refusal(folder, own_maps(6)) == "question"


def test_a_question_that_was_read_is_not_put_away_for_another_of_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server asks for little, and once that was read for other things until it is gone, and then for more beside the
    same embedding: the file that the user names does not come to hold that."""
    write_node(folder, policy=replace(PINNED, label=2.0, mechanisms=("purkayastha", "randomized-response")))
    little, much = (
        changed(own_maps(), label={"mechanism": "randomized-response", "epsilon": epsilon}) for epsilon in (0.1, 2.0)
    )
    assert refusal(folder, little) == "question"
    (read,) = kept_questions(load_node(folder))
    for seed in range(10, 10 + MOST):
        assert refusal(folder, own_maps(seed)) == "question"
    assert refusal(folder, much) == "question"
    assert command(folder, "--question", read, "--yes") == 2 and "cannot be read" in capsys.readouterr().err
    assert refusal(folder, much) == "question"


def test_a_question_of_the_publisher_needs_no_consent_and_one_of_a_stranger_does(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test.signed"
    stranger, _ = generate_keys()
    write_question(file, own_maps(), stranger)
    assert command(folder, "--question", file) == 2 and "is not signed by" in capsys.readouterr().err
    write_question(file, own_maps(), SIGNER)
    signed = file.read_bytes()
    write_question(file, own_maps(6))
    file.write_bytes(signed[:64] + file.read_bytes()[64:])  # the signature of another question
    assert command(folder, "--question", file) == 2 and "is not signed by" in capsys.readouterr().err
    file.write_bytes(signed)
    assert command(folder, "--question", file) == 0 and "its publisher has signed it" in capsys.readouterr().out
    assert refusal(folder, own_maps()) is None
    write_question(file, changed(own_maps(), embedding={"mechanism": "purkayastha", "epsilon": 11.0}), SIGNER)
    assert command(folder, "--question", file) == 2
    assert "does not allow this question in any case: the policy does not allow so large" in capsys.readouterr().err


def test_what_is_agreed_to_joins_the_policy_of_a_bundle_that_was_installed_meanwhile(folder: Path) -> None:
    """And does not bring the older one's limits and keys back."""
    before = load_node(folder)
    _, key = sealing_keys()
    write_node(folder, policy=replace(PINNED, total=50.0), publisher=PUBLISHER, seal=key)
    consent.allow_question(before, own_maps())
    node = load_node(folder)
    assert node.policy("").total == 50.0 and node.seal == key and node.policy("").lists(own_maps())


def test_one_at_a_time_changes_a_device(folder: Path) -> None:
    """Whoever waits for a change that replaces node.json comes after the next one too, which locks the new file."""
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
        write_node(folder, policy=LIMITS, publisher=PUBLISHER)
    assert held.wait(10)
    third = threading.Thread(target=lambda: consent.allow_question(load_node(folder), own_maps()))
    third.start()
    third.join(0.1)
    assert third.is_alive() and order == ["waited"]
    leave.set()
    waiter.join(10)
    third.join(10)
    assert not third.is_alive()


def test_what_is_no_question_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    for data in (b"", b"x" * 100, bytes(64) + b"\xff" * 50):
        bad.write_bytes(data)
        assert command(folder, "--question", bad, "--yes") == 2 and "is no question" in capsys.readouterr().err
    assert command(folder, "--question", tmp_path / "none") == 2 and "cannot be read" in capsys.readouterr().err
    assert command(tmp_path) == 2 and "is no device's folder" in capsys.readouterr().err
    write_question(bad, LISTED)
    write_node(folder, policy=LIMITS)
    assert command(folder, "--question", bad, "--yes") == 2 and "answers any within" in capsys.readouterr().err
    make_node(tmp_path / "simulated")
    assert command(tmp_path / "simulated") == 2 and "whose users are asked nothing" in capsys.readouterr().err


def test_a_server_fills_no_disk_with_its_questions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest few are kept; a large one is not; and where the disk is full the answer is the same."""
    for seed in range(MOST + 3):
        assert refusal(folder, own_maps(seed)) == "question"
    node = load_node(folder)
    latest = {read_question(path, node).request.digest("embedding") for path in kept_questions(node)}
    assert latest == {own_maps(seed).digest("embedding") for seed in range(3, MOST + 3)}
    monkeypatch.setattr(consent, "LARGEST", 100)
    assert refusal(folder, own_maps(99)) == "question" and len(kept_questions(node)) == MOST
    monkeypatch.undo()
    for path in (folder / FOLDER).iterdir():
        path.unlink()
    (folder / FOLDER).rmdir()
    (folder / FOLDER).write_text("in the way")
    assert refusal(folder, own_maps()) == "question"


def test_whoever_asks_a_model_is_told_what_to_do(folder: Path) -> None:
    node: Node = load_node(folder)
    with pytest.raises(Refused) as caught:
        node.policy("").check(own_maps())
    assert "sottovoce device allow" in _refusal(caught.value, node.policy(""), own_maps())
