"""A node's end of the connection: what a SuperLink sends, it may have made up. Nothing of it ends the process, takes
much memory, or is answered with anything but a release or a constant text."""

from __future__ import annotations

import io
import itertools
import json
import ssl
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from client.device import fleet, serve
from client.device.fleet import assemble
from client.device.https import MAX_SMALL, BoundedTransport, Unusable
from client.device.serve import MARK
from client.node import write_node
from client.policy import Policy
from mechanisms.messages.refusals import REFUSALS
from sottovoce.cli import main as cli
from sottovoce.deployment import certificates
from tests.support.answers import ledger_rows
from tests.support.clients import make_node, message, request
from tests.support.fake_superlink import FAB, NODE, Fake, Served, objects

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")


# --- messages, from their objects ---


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
    grown = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 5_000}).encode()
    parts[name] = b" ".join([*head.split(b" ")[:-1], str(len(grown)).encode()]) + b"\0" + grown  # 20 MB
    with pytest.raises(Unusable, match="too large"):
        assemble(get_object_tree(asked), parts.__getitem__, limit=2**24)


def test_an_object_that_is_none_is_left():
    asked = message(request())
    for broken, bad in itertools.product(
        objects(asked), (b"", b"\0", b"Array", b"Message x 3\0abc", b"RecordDict  0\0")
    ):
        with pytest.raises(Unusable):
            assemble(get_object_tree(asked), (objects(asked) | {broken: bad}).__getitem__, limit=2**24)
    tree = ObjectTree(object_id="a" * 64, children=[ObjectTree(object_id="b" * 64)])
    parts = {n * 64: f"RecordDict {o * 64} 2\0{{}}".encode() for n, o in ("ab", "ba")}  # which hold each other
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


@pytest.mark.parametrize(
    ("path", "size", "headers", "words"),
    [
        ("pull-messages", MAX_SMALL, {}, None),
        ("pull-messages", MAX_SMALL + 1, {}, "has more than"),
        ("get-fab", fleet.MAX_BUNDLE, {}, None),
        ("get-fab", fleet.MAX_BUNDLE + 2**12 + 1, {}, "has more than"),
        ("get-fab", 1, {"content-encoding": "gzip"}, "compressed"),
    ],
)
def test_an_answer_is_read_up_to_the_limit_of_its_kind(path, size, headers, words):
    def answer(request):
        assert request.headers["accept-encoding"] == "identity"
        return httpx.Response(200, headers=headers, content=iter([bytes(size)]))

    transport = BoundedTransport(ssl.create_default_context(), fleet._LARGER)
    transport._inner = httpx.MockTransport(answer)
    with httpx.Client(transport=transport) as client:
        if words is None:
            assert len(client.get(f"https://x/{path}").content) == size
        else:
            with pytest.raises(Unusable, match=words):
                client.get(f"https://x/{path}")


@pytest.fixture
def device(fake, keys, tmp_path):
    """A device that the fake SuperLink serves: `device()` starts it."""
    node = make_node(tmp_path / "node", seed=None)
    started = []

    def start(stop=None):
        where = {"superlink": fake.address, "root_certificates": keys / "ca.pem", "key": keys / "node.key"}
        started.append(Served(node, stop=stop, **where))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_a_request_is_answered_and_charged(fake, device, tmp_path):
    """And how long the answer took is not told."""
    sent = []
    fake.send(message(request(arm="")))
    fake.says["push-messages"] = lambda body: sent.append(PushMessagesRequest.FromString(body)) or b""
    device().until(lambda: sent)
    assert not fake.replies[0].HasField("error") and not sent[0].clientapp_runtime_list
    assert len(ledger_rows(tmp_path / "node")) == 16
    assert fake.asked["confirm-message-received"] == 1


@pytest.mark.parametrize("wrong", ["no archive", "another's hash", "none"])
def test_other_code_is_refused_and_the_request_not_even_fetched(fake, device, tmp_path, wrong):
    fake.send(message(request(arm="")), fab=b"no archive" if wrong == "no archive" else None)
    if wrong == "another's hash":
        run = GetRunResponse(run=Run(run_id=1, fab_hash=FAB(b"another").hexdigest()))
        fake.says["get-run"] = run.SerializeToString()
    if wrong == "none":
        fake.says["get-fab"] = (404, {}, b"{}")
    device().until(lambda: fake.replies)
    (reply,) = fake.replies
    assert (reply.error.code, reply.error.reason) == REFUSALS["code"]
    assert fake.asked["pull-object"] == 0
    assert not ledger_rows(tmp_path / "node")


HOSTILE = {
    "noise": b"\xff" * 1000,
    "an error page": (500, {}, b"<html>secret</html>"),
    "another error": (418, {}, b'{"code": 2007, "detail": "secret"}'),
    "a redirection": (307, {"location": "/v1/fleet/elsewhere"}, b""),
    "too large": bytes(MAX_SMALL + 1),
    "trees without messages": PullMessagesResponse(message_object_trees=[ObjectTree()]).SerializeToString(),
    "a message without a tree": PullMessagesResponse(
        messages_list=[message_to_proto(message(RecordDict()))]
    ).SerializeToString(),
}


@pytest.mark.parametrize(
    ("path", "what"),
    [("pull-messages", what) for what in HOSTILE]
    + [(path, "noise") for path in ("pull-object", "push-messages", "confirm-message-received")],
)
def test_a_hostile_answer_is_survived_and_the_next_message_answered(fake, device, path, what):
    fake.send(message(request(arm="", stage="first")))
    normal = fake.says.get(path, b"")
    fake.says[path] = HOSTILE[what]
    served = device()
    served.until(lambda: fake.asked[path] > (2 if path == "pull-messages" else 0))
    fake.says[path] = normal
    fake.replies.clear()
    fake.send(message(request(arm="", stage="second")))
    served.until(lambda: fake.replies)
    assert not any("secret" in line for line in served.lines) and not fake.asked["elsewhere"]


def test_damaged_objects_are_survived(fake, device, tmp_path):
    fake.send(message(request(arm="")), damage=lambda data: data[: len(data) // 2])
    served = device()
    served.until(lambda: fake.replies)
    assert not ledger_rows(tmp_path / "node")
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
    assert not ledger_rows(tmp_path / "node")


def test_a_superlink_that_is_busy_or_goes_away_is_asked_again(fake, device):
    busy = [(status, {}, b"") for status in (502, 503, 504)]
    activated, gone = fake.says["activate-node"], [(503, {}, b"")] * 3
    fake.says["activate-node"] = lambda _: busy.pop() if busy else activated
    served = device()
    served.until(lambda: fake.asked["pull-messages"])
    fake.says["pull-messages"] = lambda _: gone.pop() if gone else b""
    served.until(lambda: not gone)
    served.until(lambda: served.lines[-1].endswith("is there"))
    assert sum("trying again" in line for line in served.lines) == 2


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
    assert abs(int(said.split(" is ")[1].split(" ")[0]) - int(number)) <= 5


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


# --- when an answer leaves, and how often a device polls ---


class Waits(threading.Event):
    """Waits for nothing but `seconds`, and remembers for how long it would have, and when that was over."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.long: list[float] = []
        self.over: list[float] = []
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout > 100.0:
            self.long.append(timeout)
            super().wait(self._seconds)
            self.over.append(time.time())
            return self.is_set()
        return super().wait(timeout)


WINDOW = Policy(embedding=100.0, label=9.0, total=1000.0, window=3000.0)


@pytest.mark.parametrize("what", ["answered", "refused", "malformed", "other code"])
def test_every_answer_leaves_at_a_moment_drawn_before(what, fake, device, tmp_path, monkeypatch):
    """With a window of 3,000 s and the draw .5: 2,250 s after the question came, less what has passed since."""
    make_node(tmp_path / "node", seed=None, policy=WINDOW)
    monkeypatch.setattr("client.device.serve.secrets", SimpleNamespace(randbelow=lambda below: below // 2))
    waits, sent = Waits(0.3), message(request(arm="other" if what == "refused" else ""))
    damage = (lambda data: data[:5]) if what == "malformed" else None
    fake.send(sent, fab=b"no archive" if what == "other code" else None, damage=damage)
    served = device(waits)
    served.until(lambda: fake.replies)
    served.end()
    (left,), (over,) = waits.long, waits.over
    assert 2150.0 < left <= 2250.0 and fake.replies[0].HasField("error") == (what != "answered")
    about = fake.replies[0].metadata  # which says when the answer was made, and what is left of the question's time
    assert about.created_at >= over and about.ttl <= sent.metadata.created_at + sent.metadata.ttl - over


@pytest.mark.parametrize("path", ["pull-object", "confirm-message-received"])
def test_a_part_of_a_request_that_is_held_back_moves_the_window(path, fake, device, tmp_path, monkeypatch):
    """With a window of 1.2 s and the draw 0: .6 s after the SuperLink's last word, which came later than the window."""
    make_node(tmp_path / "node", seed=None, policy=replace(WINDOW, window=1.2))
    monkeypatch.setattr("client.device.serve.secrets", SimpleNamespace(randbelow=lambda below: 0))
    fake.send(message(request(arm="")))
    said, times = fake.says.get(path, lambda _: b""), []

    def late(body):
        time.sleep(0.0 if times else 1.3)
        times.append(time.monotonic())
        return said(body)

    fake.says[path] = late
    fake.says["push-messages"] = lambda _: (times.append(time.monotonic()), b"")[1]
    device().until(lambda: fake.replies)
    assert times[-1] - times[-2] >= 0.6 and not fake.replies[0].HasField("error")


def test_the_window_is_that_of_the_policy_as_it_is_now(fake, device, tmp_path):
    """A bundle is installed over a device that is served: answers keep to its window, as to the rest of its policy; and
    to that one while the file cannot be read."""
    waits = Waits()
    served = device(waits)
    for change, long, is_error in (
        (lambda: None, 0, False),
        (lambda: write_node(tmp_path / "node", policy=WINDOW), 1, False),
        (lambda: (tmp_path / "node" / "node.json").write_text("{"), 2, True),
    ):
        change()
        fake.replies.clear()
        fake.send(message(request(arm="")))
        served.until(lambda: fake.replies)
        assert len(waits.long) == long and fake.replies[0].HasField("error") == is_error


class Quiet:
    """A SuperLink of which message `comes` has one, by the number of the question, and then is told to end."""

    node_id = 7

    def __init__(self, comes: set[int], questions: int) -> None:
        self.asked, self.waits = 0, []
        self._comes, self._questions = comes, questions

    def activate(self, before: int | None) -> None: ...
    def beat(self) -> bool:
        return True

    def close(self) -> None: ...

    def receive(self) -> Any:
        self.asked += 1
        return ("about", "tree") if self.asked in self._comes else None

    # what waits in the device's place
    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > self._questions

    def is_set(self) -> bool:
        return False


def test_an_idle_device_polls_ever_more_seldom_until_a_message_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.secrets, "randbelow", lambda n: n)  # the longest that chance allows
    monkeypatch.setattr(serve._Server, "_answer", lambda self, about, tree: None)
    quiet: Any = Quiet({41}, 60)
    serve._Server(Path("node"), quiet, "here:1", quiet).run(io.StringIO())
    idle = quiet.waits[:41]
    assert idle[0] == 0.5 and idle[40] == 10.0 and 60 < sum(wait for wait in idle if wait < 10) < 120
    assert all(before <= after <= 1.1 * before + 1e-12 for before, after in pairwise(idle))
    assert quiet.waits[41] == 0.5  # poll 42 came without a wait


def test_devices_that_answered_together_do_not_ask_together(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet: Any = Quiet(set(), 50)
    serve._Server(Path("node"), quiet, "here:1", quiet).run(io.StringIO())
    shares = [wait / min(0.5 * 1.1**i, 10.0) for i, wait in enumerate(quiet.waits[:50])]
    assert len(set(shares)) == 50 and min(shares) >= 0.5 and max(shares) <= 1


# --- the command ---


def command(node, keys, superlink="127.0.0.1:1", **changes):
    options = {"superlink": superlink, "root-certificates": keys / "ca.pem", "key": keys / "node.key"}
    options |= {name.replace("_", "-"): value for name, value in changes.items()}
    return ["device", "serve", str(node), *(part for name, v in options.items() for part in (f"--{name}", str(v)))]


def complaint(arguments, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"superlink": x}, "HOST:PORT") for x in ("localhost", "x:0", "x:65536", "https://x:1", "[::1:5", "x:٣")),
        ({"key": "ca.pem"}, "no elliptic-curve private key"),
        ({"key": "ca"}, "cannot be read"),
        ({"root_certificates": "missing"}, "--root-certificates"),
        ({"root_certificates": "node.pub"}, "holds no certificate"),
    ],
)
def test_an_address_or_file_that_is_none_is_one_line(keys, tmp_path, capsys, changes, words):
    changes = {name: value if name == "superlink" else keys / value for name, value in changes.items()}
    assert words in complaint(command(make_node(tmp_path, seed=None), keys, **changes), capsys)


def test_a_folder_that_is_no_devices_is_one_line(keys, tmp_path, capsys):
    for folder, words in (
        ("missing", "node.json"),
        ("", "node.json"),
        (make_node(tmp_path / "simulated"), "simulation"),
    ):
        assert words in complaint(command(tmp_path / folder, keys), capsys)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((412, {}, b'{"code": 2004, "detail": "secret"}'), "does not accept this node's key"),
        ((404, {}, b"secret"), "is no SuperLink"),
    ],
)
def test_a_server_that_refuses_is_one_line(fake, keys, tmp_path, capsys, said, words):
    fake.says["activate-node"] = said
    line = complaint(command(make_node(tmp_path, seed=None), keys, fake.address), capsys)
    assert words in line and "secret" not in line


@pytest.mark.parametrize("what", ["another authority", "another host", "no TLS"])
def test_a_server_that_is_another_is_one_line_and_asked_nothing(keys, tmp_path, capsys, what):
    certificates.make_authority(tmp_path / "ca")
    certificates.issue(keys / "ca", tmp_path / "elsewhere", "superlink", hosts=("elsewhere.example",))
    trusted = tmp_path / "ca" if what == "another authority" else keys
    fake = Fake(tmp_path / "elsewhere" if what == "another host" else keys, tls=what != "no TLS")
    try:
        node = make_node(tmp_path / "node", seed=None)
        line = complaint(command(node, keys, fake.address, root_certificates=trusted / "ca.pem"), capsys)
    finally:
        fake.close()
    assert ("does not speak TLS" if what == "no TLS" else "certificate is not good for it") in line
    assert not fake.asked
