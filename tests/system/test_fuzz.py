"""Ten thousand hostile requests and replies: refused in constant words or dropped under a counted reason, no crash."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from client.app import NODES, answer, release
from client.models import vocabulary as vocabularies
from client.node import load_node, write_node
from client.policy import Policy
from mechanisms.accounting.privacy_filter import within
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_from_record, reply_to_record, request_from_record, request_to_record
from mechanisms.vocabulary import Vocabulary
from server.query import _read
from server.validation import validate
from simulations.shuffler.shuffle import shuffle
from tests.support.clients import CLASSES, DIM, context, make_node, message, request, with_prior
from tests.support.fuzz import ROOM, Fuzzer, extra
from tests.support.requests import changed

USERS = 6
#: Of each kind of message in the fast tests, and before a release.
MANY = pytest.mark.parametrize("n", [1000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.soak])])
#: The limit of each channel is reached by the requests of the fast test.
POLICY = Policy(embedding=70.0, label=6.0, text=140.0, answer=6.0, total=900.0, minimum_users=50)
CONSTANT = {sent: name for name, sent in REFUSALS.items()}
NOISY = {"mechanism": "planar-laplace", "epsilon": 4.0}


def words() -> Vocabulary:
    vectors = np.random.default_rng(4).normal(size=(9, 5)).astype(np.float32)
    return Vocabulary(("good", "bad", "fine", "film", "book", "the", "a", "was", "secret"), vectors)


def text_request(**changes: Any) -> Request:
    none = {"encoder": "", "mean": None, "m1": None, "embedding": None}
    spec = {"mechanism": "santext", "epsilon": 2.0, "tokens": 6, "vocabulary": words().identity}
    return request(**none, text=spec, vocabulary=words(), **changes)


def answer_request(**changes: Any) -> Request:
    head = np.random.default_rng(5).normal(size=(DIM, CLASSES)).astype(np.float32), np.zeros(CLASSES, np.float32)
    response = {"mechanism": "randomized-response", "epsilon": 2.0}
    return request(embedding=None, label=None, answer=response, head=head, **changes)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(NODES, str(tmp_path))
    folder = make_node(tmp_path / "0", range(USERS))
    vocabularies.save(words(), tmp_path / "words")
    write_node(folder, seed=7, arms={"a": POLICY}, vocabulary=tmp_path / "words")
    return folder


# -- requests


def ask(content: RecordDict) -> str | None:
    """The refusal's name, or None for an answer; and nothing but a constant leaves with a refusal."""
    given = release(message(content), context(0))
    return None if given.has_content() else CONSTANT[given.error.code, given.error.reason]


def outcome(content: RecordDict, node: Path) -> str | None:
    refused = ask(content)
    if refused is None:  # what was broken was nothing that matters: then it is a valid request, and is repeated
        again = reply_from_record(answer(content, load_node(node)))
        wanted = request_from_record(content, load_node(node).vocabulary)
        valid, dropped = validate(again, wanted, enrolled=range(USERS))
        assert not dropped and len(valid) == len(again)
    return refused


@MANY
def test_hostile_requests_are_refused_in_constant_words(node: Path, n: int) -> None:
    requests = [
        *(request(), with_prior(), request(embedding=NOISY), request(stage="again", label=None)),
        *(request(embedding=None), request(embedding={"mechanism": "gaussian", "sigma": 2.0}), request(split="test")),
        *(request(arm="b"), request(embedding={"mechanism": "identity"})),
        *(text_request(), text_request(label=None, stage="words")),
        *(answer_request(), answer_request(stage="again", split="test")),
    ]
    hostile = Fuzzer([request_to_record(r) for r in requests], seed=2).messages(n)
    outcomes = {outcome(content, node) for content in hostile}
    # Every way out is taken: the generator reaches behind the first check.
    assert {"malformed", "arm", "encoder", "spent", "unprotected", "minimum-users", "vocabulary"} <= outcomes
    assert "failed" not in outcomes, "a hostile request must be told from a fault of the device"
    with load_node(node).ledger("a") as ledger:
        people = np.arange(USERS, dtype=np.int64)
        assert within(ledger.spent(people), epsilon=POLICY.total, delta=POLICY.total_delta).all()
        for channel in ("embedding", "label", "text", "answer"):
            spent = ledger.spent(people, np.zeros_like(people), channel=channel)
            assert within(spent, epsilon=getattr(POLICY, channel), delta=POLICY.total_delta).all()
        assert all(np.isfinite(row.epsilon) for row in ledger.rows())


def test_requests_of_100_mb_are_refused_within_bounded_memory(node: Path) -> None:
    text = text_request()
    everything = changed(with_prior(), text=text.named("text").spec, vocabulary=text.vocabulary)
    outcomes = []
    for content in Fuzzer([request_to_record(everything)], 3).huge():
        assert extra(lambda content=content: outcomes.append(ask(content))) < ROOM
    assert set(outcomes) == {"malformed"} and len(outcomes) > 12


# -- replies


#: Every reason by which a server may drop a row.
REASONS = re.compile(
    r"unreadable|channels|user or record below 0|unknown user|user of another part|text: no word of the vocabulary|"
    r"embedding: (not finite|off the (grid|sphere))|(label|answer): out of range|"
    r"(embedding|label|text|answer): (stage|digest|guarantee|payload|dtype|shape)"
)


def honest(wanted: Request, node: Path) -> RecordDict:
    """What an honest node sends."""
    return reply_to_record(reply_from_record(answer(request_to_record(wanted), load_node(node))))


def read(content: RecordDict, wanted: Request) -> tuple[Reply | None, Counter[str]]:
    """The rows of a reply that a server takes, and those that it drops, by the reason."""
    arrived: Any = SimpleNamespace(content=content, has_error=lambda: False)
    got = _read(arrived)
    if isinstance(got, str):
        assert got == "unreadable reply"
        return None, Counter({got: 1})
    valid, dropped = validate(got, wanted, enrolled=range(USERS))
    assert all(REASONS.fullmatch(reason) and count > 0 for reason, count in dropped.items())
    assert "unreadable" in dropped or len(valid) + dropped.total() == len(got)
    return valid, dropped


def check_rows(reply: Reply, wanted: Request) -> None:
    """What is trained on is what was asked for, whatever was sent."""
    assert ((reply.users >= 0) & (reply.users < USERS)).all() and (reply.records >= 0).all()
    for sent in reply.releases:
        question = wanted.named(sent.channel)
        name, dtype, shape = question.payload_form
        values = sent.payload[name]
        assert values.dtype == dtype and values.shape == (len(reply), *shape)
        assert sent.guarantee.agrees(question.mechanism.guarantee)
        low, high = (-1, len(words())) if sent.channel == "text" else (0, wanted.classes)
        if sent.channel == "embedding":
            grid: Any = question.mechanism.grid
            low, high = -grid.limit, grid.limit + 1
        assert ((values.astype(int) >= low) & (values.astype(int) < high)).all()


@MANY
def test_hostile_replies_are_dropped_and_counted(node: Path, n: int) -> None:
    requests = [
        request(),
        text_request(stage="text"),
        with_prior(stage="prior", embedding=NOISY | {"epsilon": 3.0, "normalize": False}),
        request(stage="clear", label=None),
        answer_request(stage="answers"),
    ]
    fuzzer, outcomes = Fuzzer([honest(wanted, node) for wanted in requests], seed=1), set()
    for i, wanted in enumerate(requests):
        kept = []
        for content in fuzzer.messages(n // len(requests), of=i):
            valid, dropped = read(content, wanted)
            outcomes |= dropped.keys() or {"kept"}
            if valid:
                check_rows(valid, wanted)
                kept.append(valid)
        batch = shuffle(kept, minimum_users=0, rng=np.random.default_rng(0)).batch
        assert batch.users <= USERS  # however often a user was sent again
    assert {"unreadable reply", "embedding: digest", "label: out of range", "unknown user", "kept"} <= outcomes


def test_replies_of_100_mb_are_dropped_within_bounded_memory(node: Path) -> None:
    """An honest reply may be as large; a server's memory stays within a few times what was sent."""
    wanted, results = request(), list[Reply | None]()
    for content in Fuzzer([honest(wanted, node)], 3).huge():
        assert extra(lambda content=content: results.append(read(content, wanted)[0])) < ROOM
        assert not results.pop()
