"""The server checks every release on arrival: bad ones are counted and dropped, and nothing stops a round."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Error, RecordDict

from mechanisms.guarantee import Guarantee
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_to_record
from mechanisms.quantizer import SPHERE
from server import query as app
from server.query import ask
from server.validation import validate
from tests.support.clients import CLASSES, DIM, honest, request

N = 6
ENROLLED = range(N)
MECHANISMS = [
    {"mechanism": "purkayastha", "epsilon": 10.0},
    {"mechanism": "planar-laplace", "epsilon": 10.0},
    {"mechanism": "planar-laplace", "epsilon": 10.0, "normalize": False},
    {"mechanism": "gaussian", "sigma": 2.0},
    {"mechanism": "identity"},
]


def request_of(embedding: dict | None = None, **changes) -> Request:
    return request(embedding=embedding or MECHANISMS[0], minimum_users=0, **changes)


def reply_to(request: Request, n: int = N) -> Reply:
    """What an honest client sends, of users 0, 1, ..."""
    return honest(request, n, first=0)


def checked(reply: Reply, wanted: Request, enrolled: range = ENROLLED) -> tuple[list[int], dict[str, int]]:
    """The users of the valid rows, and the reasons for the others."""
    valid, dropped = validate(reply, wanted, enrolled=enrolled)
    return valid.users.tolist(), dropped


def changed(reply: Reply, channel: str, **changes) -> Reply:
    releases = tuple(replace(r, **changes) if r.channel == channel else r for r in reply.releases)
    return Reply(reply.users, reply.records, releases)


def with_row(reply: Reply, channel: str, row: int, value) -> Reply:
    release = next(r for r in reply.releases if r.channel == channel)
    ((name, array),) = release.payload.items()
    array = array.copy()
    array[row] = value
    return changed(reply, channel, payload={name: array})


@pytest.mark.parametrize("embedding", MECHANISMS, ids=lambda m: "-".join(map(str, m.values())))
def test_what_an_honest_client_sends_passes(embedding) -> None:
    wanted = request_of(embedding)
    reply = reply_to(wanted)
    valid, dropped = validate(reply, wanted, enrolled=ENROLLED)
    assert valid is reply and not dropped


ANOTHER = Guarantee(epsilon=1.0, metric="angular", diameter=np.pi, protects="sequence")


@pytest.mark.parametrize(
    ("channel", "change", "reason"),
    [
        ("embedding", {"stage": "test"}, "embedding: stage"),
        ("embedding", {"digest": "0" * 64}, "embedding: digest"),
        ("label", {"digest": "Anna's diagnosis"}, "label: digest"),
        ("embedding", {"guarantee": ANOTHER}, "embedding: guarantee"),
        ("embedding", {"payload": {"text": np.zeros((N, DIM), np.int16)}}, "embedding: payload"),
        ("embedding", {"payload": {"z": np.zeros((N, DIM), np.int32)}}, "embedding: dtype"),
        ("embedding", {"payload": {"z": np.zeros((N, DIM + 1), np.int16)}}, "embedding: shape"),
        ("label", {"payload": {"y": np.zeros((N, 1), np.int16)}}, "label: shape"),
        ("label", {"payload": {"y": np.zeros(N)}}, "label: dtype"),
    ],
)
def test_a_fault_of_the_message_drops_all_its_rows(channel, change, reason) -> None:
    wanted = request_of()
    assert checked(changed(reply_to(wanted), channel, **change), wanted) == ([], {reason: N})


@pytest.mark.parametrize(
    ("channel", "value", "reason"),
    [
        ("embedding", np.array([32767, 3, 0, 300], np.int16), "embedding: off the sphere"),
        ("embedding", np.zeros(DIM, np.int16), "embedding: off the sphere"),
        ("embedding", np.array([-32768, 0, 0, 0], np.int16), "embedding: off the grid"),
        ("label", CLASSES, "label: out of range"),
        ("label", -1, "label: out of range"),
    ],
)
def test_a_fault_of_a_row_drops_that_row_from_every_channel(channel, value, reason) -> None:
    wanted = request_of()
    reply = reply_to(wanted)
    valid, dropped = validate(with_row(reply, channel, 2, value), wanted, enrolled=ENROLLED)
    assert dropped == {reason: 1}
    assert valid.users.tolist() == [0, 1, 3, 4, 5]
    twice = with_row(with_row(reply, channel, 2, value), "label", 2, 9)
    assert validate(twice, wanted, enrolled=ENROLLED)[1].total() == 1
    for before, after in zip(reply.releases, valid.releases, strict=True):
        ((name, array),) = before.payload.items()
        np.testing.assert_array_equal(after.payload[name], np.delete(array, 2, axis=0))


@pytest.mark.parametrize("dim", [2, 512])
def test_rounding_to_the_grid_alone_never_drops_a_row(dim) -> None:
    wanted = request_of(mean=np.zeros(512, np.float32), m1=np.eye(512, dim, dtype=np.float32), label=None)
    x = np.random.default_rng(3).standard_normal((2000, dim))
    x[:dim] = 1.0  # as far off as rounding goes, nearly
    codes = SPHERE.encode(x / np.linalg.norm(x, axis=1, keepdims=True))
    guarantee = wanted.named("embedding").mechanism.guarantee
    release = Release({"z": codes}, "embedding", "train", guarantee, wanted.digest("embedding"))
    ids = np.arange(2000)
    _, dropped = validate(Reply(ids, ids, (release,)), wanted, enrolled=range(2000))
    assert not dropped


def test_channels_and_users_that_were_not_asked_for_are_dropped() -> None:
    wanted = request_of(part=(1, 2))
    assert checked(reply_to(wanted), wanted) == ([1, 3, 5], {"user of another part": 3})
    reply = replace(reply_to(wanted, 2), users=np.array([1, 3]))
    assert checked(replace(reply, releases=reply.releases[:1]), wanted) == ([], {"channels": 2})
    for negative in (replace(reply, users=reply.users - 2), replace(reply, records=np.array([-1, 0]))):
        assert checked(negative, wanted)[1] == {"user or record below 0": 1}


@pytest.mark.parametrize(("enrolled", "known"), [(range(3, 5), [3]), (range(3, 6), [3, 5]), (range(2**62), [0, 3, 5])])
def test_releases_of_users_whom_nobody_enrolled_are_dropped(enrolled, known) -> None:
    wanted = request_of()
    reply = replace(reply_to(wanted, 4), users=np.array([0, 3, 5, 2**62]))
    assert checked(reply, wanted, enrolled) == (known, {"unknown user": 4 - len(known)})


def test_an_empty_reply_is_no_fault_and_nonsense_never_raises() -> None:
    assert checked(reply_to(request_of(), 0), request_of()) == ([], {})
    for reply in (None, SimpleNamespace(users=None, records=None, releases=[1])):
        assert checked(reply, request_of()) == ([], {"unreadable": 1})


class Grid:
    """Nodes with prepared answers."""

    def __init__(self, *answers: SimpleNamespace | None) -> None:
        self.answers = answers
        self.sent: list = []

    def get_node_ids(self) -> list[int]:
        return list(range(1, len(self.answers) + 1))

    def send_and_receive(self, messages, *, timeout):
        self.sent = list(messages)
        return [a for a in self.answers if a is not None]


def answer(content=None, error=None):
    return SimpleNamespace(content=content, error=error, has_error=lambda: error is not None)


def test_every_node_is_asked_and_gives_one_answer_whatever_it_sends(monkeypatch) -> None:
    # a Flower message can only be made inside a run
    monkeypatch.setattr(app, "Message", lambda **fields: SimpleNamespace(**fields))
    wanted = request_of()
    sound, failed = answer(reply_to_record(reply_to(wanted))), answer(error=Error(106, "KeyError: 'HIV'"))
    grid = Grid(sound, failed, answer(RecordDict({})), answer(object()), None)
    reply, *reasons = ask(grid, wanted, timeout=1.0)
    assert reasons == ["code 106", "unreadable reply", "unreadable reply", "no answer"] and len(reply) == N
    assert [m.dst_node_id for m in grid.sent] == [1, 2, 3, 4, 5]
    assert {m.message_type for m in grid.sent} == {"query.release"}
    assert validate(reply, wanted, enrolled=ENROLLED)[1] == {}
