"""One vector of a user: what all their records and labels come to, drawn once, under one ε, whatever their number.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds.
"""

from __future__ import annotations

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

from client.app import NODES, release
from client.node import load_node
from client.policy import Policy, Refused
from client.shard import write_shard
from mechanisms.messages import wire
from mechanisms.messages.questions import Lent, Projection, VectorQuestion
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
from mechanisms.streams import SimulationStreams
from server.training.statistic_head import shared_codes, simplex_codes
from server.validation import validate
from tests.support.answers import ask, ledger_rows
from tests.support.clients import DIM, ENCODER, M, context, make_node, message, request

ALARM = 1e-6
SIMPLEX = np.array([[1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]], np.float32)
D = SIMPLEX.shape[1] * (DIM + 1)
EPSILON = 4.0
POLICY = Policy(statistic=EPSILON + 1e-9, total=EPSILON + 1e-9)


def asked(**changes: Any) -> Request:
    return request(
        **{
            "embedding": None,
            "label": None,
            "statistic": {"mechanism": "privunit", "epsilon": EPSILON},
            "codes": SIMPLEX,
        }
        | changes
    )


def answer(folder: Path, question: Request | None = None) -> Reply:
    return ask(folder, question or asked())


def values(reply: Reply) -> np.ndarray:
    (release,) = reply.releases
    return release.payload["s"]


def test_a_user_of_many_records_releases_one_row_at_one_cost(tmp_path: Path) -> None:
    users, records = [3, 1, 1, 2, 1, 3], [0, 4, 2, 7, 9, 5]
    make_node(tmp_path, users, records, policy=POLICY)
    reply = answer(tmp_path)
    assert reply.users.tolist() == [1, 2, 3] and reply.records.tolist() == [0, 0, 0]
    assert values(reply).shape == (3, D) and values(reply).dtype == np.int16
    rows = ledger_rows(tmp_path)
    assert [(r.user, r.record, r.channel, r.stage) for r in rows] == [(u, 0, "statistic", "train") for u in (1, 2, 3)]
    for row, vector in zip(rows, values(reply), strict=True):
        assert row.epsilon == pytest.approx(EPSILON) and row.payload == vector.tobytes()
    np.testing.assert_allclose(np.linalg.norm(SPHERE.decode(values(reply)), axis=1), 1, atol=1e-4)
    again = answer(tmp_path, asked(minimum_users=999))
    np.testing.assert_array_equal(values(again), values(reply))
    assert len(ledger_rows(tmp_path)) == 3
    with pytest.raises(Refused, match="budget"):
        answer(tmp_path, asked(stage="more"))


def test_a_cohort_answers_as_its_users_would_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = np.repeat(np.arange(12), [1, 5, 2, 9, 1, 1, 3, 4, 2, 7, 1, 6])
    records = np.concatenate([np.arange(n) for n in np.bincount(users)])
    together = answer(make_node(tmp_path / "all", users, records, policy=POLICY))
    for pieces in (1, 3, 7):
        monkeypatch.setattr("client.sanitizer._AT_ONCE", pieces)
        np.testing.assert_array_equal(
            values(answer(make_node(tmp_path / f"by-{pieces}", users, records, policy=POLICY))), values(together)
        )
    for user in range(12):
        own = users == user
        alone = answer(make_node(tmp_path / str(user), users[own], records[own], policy=POLICY))
        np.testing.assert_array_equal(values(alone)[0], values(together)[user])
    order = np.random.default_rng(1).permutation(len(users))
    moved = answer(make_node(tmp_path / "moved", users[order], records[order], policy=POLICY))
    np.testing.assert_array_equal(values(moved), values(together))


def test_the_number_of_records_is_not_in_the_release(tmp_path: Path) -> None:
    """A user of one, two or eight copies of a record releases the same bits."""
    same = np.random.default_rng(0).normal(size=M).astype(np.float32)

    def node(folder: Path, count: int) -> Path:
        make_node(folder, [5] * count, list(range(count)), policy=POLICY)
        write_shard(
            folder,
            "train",
            np.full(count, 5),
            np.arange(count),
            ["the same words"] * count,
            np.ones(count, np.int64),
            embeddings=np.tile(same, (count, 1)),
            identity=ENCODER,
        )
        return folder

    replies = [answer(node(tmp_path / str(count), count)) for count in (1, 2, 8)]
    assert {values(reply).tobytes() for reply in replies} == {values(replies[0]).tobytes()}
    assert {(len(reply), reply.records.tolist()[0]) for reply in replies} == {(1, 0)}


def test_the_vector_is_code_times_features(tmp_path: Path) -> None:
    """By hand: its length is 1, and its parts are the label's code times the projected embedding and a constant."""
    rng = np.random.default_rng(3)
    h, y = rng.normal(size=(5, M)).astype(np.float32), np.array([0, 1, 2, 7, -1])
    question = asked()
    found = question.named("statistic").means(h, y, np.arange(6))
    x = question.projection.apply(h)
    for row, label in enumerate([0, 1, 2, 0, 0]):  # a label that is no class counts as class 0
        features = np.append(x[row] * math.sqrt(DIM), 1.0) / math.sqrt(DIM + 1)
        np.testing.assert_allclose(found[row], np.outer(SIMPLEX[label], features).ravel(), atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-12)
    mean = question.named("statistic").means(h, y, np.array([0, 2, 5]))
    np.testing.assert_allclose(mean, [found[:2].mean(axis=0), found[2:].mean(axis=0)], atol=1e-15)
    np.testing.assert_array_equal(statistic_vectors(x[:1], y[:1], SIMPLEX)[0], found[0])


@pytest.mark.parametrize("codes", [simplex_codes(2), SIMPLEX, shared_codes(2), shared_codes(5)])
def test_what_is_sanitized_has_length_1_whatever_the_features_and_records(codes: np.ndarray) -> None:
    """PrivUnit's guarantee is for unit vectors. Its input has length 1, of one record and of many."""
    rng = np.random.default_rng(11)
    for d in (*range(2, 24), 48, 64, 384, 2000):
        x = rng.normal(size=(12, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x[0] = -x[1]
        labels = rng.integers(0, len(codes), 12)
        vectors = statistic_vectors(x, labels, codes)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-7)  # codes are float32
        means = user_means(vectors, np.array([0, 1, 3, 12]))
        assert (np.linalg.norm(means, axis=1) <= 1 + 1e-7).all()
        for uniform in (0.0, 0.5, 1 - 2**-53):
            drawn = signed_directions(means, np.full(3, uniform))
            np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize(("d", "share"), [(2, 1 / 3), (8, 1 / 9), (9, 0.1), (10, 0.1), (48, 0.1), (384, 0.1)])
def test_the_constant_s_share_is_that_of_a_coordinate_and_a_tenth_at_least(d: int, share: float) -> None:
    x = np.random.default_rng(12).normal(size=(1, d))
    x /= np.linalg.norm(x)
    by_hand = np.append(x[0] * math.sqrt(1 - share), math.sqrt(share))
    vectors = statistic_vectors(np.repeat(x, 3, axis=0), np.arange(3), SIMPLEX)
    for code, vector in zip(SIMPLEX, vectors, strict=True):
        np.testing.assert_allclose(vector, np.outer(code, by_hand).ravel(), atol=1e-7)
    assert constant_share(d) == pytest.approx(share, rel=1e-15)


@pytest.mark.parametrize(
    ("length", "clip"),
    [(0.0, 1.0), (0.0, 1 / 256), (1e-13, 0.5), (0.3, 1.0), (0.3, 0.5), (0.3, 1 / 256), (0.9, 1.0), (1.0 + 1e-12, 1.0)],
)
def test_a_mean_becomes_a_unit_vector_of_the_same_expectation(length: float, clip: float) -> None:
    n, mean = 200_000, np.array([0.6, 0.0, -0.8]) * length
    uniforms = SimulationStreams(1).rows(np.arange(n), np.zeros(n, int), stage="a", channel="b").uniform(n, 1)[:, 0]
    drawn = signed_directions(np.tile(mean, (n, 1)), uniforms, clip)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=1e-12)
    away = np.eye(3)[0] if length < 1e-12 else np.array([0.6, 0.0, -0.8])
    share = (drawn @ away > 0).sum()
    expected = (1 + min(length / clip, 1.0)) / 2
    if expected == 1.0:
        assert share == n
        return
    assert ALARM < stats.binom(n, expected).cdf(share) < 1 - ALARM
    for wrong in (2 / 3, 3 / 2):  # of the length; a mean of no length is told from one of a tenth
        other = (1 + min(1.0, length / clip * wrong if length > 1e-9 else 0.1)) / 2
        if other < 1.0:
            assert not ALARM < stats.binom(n, other).cdf(share) < 1 - ALARM


def clipped(clip: float, dim: int = 2) -> VectorQuestion:
    maps = Projection("ab" * 32, np.zeros(dim, np.float32), np.eye(dim, dtype=np.float32))
    spec = {"mechanism": "privunit", "epsilon": 1.0}
    return VectorQuestion(spec, projection=maps, codes=simplex_codes(2), clip=clip)


@pytest.mark.parametrize("clip", [1.0, 0.25, 13 / 256, 1 / 256])
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
    for count in (1, 2, 50):
        for _ in range(12):
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
        drawn = question.decode(question.draw(np.tile(mean, (n, 1)), Lent(lambda s=streams: s, lambda *_: None)))  # type: ignore[misc]
        expected = q * p + (1 - q) * (1 - p) / (1 - mass) * mass
        assert ALARM < stats.binom(n, expected).cdf((drawn @ right >= edge).sum()) <= 1 - ALARM
    assert max(np.ptp(np.log(np.stack(densities)), axis=0)) <= 1.0 + 1e-9


@pytest.mark.parametrize("clip", [0.0, 1 / 512, math.nan, math.inf, 1.5, -0.5, 0.3, 2.0**-1074])
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
    question, shard = asked(), load_node(tmp_path).shard("train")
    means = question.named("statistic").means(
        shard.embeddings(ENCODER).take(np.arange(len(users))),
        shard.labels,
        np.append(np.unique(users, return_index=True)[1], len(users)),
    )
    mechanism: Any = question.named("statistic").mechanism
    assert mechanism == PrivUnit(D, EPSILON)
    error = mechanism.decoded_mean(values(answer(tmp_path))) - means.mean(axis=0)
    variance = 1 / mechanism.scale**2 / n / D  # of a coordinate, about: the mean's own length aside
    law = stats.chi2(D)
    assert law.ppf(ALARM) * 0.9 < (error @ error) / variance < law.ppf(1 - ALARM)


def test_a_client_without_labels_or_limit_refuses(tmp_path: Path) -> None:
    make_node(tmp_path / "a", labelled=False, policy=POLICY)
    with pytest.raises(Refused, match="has no labels"):
        answer(tmp_path / "a")
    make_node(tmp_path / "b")  # accepts any embedding and label, and no statistic
    with pytest.raises(Refused, match="epsilon on the channel"):
        answer(tmp_path / "b")
    make_node(tmp_path / "c", policy=replace(POLICY, mechanisms=("purkayastha",)))
    with pytest.raises(Refused, match="does not allow the mechanism"):
        answer(tmp_path / "c")
    make_node(tmp_path / "d", policy=POLICY)
    with pytest.raises(Refused, match="does not have"):
        answer(tmp_path / "d", asked(encoder="cd" * 32))
    assert not ledger_rows(tmp_path / "d")


def test_the_identity_needs_a_policy_that_declares_it(tmp_path: Path) -> None:
    question = asked(statistic={"mechanism": "identity"})
    make_node(tmp_path / "a", policy=Policy(statistic=math.inf))
    with pytest.raises(Refused, match="unprotected"):
        answer(tmp_path / "a", question)
    open_ = Policy(statistic=math.inf, accept_unprotected=("statistic: a reference",))
    users = [0, 0, 0, 1]
    reply = answer(make_node(tmp_path / "b", users, [0, 1, 2, 0], policy=open_), question)
    valid, dropped = validate(reply, question, enrolled=range(2))
    assert len(valid) == 2 and not dropped, "a mean as it is may be shorter than 1"
    assert np.linalg.norm(SPHERE.decode(values(reply)), axis=1)[0] < 0.99


@pytest.mark.parametrize(
    "changes",
    [
        {"codes": None},
        {"codes": SIMPLEX[:1]},
        {"codes": SIMPLEX * 2},
        {"codes": SIMPLEX.astype(np.float64)},
        {"codes": np.full((3, 2), np.nan, np.float32)},
        {"codes": np.eye(3, 4, dtype=np.float32)},
        {"label": {"mechanism": "identity"}},
        {"embedding": {"mechanism": "purkayastha", "epsilon": 1.0}},
        {"encoder": ""},
        {"m1": None},
        {"statistic": {"mechanism": "purkayastha", "epsilon": 1.0}},
        {"statistic": {"mechanism": "privunit"}},
        {"statistic": {"mechanism": "privunit", "epsilon": 4.0, "dim": 4}},
        {"statistic": "privunit"},
        {"statistic": {"mechanism": "privunit", "epsilon": 4.0, "cap_probability": 0.999}},
        {"statistic": {"mechanism": "privunit", "epsilon": 0.0, "cap_probability": 5.6e-17}},
    ],
)
def test_bad_requests_are_refused_in_one_line(changes: dict) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        asked(**changes)


def test_a_cap_rarer_than_the_least_is_refused_by_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODES, str(tmp_path))
    make_node(tmp_path / "0", policy=POLICY)
    record = request_to_record(asked())
    for p in (5.6e-17, 1e-15, 1 - 2**-53):
        spec = {"mechanism": "privunit", "epsilon": EPSILON, "cap_probability": p}
        about = ConfigRecord({**record["request.about"]} | {"statistic": json.dumps(spec)})
        answered = release(message(RecordDict({**record} | {"request.about": about})), context())
        assert (answered.error.code, answered.error.reason) == REFUSALS["malformed"]
    assert not ledger_rows(tmp_path / "0")


def test_client_and_server_of_other_vectors_refuse_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 9 features or fewer are those of all versions, and so are the requests for them. For more, a request
    states the constant's share. A version that knows no such array refuses it, as every array that it does not know."""
    monkeypatch.setenv(NODES, str(tmp_path))
    make_node(tmp_path / "0", policy=POLICY)
    m1 = np.random.default_rng(13).normal(size=(M, 10)).astype(np.float32)
    few, many = asked(), asked(m1=m1)
    assert set(few.parts()[0]) == {"mean", "m1", "codes"} == set(asked(m1=m1[:, :9]).parts()[0])
    arrays, about = many.parts()
    assert set(arrays) == {"mean", "m1", "codes", "constant"} and arrays["constant"].tolist() == [np.float32(0.1)]
    assert Request.from_parts(arrays, about).digest("statistic") == many.digest("statistic")

    def refused(arrays: dict[str, np.ndarray], about: dict[str, str | int]) -> None:
        record = RecordDict({"request.arrays": wire._pack(arrays), "request.about": ConfigRecord(dict(about))})
        answered = release(message(record), context())
        assert (answered.error.code, answered.error.reason) == REFUSALS["malformed"]

    old = {name: value for name, value in arrays.items() if name != "constant"}
    refused(old, about)
    for other in (1 / 11, 0.25, np.nan):
        refused(old | {"constant": np.array([other], np.float32)}, about)
    refused(old | {"constant": np.full(2, 0.1, np.float32)}, about)
    plain, stated = few.parts()
    refused(plain | {"constant": np.array([0.2], np.float32)}, stated)
    assert not ledger_rows(tmp_path / "0")


def test_requests_and_replies_travel(tmp_path: Path) -> None:
    question = asked()
    read = request_from_record(record_from_bytes(record_to_bytes(request_to_record(question))))
    assert read.channels == ("statistic",) and read.digest("statistic") == question.digest("statistic")
    np.testing.assert_array_equal(read.named("statistic").codes, question.named("statistic").codes)
    other = {"mechanism": "privunit", "epsilon": 3.0}
    moved = [asked(codes=-SIMPLEX), asked(m1=question.projection.m1 * 2), asked(statistic=other)]
    assert len({q.digest("statistic") for q in (question, *moved)}) == 4
    reply = answer(make_node(tmp_path, policy=POLICY))
    back = reply_from_record(reply_to_record(reply))
    np.testing.assert_array_equal(values(back), values(reply))
    private, public = generate_keys()
    sealed = seal(reply, question, public)
    opened, good = unseal(sealed.rows, question, private)
    assert good.all() and (opened[0].payload["s"] == values(reply)).all()
    valid, dropped = validate(back, question, enrolled=range(8))
    assert len(valid) == 8 and not dropped


def test_a_server_drops_what_is_no_statistic(tmp_path: Path) -> None:
    question, reply = asked(), answer(make_node(tmp_path, policy=POLICY))
    (release,) = reply.releases
    for row, (change, reason) in enumerate(
        {"zero": (0, "statistic: off the sphere"), "long": (2, "statistic: off the sphere")}.values()
    ):
        codes = values(reply).copy()
        codes[row] = codes[row] * change // 1
        bad = Reply(reply.users, reply.records, (replace(release, payload={"s": codes}),))
        valid, dropped = validate(bad, question, enrolled=range(8))
        assert len(valid) == 7 and dropped == {reason: 1}
    short = Reply(reply.users, reply.records, (replace(release, payload={"s": values(reply)[:, :-1].copy()}),))
    assert validate(short, question, enrolled=range(8))[1] == {"statistic: shape": 8}
