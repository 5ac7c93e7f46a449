"""A sentence is asked about: what leaves, what it costs, what is kept of it, and servers that misbehave."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.device.ask import ask as ask_model
from client.device.ask import batch_size
from client.node import load_node
from client.policy import Policy
from client.shard import Shard, write_shard
from client.store import questions as asking
from client.store.questions import FIRST_RECORD, QuestionRecords
from mechanisms.messages.wire import MAX_DESCRIPTION, record_from_bytes, reply_from_record, sealed_from_record
from server.predict import MOST, Predictor
from sottovoce.deployment.predict import serving
from tests.support.answers import ledger_rows
from tests.support.asking import (
    CLASSES,
    COST,
    POLICY,
    SENTENCE,
    World,
    answered,
    ask,
    honest,
    http,
    question,
    raw_server,
)

# -- what it gives, and what it costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_the_prediction_is_that_of_the_maps_for_the_released_row(world: World, tmp_path: Path, sealed: bool) -> None:
    node, model = world.device(tmp_path / "node", sealed=sealed), world.model(sealed=sealed)
    with serving(model, **world.pair) as address:
        found = ask(world, node, [SENTENCE], address)
    row, grid = ledger_rows(node)[0], model.request.named("embedding").mechanism.grid
    z = grid.decode(np.frombuffer(row.payload, model.request.named("embedding").payload_form[1])[None, :])
    assert found.probabilities[0].argmax() == model.maps.predict(z)[0] and found.classes == CLASSES
    digest = model.request.digest("embedding")
    assert (row.stage, row.channel, row.record, row.digest) == ("ask", "embedding", FIRST_RECORD, digest)
    assert found.charged == 1 and found.epsilon == row.epsilon == pytest.approx(COST) == found.spent


def test_a_sentence_that_is_asked_about_again_repeats_its_release_at_no_cost(world: World, node: Path) -> None:
    with honest(world) as server:
        first, other, again = (ask(world, node, [s], server.address) for s in (SENTENCE, "a bad book", SENTENCE))
    assert (first.charged, other.charged, again.charged) == (1, 1, 0)
    assert len(ledger_rows(node)) == 2 and again.spent == other.spent == pytest.approx(2 * COST)
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
    assert len(ledger_rows(node)) == 1
    wide = world.device(node, replace(POLICY, embedding=64.0))
    with serving(moved, **world.pair) as address:
        assert ask(world, wide, [SENTENCE], address).charged == 1
    assert [row.record for row in ledger_rows(node)] == [FIRST_RECORD, FIRST_RECORD]


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


def test_sentences_that_are_alike_are_sent_once_and_in_few_messages(world: World, node: Path, lines: list[str]) -> None:
    model = world.model()
    sentences = [f"{i % 300} film" for i in range(700)] + ["", "  "]
    with serving(model, **world.pair) as address:
        found = ask(world, node, sentences, address)
    assert found.charged == 300 and found.probabilities.shape == (300, len(CLASSES)) and len(ledger_rows(node)) == 300
    assert found.rows.tolist() == [i % 300 for i in range(700)] + [-1, -1]
    new = "300 sentences are new, at ε = 31.42 at worst each; the policy allows 318"
    assert lines == [new]


def test_a_server_that_renames_its_classes_between_two_messages_is_left(world: World, node: Path) -> None:
    left = iter([http(answered(256)), http(answered(1, CLASSES[::-1]))])
    with (
        honest(world, lambda body: next(left)) as server,
        pytest.raises(ValueError, match="otherwise than a moment ago; 257 sentences were charged"),
    ):
        ask(world, node, [f"{i} film" for i in range(257)], server.address)


def test_the_server_takes_what_a_client_sends_at_once() -> None:
    assert all(batch_size(classes) <= MOST for classes in (2, 3, 1000, 32767)) and batch_size(32767) >= 1


def test_embeddings_declared_public_cost_nothing(world: World, node: Path) -> None:
    world.device(node, Policy(total=1.0, mechanisms=("identity",), accept_unprotected=("embedding: a test",)))
    with serving(world.model(embedding={"mechanism": "identity"}), **world.pair) as address:
        predictions = ask(world, node, [SENTENCE], address)
    assert predictions.public and (predictions.charged, predictions.spent, predictions.epsilon) == (1, 0.0, np.inf)


def test_it_is_charged_before_it_leaves(world: World, node: Path) -> None:
    seen: list[int] = []

    def dies(body: bytes) -> None:
        seen.append(len(ledger_rows(node)))

    with honest(world, dies) as server, pytest.raises(ValueError, match=r"broke the connection off.*1 sentence was c"):
        ask(world, node, [SENTENCE], server.address)
    assert seen == [1] and len(ledger_rows(node)) == 1
    assert ask(world, node, [SENTENCE], world.address).charged == 0
    assert len(ledger_rows(node)) == 1


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
    assert [(row.user, row.record) for row in ledger_rows(node)] == [(4, FIRST_RECORD), (9, FIRST_RECORD)]
    shard(node, [9], [FIRST_RECORD])
    with pytest.raises(ValueError, match="has a record numbered"):
        at(["three"])


@pytest.mark.parametrize(
    ("policy", "changes", "line"),
    [
        (Policy(embedding=31.0, total=99.0), {}, r"the server requests purkayastha, ε = 31\.42 at worst"),
        (replace(POLICY, minimum_users=500), {}, "minimum batch"),
        (POLICY, {"stage": "train"}, "something else"),
        (POLICY, {"minimum_users": 10**6}, "something else"),
        (POLICY, {"part": (0, 2)}, "something else"),
        (POLICY, {"label": {"mechanism": "randomized-response", "epsilon": 1.0}}, "something else"),
        (POLICY, {"encoder": "ab" * 32}, "the encoder abababababababab"),
        (POLICY, {"mean": np.zeros(5, np.float32), "m1": np.ones((5, 4), np.float32)}, "its maps do not fit"),
    ],
    ids=range(8),
)
def test_a_question_that_is_not_answered(
    world: World, tmp_path: Path, policy: Policy, changes: dict[str, Any], line: str
) -> None:
    node, body = world.device(tmp_path / "node", policy), question(world.request(**changes))
    with (
        raw_server(world, lambda _: http(body)) as server,
        pytest.raises(ValueError, match=f"{line}.*; nothing was charged$"),
    ):
        ask(world, node, [SENTENCE], server.address)
    assert not ledger_rows(node) and len(server.received) == 1


def test_what_the_total_allows_is_said_before_the_first_charge(world: World, node: Path) -> None:
    world.device(node, replace(POLICY, total=100.0))
    ask(world, node, ["one"], world.address)
    left = r"ε = 68\.58, δ = .* and 9,999 releases are left, enough for 2; nothing was"
    with pytest.raises(ValueError, match=f"3 sentences are new, .* {left}"):
        ask(world, node, ["one", "two", "three", "four"], world.address)
    assert len(ledger_rows(node)) == 1
    assert ask(world, node, ["one", "two", "three"], world.address).charged == 2


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
    assert [row.record - FIRST_RECORD for row in ledger_rows(node)] == [0, 1, 2, 3]


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
    rows = ledger_rows(node)
    assert sorted(row.record for row in rows) == [row.record for row in rows] and len({r.record for r in rows}) == 8
    lines = [line for line in said if line]  # found out when it is counted, or when another was charged meanwhile
    assert all("policy's total" in line or "budget does not cover" in line for line in lines)
    assert all("; nothing was charged" in line for line in lines)


def test_a_crash_between_numbering_and_charging_leaves_the_number_to_its_sentence(
    world: World, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("client.device.ask.Sanitizer.answer", crash)
        ask(world, node, ["one"], world.address)
    assert not ledger_rows(node)
    ask(world, node, ["two"], world.address)
    ask(world, node, ["one"], world.address)
    assert [row.record - FIRST_RECORD for row in ledger_rows(node)] == [0, 1]
    with QuestionRecords(node) as numbers:
        assert numbers.record_numbers(0, [asking.sentence_hash("one")]).tolist() == [FIRST_RECORD]


def test_damaged_numbers_are_said(world: World, node: Path) -> None:
    (node / "asked.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(ValueError, match=r"asked\.sqlite: is damaged; move it away.*nothing was charged"):
        ask(world, node, ["one"], world.address)
    (node / "asked.sqlite").unlink()
    (node / "ledger.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match=r"ledger: .*; nothing was charged"):
        ask(world, node, ["one"], world.address)


def test_a_full_disk(world: World, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(world, node, ["one"], world.address)
    with monkeypatch.context() as patch:
        opened = QuestionRecords.__init__

        def full(self: QuestionRecords, folder: Path) -> None:
            opened(self, folder)
            self._connection.execute("PRAGMA max_page_count = 1")

        patch.setattr(QuestionRecords, "__init__", full)
        with pytest.raises(ValueError, match=r"asked\.sqlite: cannot be used .*full.*; nothing was charged"):
            ask(world, node, [f"film {i}" for i in range(200)], world.address)
    assert len(ledger_rows(node)) == 1
    assert ask(world, node, ["one", "two"], world.address).charged == 1


def test_a_witness_that_cannot_be_written_is_counted(world: World, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with honest(world) as server, monkeypatch.context() as patch:
        with load_node(node).ledger(""):
            pass
        patch.setattr("client.store.ledger.rollback_guard.advance", full)
        with pytest.raises(ValueError, match=r"No space left.*; 1 sentence was charged"):
            ask(world, node, ["one"], server.address)
    assert not any(request.startswith(b"POST") for request in server.received)
    assert len(ledger_rows(node)) == 1


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
    for bad in ("http://x:1", "x", "https://", "https://u:p@x", "https://x/path", "https://x:999999", "https://\x00"):
        with pytest.raises(ValueError, match="is no address of a server"):
            ask(world, node, [SENTENCE], bad)
    assert not ledger_rows(node)


@pytest.mark.parametrize(
    "answer",
    [
        http(b"", "302 Found", more="Location: https://elsewhere.example/\r\n"),
        None,
        b"SSH-2.0-x\r\n\r\n",
        http(b""),
        http(b"\x80\x04K\x01."),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10**6,
        http(b"\x1f\x8b" + bytes(100), more="Content-Encoding: gzip\r\n"),
    ],
    ids=range(8),
)
def test_a_question_that_is_none(world: World, node: Path, answer: bytes | None) -> None:
    with raw_server(world, lambda request: answer) as server, pytest.raises(ValueError, match="nothing was") as error:
        ask(world, node, [SENTENCE], server.address)
    said = str(error.value)
    assert server.address in said and "\n" not in said and len(said) < 300
    assert not ledger_rows(node)


def test_an_answer_is_read_up_to_its_own_limit_of_bytes_and_a_limit_of_time(
    world: World, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + bytes(10**7)
    limit = 4 * world.encoder.dim * (world.encoder.dim + 1) + 2 * MAX_DESCRIPTION
    with (
        raw_server(world, lambda request: endless) as server,
        pytest.raises(ValueError, match=f"more than the {limit:,} bytes that are read; nothing was charged"),
    ):
        ask(world, node, [SENTENCE], server.address)
    monkeypatch.setattr("client.device.https._ANSWER_SECONDS", -1.0)
    with honest(world) as server, pytest.raises(ValueError, match="did not end in time; nothing was charged"):
        ask(world, node, [SENTENCE], server.address)
    assert not ledger_rows(node)


def test_answers_that_are_none(world: World, node: Path) -> None:
    names, good, nan = list(CLASSES), [[1, 0, 0]], float("nan")
    bad: list[Any] = [{}, [], {"classes": names}, {"classes": [], "probabilities": [[]]}]
    bad += [{"classes": names, "probabilities": good, "more": 1}]
    for rows in (
        [],
        [*good, *good],
        [[1, 0]],
        [[True, 0, 0]],
        [[0.5] * 3],
        [[2, -1, 0]],
        [[nan, 0, 1]],
        [[10**400, 0, 1]],
    ):
        bad.append({"classes": names, "probabilities": rows})
    for classes in ("abc", ["a", "a", "b"], ["a", "b", ["c"]], ["a", "b", "c" * 1000], ["a", "b", "\x1b[2J"]):
        bad.append({"classes": classes, "probabilities": good})
    bodies = [
        *(json.dumps(answer).encode() for answer in bad),
        b"",
        b"\xff",
        b"[" * 10_000,
        b'{"classes":' * 500,
        bytes(10**6),
    ]
    answers = [*map(http, bodies), b"", b"HTTP/1.1 200 OK\r\n\r\n" + bytes(10**6)]
    left = iter(answers)
    with honest(world, lambda body: next(left)) as server:
        for _ in answers:
            with pytest.raises(ValueError, match=r"; (1 sentence was|nothing was) charged") as error:
                ask(world, node, [SENTENCE], server.address)
            assert "\n" not in str(error.value) and len(str(error.value)) < 300
    assert len(ledger_rows(node)) == 1
