"""A node's end of the connection: what a SuperLink sends, it may have made up. Nothing of it ends the process, takes
much memory, or is answered with anything but a release or a constant text."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from client.device import fleet
from client.device.fleet import Unusable, assemble
from client.device.serve import MARK
from client.node import load_node
from mechanisms.messages.refusals import REFUSALS
from tests.support.clients import make_node, message, request
from tests.support.fake_superlink import FAB, NODE, Served, bundle, objects

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")


# --- messages, from their objects ---


def test_a_message_is_put_together_again():
    asked = message(request())
    found = assemble(get_object_tree(asked), objects(asked).__getitem__, limit=2**20)
    assert found.content == asked.content


def test_a_message_over_the_limit_is_left_before_all_of_it_is_fetched():
    asked, asked_for = message(request()), []
    parts = objects(asked)

    def pull(name):
        asked_for.append(name)
        return parts[name] + bytes(1000)

    with pytest.raises(Unusable, match="too large"):
        assemble(get_object_tree(asked), pull, limit=2500)
    assert len(asked_for) <= 3


def test_too_many_objects_are_left_before_any_is_fetched():
    tree = ObjectTree(object_id="a", children=[ObjectTree(object_id=str(i)) for i in range(fleet.MAX_OBJECTS)])
    with pytest.raises(Unusable, match="too many"):
        assemble(tree, lambda name: pytest.fail("fetched"), limit=2**20)


def test_an_array_that_names_one_chunk_many_times_is_left():
    array = Array(dtype="float32", shape=(1000,), stype="sottovoce.raw", data=bytes(4000))
    asked = message(RecordDict({"request.arrays": ArrayRecord({"m1": array})}))
    parts = objects(asked)
    name, content = next((n, c) for n, c in parts.items() if c.startswith(b"Array "))
    head, _, body = content.partition(b"\0")
    grown = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 1_000_000}).encode()
    parts[name] = b" ".join([*head.split(b" ")[:-1], str(len(grown)).encode()]) + b"\0" + grown  # 4 GB
    with pytest.raises(Unusable, match="too large"):
        assemble(get_object_tree(asked), parts.__getitem__, limit=2**24)


@pytest.mark.parametrize("bad", [b"", b"\0", b"Array", b"Message x 3\0abc", b"RecordDict  0\0", b"\xff" * 100])
def test_an_object_that_is_none_is_left(bad):
    asked = message(request())
    for broken in objects(asked):
        parts = objects(asked) | {broken: bad}
        with pytest.raises(Unusable):
            assemble(get_object_tree(asked), parts.__getitem__, limit=2**24)


def test_objects_that_hold_each_other_are_left():
    tree = ObjectTree(object_id="a" * 64, children=[ObjectTree(object_id="b" * 64)])
    parts = {n * 64: f"RecordDict {o * 64} 2\0{{}}".encode() for n, o in ("ab", "ba")}
    with pytest.raises(Unusable):
        assemble(tree, parts.__getitem__, limit=2**20)


def test_only_pieces_of_arrays_may_be_large():
    """What is read as many small parts takes many times its own memory: a description of 2 MB, and a head of a piece
    that names a thousand others."""
    asked = message(RecordDict({"x": ConfigRecord({"y": bytes(2_000_000)})}))
    with pytest.raises(Unusable, match="too large"):
        assemble(get_object_tree(asked), objects(asked).__getitem__, limit=2**26)
    tree = ObjectTree(object_id="a" * 64)
    for head in (b"ArrayChunk " + b"a" * 100 + b" ", b"Array  "):
        content = head + b"2000000\0" + bytes(2_000_000)
        with pytest.raises(Unusable, match="too large"):
            assemble(tree, lambda name, content=content: content, limit=2**26)
    piece = b"ArrayChunk  2000000\0" + bytes(2_000_000)
    assert len(assemble(tree, lambda name: piece, limit=2**26).data) == 2_000_000


@pytest.fixture
def device(fake, keys, tmp_path):
    """A device that the fake SuperLink serves: `device()` starts it."""
    node = make_node(tmp_path / "node", seed=None)
    started = []

    def start():
        started.append(Served(node, superlink=fake.address, root_certificates=keys / "ca.pem", key=keys / "node.key"))
        return started[-1]

    yield start
    for one in started:
        one.end()


def charged(tmp_path):
    with load_node(tmp_path / "node").ledger("") as ledger:
        return len(ledger.rows())


def test_a_request_is_answered_and_charged(fake, device, tmp_path):
    fake.send(message(request(arm="")))
    served = device()
    served.until(lambda: fake.replies)
    (reply,) = fake.replies
    assert not reply.HasField("error")
    assert charged(tmp_path) == 16
    assert fake.asked["confirm-message-received"] == 1


def test_how_long_an_answer_took_is_not_told(fake, device):
    told = []
    fake.send(message(request(arm="")))
    fake.says["push-messages"] = lambda body: told.append(PushMessagesRequest.FromString(body)) or b""
    device().until(lambda: told)
    assert not told[0].clientapp_runtime_list


@pytest.mark.parametrize("wrong", ["other", "no archive", "another's hash", "none"])
def test_other_code_is_refused_and_the_request_not_even_fetched(fake, device, tmp_path, wrong):
    fake.send(message(request(arm="")), fab=b"no archive" if wrong == "no archive" else None)
    if wrong == "other":
        content = bundle()
        fake.send(message(request(arm="")), fab=content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    if wrong == "another's hash":
        run = GetRunResponse(run=Run(run_id=1, fab_hash=FAB(b"another").hexdigest()))
        fake.says["get-run"] = run.SerializeToString()
    if wrong == "none":
        fake.says["get-fab"] = (404, {}, b"{}")
    device().until(lambda: fake.replies)
    (reply,) = fake.replies
    assert (reply.error.code, reply.error.reason) == REFUSALS["code"]
    assert fake.asked["pull-object"] == 0
    assert charged(tmp_path) == 0


HOSTILE = {
    "noise": b"\xff" * 1000,
    "an error page": (500, {}, b"<html>secret</html>"),
    "another error": (418, {}, b'{"code": 2007, "detail": "secret"}'),
    "a redirection": (307, {"location": "http://127.0.0.1:9/elsewhere"}, b""),
    "compressed": (200, {"content-encoding": "gzip"}, gzip.compress(bytes(2**20))),
    "more than it says": (200, {"content-length": str(2**40)}, bytes(2**20)),
    "too large": bytes(fleet.MAX_RESPONSE + 1),
    "more than its kind needs": bytes(fleet.MAX_SMALL + 1),
    "too large, and does not say so": (
        200,
        {"content-length": "", "connection": "close"},
        bytes(fleet.MAX_RESPONSE + 2**20),
    ),
    "trees without messages": PullMessagesResponse(message_object_trees=[ObjectTree()]).SerializeToString(),
    "a message without a tree": PullMessagesResponse(
        messages_list=[message_to_proto(message(RecordDict()))]
    ).SerializeToString(),
}


ELSEWHERE = ("pull-object", "push-messages", "confirm-message-received")


@pytest.mark.parametrize(
    ("path", "what"),
    [("pull-messages", what) for what in HOSTILE]
    + [(path, "noise") for path in ELSEWHERE]
    + [("pull-object", "too large")],
)
def test_a_hostile_answer_is_survived_and_the_next_message_answered(fake, device, path, what):
    served = device()
    served.until(lambda: fake.asked["pull-messages"])
    fake.send(message(request(arm="", stage="first")))
    normal, before = fake.says.get(path, b""), fake.asked[path]
    fake.says[path] = HOSTILE[what]
    served.until(lambda: fake.asked[path] > before + (2 if path == "pull-messages" else 0))
    fake.says[path] = normal
    fake.replies.clear()
    fake.send(message(request(arm="", stage="second")))
    served.until(lambda: fake.replies)
    assert not any("secret" in line for line in served.lines)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data * 2])
def test_damaged_objects_are_survived(fake, device, tmp_path, damage):
    fake.send(message(request(arm="")), damage=damage)
    served = device()
    served.until(lambda: fake.replies)
    assert charged(tmp_path) == 0
    assert [(r.error.code, r.error.reason) for r in fake.replies] == [REFUSALS["malformed"]]
    fake.send(message(request(arm="")))
    served.until(lambda: len(fake.replies) == 2)
    assert not fake.replies[1].HasField("error")


def test_a_message_that_is_announced_before_it_is_all_there_is_waited_for(fake, device):
    """Flower announces a message before it sends its objects."""
    fake.send(message(request(arm="")))
    whole, early = fake.says["pull-object"], []

    def pull(body):
        early.append(body)
        late = len(early) <= 3
        return PullObjectResponse(object_found=True).SerializeToString() if late else whole(body)

    fake.says["pull-object"] = pull
    device().until(lambda: fake.replies)
    assert not fake.replies[0].HasField("error")


def test_a_message_that_never_comes_whole_is_refused(fake, device, monkeypatch, tmp_path):
    monkeypatch.setattr("client.device.fleet._SENDING", 0.2)
    fake.send(message(request(arm="")))
    fake.says["pull-object"] = PullObjectResponse(object_found=True).SerializeToString()
    device().until(lambda: fake.replies)
    assert (fake.replies[0].error.code, fake.replies[0].error.reason) == REFUSALS["malformed"]
    assert charged(tmp_path) == 0


def test_a_superlink_that_is_busy_is_asked_again(fake, device):
    answers = [(status, {}, b"") for status in (502, 503, 504)]
    activated = fake.says["activate-node"]
    fake.says["activate-node"] = lambda _: answers.pop() if answers else activated
    fake.send(message(request(arm="")))
    device().until(lambda: fake.replies)


def test_a_superlink_that_goes_away_and_comes_back_is_waited_for(fake, device):
    answers = [(503, {}, b"")] * 3
    served = device()
    served.until(lambda: fake.asked["pull-messages"])
    fake.says["pull-messages"] = lambda _: answers.pop() if answers else b""
    served.until(lambda: not answers)
    served.until(lambda: served.lines[-1].endswith("is there"))
    assert sum("trying again" in line for line in served.lines) == 1


def test_a_superlink_that_forgets_the_node_ends_it_in_one_line(fake, device):
    served = device()
    served.until(lambda: fake.asked["pull-messages"])
    fake.says["pull-messages"] = (401, {}, b"{}")
    served.thread.join(30)
    assert isinstance(served.failure, ValueError)
    assert "does not accept this node's key" in str(served.failure)


@pytest.mark.parametrize(("seconds", "words"), [(7, "7 s ahead of"), (-400, "400 s behind")])
def test_a_clock_that_is_wrong_is_said_and_made_up_for(fake, device, monkeypatch, seconds, words):
    """Flower takes no time that is 5 s ahead of its own or 305 s behind, and answers as if the key were wrong."""
    monkeypatch.setattr("client.device.fleet._now", lambda: datetime.now(UTC) + timedelta(seconds=seconds))
    activated = fake.says["activate-node"]

    def strict(body):
        late = (datetime.now(UTC) - datetime.fromisoformat(fake.headers["flwr-timestamp"])).total_seconds()
        return activated if -5 < late < 305 else (401, {}, b"{}")

    fake.says["activate-node"] = strict
    fake.send(message(request(arm="")))
    served = device()
    served.until(lambda: fake.replies)
    assert not fake.replies[0].HasField("error")
    (said,) = (line for line in served.lines if "clock" in line)
    number, unit = words.split(" ", 1)
    assert said.endswith(f"{unit} the SuperLink's; set it right; until then the SuperLink's time is signed")
    assert abs(int(said.split(" is ")[1].split(" ")[0]) - int(number)) <= 2


def test_a_folder_is_served_once(fake, device):
    served, again = device(), None
    served.until(lambda: fake.asked["pull-messages"])
    again = device()
    again.thread.join(30)
    assert "served by another process" in str(again.failure)


def test_a_node_that_ended_without_a_word_is_let_in_again(fake, device, tmp_path):
    (tmp_path / "node" / MARK).write_text(f"{NODE}\n")
    activated, answers = fake.says["activate-node"], [(412, {}, b'{"code": 2004, "detail": "no"}')]
    fake.says["activate-node"] = lambda _: answers.pop() if answers else activated
    served = device()
    served.until(lambda: fake.asked["pull-messages"])
    assert (fake.asked["deactivate-node"], fake.asked["activate-node"]) == (1, 2)
