"""Ten thousand hostile requests and replies: refused in constant words or dropped under a counted reason, no crash."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
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
#: Of each kind of message in the fast tests; the slow ones make ten thousand of each.
FEW, MANY = 1000, 10_000
POLICY = Policy(embedding=70.0, label=6.0, text=400.0, answer=6.0, total=900.0, minimum_users=50)
CONSTANT = set(REFUSALS.values())


def words() -> Vocabulary:
    vectors = np.random.default_rng(4).normal(size=(9, 5)).astype(np.float32)
    return Vocabulary(("good", "bad", "fine", "film", "book", "the", "a", "was", "secret"), vectors)


def text_request(**changes: Any) -> Request:
    known = words()
    none = {"encoder": "", "mean": None, "m1": None, "embedding": None}
    spec = {"mechanism": "santext", "epsilon": 2.0, "tokens": 6, "vocabulary": known.identity}
    return request(**none, text=spec, vocabulary=known, **changes)


def answer_request(**changes: Any) -> Request:
    rng = np.random.default_rng(5)
    head = rng.normal(size=(DIM, CLASSES)).astype(np.float32), np.zeros(CLASSES, np.float32)
    answer = {"mechanism": "randomized-response", "epsilon": 2.0}
    return request(**{"embedding": None, "label": None, "answer": answer, "head": head} | changes)


def asked() -> list[Request]:
    return [
        request(),
        with_prior(),
        text_request(),
        request(embedding={"mechanism": "planar-laplace", "epsilon": 4.0}),
        request(stage="again", label=None),
        text_request(label=None, stage="words"),
        request(embedding=None),
        request(embedding={"mechanism": "gaussian", "sigma": 2.0}),
        request(split="test"),
        request(arm="b"),
        request(embedding={"mechanism": "identity"}),
        answer_request(),
        answer_request(stage="again", split="test"),
    ]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(NODES, str(tmp_path))
    folder = make_node(tmp_path / "0", range(USERS))
    vocabularies.save(words(), tmp_path / "words")
    write_node(folder, seed=7, arms={"a": POLICY}, vocabulary=tmp_path / "words")
    return folder


def ask(content: RecordDict) -> str | None:
    """The refusal's name, or None for an answer; and nothing but a constant leaves with a refusal."""
    given = release(message(content), context(0))
    if given.has_content():
        return None
    assert (given.error.code, given.error.reason) in CONSTANT
    return next(name for name, (code, _) in REFUSALS.items() if code == given.error.code)


def check_requests(node: Path, n: int, seed: int) -> Counter[str | None]:
    fuzzer = Fuzzer([request_to_record(r) for r in asked()], seed)
    outcomes: Counter[str | None] = Counter()
    for content in fuzzer.messages(n):
        outcome = ask(content)
        outcomes[outcome] += 1
        if outcome is None:  # what was broken was nothing that matters: then it is a valid request, and is repeated
            again = reply_from_record(answer(content, load_node(node)))
            wanted = request_from_record(content, load_node(node).vocabulary)
            valid, dropped = validate(again, wanted, enrolled=range(USERS))
            assert not dropped and len(valid) == len(again)
    with load_node(node).ledger("a") as ledger:
        rows = ledger.rows()
        people = np.arange(USERS, dtype=np.int64)
        assert within(ledger.spent(people), epsilon=POLICY.total, delta=POLICY.total_delta).all()
        for channel in ("embedding", "label", "text", "answer"):
            spent = ledger.spent(people, np.zeros_like(people), channel=channel)
            assert within(spent, epsilon=getattr(POLICY, channel), delta=POLICY.total_delta).all()
    assert all(np.isfinite(row.epsilon) for row in rows)
    return outcomes


@pytest.mark.parametrize("n", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_hostile_requests_are_refused_in_constant_words(node: Path, n: int) -> None:
    outcomes = check_requests(node, n, seed=1)
    # Every way out is taken: the generator reaches behind the first check.
    assert {"malformed", "arm", "encoder", "spent", "unprotected", "minimum-users", "vocabulary"} <= set(outcomes)
    assert "failed" not in outcomes, "a hostile request must be told from a fault of the device"


def test_requests_of_100_mb_are_refused_within_bounded_memory(node: Path) -> None:
    text = text_request()
    everything = changed(with_prior(), text=text.named("text").spec, vocabulary=text.vocabulary)
    outcomes: Counter[str | None] = Counter()

    def count(sent: RecordDict) -> None:
        outcomes[ask(sent)] += 1

    for content in Fuzzer([request_to_record(everything)], 3).huge():
        assert extra(partial(count, content)) < ROOM
    assert set(outcomes) == {"malformed"} and outcomes.total() > 12


# -- replies --------------------------------------------------------------------------------------------------------


#: Every reason by which a server may drop a row.
REASONS = re.compile(
    r"unreadable|channels|user or record below 0|unknown user|user of another part|text: no word of the vocabulary|"
    r"embedding: (not finite|off the (grid|sphere))|(label|answer): out of range|"
    r"(embedding|label|text|answer): (stage|digest|guarantee|payload|dtype|shape)"
)


def known(dropped: Counter[str]) -> bool:
    return all(REASONS.fullmatch(reason) and count > 0 for reason, count in dropped.items())


def conversations(node: Path) -> list[tuple[Request, RecordDict]]:
    """What was asked, and what an honest node sends."""
    given = [
        request(),
        text_request(stage="text"),
        with_prior(stage="prior", embedding={"mechanism": "planar-laplace", "epsilon": 3.0, "normalize": False}),
        request(stage="clear", label=None),
        answer_request(stage="answers"),
    ]
    return [(r, reply_to_record(reply_from_record(answer(request_to_record(r), load_node(node))))) for r in given]


def arrived(content: Any) -> SimpleNamespace:
    return SimpleNamespace(content=content, has_error=lambda: False)


def check_replies(node: Path, n: int, seed: int) -> Counter[str]:
    talks = conversations(node)
    fuzzer = Fuzzer([record for _, record in talks], seed)
    outcomes: Counter[str] = Counter()
    kept = []
    for i, (wanted, _) in enumerate(talks):
        for content in fuzzer.messages(n // len(talks), of=i):
            read = _read(arrived(content))
            if isinstance(read, str):
                assert read == "unreadable reply"
                outcomes["unreadable reply"] += 1
                continue
            valid, dropped = validate(read, wanted, enrolled=range(USERS))
            assert known(dropped)
            if "unreadable" not in dropped:
                assert len(valid) + dropped.total() == len(read)
            outcomes.update(dropped.keys() or ["kept"])
            if len(valid):
                check_rows(valid, wanted)
                kept.append((wanted.stage, valid))
    for stage in {stage for stage, _ in kept}:
        batch = shuffle([v for s, v in kept if s == stage], minimum_users=0, rng=np.random.default_rng(0)).batch
        assert batch.users <= USERS  # however often a user was sent again
    return outcomes


def check_rows(reply: Any, wanted: Request) -> None:
    """What is trained on is what was asked for, whatever was sent."""
    assert ((reply.users >= 0) & (reply.users < USERS)).all() and (reply.records >= 0).all()
    for sent in reply.releases:
        name, dtype, shape = wanted.named(sent.channel).payload_form
        values = sent.payload[name]
        assert values.dtype == dtype and values.shape == (len(reply), *shape)
        assert sent.guarantee.agrees(wanted.named(sent.channel).mechanism.guarantee)
        if sent.channel in ("answer", "label"):
            assert ((values >= 0) & (values < wanted.classes)).all()
        elif sent.channel == "text":
            assert ((values >= -1) & (values < len(words()))).all()
        else:
            grid: Any = wanted.named("embedding").mechanism.grid
            assert (np.abs(values.astype(int)) <= grid.limit).all()


@pytest.mark.parametrize("n", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_hostile_replies_are_dropped_and_counted(node: Path, n: int) -> None:
    outcomes = check_replies(node, n, seed=1)
    assert {"unreadable reply", "embedding: digest", "label: out of range", "unknown user", "kept"} <= set(outcomes)


def test_replies_of_100_mb_are_dropped_within_bounded_memory(node: Path) -> None:
    """An honest reply may be as large; a server's memory stays within a few times what was sent."""
    wanted, record = conversations(node)[0]

    def taken(sent: RecordDict) -> None:
        read = _read(arrived(sent))
        if not isinstance(read, str):
            valid, dropped = validate(read, wanted, enrolled=range(USERS))
            assert len(valid) == 0 and known(dropped)

    for content in Fuzzer([record], 3).huge():
        assert extra(partial(taken, content)) < ROOM
