"""Requests and replies survive the wire unchanged; anything else is refused with a ValueError, whatever it
is."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from mechanisms.guarantee import Guarantee
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.wire import reply_from_record, reply_to_record, request_from_record, request_to_record
from tests.support.clients import DIM, M, request, with_prior

RR = Guarantee(epsilon=2.0, metric="discrete", diameter=1.0, protects="label")


def reply(n: int = 3) -> Reply:
    labels = Release({"y": np.arange(n, dtype=np.int16)}, "label", "train", RR, "d")
    z = Release({"z": np.ones((n, DIM), dtype=np.int16)}, "embedding", "train", RR, "e")
    return Reply(np.arange(n), np.zeros(n, dtype=np.int64), (z, labels))


@pytest.mark.parametrize("make", [request, with_prior])
def test_request_round_trip(make):
    sent = make(part=(1, 3))
    read = request_from_record(request_to_record(sent))
    for field in ("arm", "stage", "split", "encoder", "classes", "minimum_users", "part"):
        assert getattr(read, field) == getattr(sent, field)
    assert [question.spec for question in read.questions] == [question.spec for question in sent.questions]
    np.testing.assert_array_equal(read.projection.m1, sent.projection.m1)
    assert [read.digest(c) for c in read.channels] == [sent.digest(c) for c in sent.channels]


@pytest.mark.parametrize("n", [0, 3])
def test_reply_round_trip(n):
    read = reply_from_record(reply_to_record(reply(n)))
    np.testing.assert_array_equal(read.users, np.arange(n))
    for a, b in zip(read.releases, reply(n).releases, strict=True):
        assert (a.channel, a.stage, a.guarantee, a.digest) == (b.channel, b.stage, b.guarantee, b.digest)
        for name in b.payload:
            np.testing.assert_array_equal(a.payload[name], b.payload[name])
            assert a.payload[name].dtype == b.payload[name].dtype


def test_digest_covers_what_a_draw_depends_on_and_nothing_else():
    base = with_prior()
    same = [with_prior(arm="b"), with_prior(minimum_users=1), with_prior(part=(1, 2)), with_prior(stage="x")]
    other = [
        with_prior(m1=base.projection.m1 * 2),
        with_prior(mean=base.projection.mean + 1),
        with_prior(encoder="cd" * 32),
        with_prior(split="test"),
        with_prior(embedding={"mechanism": "purkayastha", "epsilon": 9.0}),
    ]
    for channel in ("embedding", "label"):
        assert {r.digest(channel) for r in same} == {base.digest(channel)}
        assert len({base.digest(channel), *(r.digest(channel) for r in other)}) == 6
    w, b = base.named("label").prior.weights
    moved = request(label=base.named("label").spec, prior=(w, b + np.float32(1)))
    assert moved.digest("embedding") == base.digest("embedding")
    assert moved.digest("label") != base.digest("label")
    spelled = request(embedding={"mechanism": "purkayastha", "epsilon": 10.0, "dim": DIM})
    assert spelled.digest("embedding") == request().digest("embedding")


BAD = {
    "arm": ["../x", "A", 3, None],
    "stage": ["", "a b", "x" * 65, "a\n", 1],
    "split": ["dev", "", ["train"]],
    "encoder": ["", "AB" * 32, "ab" * 31, 0],
    "mean": [np.zeros(M), np.zeros(M + 1, np.float32), np.full(M, np.inf, np.float32), [0.0] * M, None],
    "m1": [
        np.full((M, DIM), np.nan, np.float32),
        np.zeros((M, 1), np.float32),
        np.zeros((M, M + 1), np.float32),
        np.zeros(M, np.float32),
        np.zeros((0, 0), np.float32),
        np.zeros((5000, 2), np.float32),
    ],
    "embedding": [
        {},
        {"mechanism": "nope"},
        {"mechanism": "purkayastha"},
        {"mechanism": "purkayastha", "epsilon": float("nan")},
        {"mechanism": "purkayastha", "epsilon": [10]},
        {"mechanism": "purkayastha", "epsilon": 10.0, "dim": DIM + 1},
        {"mechanism": "identity", "dim": DIM + 1},
        {"mechanism": ["purkayastha"]},
        "purkayastha",
    ],
    "label": [
        {"mechanism": "purkayastha", "epsilon": 1.0},
        {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 9},
        {"mechanism": "randomized-response-prior", "epsilon": 1.0},
    ],
    "classes": [1, 0, -3, 2.0, True, 40_000, "3", None],
    "minimum_users": [-1, 1.5, "0", None],
    "part": [(0, 0), (1, 1), (-1, 2), (0.0, 1), (0, 1, 2), [0, 1], None],
    "prior": [(np.zeros((DIM, 3), np.float32), np.zeros(3, np.float32))],
}
PRIOR = {"mechanism": "randomized-response-prior", "epsilon": 1.0}
BAD_PRIORS = [
    (np.zeros((DIM, 2), np.float32), np.zeros(3, np.float32)),
    (np.zeros((DIM, 3), np.float32), np.full(3, np.nan, np.float32)),
    (np.zeros((DIM, 3), np.float32),),
    7,
]
FIELDS = [{field: value} for field, values in BAD.items() for value in values]
FIELDS += [{"embedding": None, "label": None}, *({"label": PRIOR, "prior": prior} for prior in BAD_PRIORS)]


def test_bad_fields_are_refused():
    for changes in FIELDS:
        with pytest.raises(ValueError) as caught:
            pytest.fail(f"{changes} is accepted: {request(**changes)}")
        assert "\n" not in str(caught.value)


def _hostile():
    good = request_to_record(request())

    def changed(arrays=None, about=None, drop=(), more=None):
        a = dict(good["request.arrays"]) | (arrays or {})
        c = {k: v for k, v in (dict(good["request.about"]) | (about or {})).items() if k not in drop}
        return RecordDict({"request.arrays": ArrayRecord(a), "request.about": ConfigRecord(c)} | (more or {}))

    def array(dtype="float32", shape=(M, DIM), stype="sottovoce.raw", data=b"\0" * (4 * M * DIM)):
        return {"m1": Array(dtype=dtype, shape=shape, stype=stype, data=data)}

    yield RecordDict()
    yield RecordDict({"request.arrays": good["request.arrays"]})
    yield RecordDict({"request.arrays": good["request.about"], "request.about": good["request.arrays"]})
    yield RecordDict({"request.arrays": MetricRecord({"a": 1.0}), "request.about": good["request.about"]})
    yield changed(more={"extra": ConfigRecord({"a": 1})})
    yield changed(about={"extra": 1})
    yield changed(about={"embedding": ""})  # maps of no question
    yield changed(about={"masked_lm": "ab" * 32})  # a language model of no question
    yield changed(about={"classes": 4, "label": ""}, arrays={"codes": good["request.arrays"]["m1"]})
    yield changed(drop=("stage",))
    yield changed(about={"classes": True})
    yield changed(about={"classes": 1.5})
    yield changed(about={"stage": b"train"})
    yield changed(about={"part_index": -1})
    yield changed(about={"part_count": [1, 2]})
    for text in ("null", "[]", "{", "[" * 1900, '{"mechanism": {"a": 1}}'):
        yield changed(about={"embedding": text})
    for value in ("NaN", "1e999", '"inf"', "true", "9" * 400):
        yield changed(about={"embedding": f'{{"mechanism": "purkayastha", "epsilon": {value}}}'})
    yield changed(about={"embedding": '{"mechanism": "' + "x" * 5000 + '"}'})
    yield changed(arrays={"other": good["request.arrays"]["m1"]})
    yield changed(arrays=array(dtype="object"))
    yield changed(arrays=array(dtype="int32"))
    yield changed(arrays=array(stype="numpy.ndarray"))
    yield changed(arrays=array(shape=(10**9, 10**9)))
    yield changed(arrays=array(shape=(-M, -DIM)))
    yield changed(arrays=array(shape=(M, DIM, 1, 1)))
    yield changed(arrays=array(shape=(M * DIM,)))
    yield changed(arrays=array(data=b"\0"))
    yield changed(arrays=array(data=b"\xff" * (4 * M * DIM)))  # not-a-number
    yield changed(arrays=array(shape=(2**13, 2**12), data=b"\0" * 2**27))
    yield changed(arrays=array(shape=(2**12, 2**12), data=b"\0" * 2**26))
    yield reply_to_record(reply())


def test_hostile_requests_are_refused():
    for number, record in enumerate(_hostile()):
        with pytest.raises(ValueError):
            pytest.fail(f"record {number} is accepted: {request_from_record(record)}")


def test_hostile_replies_are_refused():
    good = dict(reply_to_record(reply()))
    about = dict(good["label.about"])
    short = ArrayRecord({"y": Array(dtype="int16", shape=(2,), stype="sottovoce.raw", data=b"\0" * 4)})
    bad = [
        {},
        {"ids": good["ids"], "label.arrays": good["label.arrays"]},
        good | {"more": ConfigRecord({"a": 1})},
        good | {"ids": ConfigRecord({"a": 1})},
        good | {"ids": ArrayRecord({"users": good["ids"]["users"]})},
        good | {"label.arrays": short},
        good | {"label.arrays": ArrayRecord({})},
    ]
    for change in (
        {"channel": "embedding"},
        {"channel": "loss"},
        {"guarantee": "{}"},
        {"guarantee": "[" * 3000},
        {"guarantee": 3},
        {"guarantee": '{"epsilon": "x"}'},
    ):
        bad.append(good | {"label.about": ConfigRecord(about | change)})
    bad.append(good | {"label.about": ConfigRecord({"channel": "label"})})
    for content in bad:
        with pytest.raises(ValueError):
            reply_from_record(RecordDict(content))
