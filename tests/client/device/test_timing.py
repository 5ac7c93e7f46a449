"""A text and its length show neither in whether a device answers nor in when; how often it polls."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client.app import answer
from client.device import serve
from client.device.bundle import Bundle
from client.device.records import add_records, encode_records
from client.models.embeddings import embeddings_path
from client.models.encoder import Encoder
from client.node import load_node, write_node
from client.policy import Policy
from client.shard import write_shard
from mechanisms.messages.wire import reply_from_record, request_to_record
from tests.support.clients import make_node, message, request
from tests.support.devices import POLICY, PUBLISHER, SENTENCES, make_bundle
from tests.support.fake_superlink import Fake, Served
from tests.support.requests import changed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")
ROOMY = replace(POLICY, embedding=1000.0, total=10_000.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("timing"))


@pytest.fixture
def node(made: Bundle, tmp_path: Path) -> Path:
    write_node(tmp_path / "node", encoder=made.encoder, policy=ROOMY)
    return tmp_path / "node"


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing is encoded any more."""

    def encode(*_: object) -> None:
        raise AssertionError("a text is encoded while a server waits")

    monkeypatch.setattr(Encoder, "encode", encode)


def answered(made: Bundle, node: Path, split: str = "train") -> int:
    asked = changed(made.request, split=split, label=None)
    return len(reply_from_record(answer(request_to_record(asked), load_node(node))))


def test_texts_are_encoded_when_they_are_added(made: Bundle, node: Path, request: pytest.FixtureRequest) -> None:
    add_records(node, "train", SENTENCES[:2], None)
    add_records(node, "train", [*SENTENCES[2:4], "long " * 100_000], None)
    add_records(node, "test", SENTENCES[4:5], None)
    whole = load_node(node).shard("train").embeddings(made.request.encoder).take(np.arange(4))
    expected = Encoder(made.encoder or "", threads=1).encode(SENTENCES[:4])
    np.testing.assert_array_equal(whole, expected)
    request.getfixturevalue("idle")
    assert answered(made, node) == 5 and answered(made, node, "test") == 1


def test_what_came_otherwise_is_encoded_before_anybody_asks(
    made: Bundle, node: Path, request: pytest.FixtureRequest
) -> None:
    """Records that were written by hand, or under another bundle's encoder, and what a full disk left out."""
    ids = np.arange(3, dtype=np.int64)
    write_shard(node, "train", 0 * ids, ids, SENTENCES[:3], None)
    encode_records(load_node(node))
    kept = embeddings_path(node, "train", made.request.encoder)
    before = kept.stat().st_mtime_ns
    request.getfixturevalue("idle")
    encode_records(load_node(node))  # which has nothing left to do
    assert kept.stat().st_mtime_ns == before and answered(made, node) == 3


def test_a_bundle_s_encoder_reads_the_records_when_it_is_installed(
    made: Bundle, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Over a device that is served meanwhile, too: the next question finds them encoded."""
    made.install(tmp_path / "node", PUBLISHER)
    ids = np.arange(3, dtype=np.int64)
    write_shard(tmp_path / "node", "train", ids, 0 * ids, SENTENCES[:3], None)
    made.install(tmp_path / "node")
    request.getfixturevalue("idle")
    assert answered(made, tmp_path / "node") == 3


def test_an_encoded_record_that_cannot_be_kept_is_encoded_later(
    made: Bundle, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("client.device.records.write_embeddings", full)
        add_records(node, "train", SENTENCES[:2], None)
    assert not embeddings_path(node, "train", made.request.encoder).exists() and answered(made, node) == 2


# -- when an answer leaves --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("what", ["answered", "refused", "malformed", "other code"])
def test_every_answer_leaves_at_a_moment_drawn_before(
    what: str, fake: Fake, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a window of 3,000 s and the draw .5: 2,250 s after the question came, less what has passed since."""
    policy = Policy(embedding=100.0, label=9.0, total=1000.0, window=3000.0)
    folder = make_node(tmp_path / "node", seed=None, policy=policy)
    monkeypatch.setattr("client.device.serve.secrets", SimpleNamespace(randbelow=lambda below: below // 2))
    waits = Waits(0.3)
    asked: Any = request(arm="other" if what == "refused" else "")
    sent = message(asked)
    if what == "other code":
        fake.send(sent, fab=b"no archive")
    else:
        fake.send(sent, damage=(lambda data: data[:5]) if what == "malformed" else None)
    where = {"superlink": fake.address, "root_certificates": keys / "ca.pem", "key": keys / "node.key"}
    served = Served(folder, stop=waits, **where)
    served.until(lambda: fake.replies)
    served.end()
    (left,), (over,) = waits.long, waits.over
    assert 2150.0 < left <= 2250.0 and fake.replies[0].HasField("error") == (what != "answered")
    about = fake.replies[0].metadata  # which says when the answer was made, and what is left of the question's time
    assert about.created_at >= over and about.ttl <= sent.metadata.created_at + sent.metadata.ttl - over


@pytest.mark.parametrize("path", ["pull-object", "confirm-message-received"])
def test_a_part_of_a_request_that_is_held_back_moves_the_window(
    path: str, fake: Fake, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a window of 1.2 s and the draw 0: .6 s after the SuperLink's last word, which came later than the window."""
    policy = Policy(embedding=100.0, label=9.0, total=1000.0, window=1.2)
    folder = make_node(tmp_path / "node", seed=None, policy=policy)
    monkeypatch.setattr("client.device.serve.secrets", SimpleNamespace(randbelow=lambda below: 0))
    fake.send(message(request(arm="")))
    said, times = fake.says.get(path, lambda _: b""), list[float]()

    def late(body: bytes) -> bytes:
        time.sleep(0.0 if times else 1.3)
        times.append(time.monotonic())
        return said(body)

    fake.says[path] = late
    fake.says["push-messages"] = lambda _: (times.append(time.monotonic()), b"")[1]
    served = Served(folder, superlink=fake.address, root_certificates=keys / "ca.pem", key=keys / "node.key")
    served.until(lambda: fake.replies)
    served.end()
    assert times[-1] - times[-2] >= 0.6 and not fake.replies[0].HasField("error")


def test_the_window_is_that_of_the_policy_as_it_is_now(fake: Fake, keys: Path, tmp_path: Path) -> None:
    """A bundle is installed over a device that is served: answers keep to its window, as to the rest of its policy; and
    to that one while the file cannot be read."""
    policy = Policy(embedding=100.0, label=9.0, total=1000.0)
    folder = make_node(tmp_path / "node", seed=None, policy=policy)
    waits = Waits()
    where = {"superlink": fake.address, "root_certificates": keys / "ca.pem", "key": keys / "node.key"}
    served = Served(folder, stop=waits, **where)
    fake.send(message(request(arm="")))
    served.until(lambda: len(fake.replies) == 1)
    assert not waits.long
    write_node(folder, policy=replace(policy, window=3000.0))
    fake.send(message(request(arm="")))
    served.until(lambda: len(fake.replies) == 2)
    assert len(waits.long) == 1
    (folder / "node.json").write_text("{")
    fake.send(message(request(arm="")))
    served.until(lambda: len(fake.replies) == 3)
    served.end()
    assert len(waits.long) == 2 and fake.replies[2].HasField("error")


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
