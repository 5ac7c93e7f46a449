"""A SuperNode that records every byte it is given, for tests of the guard: Flower's own Runtime API, without a
SuperLink behind it."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import Status
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from client.accounted import Outgoing, _Part
from sottovoce.guard.guard import Guard
from sottovoce.guard.policy import load_policy
from sottovoce.guard.supernode import SuperNode
from tests.support.quickstart import asks

SECRET = b"ab" * 32
NODE, RUN = 7, 11
#: What tests of apps in a sandbox need.
sandboxed = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap"
)
POLICY = """
ledger = "{folder}/ledger.sqlite"
data = ["{folder}/data"]
apps = ["{app}"]

[policy]
statistic = 40.0
label = 3.0
total = 40.0

[limits]
seconds = {seconds}
memory = 4_000_000_000
processes = 64
scratch = 50_000_000
request = 10_000_000
state = 10_000

[releases.train.arrays]
mechanism = "privunit"
epsilon = 2.0
norm = 1.0

[releases.query."metrics.label"]
mechanism = "randomized-response"
epsilon = 1.0
classes = 2

[releases.evaluate]

[instead]
"metrics.num-examples" = 1
"""
PROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "An app"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "{name}.server:app"
clientapp = "{name}.client:app"
[tool.flwr.app.config]
"""
#: How the hostile apps begin: `secret` is what the node holds, `update` answers with values.
HOSTILE = """
import os, sys, time, socket, struct
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def moved(asked, by=0.001):
    return {k: a.numpy() + np.float32(by) for k, a in asked.content["arrays"].items()}

def answer(asked, arrays=None, **more):
    arrays = moved(asked) if arrays is None else arrays
    named = {k: a if isinstance(a, Array) else Array(np.asarray(a)) for k, a in arrays.items()}
    return Message(RecordDict({"arrays": ArrayRecord(named), **more}), reply_to=asked)

@app.train()
def train(asked, context):
    secret = Path(context.node_config["data-path"], "secret.txt").read_text()
"""


def bundle(client: str, server: str = "app = None\n", name: str = "quick", **files: str) -> bytes:
    """The bundle (FAB) of an app with these modules."""
    given = {
        "pyproject.toml": PROJECT.format(name=name),
        f"{name}/__init__.py": "",
        f"{name}/client.py": client,
        f"{name}/server.py": server,
        **files,
    }
    return build_fab_from_files({path: text.encode() for path, text in given.items()})[0]


def hostile(*lines: str) -> bytes:
    """The bundle of an app whose training is these lines."""
    return bundle(HOSTILE + "".join(f"    {line}\n" for text in lines for line in text.splitlines()))


@dataclass
class RecordingNode:
    """A SuperNode that is up: its state, its address, and every request that it was sent, by path."""

    address: str
    state: Any
    received: list[tuple[str, bytes]] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None

    def put(
        self,
        fab: bytes,
        message: Message,
        node_config: Mapping[str, Any],
        *,
        named: str | None = None,
        verifications: Mapping[str, str] | None = None,
        slow: float = 0.0,
    ) -> str:
        """Have a message answered by an app, and return the message's name.

        named: the digest that the server says that the bundle has. slow: seconds between the task, the message and its
        content.
        """
        digest = hashlib.sha256(fab).hexdigest()
        run = Run.create_empty(RUN)
        run.fab_id, run.fab_version, run.fab_hash, run.series_id = "tests/quick", "1.0.0", named or digest, 1
        self.state.store_run(run)
        self.state.fab_store[named or digest] = Fab(named or digest, fab, dict(verifications or {}))
        settings = {"rounds": 3, "rate": 0.5, "name": "x", "on": True}
        context = Context(RUN, NODE, dict(node_config), RecordDict(), settings, series_id=1)
        self.state.set_run_series_context(1, context)
        with no_object_id_recompute():  # in the order of Flower's SuperNode, which is slow
            message.metadata.__dict__["_message_id"] = message.object_id
            self.state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash=named or digest)
            time.sleep(slow)
            self.state.object_store.preregister(RUN, get_object_tree(message))
            self.state.store_message(remove_content_from_message(message))
            time.sleep(slow)
            for name, part in get_all_nested_objects(message).items():
                self.state.object_store.put(name, part.deflate())
        return str(message.metadata.message_id)

    def lost(self) -> bool:
        """Whether the message has to be sent again, once its guard is dead: no task waits, and no reply is whole.

        A reply that was cut short is dropped, as the SuperLink drops it in time.
        """
        waiting = any(task.status.status == Status.PENDING for task in self.state.get_tasks())
        store = self.state.object_store
        whole = False
        for name in [n for n, entry in self.state.msg_store.items() if entry.message.metadata.reply_to_message_id]:
            parts = list(iterate_object_tree(store.get_object_tree(name)))
            if all(store.get(part.object_id) for part in parts):
                whole = True
            else:
                self.state.delete_messages(message_ids=[name])
        if waiting or whole:
            return False
        self.state.delete_messages()  # requests that nobody has taken, or the next task would
        return True

    def reply(self, seconds: float = 60.0, *, to: Collection[str] | None = None) -> Message:
        """The next reply, whole, to one of these messages; None: to any."""
        end = time.monotonic() + seconds
        while True:
            found = self.state.get_messages_legacy(is_reply=True, limit=1)
            if found and (to is None or found[0].metadata.reply_to_message_id in to):
                break
            assert not self.failed and time.monotonic() < end, "no reply comes"
            time.sleep(0.02)
        (about,) = found
        store, name = self.state.object_store, about.metadata.message_id
        contents: dict[str, bytes] = {}
        todo = [store.get_object_tree(name)]
        while todo:
            tree = todo.pop()
            todo += tree.children
            while (content := store.get(tree.object_id)) == b"":
                assert time.monotonic() < end, "a reply does not come whole"
                time.sleep(0.02)
            contents[tree.object_id] = content
        whole = inflate_object_from_contents(name, contents)
        asked = about.metadata.reply_to_message_id
        self.state.delete_messages(message_ids=[name, asked])
        failed = whole.has_error()
        return make_message(about.metadata, None if failed else whole.content, whole.error if failed else None)


@contextmanager
def recording(port: int, *, secret: bytes | None = SECRET) -> Iterator[RecordingNode]:
    """A recording SuperNode."""
    factory = NodeStateFactory(ObjectStoreFactory())
    state = factory.state()
    state.set_node_id(NODE)
    node = RecordingNode(f"127.0.0.1:{port}", state)
    inner = create_app(state_factory=factory, superexec_auth_secret=secret)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        async def reading() -> Any:
            event = await receive()
            if event["type"] == "http.request":
                node.received.append((scope["path"].rpartition("/")[2], event.get("body", b"")))
            return event

        await inner(scope, reading, send)

    server = uvicorn.Server(uvicorn.Config(outer, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)

    def stop() -> None:
        server.should_exit = server.force_exit = True
        thread.join()

    node.stop = stop
    try:
        yield node
    finally:
        stop()


def write_policy(folder: Path, *fabs: bytes, seconds: float = 20.0, **changes: str) -> Path:
    """The policy of a node whose data is in folder/data; `changes` replace text by text."""
    (folder / "data").mkdir(exist_ok=True)
    text = POLICY.format(folder=folder, seconds=seconds, app='", "'.join(hashlib.sha256(f).hexdigest() for f in fabs))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "secret").write_bytes(SECRET)
    (folder / "guard.toml").write_text(text)
    return folder / "guard.toml"


@contextmanager
def guarding(policy: Path, node: RecordingNode) -> Iterator[Guard]:
    """A guard in a thread of this process."""
    loaded, stop = load_policy(policy), threading.Event()
    client = SuperNode(node.address, policy.parent / "secret", loaded.sandbox.limits.request)
    guard = Guard(loaded, client, stop)

    def serve() -> None:
        try:
            guard.serve()
        except BaseException as error:
            node.failed.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield guard
    finally:
        stop.set()
        thread.join()
        client.close()
        if node.failed:
            raise node.failed[0]


def sent(kind: str = "train", **config: Any) -> Message:
    """A message as a server sends it, of which a reply can be told."""
    made = asks(kind, **config)
    made.metadata._run_id, made.metadata._dst_node_id = RUN, NODE  # type: ignore[attr-defined]
    return made


def expected_arrays(payload: bytes, asked: Message) -> dict[str, Any]:
    """What a row of the ledger says that the arrays are, which leave in answer to `asked`."""
    base = {key: array.numpy() for key, array in asked.content["arrays"].items()}
    out = Outgoing.of("arrays", {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0})
    part = _Part.of("train", out, {"arrays": base}, {})
    return part.vector(np.frombuffer(payload, part.due.stored).astype(part.due.dtype)[None])


def readable(folder: Path, **files: str) -> None:
    """The node's data, which the app's user may read."""
    (folder / "data").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "data" / f"{name}.txt").write_text(text)
    os.chmod(folder / "data", 0o755)
