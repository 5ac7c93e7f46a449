"""The sanitizer charges before it answers, never draws a key twice, and treats each record on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.draw import draw
from client.embed import SanitizedEncoder
from client.models.encoder import Encoder
from client.node import load_node
from client.sanitizer import Sanitizer
from client.shard import Shard, records_path, write_shard
from client.store.ledger import Ledger, LedgerError
from mechanisms import Gaussian, Purkayastha, RandomizedResponse
from mechanisms.quantizer import SPHERE
from mechanisms.streams import SecureStreams, SeededUniforms, SimulationStreams
from tests.support.answers import ask, ledger_rows, refusal
from tests.support.clients import CLASSES, DIM, ENCODER, OPEN, REFERENCE, M, make_node, request, with_prior
from tests.support.devices import SENTENCES, make_bundle

EMBEDDING = request().named("embedding").mechanism.guarantee.worst_case()  # 10π and the sampler's numerical loss
WORST = EMBEDDING + 2.0  # both channels of `request()`


def payloads(reply):
    return {r.channel: next(iter(r.payload.values())) for r in reply.releases}


def same(a, b):
    np.testing.assert_array_equal(a.users, b.users)
    np.testing.assert_array_equal(a.records, b.records)
    for channel, values in payloads(a).items():
        np.testing.assert_array_equal(values, payloads(b)[channel])


def test_releases_are_what_was_asked_for_and_on_the_ledger(tmp_path):
    asked = request()
    reply = ask(make_node(tmp_path), asked)
    assert [r.channel for r in reply.releases] == ["embedding", "label"]
    for release in reply.releases:
        name, dtype, shape = asked.named(release.channel).payload_form
        assert release.payload[name].dtype == dtype and release.payload[name].shape == (8, *shape)
        assert (release.stage, release.digest) == ("train", asked.digest(release.channel))
        assert release.guarantee == asked.named(release.channel).mechanism.guarantee
    np.testing.assert_allclose(np.linalg.norm(SPHERE.decode(payloads(reply)["embedding"]), axis=1), 1, atol=1e-4)
    rows = ledger_rows(tmp_path)
    assert len(rows) == 16
    for row in rows:
        assert row.payload == payloads(reply)[row.channel][row.user].tobytes()
        assert row.epsilon == pytest.approx(EMBEDDING if row.channel == "embedding" else 2.0)


@pytest.mark.parametrize("make", [request, with_prior])
def test_the_same_question_gets_the_same_bytes_at_no_cost(tmp_path, make):
    make_node(tmp_path, policy=replace(OPEN, total=WORST))
    first, charged = ask(tmp_path, make()), len(ledger_rows(tmp_path))
    same(first, ask(tmp_path, make(minimum_users=5000)))
    assert len(ledger_rows(tmp_path)) == charged


def test_another_digest_is_a_new_charge_and_a_new_draw(tmp_path):
    make_node(tmp_path)
    first = payloads(ask(tmp_path, request()))["embedding"]
    moved = payloads(ask(tmp_path, request(embedding={"mechanism": "purkayastha", "epsilon": 10.001})))
    # Under a nearly equal ε, the same stream would have given nearly equal releases.
    assert (np.abs(first.astype(int) - moved["embedding"]).max(axis=1) > 500).all()
    assert len(ledger_rows(tmp_path)) == 8 * 3  # the labels were recalled
    other = ask(make_node(tmp_path / "other"), request(embedding={"mechanism": "purkayastha", "epsilon": 10.001}))
    assert np.abs(first.astype(int) - payloads(other)["embedding"]).max() < 500


@pytest.mark.parametrize(("further", "repeated"), [(1e-12, True), (1e-6, False)])
def test_a_ledger_of_an_earlier_version_repeats_what_it_holds(tmp_path, monkeypatch, further, repeated):
    """Its digests hold the guarantee as another CPU computed it. A release under another theorem is drawn anew."""
    asked = request(label=None)
    question = asked.named("embedding")
    theorem = question.mechanism.guarantee
    theorem = replace(theorem, numeric_epsilon=theorem.numeric_epsilon + further)
    with monkeypatch.context() as before:
        before.setattr(type(question), "digest", lambda one, split: one.former_digest(split, theorem.to_dict()))
        before.setattr(type(question.mechanism), "guarantee", theorem)
        first = ask(make_node(tmp_path, policy=replace(OPEN, total=2 * WORST)), request(label=None, part=(0, 2)))
    again = ask(tmp_path, asked)
    here = np.isin(again.users, first.users)
    assert asked.digest("embedding") not in [release.digest for release in first.releases]
    assert (payloads(again)["embedding"][here] == payloads(first)["embedding"]).all() == repeated
    assert len(ledger_rows(tmp_path)) == (8 if repeated else 12)
    same(ask(tmp_path, asked), again)
    assert len(ledger_rows(tmp_path)) == (8 if repeated else 12)


def test_digests_of_earlier_versions_are_still_known():
    """Those of `tests/golden/digests.json` before guarantees left them, where no CPU changes a bound."""
    planar = request(embedding={"mechanism": "planar-laplace", "epsilon": 8.0}).named("embedding")
    label = request().named("label")
    for question, digest in (
        (planar, "8ff1832ee29712805272f2c1eda1b4a144bfa23061f6777616c9d419a015ae31"),
        (label, "7ef6f12b337d8ac9e8000152fd3c296abada5b84608115bb49585aae244d0093"),
    ):
        assert question.former_digest("train", question.mechanism.guarantee.to_dict()) == digest


def test_records_of_a_user_add_up_to_that_users_total(tmp_path):
    users, records = [1, 1, 1, 2], [0, 1, 2, 0]
    make_node(tmp_path, users, records, policy=replace(OPEN, total=2 * WORST))
    assert ask(tmp_path, request()).users.tolist() == [2]  # user 1 would spend three times
    assert {r.user for r in ledger_rows(tmp_path)} == {2}
    assert refusal(tmp_path, request(part=(1, 2))) == "spent"
    enough = make_node(tmp_path / "enough", users, records, policy=replace(OPEN, total=3 * WORST))
    assert ask(enough, request()).users.tolist() == users
    with load_node(enough).ledger("a") as ledger:
        assert ledger.spent(np.array([1, 2])).epsilon == pytest.approx([3 * WORST, WORST])


PURKAYASTHA = {"mechanism": "purkayastha", "epsilon": 10.0}


@pytest.mark.parametrize(
    ("make", "mechanism", "dim"),
    [
        (with_prior, PURKAYASTHA, 16),
        (with_prior, {"mechanism": "planar-laplace", "epsilon": 10.0}, 2),
        (request, {"mechanism": "planar-laplace", "epsilon": 10.0, "normalize": False}, 16),
        (request, {"mechanism": "gaussian", "sigma": 0.5}, 4),
    ],
)
def test_a_cohort_answers_as_its_users_would_alone(tmp_path, make, mechanism, dim):
    n = 37
    m1 = np.random.default_rng(3).normal(size=(M, dim)).astype(np.float32)
    changes = {"m1": m1, "embedding": mechanism}
    if make is with_prior:
        w = np.random.default_rng(4).normal(size=(dim, CLASSES)).astype(np.float32)
        changes |= {"label": with_prior().named("label").spec, "prior": (w, np.zeros(CLASSES, np.float32))}
    asked = request(**changes)
    policy = replace(REFERENCE, delta=1e-6)
    cohort = ask(make_node(tmp_path / "cohort", range(n), policy=policy), asked)
    for i in range(0, n, 4):
        alone = ask(make_node(tmp_path / str(i), [i], policy=policy), asked)
        assert alone.users.tolist() == [i]
        for channel, values in payloads(alone).items():
            assert values.tobytes() == payloads(cohort)[channel][i].tobytes()


def test_a_label_outside_the_classes_does_not_tell(tmp_path):
    make_node(tmp_path)
    node = load_node(tmp_path)
    shard = node.shard("train")
    strange = replace(shard, labels=np.array([0, 1, 2, 99, -5, 2**40, 1, 0]))
    with node.ledger("a") as ledger:
        reply = Sanitizer(OPEN, ledger, node.streams).answer(request(embedding=None), strange)
    labels = payloads(reply)["label"]
    assert len(labels) == 8 and ((labels >= 0) & (labels < CLASSES)).all()


def test_parts_are_disjoint_and_cover(tmp_path):
    make_node(tmp_path, range(10, 20))
    answered = [ask(tmp_path, request(part=(i, 3))).users.tolist() for i in range(3)]
    assert sorted(user for users in answered for user in users) == list(range(10, 20))
    assert all(u % 3 == i for i in range(3) for u in answered[i])


def test_nobody_asked_is_an_empty_reply(tmp_path):
    make_node(tmp_path, [0, 2])
    for asked in (request(part=(1, 2)), request(split="test"), with_prior(part=(1, 2))):
        reply = ask(tmp_path, asked)
        assert len(reply) == 0 and len(reply.releases) == 2
    assert ledger_rows(tmp_path) == []


def test_no_labels_are_refused(tmp_path):
    make_node(tmp_path, labelled=False)
    assert refusal(tmp_path, request()) == "no-labels"
    assert len(ask(tmp_path, request(label=None))) == 8


def test_the_reference_arm_releases_in_clear(tmp_path):
    make_node(tmp_path, policy=REFERENCE)
    asked = request(embedding={"mechanism": "identity"}, label={"mechanism": "identity"})
    reply = payloads(ask(tmp_path, asked))
    shard = load_node(tmp_path).shard("train")
    unit = asked.projection.apply(shard.embeddings(ENCODER).take(np.arange(len(shard))))
    np.testing.assert_allclose(SPHERE.decode(reply["embedding"]), unit, atol=1 / 32767)
    np.testing.assert_array_equal(reply["label"], shard.labels)
    assert {row.epsilon for row in ledger_rows(tmp_path)} == {math.inf}


def test_wrong_encoder_and_wrong_width(tmp_path):
    make_node(tmp_path)
    assert refusal(tmp_path, request(encoder="cd" * 32)) == "encoder"
    assert refusal(tmp_path, request(encoder=ENCODER[:16] + "0" * 48)) == "encoder"
    narrow = request(mean=np.zeros(8, np.float32), m1=np.ones((8, DIM), np.float32))
    assert refusal(tmp_path, narrow) == "malformed"
    assert ledger_rows(tmp_path) == []


def test_a_payload_of_another_length_fails_closed(tmp_path, monkeypatch):
    make_node(tmp_path)
    ask(tmp_path, request())
    recall = Ledger.recall

    def short(*args, **about):
        found = recall(*args, **about)
        return replace(found, payloads=found.payloads[:, :-1])

    monkeypatch.setattr(Ledger, "recall", short)
    with pytest.raises(LedgerError, match="length"):
        ask(tmp_path, request())


@pytest.mark.parametrize(
    "values",
    [
        '{"randomness": "secure", "policy": {}, "seed": 1}',
        '{"randomness": "seeded", "policy": {}}',
        '{"randomness": "secure"}',
        '{"randomness": "secure", "policy": {}, "simulation": {"seed": 1, "arms": {}}}',
        '{"simulation": {"seed": 1.5, "arms": {}}}',
        '{"simulation": {"seed": 1, "arms": {"a": {"unknown": 1}}}}',
        '{"encoder": 3, "randomness": "secure", "policy": {}}',
        "[]",
    ],
)
def test_a_mistyped_node_is_an_error(tmp_path, values):
    (tmp_path / "node.json").write_text(values)
    with pytest.raises(ValueError):
        load_node(tmp_path)


def test_draws_do_not_depend_on_how_many_are_drawn_at_once(tmp_path, monkeypatch):
    """Rows in one piece, in sevens and one by one, of users with several records: same bits, on one transaction."""
    users, records = np.repeat(np.arange(10), 2), np.tile([0, 5], 10)
    answers = []
    for at_once in (1, 7, 100):
        monkeypatch.setattr("client.sanitizer._AT_ONCE", at_once)
        folder = make_node(tmp_path / f"{at_once}", users, records)
        answers.append(ask(folder, with_prior()))
        same(answers[0], answers[-1])
        with load_node(folder).ledger("a") as ledger:
            blocks = ledger._connection.execute("SELECT n FROM releases").fetchall()
        assert blocks == [(20,), (20,)]


@pytest.mark.parametrize(
    "columns",
    [
        b"HIV",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': 'HIV'}\n",
        np.zeros((1, 1), np.int64),
        np.array([[1.0], [0.0]]),
        np.array([["HIV"], ["0"]]),
        np.array([[-1], [0]]),
        np.array([[1], [2**32]]),
        np.array([[1, 2], [0, 0]]),
    ],
)
def test_bad_records_are_an_error_that_does_not_quote_them(tmp_path, columns):
    write_shard(tmp_path, "train", np.arange(1), np.zeros(1, np.int64), ["HIV"], None)
    if isinstance(columns, bytes):
        records_path(tmp_path, "train").write_bytes(columns)
    else:
        np.save(records_path(tmp_path, "train"), columns)
    with pytest.raises(ValueError, match="shard: ") as caught:
        Shard.load(tmp_path, "train")
    assert "HIV" not in str(caught.value)


def test_a_repeated_record_is_refused(tmp_path):
    users, records = np.array([5, 1, 5]), np.array([0, 0, 0])
    with pytest.raises(ValueError, match="occurs twice"):
        write_shard(tmp_path, "train", users, records, ["a", "b", "c"], None)
    write_shard(tmp_path, "train", users, np.array([0, 0, 1]), ["a", "b", "c"], None)


# --- sanitized embeddings for other programs


ROWS = np.arange(len(SENTENCES))


class Table:
    """Embeddings of its own making: of the width that it is given."""

    def __init__(self, width: int, fill: float = 1.0) -> None:
        self.width, self.fill = width, fill

    def encode(self, texts: Sequence[str]) -> list[list[float]]:
        return [[self.fill * (1 + i + len(text)) for i in range(self.width)] for text in texts]


def test_of_a_bundle_it_gives_what_the_device_would_release(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    request, streams = bundle.request, SimulationStreams(3)
    embeddings = Encoder(bundle.encoder or "").encode(SENTENCES)
    codes = draw(request.named("embedding"), embeddings, ROWS, 0 * ROWS, stage=request.stage, streams=streams)
    grid: Any = request.named("embedding").mechanism.grid
    rng = streams.rows(ROWS, 0 * ROWS, stage=request.stage, channel="embedding")
    encoder = SanitizedEncoder(
        Encoder(bundle.encoder or ""),
        request.named("embedding").mechanism,
        mean=request.projection.mean,
        m1=request.projection.m1,
    )
    np.testing.assert_array_equal(encoder.encode(SENTENCES, rng=rng), grid.decode(codes))
    assert encoder.guarantee == request.named("embedding").mechanism.guarantee and encoder.dim == codes.shape[1]


def test_draws_are_fresh_unless_they_are_asked_to_repeat() -> None:
    encoder = SanitizedEncoder(Table(3), Purkayastha(3, 1.0))
    assert not np.array_equal(encoder.encode(["a", "a"]), encoder.encode(["a", "a"]))
    first = encoder.encode(["a", "a"], rng=SecureStreams())
    assert not np.array_equal(first[0], first[1])
    again = [encoder.encode(["a", "a"], rng=SeededUniforms(7)) for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_no_text_and_an_embedding_that_is_no_direction() -> None:
    encoder = SanitizedEncoder(Table(3, fill=float("nan")), Gaussian(3, 1.0))
    assert encoder.encode([]).shape == (0, 3)
    assert np.isfinite(encoder.encode(["a"])).all()  # as on a device: nothing of it shows in an error


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(ValueError, match="randomized-response is a mechanism of labels"):
        SanitizedEncoder(Table(3), RandomizedResponse(1.0, 2))
    with pytest.raises(ValueError, match="m1 gives 4 dimensions, the mechanism takes 3"):
        SanitizedEncoder(Table(3), Purkayastha(3, 1.0), m1=np.ones((5, 4), np.float32))
    with pytest.raises(ValueError, match="of embeddings of different widths"):
        SanitizedEncoder(Table(3), Purkayastha(3, 1.0), mean=np.zeros(4), m1=np.ones((5, 3), np.float32))
    with pytest.raises(ValueError, match="embeddings of 4 dimensions, 3 expected"):
        SanitizedEncoder(Table(4), Purkayastha(3, 1.0)).encode(["a"])
