"""Class of a text (answer) and vector of a user: what is sanitized, drawn, charged, sent and refused.

Statistical tests have a false-alarm rate of 1e-6 each on fixed seeds, and reject 2/3 and 3/2 of the right scale.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from scipy import stats
from scipy.special import betaincinv

from client.app import respond
from client.draw import draw
from client.node import load_node
from client.policy import Policy
from client.shard import write_shard
from client.store.ledger import ALL_RECORDS, Charge, Key
from mechanisms.accounting.ladder import ladder
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.messages import wire
from mechanisms.messages.questions import AnswerQuestion, Lent, Projection, VectorQuestion
from mechanisms.messages.refusals import REFUSALS
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
from mechanisms.privunit import PrivUnit
from mechanisms.projection import constant_share, signed_directions, statistic_vectors, user_means
from mechanisms.quantizer import SPHERE
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.streams import SimulationStreams
from server.training.statistic_head import shared_codes, simplex_codes
from server.validation import validate
from tests.support.answers import ask, ledger_rows, refusal
from tests.support.clients import CLASSES, DIM, ENCODER, M, make_node, message, request

ALARM = 1e-6
_RNG = np.random.default_rng(9)
HEAD = (_RNG.normal(size=(DIM, CLASSES)).astype(np.float32), _RNG.normal(size=CLASSES).astype(np.float32) / 40)
SIMPLEX = np.array([[1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]], np.float32)
D = SIMPLEX.shape[1] * (DIM + 1)
POLICY = Policy(answer=2.0 + 1e-9, statistic=4.0 + 1e-9, total=4.0 + 1e-9)


def answer_request(**changes: Any) -> Request:
    answer = {"mechanism": "randomized-response", "epsilon": 2.0}
    return request(**{"embedding": None, "label": None, "head": HEAD, "answer": answer} | changes)


def vector_request(**changes: Any) -> Request:
    statistic = {"mechanism": "privunit", "epsilon": 4.0}
    return request(**{"embedding": None, "label": None, "codes": SIMPLEX, "statistic": statistic} | changes)


REQUESTS = pytest.mark.parametrize("make", [answer_request, vector_request])


def values(reply: Reply) -> np.ndarray:
    (release,) = reply.releases
    (payload,) = release.payload.values()
    return payload


def clear(h: np.ndarray, asked: Request) -> np.ndarray:
    """The model by hand, a text at a time: centred, mapped, normalized, the head."""
    classes = []
    for row in h.astype(float):
        x = (row - asked.projection.mean.astype(float)) @ asked.projection.m1.astype(float)
        weight, bias = asked.question(AnswerQuestion).head
        classes.append(int(np.argmax((x / np.linalg.norm(x)) @ weight.astype(float) + bias.astype(float))))
    return np.array(classes)


# --- answers


class Lattice:
    """Streams whose n rows are given the midpoints of n equal cells, one each: every draw there is, once."""

    def rows(self, users: np.ndarray, records: np.ndarray, **key: Any) -> Lattice:
        return self

    def uniform(self, rows: int, k: int) -> np.ndarray:
        assert k == 1
        return (np.arange(rows)[:, None] + 0.5) / rows

    def further(self, rows: np.ndarray, k: int) -> np.ndarray:
        raise AssertionError("nobody draws on")


def drawn(asked: Request, h: np.ndarray, n: int, streams: Any) -> np.ndarray:
    """Number of answers of each class, in n draws about one embedding."""
    rows = np.tile(h, (n, 1)).astype(np.float32)
    people = np.arange(n)
    named = asked.named("answer")
    return np.bincount(draw(named, rows, people, 0 * people, stage="s", streams=streams), minlength=CLASSES)


def test_any_two_texts_by_enumeration() -> None:
    """Embeddings of every direction, and of none: all draws of each, and no ratio of their shares is above e^ε."""
    h = np.concatenate([np.random.default_rng(0).normal(size=(20, M)), [np.full(M, np.nan), np.zeros(M)]])
    shares = np.array([drawn(answer_request(), row, 20_000, Lattice()) for row in h]) / 20_000
    assert set(shares.argmax(axis=1)) == set(range(CLASSES))
    ratios = [np.log(a / b).max() for a, b in itertools.product(shares, repeat=2)]
    assert max(ratios) == pytest.approx(2.0, abs=1e-3) and min(ratios) == 0.0  # of one class: no difference


def test_draws_fit_their_probabilities() -> None:
    n, asked = 60_000, answer_request()
    h = np.random.default_rng(4).normal(size=(1, M)).astype(np.float32)
    counts, (truth,) = drawn(asked, h, n, SimulationStreams(3)), clear(h, asked)
    for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
        kept = 1 / (1 + (CLASSES - 1) * math.exp(-2.0 * factor))
        shares = np.where(np.arange(CLASSES) == truth, kept, (1 - kept) / (CLASSES - 1))
        assert (stats.chisquare(counts, shares * n).pvalue > ALARM) == fits


def test_without_noise_it_is_the_models_own_class(tmp_path: Path) -> None:
    asked = answer_request(answer={"mechanism": "identity"})
    policy = Policy(answer=math.inf, accept_unprotected=("answer: a reference",))
    reply = ask(make_node(tmp_path, range(40), policy=policy), asked)
    h = load_node(tmp_path).shard("train").embeddings(ENCODER).take(np.arange(40))
    np.testing.assert_array_equal(values(reply), clear(h, asked))


def test_the_ladder_of_an_answer() -> None:
    mechanism = answer_request().named("answer").mechanism
    rungs = ladder(None, None, answer=mechanism, users=None, delta=1e-6)
    assert [r.name for r in rungs] == ["answer", "record", "user", "shuffled"]
    assert [r.epsilon for r in rungs[:3]] == [pytest.approx(2.0)] * 3 and rungs[3].epsilon is None
    two = ladder(None, None, answer=mechanism, records=2, users=None, delta=1e-6)
    assert two[2].worst_case == pytest.approx(4.0)
    assert 0 < ladder(None, None, answer=mechanism, users=10_000, delta=1e-6)[-1].epsilon < 0.5
    assert ladder(None, None, answer=Identity("answer", 3), users=100, delta=1e-6)[2].epsilon == math.inf
    with pytest.raises(ValueError, match="give it alone"):
        ladder(None, RandomizedResponse(1.0, 2), answer=mechanism, users=None, delta=1e-6)


def test_answers_of_all_records_on_an_old_ledger_count_towards_the_limit_of_each(tmp_path: Path) -> None:
    """Earlier versions released one class for all of a user's records, also by mechanisms that are gone."""
    folder = make_node(tmp_path, [0, 0, 1], [0, 1, 0], policy=replace(POLICY, total=100.0))
    guarantee = Guarantee(2.0, "discrete", 1.0, "sequence")
    with load_node(folder).ledger("a") as ledger, ledger.exclusive():
        key, user, record = Key("count", "answer", "c" * 64, guarantee), np.array([0]), np.array([ALL_RECORDS])
        ledger.commit([Charge(key, 2.0, 0.0, user, record, np.zeros((1, 2), np.uint8))])
    assert {row.record for row in ledger_rows(folder)} == {ALL_RECORDS}
    assert ask(folder, answer_request()).users.tolist() == [1]


# --- vectors


def test_a_user_of_many_records_releases_one_row_at_one_cost(tmp_path: Path) -> None:
    make_node(tmp_path, [3, 1, 1, 2, 1, 3], [0, 4, 2, 7, 9, 5], policy=POLICY)
    reply = ask(tmp_path, vector_request())
    assert reply.users.tolist() == [1, 2, 3] and reply.records.tolist() == [0, 0, 0]
    assert values(reply).shape == (3, D) and values(reply).dtype == np.int16
    rows = ledger_rows(tmp_path)
    assert [(r.user, r.record, r.channel, r.stage) for r in rows] == [(u, 0, "statistic", "train") for u in (1, 2, 3)]
    for row, vector in zip(rows, values(reply), strict=True):
        assert row.epsilon == pytest.approx(4.0) and row.payload == vector.tobytes()
    np.testing.assert_allclose(np.linalg.norm(SPHERE.decode(values(reply)), axis=1), 1, atol=1e-4)
    np.testing.assert_array_equal(values(ask(tmp_path, vector_request(minimum_users=999))), values(reply))
    assert refusal(tmp_path, vector_request(stage="more")) == "spent"


def test_the_number_of_records_is_not_in_the_release(tmp_path: Path) -> None:
    """A user of one, two or eight copies of a record releases the same bits."""
    same, released = np.random.default_rng(0).normal(size=M).astype(np.float32), set()
    for count in (1, 2, 8):
        folder, ids = make_node(tmp_path / str(count), [5], policy=POLICY), np.arange(count)
        rows = {"embeddings": np.tile(same, (count, 1)), "identity": ENCODER}
        write_shard(folder, "train", 0 * ids + 5, ids, ["the same"] * count, 0 * ids + 1, **rows)
        released.add(values(ask(folder, vector_request())).tobytes())
    assert len(released) == 1


def test_what_is_sanitized_is_the_outer_product_of_code_and_features() -> None:
    rng = np.random.default_rng(3)
    h, y = rng.normal(size=(5, M)).astype(np.float32), np.array([0, 1, 2, 7, -1])
    asked = vector_request()
    means = asked.named("statistic").means(h, y, np.arange(6))
    x = asked.projection.apply(h)
    for row, label in enumerate([0, 1, 2, 0, 0]):  # a label that is no class counts as class 0
        features = np.append(x[row] * math.sqrt(DIM), 1.0) / math.sqrt(DIM + 1)
        np.testing.assert_allclose(means[row], np.outer(SIMPLEX[label], features).ravel(), atol=1e-7)
    mean = asked.named("statistic").means(h, y, np.array([0, 2, 5]))
    np.testing.assert_allclose(mean, [means[:2].mean(axis=0), means[2:].mean(axis=0)], atol=1e-15)


@pytest.mark.parametrize("codes", [simplex_codes(2), SIMPLEX, shared_codes(5)])
def test_what_is_sanitized_has_length_1_whatever_the_features_and_records(codes: np.ndarray) -> None:
    """PrivUnit's guarantee is for unit vectors. Its input has length 1, of one record and of many. The constant's share
    is that of a coordinate, and a tenth at least."""
    rng = np.random.default_rng(11)
    for d, share in ((2, 1 / 3), (3, 1 / 4), (8, 1 / 9), (9, 0.1), (10, 0.1), (48, 0.1), (2000, 0.1)):
        x = rng.normal(size=(12, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x[0] = -x[1]
        by_hand = np.append(x[0] * math.sqrt(1 - share), math.sqrt(share))
        vectors = statistic_vectors(x[[0] * len(codes)], np.arange(len(codes)), codes)
        np.testing.assert_allclose(vectors, [np.outer(code, by_hand).ravel() for code in codes], atol=1e-7)
        assert constant_share(d) == pytest.approx(share, rel=1e-15)
        vectors = statistic_vectors(x, rng.integers(0, len(codes), 12), codes)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-7)  # codes are float32
        means = user_means(vectors, np.array([0, 1, 3, 12]))
        assert (np.linalg.norm(means, axis=1) <= 1 + 1e-7).all()
        for uniform in (0.0, 0.5, 1 - 2**-53):
            directions = signed_directions(means, np.full(3, uniform))
            np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, atol=1e-12)


def clipped(clip: float, dim: int = 2) -> VectorQuestion:
    maps = Projection("ab" * 32, np.zeros(dim, np.float32), np.eye(dim, dtype=np.float32))
    return VectorQuestion({"mechanism": "privunit", "epsilon": 1.0}, projection=maps, codes=simplex_codes(2), clip=clip)


@pytest.mark.parametrize("clip", [1.0, 13 / 256, 1 / 256])
def test_a_user_of_any_number_of_records_is_private_by_the_exact_law(clip: float) -> None:
    """All users of 1, 2 or 50 records of four texts and two classes: the densities of any two differ by e^ε at most.

    PrivUnit's density is a in the cap around a vector and b elsewhere, and caps of opposite vectors are disjoint. A
    user's vector is u with probability q, else -u. Draws fall into the cap around u as this law says, at an ALARM.
    """
    question = clipped(clip)
    mechanism = question.mechanism
    assert isinstance(mechanism, PrivUnit)
    mass, p = math.exp(mechanism.log_mass), mechanism.cap_probability
    half = (mechanism.dim - 1) / 2
    edge = 1 - 2 * float(betaincinv(half, half, mass))
    corpus = np.array([[1, 0], [-1, 0], [0.6, 0.8], [0, 1]], np.float32)
    rng, means = np.random.default_rng(4), []
    for count in np.repeat([1, 2, 50], 12):
        picked, labels = rng.integers(4, size=count), rng.integers(2, size=count)
        means.append(question.means(corpus[picked], labels, np.array([0, count]))[0])
    means.append(question.means(corpus[[0, 0]], np.array([0, 1]), np.array([0, 2]))[0])  # of no length
    seen = rng.normal(size=(20_000, mechanism.dim))
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    densities = []
    for mean in means:
        right = signed_directions(mean[None], np.zeros(1), clip)[0]  # the uniform 0 always takes the direction
        q = (1 + min(1.0, float(np.linalg.norm(mean)) / clip)) / 2
        inside, opposite = seen @ right >= edge, seen @ -right >= edge
        a, b = p / mass, (1 - p) / (1 - mass)
        densities.append(q * np.where(inside, a, b) + (1 - q) * np.where(opposite, a, b))
        n = 4_000
        streams = SimulationStreams(2).rows(np.arange(n), np.zeros(n, int), stage="a", channel="statistic")
        codes = question.draw(np.tile(mean, (n, 1)), Lent(lambda s=streams: s, lambda *_: None))  # type: ignore[misc]
        expected = q * p + (1 - q) * (1 - p) / (1 - mass) * mass
        assert ALARM < stats.binom(n, expected).cdf((question.decode(codes) @ right >= edge).sum()) <= 1 - ALARM
    assert max(np.ptp(np.log(np.stack(densities)), axis=0)) <= 1.0 + 1e-9


@pytest.mark.parametrize("clip", [0.0, 1 / 512, math.nan, 1.5, -0.5, 0.3])
def test_a_device_refuses_a_length_that_is_no_step(clip: float) -> None:
    with pytest.raises(ValueError, match="clip is"):
        clipped(clip)
    arrays, about = Request(arm="a", stage="train", split="train", minimum_users=0, questions=(clipped(0.5),)).parts()
    assert Request.from_parts(arrays, about).question(VectorQuestion).clip == 0.5
    for sent in ([clip], [0.5, 0.5], [1.0]):  # a length of 1 is not sent, so that no bit of older requests changes
        with pytest.raises(ValueError, match=r"clip|arrays are not|another form"):
            Request.from_parts(arrays | {"clip": np.array(sent, np.float32)}, about)


def test_the_debiased_mean_is_that_of_the_users(tmp_path: Path) -> None:
    """3,000 users of one to four records: its error is what the scale says (that test_privunit tells from others)."""
    n, rng = 3000, np.random.default_rng(5)
    users = np.repeat(np.arange(n), rng.integers(1, 5, n))
    records = np.concatenate([np.arange(k) for k in np.bincount(users)])
    make_node(tmp_path, users, records, policy=POLICY)
    asked, shard = vector_request(), load_node(tmp_path).shard("train")
    starts = np.append(np.unique(users, return_index=True)[1], len(users))
    embeddings = shard.embeddings(ENCODER).take(np.arange(len(users)))
    means = asked.named("statistic").means(embeddings, shard.labels, starts)
    mechanism: Any = asked.named("statistic").mechanism
    assert mechanism == PrivUnit(D, 4.0)
    error = mechanism.decoded_mean(values(ask(tmp_path, asked))) - means.mean(axis=0)
    variance = 1 / mechanism.scale**2 / n / D  # of a coordinate, about: the mean's own length aside
    law = stats.chi2(D)
    assert law.ppf(ALARM) * 0.9 < (error @ error) / variance < law.ppf(1 - ALARM)


def test_the_identity_needs_a_policy_that_declares_it(tmp_path: Path) -> None:
    asked = vector_request(statistic={"mechanism": "identity"})
    policy = Policy(statistic=math.inf, accept_unprotected=("statistic: a reference",))
    reply = ask(make_node(tmp_path / "b", [0, 0, 0, 1], [0, 1, 2, 0], policy=policy), asked)
    valid, dropped = validate(reply, asked, enrolled=range(2))
    assert len(valid) == 2 and not dropped, "a mean as it is may be shorter than 1"
    assert np.linalg.norm(SPHERE.decode(values(reply)), axis=1)[0] < 0.99


def respond_to(folder: Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> tuple[int, str]:
    """Return the refusal of a request of these parts, as it travels."""
    record = RecordDict({"request.arrays": wire._pack(arrays), "request.about": ConfigRecord(dict(about))})
    reply = respond(message(record), folder)
    assert not ledger_rows(folder)
    return reply.error.code, reply.error.reason


def test_a_cap_rarer_than_the_least_is_refused_by_a_constant(tmp_path: Path) -> None:
    arrays, about = vector_request().parts()
    make_node(tmp_path, policy=POLICY)
    for p in (1e-15, 1 - 2**-53):
        spec = json.dumps({"mechanism": "privunit", "epsilon": 4.0, "cap_probability": p})
        assert respond_to(tmp_path, arrays, about | {"statistic": spec}) == REFUSALS["malformed"]


def test_client_and_server_of_other_vectors_refuse_each_other(tmp_path: Path) -> None:
    """Vectors of 9 features or fewer are those of all versions, and so are the requests for them. For more, a request
    states the constant's share. A version that knows no such array refuses it, as every array that it does not know."""
    make_node(tmp_path, policy=POLICY)
    m1 = np.random.default_rng(13).normal(size=(M, 10)).astype(np.float32)
    few, many = vector_request(), vector_request(m1=m1)
    assert set(few.parts()[0]) == {"mean", "m1", "codes"} == set(vector_request(m1=m1[:, :9]).parts()[0])
    arrays, about = many.parts()
    assert set(arrays) == {"mean", "m1", "codes", "constant"} and arrays["constant"].tolist() == [np.float32(0.1)]
    assert Request.from_parts(arrays, about).digest("statistic") == many.digest("statistic")
    old = {name: value for name, value in arrays.items() if name != "constant"}
    for sent in ({}, {"constant": np.array([0.25], np.float32)}, {"constant": np.full(2, 0.1, np.float32)}):
        assert respond_to(tmp_path, old | sent, about) == REFUSALS["malformed"]
    plain, stated = few.parts()
    assert respond_to(tmp_path, plain | {"constant": np.array([0.2], np.float32)}, stated) == REFUSALS["malformed"]


# --- both


@REQUESTS
def test_a_cohort_answers_as_its_users_would_alone(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    users = np.repeat(np.arange(6), [1, 5, 2, 9, 1, 1])
    records = np.concatenate([np.arange(n) for n in np.bincount(users)])
    policy = replace(POLICY, total=100.0)
    together = ask(make_node(tmp_path / "all", users, records, policy=policy), make())
    monkeypatch.setattr("client.sanitizer._AT_ONCE", 3)
    order = np.random.default_rng(1).permutation(len(users))
    moved = ask(make_node(tmp_path / "moved", users[order], records[order], policy=policy), make())
    for user in range(6):
        own = users == user
        alone = ask(make_node(tmp_path / str(user), users[own], records[own], policy=policy), make())
        for other in (together, moved):
            rows = np.flatnonzero(other.users == user)
            rows = rows[np.argsort(other.records[rows])]
            np.testing.assert_array_equal(values(alone), values(other)[rows])


@pytest.mark.parametrize(("make", "width"), [(answer_request, 8 * CLASSES), (vector_request, 2 * D)])
def test_rows_are_drawn_in_bounded_memory(
    tmp_path: Path, make: Any, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw holds a number for each class, and a vector may have thousands of coordinates."""
    sizes: list[int] = []

    def noted(question: Any, values: Any, users: np.ndarray, *given: Any, **named: Any) -> np.ndarray:
        sizes.append(len(users))
        return draw(question, values, users, *given, **named)

    monkeypatch.setattr("client.sanitizer.draw", noted)
    monkeypatch.setattr("client.sanitizer._BYTES", 3 * width)
    ask(make_node(tmp_path, policy=POLICY), make())
    assert sum(sizes) == 8 and max(sizes) <= 3


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        *((answer_request, {"head": head}) for head in (None, HEAD[0], (HEAD[0],), [HEAD[0], HEAD[1]])),
        (answer_request, {"head": (HEAD[0][:, :2], HEAD[1])}),
        (answer_request, {"head": (HEAD[0][:3], HEAD[1])}),
        (answer_request, {"head": (HEAD[0], HEAD[1][:2])}),
        (answer_request, {"head": (HEAD[0] * np.float32(np.nan), HEAD[1])}),
        (answer_request, {"head": (HEAD[0], HEAD[1] * np.float32(np.inf))}),
        (answer_request, {"head": (HEAD[0].astype(np.float64), HEAD[1])}),
        (answer_request, {"answer": "randomized-response"}),
        (answer_request, {"answer": {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 4}}),
        (answer_request, {"answer": {"mechanism": "randomized-response-prior", "epsilon": 1.0}}),
        *((vector_request, {"codes": codes}) for codes in (None, SIMPLEX[:1], SIMPLEX * 2, SIMPLEX.astype(np.float64))),
        (vector_request, {"codes": np.full((3, 2), np.nan, np.float32)}),
        (vector_request, {"codes": np.eye(3, 4, dtype=np.float32)}),
        (vector_request, {"statistic": {"mechanism": "purkayastha", "epsilon": 1.0}}),
        (vector_request, {"statistic": {"mechanism": "privunit", "epsilon": 4.0, "dim": 4}}),
        (vector_request, {"statistic": {"mechanism": "privunit", "epsilon": 4.0, "cap_probability": 0.999}}),
        *((make, {"label": {"mechanism": "identity"}}) for make in (answer_request, vector_request)),
        *((make, {"encoder": ""}) for make in (answer_request, vector_request)),
        *((make, {"m1": None}) for make in (answer_request, vector_request)),
    ],
)
def test_bad_requests_are_refused(make: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make(**changes)


@REQUESTS
def test_requests_and_replies_travel(tmp_path: Path, make: Any) -> None:
    asked = make()
    (channel,) = asked.channels
    read = request_from_record(record_from_bytes(record_to_bytes(request_to_record(asked))))
    assert read.channels == (channel,) and read.digest(channel) == asked.digest(channel)
    given = {"head": (HEAD[0], -HEAD[1])} if channel == "answer" else {"codes": -SIMPLEX}
    spec = asked.named(channel).spec | {"epsilon": 3.0}
    moved = [make(**given), make(m1=asked.projection.m1 * 2), make(**{channel: spec})]
    assert len({q.digest(channel) for q in (asked, *moved)}) == 4
    reply = ask(make_node(tmp_path, policy=POLICY), asked)
    back = reply_from_record(reply_to_record(reply))
    np.testing.assert_array_equal(values(back), values(reply))
    private, public = generate_keys()
    opened, good = unseal(seal(reply, asked, public).rows, asked, private)
    assert good.all() and (next(iter(opened[0].payload.values())) == values(reply)).all()
    assert len(validate(back, asked, enrolled=range(8))[0]) == 8


@pytest.mark.parametrize(
    ("make", "wrong", "reason"),
    [
        *((answer_request, wrong, "answer: out of range") for wrong in (-1, CLASSES)),
        *((vector_request, wrong, "statistic: off the sphere") for wrong in (0, 32767)),
    ],
)
def test_a_server_drops_what_is_no_class_or_vector(tmp_path: Path, make: Any, wrong: int, reason: str) -> None:
    reply = ask(make_node(tmp_path, policy=POLICY), make())
    (release,) = reply.releases
    ((name, payload),) = release.payload.items()
    payload = payload.copy()
    payload[3] = wrong
    bad = Reply(reply.users, reply.records, (replace(release, payload={name: payload}),))
    valid, dropped = validate(bad, make(), enrolled=range(8))
    assert len(valid) == 7 and dropped == {reason: 1}
