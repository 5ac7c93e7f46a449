"""Replies as a SuperLink passes them on to a shuffler: what one node sends, and which nodes are asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from mechanisms.messages.sealed import Sealed
from mechanisms.messages.wire import sealed_to_record
from sottovoce.deployment import certificates, superlink
from tests.support.fake_superlink import Fake, grid_of

HONEST, MANY_PARTS, MANY_ROWS = range(1, 4)


def reply(rows: int) -> RecordDict:
    return sealed_to_record(Sealed(np.arange(rows), np.zeros(rows, np.int64), np.zeros((rows, 112), np.uint8)))


def branches(size: int) -> ObjectTree:
    """A tree of nothing but empty branches, in so many bytes."""
    branch = ObjectTree(children=[ObjectTree()]).SerializeToString()
    return ObjectTree.FromString(branch * (size // len(branch)))


class Passing(Fake):
    """SuperLink that passes replies of nodes on, once each, as Flower's does.

    away: how often each node is away (Flower's NODE_UNAVAILABLE, at once). silent: how many questions it takes without
    a word. cut: how many of its answers never come whole.
    """

    def __init__(
        self,
        folder: Path,
        replies: dict[int, RecordDict],
        trees: dict[int, ObjectTree],
        away: dict[int, int] | None = None,
        silent: dict[int, int] | None = None,
        cut: dict[int, int] | None = None,
    ) -> None:
        super().__init__(folder)
        self.sent = Counter[int]()
        waiting: dict[str, Any] = {}
        parts: dict[str, bytes] = {}

        def push(body: bytes) -> bytes:
            asked = [message_from_proto(m) for m in PushAppMessagesRequest.FromString(body).messages_list]
            for about in asked:
                node = about.metadata.dst_node_id
                about.metadata.__dict__["_src_node_id"] = 1
                self.sent[node] += 1
                if self.sent[node] <= (silent or {}).get(node, 0):
                    continue
                if self.sent[node] <= (away or {}).get(node, 0):
                    said = create_message_error_unavailable_res_message(about.metadata, "node_unavail")
                else:
                    said = Message(replies[node], reply_to=about)
                said.metadata.__dict__["_message_id"] = said.object_id
                if self.sent[node] > (cut or {}).get(node, 0):
                    parts.update({name: part.deflate() for name, part in get_all_nested_objects(said).items()})
                tree = trees.get(node, get_object_tree(said))
                waiting[about.metadata.message_id] = message_to_proto(remove_content_from_message(said)), tree
            return PushAppMessagesResponse(message_ids=[m.metadata.message_id for m in asked]).SerializeToString()

        def pull(body: bytes) -> bytes:
            names = PullAppMessagesRequest.FromString(body).message_ids
            found = [waiting.pop(name) for name in names if name in waiting]
            return PullAppMessagesResponse(
                messages_list=[about for about, _ in found], message_object_trees=[tree for _, tree in found]
            ).SerializeToString()

        def content(body: bytes) -> bytes:
            part = parts.get(PullObjectRequest.FromString(body).object_id, b"")
            return PullObjectResponse(
                object_found=True, object_available=bool(part), object_content=part
            ).SerializeToString()

        self.says |= {"push-messages": push, "pull-messages": pull, "pull-object": content}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by waiting alone: a slow machine is no slow SuperLink."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(superlink, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    certificates.make_authority(folder / "ca")
    certificates.issue(folder / "ca", folder, "superlink")
    return folder


Asked = tuple[list[tuple[int, RecordDict | None, str | None]], Counter[int]]


@pytest.fixture
def asked(keys: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Ask nodes through a SuperLink that passes replies on: the answers by node, and how often each node was sent to.

    Further settings are the client's, by name.
    """

    def ask(
        nodes: Iterable[int],
        replies: dict[int, RecordDict],
        trees: dict[int, ObjectTree] | None = None,
        *,
        timeout: float,
        settings: dict[str, float],
        **faults: dict[int, int],
    ) -> Asked:
        for name, value in ({"_POLL": 0.01} | settings).items():
            monkeypatch.setattr(superlink, name, value)
        passing = Passing(keys, replies, trees or {}, **faults)
        grid = grid_of(passing.address, keys / "ca.pem")
        result = list(superlink.ask(grid, RecordDict(), dict.fromkeys(nodes, 2**20), timeout=timeout))
        passing.close()
        return sorted(result, key=lambda one: one[0]), passing.sent

    return ask


def test_what_one_node_sends_takes_no_other_nodes_reply_with_it(asked: Callable[..., Asked]) -> None:
    """An honest node between one that announces 4 MB of parts and one that sends far more rows than it may."""
    replies = {HONEST: reply(100), MANY_PARTS: reply(1), MANY_ROWS: reply(30_000)}
    result, _ = asked(replies, replies, {MANY_PARTS: branches(2**22)}, timeout=20, settings={})
    unreadable = [(node, None, "unreadable reply") for node in (MANY_PARTS, MANY_ROWS)]
    assert result == [(HONEST, reply(100), None), *unreadable]


def test_a_device_that_is_away_is_asked_again_and_answers_the_same_stage(asked: Callable[..., Asked]) -> None:
    """Flower says of it at once that it is not there, by its code 5: it is asked until it is back, and no longer than
    the stage lasts, however late the others answer; whoever has answered is not asked again."""
    back, gone, replies = 2, 3, {HONEST: reply(3), 2: reply(5), 3: reply(1)}
    soon = {"_SOON": 0.01, "_SELDOM": 0.02}
    result, sent = asked(replies, replies, timeout=3, settings=soon, away={back: 4, gone: 10**6})
    assert result == [(HONEST, reply(3), None), (back, reply(5), None), (gone, None, "code 5")]
    assert sent[HONEST] == 1 and sent[back] == 5 and sent[gone] > 5


def test_a_device_that_was_killed_over_a_question_is_asked_again(asked: Callable[..., Asked]) -> None:
    """Flower has passed the question on, and passes none on twice; the device is there again before it counts as away.
    One that is only slow is asked again too, and counts once."""
    killed, gone, replies = 2, 3, {HONEST: reply(3), 2: reply(5), 3: reply(1)}
    result, sent = asked(replies, replies, timeout=2, settings={"_SILENT": 0.1}, silent={killed: 2, gone: 10**6})
    assert result == [(HONEST, reply(3), None), (killed, reply(5), None), (gone, None, "no answer")]
    assert sent[HONEST] == 1 and sent[killed] == 3 and 3 < sent[gone] < 8  # ever less often


def test_a_busy_superlink_is_not_kept_busy_by_asking_again(asked: Callable[..., Asked]) -> None:
    """Of many that are silent, a few at a time are asked again."""
    nodes, few = range(1, 41), {"_SILENT": 0.3, "_FEW": 4}
    result, sent = asked(nodes, {}, timeout=1, settings=few, silent=dict.fromkeys(nodes, 10**6))
    assert len(result) == 40 and {error for _, _, error in result} == {"no answer"}
    assert 0 < sent.total() - 40 <= 3 * 4


def test_a_device_that_was_killed_within_its_answer_is_asked_again(asked: Callable[..., Asked]) -> None:
    """It has announced what never comes."""
    result, sent = asked([HONEST], {HONEST: reply(3)}, timeout=20, settings={"_PATIENCE": 0.2}, cut={HONEST: 2})
    assert result == [(HONEST, reply(3), None)] and sent[HONEST] == 3


def test_a_node_that_announces_too_much_to_every_message_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets two messages of its own wait, and answers both at once: the first answer closes the second message."""
    numbers, ready = iter(range(100)), 3

    def announced(grid: Any, names: list[str]) -> list[Any] | None:
        too_much = names == ["0"] or (names[0] != "0" and len(sent) >= ready)
        return None if too_much else []

    sent: list[str] = []

    def push(grid: Any, record: Any, nodes: list[int], timeout: float) -> dict[str, int]:
        names = {str(next(numbers)): node for node in nodes}
        sent.extend(names)
        return names

    for name, value in (("_announced", announced), ("_push", push), ("_POLL", 0.001), ("_SILENT", 0.0)):
        monkeypatch.setattr(superlink, name, value)
    assert list(superlink.ask(None, None, {7: 100}, timeout=5.0)) == [(7, None, "unreadable reply")]
    assert len(sent) == ready


@pytest.mark.parametrize("again", [{"1": 1, "2": 2}, {"1": 2, "2": 1}])
def test_names_that_a_superlink_gives_twice_end_no_round(
    again: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To messages of the same node, or of another: each node counts once."""
    pushes = iter([{"1": 1, "2": 2}, again])

    def announced(grid: Any, names: list[str]) -> list[Any]:
        about = (SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)) for name in names)
        return [] if next(asked) < 3 else [(each, None) for each in about]

    asked = iter(range(100))
    values = {"_announced": announced, "_push": lambda *_: next(pushes), "_read": lambda *_: ("record", None)}
    for name, value in (values | {"_POLL": 0.01, "_SILENT": 0.02, "_PATIENT": 100.0}).items():
        monkeypatch.setattr(superlink, name, value)
    grid: Any = SimpleNamespace(address="a")
    result = list(superlink.ask(grid, None, {1: 100, 2: 100}, timeout=5.0))
    assert sorted(result) == [(1, "record", None), (2, "record", None)] and next(pushes, None) is None
