"""The class that a device finds by itself and releases by randomized response: any two texts, at one ε.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each also rejects 2/3 and 3/2 of the ε.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client.draw import draw
from client.node import load_node
from client.policy import Policy, Refused
from client.store.ledger import ALL_RECORDS, Charge
from mechanisms.accounting.ladder import ladder
from mechanisms.catalogue import build
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.messages.questions import AnswerQuestion
from mechanisms.messages.release import digest
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys, seal, unseal
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    reply_to_record,
    request_from_record,
    request_to_record,
)
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.streams import SimulationStreams
from server.validation import validate
from tests.support.answers import ask, ledger_rows
from tests.support.clients import CLASSES, DIM, ENCODER, M, make_node, message, request

ALARM = 1e-6
EPSILON = 2.0
POLICY = Policy(answer=EPSILON + 1e-9, total=EPSILON + 1e-9)
_RNG = np.random.default_rng(9)
HEAD = (_RNG.normal(size=(DIM, CLASSES)).astype(np.float32), _RNG.normal(size=CLASSES).astype(np.float32) / 40)


def asked(**changes: Any) -> Request:
    return request(
        **{
            "embedding": None,
            "label": None,
            "split": "train",
            "head": HEAD,
            "answer": {"mechanism": "randomized-response", "epsilon": EPSILON},
        }
        | changes
    )


def answer(folder: Path, question: Request | None = None) -> Reply:
    return ask(folder, question or asked())


def values(reply: Reply) -> np.ndarray:
    (release,) = reply.releases
    return release.payload["c"]


def clear(h: np.ndarray, question: Request) -> np.ndarray:
    """The model by hand, a text at a time: centred, mapped, normalized, the head."""
    classes = []
    for row in h.astype(float):
        x = (row - question.projection.mean.astype(float)) @ question.projection.m1.astype(float)
        weight, bias = question.question(AnswerQuestion).head
        logits = (x / np.linalg.norm(x)) @ weight.astype(float) + bias.astype(float)
        classes.append(int(np.argmax(logits)))
    return np.array(classes)


# --- the mechanism


def test_it_is_randomized_response_about_a_text() -> None:
    spec = {"mechanism": "randomized-response", "epsilon": 3.0}
    built, label = (build(spec, channel=channel, classes=4) for channel in ("answer", "label"))
    assert type(built) is RandomizedAnswer and type(label) is RandomizedResponse and built != label
    assert built.guarantee == replace(label.guarantee, protects="sequence")
    assert built.privacy_loss().delta(1.0) == label.privacy_loss().delta(1.0)
    with pytest.raises(ValueError, match="sanitizes the label, not the answer"):
        build({"mechanism": "randomized-response-prior", "epsilon": 1.0}, channel="answer", classes=4)
    assert Identity("answer", 4).guarantee.worst_case() == math.inf


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 5.0])
def test_the_released_class_is_the_likeliest_unless_another_was_e_to_the_epsilon_as_likely(epsilon: float) -> None:
    """Bayes by enumeration, priors on both sides of the limit that the docstring states."""
    mechanism, classes = RandomizedAnswer(epsilon, 3), np.arange(3)
    table = np.exp([mechanism.log_prob(classes, np.full(3, c)) for c in classes])  # P(y | c) at [c, y]
    for share in np.geomspace(0.2, 500, 40):
        prior = np.array([1.0, share, 0.3]) / (1.3 + share)
        modes = (prior[:, None] * table).argmax(axis=0)
        for y in classes:
            surpassed = (np.delete(prior, y) > math.exp(epsilon) * prior[y]).any()
            assert (modes[y] == y) != surpassed


class Lattice:
    """Streams whose n rows are given the midpoints of n equal cells, one each: every draw there is, once."""

    def rows(self, users: np.ndarray, records: np.ndarray, **key: Any) -> Lattice:
        return self

    def uniform(self, rows: int, k: int) -> np.ndarray:
        assert k == 1
        return (np.arange(rows)[:, None] + 0.5) / rows

    def further(self, rows: np.ndarray, k: int) -> np.ndarray:
        raise AssertionError("nobody draws on")


def test_any_two_texts_by_enumeration() -> None:
    """Embeddings of every direction, and of none: all draws of each, and no ratio of their shares is above e^ε."""
    n, question = 20_000, asked()
    h = np.concatenate([np.random.default_rng(0).normal(size=(20, M)), [np.full(M, np.nan), np.zeros(M)]])
    shares = np.array(
        [
            np.bincount(
                draw(
                    question.named("answer"),
                    np.tile(row, (n, 1)).astype(np.float32),
                    np.arange(n),
                    np.zeros(n, np.int64),
                    stage=question.stage,
                    streams=Lattice(),
                ),
                minlength=CLASSES,
            )
            / n
            for row in h
        ]
    )
    assert set(shares.argmax(axis=1)) == set(range(CLASSES))
    ratios = [np.log(a / b).max() for a, b in itertools.product(shares, repeat=2)]
    assert max(ratios) == pytest.approx(EPSILON, abs=1e-3) and min(ratios) == 0.0  # of one class: no difference


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_draws_fit_their_probabilities(epsilon: float) -> None:
    n = 60_000
    question = asked(answer={"mechanism": "randomized-response", "epsilon": epsilon})
    h = np.tile(np.random.default_rng(4).normal(size=M).astype(np.float32), (n, 1))
    (truth,) = clear(h[:1], question)
    people, streams = np.arange(n), SimulationStreams(3)
    drawn = draw(question.named("answer"), h, people, 0 * people, stage=question.stage, streams=streams)
    counts = np.bincount(drawn, minlength=CLASSES)
    for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
        kept = 1 / (1 + (CLASSES - 1) * math.exp(-epsilon * factor))
        shares = np.where(np.arange(CLASSES) == truth, kept, (1 - kept) / (CLASSES - 1))
        assert (stats.chisquare(counts, shares * n).pvalue > ALARM) == fits


# --- the client


def test_a_record_is_answered_about_once_and_charged_once(tmp_path: Path) -> None:
    users, records = [3, 1, 1, 2], [0, 4, 2, 7]
    policy = replace(POLICY, total=2 * EPSILON + 1e-9)
    make_node(tmp_path, users, records, policy=policy, labelled=False)
    reply = answer(tmp_path)
    assert values(reply).shape == (4,) and values(reply).dtype == np.int16
    rows = ledger_rows(tmp_path)
    assert [(r.user, r.record) for r in rows] == [(1, 2), (1, 4), (2, 7), (3, 0)]
    assert {r.channel for r in rows} == {"answer"}
    assert all(r.epsilon == pytest.approx(EPSILON) and r.guarantee.protects == "sequence" for r in rows)
    again = answer(tmp_path, asked(minimum_users=999))
    np.testing.assert_array_equal(values(again), values(reply))
    assert len(ledger_rows(tmp_path)) == 4
    for other in (asked(stage="more"), asked(head=(-HEAD[0], HEAD[1])), asked(m1=asked().projection.m1 * 2)):
        with pytest.raises(Refused, match="budget"):  # another question of the same record
            answer(tmp_path, other)
    assert len(ledger_rows(tmp_path)) == 4


def test_a_cohort_answers_as_its_users_would_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = answer(make_node(tmp_path / "all", range(12), policy=POLICY))
    monkeypatch.setattr("client.sanitizer._AT_ONCE", 5)
    few = answer(make_node(tmp_path / "few", range(12), policy=POLICY))
    np.testing.assert_array_equal(values(few), values(together))
    for user in range(12):
        alone = answer(make_node(tmp_path / str(user), [user], policy=POLICY))
        assert values(alone)[0] == values(together)[user]


def test_without_noise_it_is_the_models_own_class(tmp_path: Path) -> None:
    open_ = Policy(answer=math.inf, accept_unprotected=("answer: a reference",))
    question = asked(answer={"mechanism": "identity"})
    make_node(tmp_path, range(40), policy=open_)
    reply = answer(tmp_path, question)
    h = load_node(tmp_path).shard("train").embeddings(ENCODER).take(np.arange(40))
    np.testing.assert_array_equal(values(reply), clear(h, question))
    make_node(tmp_path / "b", policy=Policy(answer=math.inf))
    with pytest.raises(Refused, match="unprotected"):
        answer(tmp_path / "b", question)


def test_a_client_whose_policy_says_nothing_of_answers_refuses(tmp_path: Path) -> None:
    make_node(tmp_path / "a")  # accepts any embedding and label
    with pytest.raises(Refused, match="epsilon on the channel"):
        answer(tmp_path / "a")
    make_node(tmp_path / "b", policy=replace(POLICY, mechanisms=("privunit",)))
    with pytest.raises(Refused, match="does not allow the mechanism"):
        answer(tmp_path / "b")
    make_node(tmp_path / "c", policy=POLICY)
    with pytest.raises(Refused, match="does not have"):
        answer(tmp_path / "c", asked(encoder="cd" * 32))
    with pytest.raises(Refused, match="budget"):  # a user of two records
        answer(make_node(tmp_path / "d", [1, 1], [0, 1], policy=POLICY))
    assert not ledger_rows(tmp_path / "c") and not ledger_rows(tmp_path / "d")


def test_many_classes_take_bounded_memory(tmp_path: Path) -> None:
    """A draw holds a number for each class: 10,000 classes are drawn a few hundred rows at a time at most."""
    from client.sanitizer import _BYTES, _Answering

    rows = np.arange(3000, dtype=np.int64)
    many = _Answering(rows, rows * 0, rows, np.arange(3001))
    assert max(len(piece) for piece in many.pieces(rows, 8 * 10_000)) <= _BYTES // 80_000
    wide = (np.zeros((DIM, 10_000), np.float32), np.zeros(10_000, np.float32))
    make_node(tmp_path, range(200), policy=POLICY)
    assert values(answer(tmp_path, asked(classes=10_000, head=wide))).max() < 10_000


# --- what it costs


def test_the_ladder_of_an_answer() -> None:
    one = asked().named("answer").mechanism
    rungs = ladder(None, None, answer=one, users=None, delta=1e-6)
    assert [r.name for r in rungs] == ["answer", "record", "user", "shuffled"]
    assert [r.epsilon for r in rungs[:3]] == [pytest.approx(EPSILON)] * 3 and rungs[3].epsilon is None
    assert rungs[0].neighbours == "any two texts"
    two = ladder(None, None, answer=one, records=2, users=None, delta=1e-6)
    assert two[2].worst_case == pytest.approx(2 * EPSILON)
    shuffled = ladder(None, None, answer=one, users=10_000, delta=1e-6)[-1]
    assert 0 < shuffled.epsilon < EPSILON / 4
    assert ladder(None, None, answer=Identity("answer", 3), users=100, delta=1e-6)[2].epsilon == math.inf
    with pytest.raises(ValueError, match="give it alone"):
        ladder(None, RandomizedResponse(1.0, 2), answer=one, users=None, delta=1e-6)


# --- the wire


@pytest.mark.parametrize(
    "changes",
    [
        {"head": None},
        {"head": HEAD[0]},
        {"head": (HEAD[0],)},
        {"head": (HEAD[0][:, :2], HEAD[1])},
        {"head": (HEAD[0][:3], HEAD[1])},
        {"head": (HEAD[0], HEAD[1][:2])},
        {"head": (HEAD[0].T.copy(), HEAD[1])},
        {"head": (HEAD[0] * np.float32(np.nan), HEAD[1])},
        {"head": (HEAD[0], HEAD[1] * np.float32(np.inf))},
        {"head": (HEAD[0].astype(np.float64), HEAD[1])},
        {"head": (HEAD[0][None], HEAD[1])},
        {"head": [HEAD[0], HEAD[1]]},
        {"label": {"mechanism": "identity"}},
        {"embedding": {"mechanism": "purkayastha", "epsilon": 1.0}},
        {"encoder": ""},
        {"m1": None},
        {"answer": "randomized-response"},
        {"answer": {"mechanism": "randomized-response"}},
        {"answer": {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 4}},
        {"answer": {"mechanism": "randomized-response", "epsilon": -1.0}},
        {"answer": {"mechanism": "randomized-response-prior", "epsilon": 1.0}},
        {"answer": {"mechanism": "purkayastha", "epsilon": 1.0}},
        {"encoder": "", "mean": None, "m1": None},
    ],
)
def test_bad_requests_are_refused_in_one_line(changes: dict) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        asked(**changes)


def test_a_hostile_request_gets_a_constant_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from client import app
    from mechanisms.messages import wire
    from mechanisms.messages.refusals import REFUSALS

    make_node(tmp_path, policy=POLICY)
    for spoil in (
        {"head_w": HEAD[0] * np.float32(np.nan)},
        {"head_w": HEAD[0][:2]},
        {"head_b": np.zeros(2**10, np.float32)},
        {"head_b": None},
        {"codes": HEAD[0]},
    ):
        arrays = {k: v for k, v in (asked().parts()[0] | spoil).items() if v is not None}
        record = request_to_record(asked())
        record["request.arrays"] = wire._pack(arrays)
        reply = app.respond(message(record), tmp_path)
        assert (reply.error.code, reply.error.reason) == REFUSALS["malformed"]
    assert not ledger_rows(tmp_path)


def test_requests_and_replies_travel(tmp_path: Path) -> None:
    question = asked()
    read = request_from_record(record_from_bytes(record_to_bytes(request_to_record(question))))
    assert read.channels == ("answer",) and read.digest("answer") == question.digest("answer")
    for mine, theirs in zip(read.question(AnswerQuestion).head, HEAD, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    other = {"mechanism": "randomized-response", "epsilon": 3.0}
    moved = [asked(head=(HEAD[0], -HEAD[1])), asked(m1=question.projection.m1 * 2), asked(answer=other)]
    assert len({q.digest("answer") for q in (question, *moved)}) == 4
    reply = answer(make_node(tmp_path, policy=POLICY))
    back = reply_from_record(reply_to_record(reply))
    np.testing.assert_array_equal(values(back), values(reply))
    private, public = generate_keys()
    opened, good = unseal(seal(reply, question, public).rows, question, private)
    assert good.all() and (opened[0].payload["c"] == values(reply)).all()
    valid, dropped = validate(back, question, enrolled=range(8))
    assert len(valid) == 8 and not dropped


def test_a_server_drops_what_is_no_class(tmp_path: Path) -> None:
    question, reply = asked(), answer(make_node(tmp_path, policy=POLICY))
    (release,) = reply.releases
    for wrong in (-1, CLASSES, 32767):
        classes = values(reply).copy()
        classes[3] = wrong
        bad = Reply(reply.users, reply.records, (replace(release, payload={"c": classes}),))
        valid, dropped = validate(bad, question, enrolled=range(8))
        assert len(valid) == 7 and dropped == {"answer: out of range": 1}
    label = replace(release, channel="label")
    assert validate(Reply(reply.users, reply.records, (label,)), question, enrolled=range(8))[1] == {"channels": 8}


def test_the_digest_of_a_label_is_what_it_was() -> None:
    """By hand: nothing of an answer is in it, or devices would release and pay for every label once more."""
    question = request(embedding=None, encoder="", mean=None, m1=None)
    assert question.digest("label") == digest(
        {
            "channel": "label",
            "split": "train",
            "classes": CLASSES,
            "mechanism": {"mechanism": "randomized-response", "epsilon": 2.0, "classes": CLASSES},
        }
    )


def test_answers_of_all_records_on_an_old_ledger_count_towards_the_limit_of_each(tmp_path: Path) -> None:
    """Earlier versions released one class for all of a user's records, also by mechanisms that are gone."""
    folder = make_node(tmp_path, [0, 0, 1], [0, 1, 0], policy=replace(POLICY, total=100.0))
    row = np.zeros((1, 2), np.uint8)
    guarantee = Guarantee(EPSILON, "discrete", 1.0, "sequence")
    with load_node(folder).ledger("a") as ledger, ledger.exclusive():
        user, record = np.array([0], np.int64), np.array([ALL_RECORDS], np.int64)
        ledger.commit([Charge("count", "answer", "c" * 64, guarantee, EPSILON, POLICY.delta, user, record, row)])
    assert {row.record for row in ledger_rows(folder)} == {ALL_RECORDS}
    assert answer(folder, asked()).users.tolist() == [1]
