"""A device asks a deployed model: only the release leaves, charged before it leaves, and nobody need be honest."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.device.ask import Predictions
from client.device.ask import ask as ask_model
from client.device.model import Model, batch_size
from client.node import load_node
from client.policy import Policy
from client.shard import Shard, write_shard
from client.store import questions as asking
from client.store.ledger import Ledger, LedgerRow
from client.store.questions import FIRST_RECORD, QuestionRecords
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    request_to_record,
    sealed_from_record,
)
from server.predict import MOST, Predictor
from simulations.commands import cli
from simulations.deployment.predict import serving
from simulations.devices import ask as device_ask
from tests.client.device.test_device import on_a_device
from tests.support.asking import CLASSES, POLICY, World, http, make_world, question, raw_server
from tests.support.devices import make_bundle
from tests.support.fuzz import Fuzzer
from tests.support.paths import ROOT

SENTENCE = "the film was good"
COST = 31.415926
HOSTILE, MANY = 200, 3000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """With an honest model that is served."""
    made = make_world(tmp_path_factory.mktemp("ask"))
    with serving(made.model(), **made.pair) as address:
        yield replace(made, address=address)


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    """Of an honest model."""
    yield address


@pytest.fixture
def node(world: World, tmp_path: Path) -> Path:
    return world.device(tmp_path / "node")


def ask(world: World, node: Path, sentences: list[str], address: str, **more: Any) -> Predictions:
    return ask_model(node, sentences, server=address, root_certificates=world.ca, **more)


def charged(node: Path) -> list[LedgerRow]:
    with load_node(node).ledger("") as ledger:
        return ledger.rows()


def answered(n: int = 1, classes: tuple[str, ...] = CLASSES) -> bytes:
    rows = [[1.0, *[0.0] * (len(classes) - 1)]] * n
    return json.dumps({"classes": list(classes), "probabilities": rows}).encode()


def honest(world: World, then: Callable[[bytes], bytes | None] = lambda body: http(answered())) -> Any:
    """A server of bytes that asks honestly, and then does something with what it is sent."""

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"GET"):
            return http(question(world.request()))
        return then(request.partition(b"\r\n\r\n")[2])

    return raw_server(world, answer)


# -- what it gives, and what it costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_the_prediction_is_that_of_the_maps_for_the_released_row(world: World, tmp_path: Path, sealed: bool) -> None:
    node, model = world.device(tmp_path / "node", sealed=sealed), world.model(sealed=sealed)
    with serving(model, **world.pair) as address:
        found = ask(world, node, [SENTENCE], address)
    row, grid = charged(node)[0], model.request.mechanism("embedding").grid
    z = grid.decode(np.frombuffer(row.payload, model.request.payload_form("embedding")[1])[None, :])
    assert found.probabilities[0].argmax() == model.maps.predict(z)[0] and found.classes == CLASSES
    assert (row.stage, row.channel, row.record, row.digest) == ("ask", "embedding", FIRST_RECORD, model.request.digest(
        "embedding"))  # fmt: skip
    assert found.charged == 1 and found.epsilon == row.epsilon == pytest.approx(COST) == found.spent


def test_a_sentence_that_is_asked_about_again_repeats_its_release_at_no_cost(world: World, node: Path) -> None:
    with honest(world) as server:
        first, other, again = (ask(world, node, [s], server.address) for s in (SENTENCE, "a bad book", SENTENCE))
    assert (first.charged, other.charged, again.charged) == (1, 1, 0)
    assert len(charged(node)) == 2 and again.spent == other.spent == pytest.approx(2 * COST)
    sent = [request for request in server.received if request.startswith(b"POST")]
    assert sent[0] == sent[2] != sent[1]


def test_another_question_counts_on_the_same_record(world: World, node: Path) -> None:
    """Else a server would learn as much as it likes of one sentence, by asking under ever other names."""
    maps = world.maps()
    other = replace(maps, m1=maps.m1 + 1)
    ask(world, node, [SENTENCE], world.address)
    moved = Predictor(world.request(m1=other.m1), other, CLASSES)
    with serving(moved, **world.pair) as address, pytest.raises(ValueError, match="1 of the sentences was asked about"):
        ask(world, node, [SENTENCE], address)
    assert len(charged(node)) == 1
    wide = world.device(node, replace(POLICY, embedding=64.0))
    with serving(moved, **world.pair) as address:
        assert ask(world, wide, [SENTENCE], address).charged == 1
    assert [row.record for row in charged(node)] == [FIRST_RECORD, FIRST_RECORD]


def test_nothing_but_the_release_leaves(world: World, tmp_path: Path) -> None:
    sentences = ["a", "a bad book " * 200, "\x00", "😀 déjà vu", "the plot was awful ."]
    lengths = set()
    for sealed in (False, True):
        node = world.device(tmp_path / f"{sealed}", sealed=sealed)
        users = np.array([77], np.int64)
        write_shard(node, "train", users, users, ["secret"], None)
        with honest(world) as server:
            for sentence in sentences:
                ask(world, node, [sentence], server.address)
        sent = [request for request in server.received if request.startswith(b"POST")]
        asked = [request for request in server.received if request.startswith(b"GET")]
        assert len({len(request) for request in sent}) == 1 == len(set(asked)) and len(sent) == len(sentences)
        assert len({request.partition(b"\r\n\r\n")[0] for request in sent}) == 1  # the same head for all
        for request in sent:
            record = record_from_bytes(request.partition(b"\r\n\r\n")[2])
            reply = sealed_from_record(record) if sealed else reply_from_record(record)
            assert reply.users.tolist() == [0] == reply.records.tolist()  # neither 77 nor how many there were
        lengths.add(len(sent[0]))
    assert len(lengths) == 2


def test_sentences_that_are_alike_are_sent_once_and_in_few_messages(world: World, node: Path) -> None:
    model = world.model()
    sentences = [f"{i % 300} film" for i in range(700)] + ["", "  "]
    lines: list[str] = []
    with serving(model, **world.pair) as address:
        found = ask(world, node, sentences, address, progress=lines.append)
    assert found.charged == 300 and found.probabilities.shape == (300, len(CLASSES)) and len(charged(node)) == 300
    assert found.rows.tolist() == [i % 300 for i in range(700)] + [-1, -1]
    new = "300 sentences are new, at ε = 31.42 at worst each; the policy allows 318"
    assert [lines[0], lines[1], lines[-1]] == ["encoded 300 of 300 sentences", new, "answered 300 of 300 sentences"]


def test_the_server_takes_what_a_client_sends_at_once() -> None:
    assert all(batch_size(classes) <= MOST for classes in (2, 3, 1000, 32767)) and batch_size(32767) >= 1


def test_it_is_charged_before_it_leaves(world: World, node: Path) -> None:
    seen: list[int] = []

    def dies(body: bytes) -> None:
        seen.append(len(charged(node)))

    with honest(world, dies) as server, pytest.raises(ValueError, match=r"broke the connection off.*1 sentence was c"):
        ask(world, node, [SENTENCE], server.address)
    assert seen == [1] and len(charged(node)) == 1
    assert ask(world, node, [SENTENCE], world.address).charged == 0
    assert len(charged(node)) == 1


# -- users, records, policies -----------------------------------------------------------------------------------------


def shard(node: Path, users: list[int], records: list[int], split: str = "train") -> Shard:
    ids = (np.array(users, np.int64), np.array(records, np.int64))
    return write_shard(node, split, *ids, ["secret"] * len(users), None)


def test_whose_sentence_it_is(world: World, node: Path) -> None:
    at = partial(ask, world, node, address=world.address)
    shard(node, [4, 4], [0, 1])
    shard(node, [4], [2], "test")
    at(["one"])
    with pytest.raises(ValueError, match="has no user 5; it has 4; nothing was charged"):
        at(["two"], user=5)
    shard(node, [4, 9], [0, 0])
    with pytest.raises(ValueError, match=r"holds 2 users \(4, 9\); say by --user"):
        at(["two"])
    at(["two"], user=9)
    assert [(row.user, row.record) for row in charged(node)] == [(4, FIRST_RECORD), (9, FIRST_RECORD)]


def test_an_empty_device_is_user_0s(world: World, node: Path) -> None:
    ask(world, node, ["one"], world.address)
    with pytest.raises(ValueError, match="has no user 3; it has 0"):
        ask(world, node, ["one"], world.address, user=3)
    assert [row.user for row in charged(node)] == [0]


def test_a_shard_whose_numbers_would_be_sentences_is_refused(world: World, node: Path) -> None:
    shard(node, [0], [FIRST_RECORD])
    with pytest.raises(ValueError, match="has a record numbered"):
        ask(world, node, ["one"], world.address)


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Policy(), r"allows ε up to 0 for one sentence, and the server asks for ε = 31\.42 at worst"),
        (Policy(embedding=31.0, total=99.0), "allows ε up to 31 for one sentence"),
        (replace(POLICY, total=30.0), "allows ε up to 30 in total"),
        (replace(POLICY, mechanisms=("identity",)), "does not allow the mechanism purkayastha"),
        (replace(POLICY, minimum_users=500), r"at least 500 users, and a question goes alone; .* minimum_users to 0"),
    ],
)
def test_a_question_beyond_the_policy(world: World, tmp_path: Path, policy: Policy, line: str) -> None:
    node = world.device(tmp_path / "node", policy)
    with honest(world) as server, pytest.raises(ValueError, match=f"{line}.*; nothing was charged$"):
        ask(world, node, [SENTENCE], server.address)
    assert not charged(node) and len(server.received) == 1


def test_what_the_total_allows_is_said_before_the_first_charge(world: World, node: Path) -> None:
    world.device(node, replace(POLICY, total=100.0))
    ask(world, node, ["one"], world.address)
    left = r"ε = 68\.58, δ = .* and 9,999 releases are left, enough for 2; nothing was"
    with pytest.raises(ValueError, match=f"3 sentences are new, .* {left}"):
        ask(world, node, ["one", "two", "three", "four"], world.address)
    assert len(charged(node)) == 1
    assert ask(world, node, ["one", "two", "three"], world.address).charged == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": "train"}, {"split": "train"}, {"minimum_users": 10**6}, {"part": (0, 2)}, {"arm": "a"},
        {"label": {"mechanism": "randomized-response", "epsilon": 1.0}},
    ],
    ids=str,
)  # fmt: skip
def test_a_question_for_something_else(world: World, node: Path, changes: dict[str, Any]) -> None:
    body = question(world.request(**changes))
    with (
        raw_server(world, lambda request: http(body)) as server,
        pytest.raises(ValueError, match="asks for something else than the embedding of one sentence; nothing was"),
    ):
        ask(world, node, [SENTENCE], server.address)
    assert not charged(node)


def test_a_question_for_another_encoder(world: World, node: Path) -> None:
    for request, line in (
        (world.request(encoder="ab" * 32), "asks for embeddings of the encoder abababababababab"),
        (world.request(mean=np.zeros(5, np.float32), m1=np.ones((5, 4), np.float32)), "its maps do not fit"),
    ):
        body = question(request)
        with raw_server(world, lambda _, body=body: http(body)) as server, pytest.raises(ValueError, match=line):
            ask(world, node, [SENTENCE], server.address)


# -- servers that are not what they should be -------------------------------------------------------------------------


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
    for bad in ("http://x:1", "x", "", "https://", "https://u:p@x", "https://x/path", "https://x:999999", "https://\x00"):
        with pytest.raises(ValueError, match="is no address of a server"):
            ask(world, node, [SENTENCE], bad)
    assert not charged(node)


@pytest.mark.parametrize(
    "answer",
    [
        http(b"x", "500 Oops"), http(b"", "302 Found", more="Location: https://elsewhere.example/\r\n"), b"", None,
        b"SSH-2.0-x\r\n\r\n", http(b""), http(b"\x80\x04K\x01."), http(bytes(10**7)),
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(10**7), b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10**6,
        http(b"\x1f\x8b" + bytes(100), more="Content-Encoding: gzip\r\n"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_question_that_is_none(world: World, node: Path, answer: bytes | None) -> None:
    with raw_server(world, lambda request: answer) as server, pytest.raises(ValueError, match="nothing was") as error:
        ask(world, node, [SENTENCE], server.address)
    said = str(error.value)
    assert server.address in said and "\n" not in said and len(said) < 300
    assert not charged(node)


BAD_ANSWERS: list[Any] = [
    {}, [], "x", 7, None, {"classes": list(CLASSES)}, {"classes": list(CLASSES), "probabilities": []},
    {"classes": list(CLASSES), "probabilities": [[1, 0, 0], [1, 0, 0]]}, {"classes": [], "probabilities": [[]]},
    {"classes": list(CLASSES), "probabilities": [[1, 0]]}, {"classes": list(CLASSES), "probabilities": [[True, 0, 0]]},
    {"classes": list(CLASSES), "probabilities": [[0.5, 0.5, 0.5]]},
    {"classes": list(CLASSES), "probabilities": [[2, -1, 0]]},
    {"classes": list(CLASSES), "probabilities": [["1", 0, 0]]},
    {"classes": list(CLASSES), "probabilities": [[float("nan"), 0, 1]]},
    {"classes": list(CLASSES), "probabilities": [[float("inf"), 0, 1]]},
    {"classes": list(CLASSES), "probabilities": [[10**400, 0, 1]]}, {"classes": "abc", "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "a", "b"], "probabilities": [[1, 0, 0]]}, {"classes": [1, 2, 3], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", "\x1b[2J"], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", "c\tx"], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", ["c"]], "probabilities": [[1, 0, 0]]},
    {"classes": ["a", "b", "c" * 1000], "probabilities": [[1, 0, 0]]},
    {"classes": list(CLASSES), "probabilities": [[1, 0, 0]], "more": 1},
]  # fmt: skip


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
    fuzzer, scribble = Fuzzer([request_to_record(world.request())], seed), random.Random(seed)
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


@pytest.mark.slow
def test_thousands_of_hostile_questions_over_https(world: World, node: Path) -> None:
    bodies = hostile_questions(world, MANY, seed=2)

    def answer(request: bytes) -> bytes:
        return http(answered() if request.startswith(b"POST") else bodies[turn[0]])

    with raw_server(world, answer) as server:
        for turn[0] in range(MANY):
            check_question(world, node, turn[0], server.address)
    check_ledger(node)


# -- numbers of sentences ---------------------------------------------------------------------------------------------


def test_numbers_never_come_twice(world: World, node: Path) -> None:
    one, two, three = (asking.sentence_hash(text) for text in ("one", "two", "three"))
    with QuestionRecords(node) as numbers:
        assert numbers.assign(0, [one, two, one], above=-1).tolist() == [FIRST_RECORD, FIRST_RECORD + 1, FIRST_RECORD]
        assert numbers.assign(1, [two], above=5).tolist() == [FIRST_RECORD]
        assert numbers.record_numbers(0, [three, two]).tolist() == [-1, FIRST_RECORD + 1]
        assert numbers.assign(0, [three, one], above=FIRST_RECORD + 9).tolist() == [FIRST_RECORD + 10, FIRST_RECORD]
        assert numbers.users() == [0, 1]
        with pytest.raises(ValueError, match="no numbers left"):
            numbers.assign(0, [asking.sentence_hash("four")], above=2**32 - 1)
    with QuestionRecords(node) as numbers:
        known = numbers.record_numbers(0, [one, two, three])
        assert known.tolist() == [FIRST_RECORD, FIRST_RECORD + 1, FIRST_RECORD + 10]
    assert (node / "asked.sqlite").stat().st_mode & 0o077 == 0


def test_without_the_numbers_no_release_goes_for_another_sentence(world: World, node: Path) -> None:
    ask(world, node, ["one", "two"], world.address)
    (node / "asked.sqlite").unlink()
    assert ask(world, node, ["three", "one"], world.address).charged == 2
    assert [row.record - FIRST_RECORD for row in charged(node)] == [0, 1, 2, 3]


def test_several_at_once_share_numbers_and_budget(world: World, node: Path) -> None:
    world.device(node, replace(POLICY, total=8 * COST + 1))
    texts = [f"film {i % 12}" for i in range(24)]
    ask(world, node, texts[:1], world.address)

    def one(text: str) -> str:
        try:
            ask(world, node, [text], world.address)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(one, texts))
    rows = charged(node)
    assert sorted(row.record for row in rows) == [row.record for row in rows] and len({r.record for r in rows}) == 8
    assert all("total" in line and "; nothing was charged" in line for line in said if line)
    with QuestionRecords(node) as numbers:
        records = numbers.record_numbers(0, [asking.sentence_hash(text) for text in texts[:12]])
    assert len(set(records[records >= 0].tolist())) == (records >= 0).sum()


KILLED = """
import os, sys
from client.device import ask
from client.sanitizer import Sanitizer
def die(*_):
    os.kill(os.getpid(), 9)
Sanitizer.answer = die
ask.ask(sys.argv[1], ["one"], server=sys.argv[2], root_certificates=sys.argv[3])
"""


def test_a_crash_between_numbering_and_charging_leaves_the_number_to_its_sentence(world: World, node: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(node), world.address, str(world.ca)], check=False, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == -9 and not charged(node)
    ask(world, node, ["two"], world.address)
    ask(world, node, ["one"], world.address)
    assert [row.record - FIRST_RECORD for row in charged(node)] == [0, 1]
    with QuestionRecords(node) as numbers:
        known = numbers.record_numbers(0, [asking.sentence_hash("one"), asking.sentence_hash("two")])
        assert known.tolist() == [FIRST_RECORD, FIRST_RECORD + 1]


def test_damaged_numbers_are_said(world: World, node: Path) -> None:
    (node / "asked.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(ValueError, match=r"asked\.sqlite: is damaged; move it away.*nothing was charged"):
        ask(world, node, ["one"], world.address)
    (node / "asked.sqlite").unlink()
    (node / "ledger.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match=r"ledger: .*; nothing was charged"):
        ask(world, node, ["one"], world.address)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (QuestionRecords, r"asked\.sqlite: cannot be used .*full.*; nothing was charged"),
        (Ledger, "full.*; nothing was charged"),
    ],
)
def test_a_full_disk(world: World, node: Path, monkeypatch: pytest.MonkeyPatch, place: Any, line: str) -> None:
    ask(world, node, ["one"], world.address)
    with monkeypatch.context() as patch:
        opened = place.__init__

        def full(self: Any, *arguments: Any, **more: Any) -> None:
            opened(self, *arguments, **more)
            self._connection.execute("PRAGMA max_page_count = 1")

        patch.setattr(place, "__init__", full)
        with pytest.raises(ValueError, match=line):
            ask(world, node, [f"film {i}" for i in range(200)], world.address)
    assert len(charged(node)) == 1
    assert ask(world, node, ["one", "two"], world.address).charged == 1


def test_a_witness_that_cannot_be_written_is_counted(
    world: World, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with honest(world) as server, monkeypatch.context() as patch:
        with load_node(node).ledger(""):
            pass
        patch.setattr("client.store.ledger.witness.advance", full)
        with pytest.raises(ValueError, match=r"No space left.*; 1 sentence was charged"):
            ask(world, node, ["one"], server.address)
    assert not any(request.startswith(b"POST") for request in server.received)
    assert len(charged(node)) == 1


# -- the commands -----------------------------------------------------------------------------------------------------


def command(world: World, address: str, *arguments: object) -> int:
    return cli.main(["device", "ask", *map(str, arguments), "--server", address, "--root-certificates", str(world.ca)])


def test_ask_on_the_command_line(world: World, node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(world, world.address, node, SENTENCE) == 0
    said = capsys.readouterr()
    assert said.err == "" and "ε = 31.42 at worst (ε = 10·d_angular)" in said.out and "spent" in said.out
    assert command(world, world.address, node, SENTENCE) == 0
    assert "cost   nothing: asked about before, at ε = 31.42 at worst" in capsys.readouterr().out
    assert command(world, world.address, node, SENTENCE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["probabilities"]) == set(CLASSES) and found["class"] in CLASSES
    assert (found["cost"], found["charged"], found["delta"]) == (pytest.approx(COST), 0, 0.0)
    assert found["spent"] == pytest.approx(COST) and found["statement"] == "ε = 10·d_angular"


def test_embeddings_declared_public_are_said_so(world: World, node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.device(node, Policy(mechanisms=("identity",), accept_unprotected=("embedding: a test",)))
    with serving(world.model(embedding={"mechanism": "identity"}), **world.pair) as address:
        assert command(world, address, node, SENTENCE) == 0
        assert "ε = ∞ (ε = ∞·d_discrete)" in (out := capsys.readouterr().out) or "in clear" in out
        assert "declared public, and not counted" in out
        assert command(world, address, node, SENTENCE, "--json") == 0
    assert json.loads(capsys.readouterr().out)["cost"] == "inf"


def file_of(folder: Path, text: bytes) -> Path:
    path = folder / "in.txt"
    path.write_bytes(text)
    return path


def test_a_file_of_sentences(world: World, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\ufeffthe film was good\n\na bad\tbook\r\n   \nthe film was good\nof\u2028two\x0bhalves".encode()
    file, out = file_of(tmp_path, text), tmp_path / "out.tsv"
    assert command(world, world.address, node, "--file", file, "--out", out, "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["lines"], found["charged"], sum(found["classes"].values())) == (6, 3, 4)
    assert "3 sentences are new" in said.err and "the policy allows 318" in said.err
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows[0] == ["line", "class", *CLASSES, "sentence"] and len(rows) == 7
    assert {len(row) for row in rows} == {3 + len(CLASSES)}
    assert [row[0] for row in rows[1:]] == list("123456") and rows[2][1:] == [""] * 5 == rows[4][1:]
    assert rows[1][1:] == rows[5][1:] and rows[1][-1] == "the film was good" and rows[3][-1] == "a bad book"
    shares = [float(share) for share in rows[1][2:-1]]
    assert sum(shares) == pytest.approx(1, abs=1e-5) and CLASSES[int(np.argmax(shares))] == rows[1][1]


def test_a_file_comes_whole_or_not_at_all_and_goes_on_at_no_further_cost(
    world: World, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = file_of(tmp_path, "\n".join(f"film {i}" for i in range(300)).encode()), tmp_path / "out.tsv"
    posts: list[bytes] = []

    def dies_later(body: bytes) -> bytes | None:
        posts.append(body)
        return http(answered(256)) if len(posts) == 1 else None

    with honest(world, dies_later) as server:
        assert command(world, server.address, node, "--file", file, "--out", out) == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert "300 sentences were charged (ε = 31.42 at worst each), and cost nothing when" in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "node"] and len(charged(node)) == 300
    before = charged(node)
    assert command(world, world.address, node, "--file", file, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["charged"] == 0 and found["lines"] == 300 and charged(node) == before
    assert len(out.read_text().splitlines()) == 301


def test_the_rest_of_a_file_is_charged_when_it_goes_on(world: World, node: Path) -> None:
    sentences = [f"film {i}" for i in range(600)]
    world.device(node, replace(POLICY, total=20_000.0))
    with honest(world, lambda body: None) as server, pytest.raises(ValueError, match="256 sentences were charged"):
        ask(world, node, sentences, server.address)
    assert ask(world, node, sentences, world.address).charged == 344


MEASURED = """
import sys
from pathlib import Path
from simulations.commands.cli import main
code = main(sys.argv[1:])
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
def test_a_long_file_takes_no_more_memory(world: World, tmp_path: Path) -> None:
    node = world.device(tmp_path / "node", replace(POLICY, total=float("inf")))
    peaks = []
    for lines in (1_000, 30_000):
        file, out = file_of(tmp_path, "".join(f"film {i} of {lines}\n" for i in range(lines)).encode()), f"{lines}.tsv"
        where = ["--server", world.address, "--root-certificates", str(world.ca)]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, "device", "ask", node, "--file", file, "--out", tmp_path / out, *where],
            check=False, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stderr.split()[-1]) * 1024)
        assert sum(1 for _ in (tmp_path / out).open()) == lines + 1
    assert peaks[1] - peaks[0] < 40e6


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["x"], "--server: "), ([], "give a \"SENTENCE\", or --file"), (["x", "--file", "f"], "--file FILE goes with"),
        (["--file", "f"], "--file FILE goes with"), (["x", "--out", "o"], "give a \"SENTENCE\""),
        (["--file", "none.txt", "--out", "o"], "none.txt: No such file"),
        (["--file", "bad.txt", "--out", "o"], "bad.txt: line 2: is not UTF-8"),
        (["--file", "empty.txt", "--out", "o"], "there is no sentence to ask about; nothing was charged"),
        (["--file", "in.txt", "--out", "in.txt"], "in.txt: is there already"),
        (["--file", "in.txt", "--out", "no/such/o"], "no/such/o: cannot be written"),
        (["  "], "there is no sentence"), (["caf\udce9"], "is not Unicode"), (["x", "--user", "-1"], "has no user -1"),
    ],
    ids=range(13),
)  # fmt: skip
def test_bad_input_ends_in_one_line(
    world: World, node: Path, tmp_path: Path, options: list[str], line: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, data in (("in.txt", b"x\n"), ("bad.txt", b"x\n\xff\n"), ("empty.txt", b"\n \n")):
        Path(name).write_bytes(data)
    here = sorted(os.listdir(tmp_path))
    if "--server" in line:
        assert cli.main(["device", "ask", str(node), *options]) == 2
    else:
        assert command(world, world.address, node, *options) == 2
    said = capsys.readouterr()
    assert line.rstrip(": ") in said.err.splitlines()[-1] and said.out == ""
    assert (sorted(os.listdir(tmp_path)) == here and not (node / "ledger.sqlite").exists()) or not charged(node)


def test_ctrl_c_says_what_stays(world: World, node: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(device_ask, "ask_model", interrupted)
    assert command(world, "https://x:1", node, SENTENCE) == cli.INTERRUPTED
    assert "interrupted; what was charged until then stays charged" in capsys.readouterr().err


def test_install_and_ask_where_a_device_alone_is_installed(world: World, tmp_path: Path) -> None:
    bundle, node = make_bundle(world.place, "b"), tmp_path / "node"
    (tmp_path / "seal.pub").write_text(f"{world.public.hex()}\n")
    install = ["device", "install", "--bundle", bundle.folder, "--node", node]
    done = on_a_device(*install, "--seal-to", tmp_path / "seal.pub")
    assert done.returncode == 0 and f"{node}: answers for embedding, label" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1 and load_node(node).seal == world.public
    with serving(world.model(sealed=True), **world.pair) as address:
        where = ["--server", address, "--root-certificates", world.ca]
        done = on_a_device("device", "ask", node, SENTENCE, *where, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["charged"] == 1, done.stderr
    assert done.stderr == ""


def test_an_installation_that_cannot_be(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, node = make_bundle(world.place, "c"), tmp_path / "node"
    (tmp_path / "short").write_text("abcd")
    (tmp_path / "zero").write_text("00" * 32)
    install = ["device", "install", "--bundle", str(bundle.folder), "--node", str(node)]
    for seal, line in (("short", "is no key to seal with"), ("none", "cannot be read"), ("zero", "public key")):
        assert cli.main([*install, "--seal-to", str(tmp_path / seal)]) == 2
        assert line in (said := capsys.readouterr()).err and said.out == "" and len(said.err.splitlines()) == 1
        assert not node.exists()
    assert cli.main(install) == 0 and load_node(node).seal is None
    assert "in clear" in capsys.readouterr().out
    assert cli.main(install) == 2 and "is there already; give another folder" in capsys.readouterr().err
    manifest = bundle.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("sottovoce-bundle-1", "sottovoce-bundle-9"))
    assert cli.main([*install[:-1], str(tmp_path / "other")]) == 2
    assert "is of the format 'sottovoce-bundle-9'" in capsys.readouterr().err
