"""Servers that are not what they should be, asked about a sentence."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.device.ask import ask as ask_model
from client.device.model import Model
from client.policy import Policy
from mechanisms.messages.wire import record_to_bytes, request_to_record
from sottovoce.deployment.predict import serving
from tests.support.asking import (
    CLASSES,
    DIM,
    EPSILON,
    POLICY,
    SENTENCE,
    World,
    answered,
    ask,
    charged,
    honest,
    http,
    question,
    raw_server,
)
from tests.support.fuzz import Fuzzer

HOSTILE, MANY = 200, 3000


def test_a_server_that_is_not_there_or_another_one(world: World, node: Path, tmp_path: Path) -> None:
    stranger = world.place / "stranger" / "ca.pem"
    with pytest.raises(ValueError, match=r"shows a certificate that .* does not vouch for"):
        ask_model(node, [SENTENCE], server=world.address, root_certificates=stranger)
    other = {"certificate": world.place / "elsewhere" / "cert.pem", "key": world.place / "elsewhere" / "cert.key"}
    with serving(world.model(), **other) as address, pytest.raises(ValueError, match="does not vouch for"):
        ask(world, node, [SENTENCE], address)
    with pytest.raises(ValueError, match="cannot be reached"):
        ask(world, node, [SENTENCE], address)
    with raw_server(world, lambda request: http(b""), tls=False) as server, pytest.raises(ValueError, match="TLS"):
        ask(world, node, [SENTENCE], server.address)
    assert not any(b"POST" in request or b"GET" in request for request in server.received)
    (tmp_path / "x").write_text("x")
    for ca in (tmp_path / "x", tmp_path / "none"):
        with pytest.raises(ValueError, match="cannot be read as an authority's certificate"):
            ask_model(node, [SENTENCE], server=world.address, root_certificates=ca)
    for bad in (
        "http://x:1",
        "x",
        "",
        "https://",
        "https://u:p@x",
        "https://x/path",
        "https://x:999999",
        "https://\x00",
    ):
        with pytest.raises(ValueError, match="is no address of a server"):
            ask(world, node, [SENTENCE], bad)
    assert not charged(node)


@pytest.mark.parametrize(
    "answer",
    [
        http(b"x", "500 Oops"),
        http(b"", "302 Found", more="Location: https://elsewhere.example/\r\n"),
        b"",
        None,
        b"SSH-2.0-x\r\n\r\n",
        http(b""),
        http(b"\x80\x04K\x01."),
        http(bytes(10**7)),
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(10**7),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10**6,
        http(b"\x1f\x8b" + bytes(100), more="Content-Encoding: gzip\r\n"),
    ],
    ids=range(12),
)
def test_a_question_that_is_none(world: World, node: Path, answer: bytes | None) -> None:
    with raw_server(world, lambda request: answer) as server, pytest.raises(ValueError, match="nothing was") as error:
        ask(world, node, [SENTENCE], server.address)
    said = str(error.value)
    assert server.address in said and "\n" not in said and len(said) < 300
    assert not charged(node)


BAD_ANSWERS: list[Any] = [
    {},
    [],
    "x",
    7,
    None,
    {"classes": list(CLASSES)},
    {"classes": list(CLASSES), "probabilities": []},
    {"classes": list(CLASSES), "probabilities": [[1, 0, 0], [1, 0, 0]]},
    {"classes": [], "probabilities": [[]]},
    {"classes": list(CLASSES), "probabilities": [[1, 0]]},
    {"classes": list(CLASSES), "probabilities": [[True, 0, 0]]},
    {"classes": list(CLASSES), "probabilities": [[0.5, 0.5, 0.5]]},
    {"classes": list(CLASSES), "probabilities": [[2, -1, 0]]},
    {"classes": list(CLASSES), "probabilities": [["1", 0, 0]]},
    {"classes": list(CLASSES), "probabilities": [[float("nan"), 0, 1]]},
    {"classes": list(CLASSES), "probabilities": [[float("inf"), 0, 1]]},
    {"classes": list(CLASSES), "probabilities": [[10**400, 0, 1]]},
    {"classes": "abc", "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "a", "b"], "probabilities": [[1, 0, 0]]},
    {"classes": [1, 2, 3], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", "\x1b[2J"], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", "c\tx"], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", ["c"]], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", "c" * 1000], "probabilities": [[1, 0, 0]]},
    {"classes": list(CLASSES), "probabilities": [[1, 0, 0]], "more": 1},
]


def test_answers_that_are_none(world: World, node: Path) -> None:
    bodies = [json.dumps(answer).encode() for answer in BAD_ANSWERS]
    whole = [http(body) for body in (*bodies, b"", b"\xff", b"[" * 10_000, b'{"classes":' * 500)]
    whole += [http(bytes(10**6)), b"", b"HTTP/1.1 200 OK\r\n\r\n" + bytes(10**6)]
    with honest(world, lambda body: whole[turn[0]]) as server:
        for turn[0] in range(len(whole)):
            with pytest.raises(ValueError, match=r"; (1 sentence was|nothing was) charged") as error:
                ask(world, node, [SENTENCE], server.address)
            assert "\n" not in str(error.value) and len(str(error.value)) < 300
    assert len(charged(node)) == 1


turn = [0]


def hostile_questions(world: World, n: int, seed: int) -> list[bytes]:
    dear = {"mechanism": "purkayastha", "epsilon": 2 * EPSILON, "dim": DIM}  # which the policy does not allow
    valid = [request_to_record(world.request(**more)) for more in ({}, {"embedding": dear})]
    fuzzer, scribble = Fuzzer(valid, seed), random.Random(seed)
    bodies: list[bytes] = []
    for message in fuzzer.messages(2 * n):
        with suppress(ValueError):  # what cannot be written at all
            bodies.append(record_to_bytes(message))
        if scribble.random() < 0.1:
            data = bytearray(question(world.request()))
            data[scribble.randrange(len(data))] ^= 1 << scribble.randrange(8)
            bodies.append(bytes(data[: scribble.choice((len(data), scribble.randrange(len(data))))]))
    return bodies[:n]


def check_question(world: World, node: Path, number: int, address: str) -> bool:
    """It is refused in one line, or within the policy and for an embedding alone."""
    try:
        found = ask(world, node, [f"film {number}"], address)
    except ValueError as error:
        said = str(error)
        assert "\n" not in said and "charged" in said and len(said) < 500
        return False
    assert found.request.channels == ("embedding",) and found.epsilon <= POLICY.embedding * (1 + 1e-9)
    return True


def check_ledger(node: Path) -> None:
    rows = charged(node)
    assert {row.stage for row in rows} <= {"ask"} and {row.channel for row in rows} <= {"embedding"}
    assert sum(row.epsilon for row in rows) <= POLICY.total * (1 + 1e-9)


def test_hostile_questions(world: World, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = hostile_questions(world, HOSTILE, seed=1)
    monkeypatch.setattr(Model, "get", lambda *_, limit: bodies[turn[0]])
    monkeypatch.setattr(Model, "post", lambda *_, limit: answered())
    allowed = 0
    for turn[0] in range(HOSTILE):
        allowed += check_question(world, node, turn[0], "https://x:1")
    assert 0 < allowed < HOSTILE / 2
    check_ledger(node)


def test_a_device_that_is_careless_does_not_pass(world: World, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks neither at what a question costs nor at what is spent: either would be enough here."""
    monkeypatch.setattr(Policy, "refusal", lambda self, channel, cost: None)
    monkeypatch.setattr(Policy, "allows", lambda self, spent, limit: np.ones(len(spent), np.bool_))
    with pytest.raises(AssertionError):
        test_hostile_questions(world, node, monkeypatch)


@pytest.mark.parametrize("n", [100, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_hostile_questions_over_https(world: World, node: Path, n: int) -> None:
    bodies = hostile_questions(world, n, seed=2)

    def answer(request: bytes) -> bytes:
        return http(answered() if request.startswith(b"POST") else bodies[turn[0]])

    with raw_server(world, answer) as server:
        for turn[0] in range(n):
            check_question(world, node, turn[0], server.address)
    check_ledger(node)
