"""Replies as a SuperLink passes them on to a shuffler: what one node sends, and which nodes are asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.run_pb2 import Run
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from mechanisms.messages.sealed import Sealed
from mechanisms.messages.wire import sealed_to_record
from sottovoce.deployment import certificates, superlink
from tests.support.fake_superlink import Fake

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
        away: dict[int, int],
        silent: dict[int, int] | None = None,
        cut: dict[int, int] | None = None,
    ) -> None:
        super().__init__(folder)
        self.away = dict(away)
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
                if self.sent[node] <= self.away.get(node, 0):
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


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    certificates.make_authority(folder / "ca")
    certificates.issue(folder / "ca", folder, "superlink")
    return folder


def grid_of(address: str, ca: Path) -> Any:
    grid = superlink._grid(address, ca, "token")
    grid.set_run(run_from_proto(Run(run_id=7)))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    return grid


@pytest.fixture
def hostile(keys: Path) -> Iterator[Passing]:
    """An honest node between one that announces 4 MB of parts and one that sends far more rows than it may."""
    replies = {HONEST: reply(100), MANY_PARTS: reply(1), MANY_ROWS: reply(30_000)}
    passing = Passing(keys, replies, {MANY_PARTS: branches(2**22)}, {})
    yield passing
    passing.close()


def test_what_one_node_sends_takes_no_other_nodes_reply_with_it(hostile: Passing, keys: Path) -> None:
    grid = grid_of(hostile.address, keys / "ca.pem")
    result = dict(
        (node, (record, error))
        for node, record, error in superlink.ask(
            grid, RecordDict(), {HONEST: 2**20, MANY_PARTS: 2**20, MANY_ROWS: 2**20}, timeout=20
        )
    )
    assert result.pop(HONEST) == (reply(100), None)
    assert result == {MANY_PARTS: (None, "unreadable reply"), MANY_ROWS: (None, "unreadable reply")}


def test_a_device_that_is_away_is_asked_again_and_answers_the_same_stage(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower says of it at once that it is not there, by its code 5: it is asked until it is back, and no longer than
    the stage lasts, however late the others answer; whoever has answered is not asked again."""
    monkeypatch.setattr(superlink, "_SOON", 0.01)
    monkeypatch.setattr(superlink, "_SELDOM", 0.02)
    monkeypatch.setattr(superlink, "_POLL", 0.01)
    back, gone = 2, 3
    passing = Passing(keys, {HONEST: reply(3), back: reply(5), gone: reply(1)}, {}, {back: 4, gone: 10**6})
    grid = grid_of(passing.address, keys / "ca.pem")
    nodes = dict.fromkeys((HONEST, back, gone), 2**20)
    result = {node: rest for node, *rest in superlink.ask(grid, RecordDict(), nodes, timeout=3)}
    passing.close()
    assert result == {HONEST: [reply(3), None], back: [reply(5), None], gone: [None, "code 5"]}
    assert passing.sent[HONEST] == 1 and passing.sent[back] == 5 and passing.sent[gone] > 5


def test_a_device_that_was_killed_over_a_question_is_asked_again(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower has passed the question on, and passes none on twice; the device is there again before it counts as away.
    One that is only slow is asked again too, and counts once."""
    monkeypatch.setattr(superlink, "_POLL", 0.01)
    monkeypatch.setattr(superlink, "_SILENT", 0.1)
    killed, gone = 2, 3
    passing = Passing(
        keys, {HONEST: reply(3), killed: reply(5), gone: reply(1)}, {}, {}, silent={killed: 2, gone: 10**6}
    )
    grid = grid_of(passing.address, keys / "ca.pem")
    nodes = dict.fromkeys((HONEST, killed, gone), 2**20)
    results = [(node, *rest) for node, *rest in superlink.ask(grid, RecordDict(), nodes, timeout=2)]
    passing.close()
    assert sorted(results, key=lambda one: one[0]) == [
        (HONEST, reply(3), None),
        (killed, reply(5), None),
        (gone, None, "no answer"),
    ]
    assert passing.sent[HONEST] == 1 and passing.sent[killed] == 3 and 3 < passing.sent[gone] < 8  # ever less often


def test_a_busy_superlink_is_not_kept_busy_by_asking_again(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that are silent, a few at a time are asked again."""
    monkeypatch.setattr(superlink, "_POLL", 0.01)
    monkeypatch.setattr(superlink, "_SILENT", 0.3)
    monkeypatch.setattr(superlink, "_FEW", 4)
    nodes = range(1, 41)
    passing = Passing(keys, {}, {}, {}, silent=dict.fromkeys(nodes, 10**6))
    grid = grid_of(passing.address, keys / "ca.pem")
    said = list(superlink.ask(grid, RecordDict(), dict.fromkeys(nodes, 2**20), timeout=1))
    passing.close()
    assert len(said) == 40 and {error for _, _, error in said} == {"no answer"}
    assert 0 < passing.sent.total() - 40 <= 3 * 4


def test_a_device_that_was_killed_within_its_answer_is_asked_again(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has announced what never comes."""
    monkeypatch.setattr(superlink, "_POLL", 0.01)
    monkeypatch.setattr(superlink, "_PATIENCE", 0.2)
    passing = Passing(keys, {HONEST: reply(3)}, {}, {}, cut={HONEST: 2})
    result = list(superlink.ask(grid_of(passing.address, keys / "ca.pem"), RecordDict(), {HONEST: 2**20}, timeout=20))
    passing.close()
    assert result == [(HONEST, reply(3), None)] and passing.sent[HONEST] == 3


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
