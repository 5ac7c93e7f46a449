"""Operator's side of Flower's SuperLink: start it, register nodes, start runs, and send requests.

No other module knows the SuperLink.

The shuffler is a deployment's ServerApp. Flower would start a ServerApp from the app that a run ships. Here, a running
process takes the run's task, as Flower's own executor does, with the secret that it shares with the SuperLink.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simulations.errors import UserError
from simulations.transport.quiet import hush_flower
from sottovoce.deployment.processes import command_of

# Flower is imported where it is used, because the command line must start fast.

#: Seconds between two checks for replies.
_POLL = 0.2
#: Seconds for which a silent SuperLink is tried again, and an incomplete reply is awaited.
_PATIENCE = 30.0
#: Flower's error for a node that is away, and seconds before such a node receives the request again: at first, and at
#: most.
AWAY = "code 5"
_SOON, _SELDOM = 1.0, 30.0
#: Seconds before a silent node receives the request again, at first and at most. Flower delivers a message once: it is
#: lost with a process that was killed, or with its connection.
_SILENT, _PATIENT = 30.0, 600.0
#: Least number of silent nodes that receive the request again at a time, and their share of all missing nodes.
_FEW, _SHARE = 8, 16
#: Replies announced in one answer, which is read up to `client.device.https.MAX_SMALL`.
_TOGETHER = 64
#: Most bytes of the SuperLink's own messages about all nodes.
_NAMES = 2**26
_APP = """\
[project]
name = "sottovoce"
version = "{version}"
description = "Federated learning on text that is sanitized before it leaves the user"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sottovoce"
fab-include = ["client/**/*.py", "mechanisms/**/*.py"]

[tool.flwr.app.components]
serverapp = "simulations.run.server_app:app"
clientapp = "client.app:app"
"""


def command(folder: Path, *, port: int, host: str = "127.0.0.1") -> list[str]:
    """Return the command line of a SuperLink with TLS and SuperNode authentication.

    Args:
        folder: Folder with cert.pem, cert.key, ca.pem and secret.
        port: Port to listen on.
        host: Address to listen on.
    """
    return command_of(
        "flower-superlink",
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        host=host,
        port=port,
        ssl_certfile=folder / "cert.pem",
        ssl_keyfile=folder / "cert.key",
        ssl_ca_certfile=folder / "ca.pem",
        isolation="process",
        superexec_auth_secret_file=folder / "secret",
    )


def register(address: str, ca: Path, public_key: Path) -> int:
    """Register a SuperNode with the SuperLink, and return its node id.

    Args:
        address: "host:port".
        ca: Certificate of the authority.
        public_key: File of the SuperNode's public key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        key = load_ssh_public_key(public_key.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"superlink: {public_key}: holds no SuperNode's public key")
    with _control(address, ca) as control:
        return int(control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key))).node_id)


def app_bundle() -> bytes:
    """Return the app of a run: the installed client's code, so that a device can verify that it is its own."""
    from flwr.cli.build import build_fab_from_files

    from client.device.code import installed

    project = _APP.format(version=version("sottovoce")).encode()
    return build_fab_from_files({"pyproject.toml": project, **installed()})[0]


def start_run(address: str, ca: Path, fab: bytes) -> int:
    """Start a run on the SuperLink, and return its id.

    No node receives a request before the run's task is acquired.

    Args:
        address: "host:port".
        ca: Certificate of the authority.
        fab: App of the run.
    """
    import hashlib

    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    app = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
    with _control(address, ca) as control:
        answer = control.StartRun(StartRunRequest(fab=app))
    if not answer.HasField("run_id"):
        raise UserError(f"superlink: {address}: the SuperLink did not take the run; its log says why")
    return int(answer.run_id)


def acquire_grid(address: str, ca: Path, secret: Path, *, run_id: int, seconds: float = 60.0) -> Any:
    """Take the task of a started run, and return the Grid that reaches its nodes.

    One process takes one task, because Flower stores the task for the whole process. Tasks of earlier runs without an
    owner are ended as failed.

    Args:
        address: "host:port".
        ca: Certificate of the authority.
        secret: File that the SuperLink was started with.
        run_id: Id of the run.
        seconds: Longest wait.

    Raises:
        UserError: The secret is wrong, nothing answers, or the task does not arrive in time. The message is one line.
    """
    from flwr.common.constant import SubStatus

    hush_flower(logging.ERROR)
    end = time.monotonic() + seconds
    while True:
        task, token = _acquire(address, ca, secret)
        if not token:
            if time.monotonic() > end:
                raise UserError(f"superlink: {address}: the task of run {run_id} does not come; start the run anew")
            time.sleep(_POLL)
            continue
        grid = _grid(address, ca, token)
        if task.run_id == run_id:
            with _asking(address):
                _begin(grid)
            return grid
        with _asking(address):
            _end(grid, SubStatus.FAILED, "superseded")
        grid.close()


def finish(grid: Any) -> None:
    """End the run's task as completed, and close the Grid. This never raises."""
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.supercore.run import RunNotRunningException

    if grid.heartbeat.is_running:
        grid.heartbeat.stop()
    with suppress(httpx.HTTPError, RunNotRunningException):  # the SuperLink is gone, or has ended the run itself
        _end(grid, SubStatus.COMPLETED, "")
    grid.close()


def ask(
    grid: Any, record: Any, nodes: Mapping[int, int], *, timeout: float
) -> Iterator[tuple[int, Any | None, str | None]]:
    """Send a request to nodes, and yield (node id, reply or None, error or None) as they arrive.

    It yields one result for each node, none twice. The node is the recipient of the request, whatever its reply says. A
    node that is away receives the request again, ever less often, until it answers or the time is over. It repeats
    earlier releases at no cost. Nothing that a node sends can make this raise.

    The error is "code N" for an error of the client or of Flower, "unreadable reply", or "no answer" within the
    timeout, as in `server.query.Answer`.

    Args:
        grid: Result of `acquire_grid`.
        record: Request as a RecordDict.
        nodes: Most bytes of the reply of each node, by its id.
        timeout: Seconds to wait.

    Raises:
        UserError: The SuperLink does not answer, or has ended the run.
    """
    end, calm = time.monotonic() + timeout, 0.0  # before `calm` no silent node receives the request again
    waiting = {number: _Node(limit) for number, limit in nodes.items()}
    messages: dict[str, int] = {}  # nodes of the open messages

    def push(numbers: Sequence[int]) -> None:
        now = time.monotonic()
        for name, number in _push(grid, record, numbers, end - now).items():
            messages[name] = number
            waiting[number].messages.append(name)
        for node in (waiting[number] for number in numbers):
            node.silence = node.silence or (now + _SILENT, _SILENT)

    def close(number: int) -> _Node:
        node = waiting[number]
        for name in node.messages:
            if messages.get(name) == number:  # the SuperLink may give a name twice, or to another node
                del messages[name]
        node.messages, node.silence = [], None
        return node

    push(list(nodes))
    for number in [number for number, node in waiting.items() if not node.messages]:
        del waiting[number]
        yield number, None, "no answer"  # the SuperLink does not know it
    while waiting:
        for group in _groups(messages, waiting):
            names = [name for name in group if name in messages]  # others were closed meanwhile
            announcements = _announced(grid, names) if names else ()
            if announcements is not None:
                for announcement, tree in announcements:
                    name = announcement.metadata.reply_to_message_id
                    if name in names and name in messages:
                        close(messages[name]).reply = announcement, tree, time.monotonic() + _PATIENCE
                continue
            senders = list(dict.fromkeys(messages[name] for name in names))
            if waiting[senders[0]].alone:
                close(senders[0])
                del waiting[senders[0]]
                yield senders[0], None, "unreadable reply"
                continue
            for sender in senders:  # one of them announces too much: each receives the request again, by itself
                close(sender).alone = True
            push(senders)
        for number, node in list(waiting.items()):
            if node.reply is None:
                continue
            announcement, tree, last = node.reply
            with _asking(grid.address):
                reply = _read(grid, announcement, tree, node.limit)
            now = time.monotonic()
            if reply is None and now < min(last, end):
                continue
            node.reply = None
            if reply is None:  # its end was lost with the sending process
                push([number])
            elif reply == (None, AWAY) and now < end:
                pause = _SOON if node.absence is None else min(2 * node.absence[1], _SELDOM)
                node.absence = now + pause, pause
            else:
                del waiting[number]
                yield number, *reply
        now = time.monotonic()
        if now > end:
            yield from ((number, None, AWAY if node.absence else "no answer") for number, node in waiting.items())
            return
        again = []
        for number, node in waiting.items():
            if node.absence and node.absence[0] <= now and not node.messages and node.reply is None:
                node.absence = now + node.absence[1], node.absence[1]
                again.append(number)
        silent = [
            number for number, node in waiting.items() if node.messages and node.silence and node.silence[0] <= now
        ]
        # If all are slow because the SuperLink is busy, more requests would keep it busy.
        for number in silent[: max(_FEW, len(messages) // _SHARE)] if calm <= now else ():
            _, pause = waiting[number].silence or (0.0, _SILENT)
            pause, calm = min(2 * pause, _PATIENT), now + _SILENT
            waiting[number].silence = now + pause, pause
            again.append(number)
        if again:
            push(again)
        if waiting:
            time.sleep(_POLL)


@dataclass(eq=False)
class _Node:
    """Node that has not answered a request.

    Args:
        limit: Most bytes of its reply.
        alone: Whether its messages are checked one by one, because one of its group announced more than is read.
        messages: Names of its open messages.
        silence: Time of the next message to it while it is silent, and the pause before that.
        absence: The same while it is away.
        reply: Reply that it may still be sending, the tree of its objects, and the time until which it is awaited.
    """

    limit: int
    alone: bool = False
    messages: list[str] = field(default_factory=list)
    silence: tuple[float, float] | None = None
    absence: tuple[float, float] | None = None
    reply: tuple[Any, Any, float] | None = None


def _groups(messages: Mapping[str, int], waiting: Mapping[int, _Node]) -> list[list[str]]:
    """Return the groups of messages whose answers are requested at once."""
    alone = [[name] for name, number in messages.items() if waiting[number].alone]
    names = [name for name, number in messages.items() if not waiting[number].alone]
    return [names[i : i + _TOGETHER] for i in range(0, len(names), _TOGETHER)] + alone


def _push(grid: Any, record: Any, nodes: Sequence[int], timeout: float) -> dict[str, int]:
    """Send a request to nodes, and return the nodes by the message's name."""
    from flwr.app import Message

    life = max(0.0, timeout) + _PATIENCE  # otherwise the SuperLink would give up first, with its own error
    # Flower takes a reply from any node that knows the message's name, which is a hash: each message holds its own
    # secret.
    messages = [
        Message(record, dst_node_id=n, message_type="query.release", ttl=life, group_id=secrets.token_hex(16))
        for n in nodes
    ]
    with _asking(grid.address):
        return {m: n for m, n in zip(grid.push_messages(messages), nodes, strict=False) if m}


def _announced(grid: Any, names: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """Return the available replies to these messages, without their content, with the trees of their objects.

    None if they announce more than is read. The SuperLink does not announce them again.
    """
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    from client.device.https import Unusable

    try:
        with _asking(grid.address):
            answer = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=names))
    except Unusable:
        return None
    return list(zip(answer.messages_list, answer.message_object_trees, strict=False))


def _read(grid: Any, about: Any, tree: Any, limit: int) -> tuple[Any | None, str | None] | None:
    """Return a reply's content, or its error; None while it is incomplete.

    It works like Flower's `Grid.pull_messages`, but reads one reply at a time, up to `limit` bytes. In Flower's method,
    one unreadable reply breaks the others.
    """
    import httpx
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
    from flwr.supercore.run import RunNotRunningException

    from client.device.fleet import assemble

    client, run, name = grid._runtime_client, grid.run.run_id, about.metadata.message_id
    grid.larger["pull-object"] = limit + 2**12
    try:
        message = assemble(tree, make_pull_object_fn_protobuf(client.PullObject, grid.node, run), limit=limit)
        confirmation = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=name)
        client.ConfirmMessageReceived(confirmation)
        if message.has_error():
            return None, f"code {int(message.error.code)}"
        return message.content, None
    except ObjectUnavailableError:
        return None
    except (httpx.HTTPError, RunNotRunningException):
        raise  # an error of the SuperLink
    except Exception:  # one broken reply must not stop a round
        return None, "unreadable reply"


def _acquire(address: str, ca: Path, secret: Path) -> tuple[Any, str]:
    """Return a waiting task and its token; the token is "" if there is none."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    proof = SuperExecAuthHttpInterceptor(
        master_secret=secret.read_bytes(), protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    version_ = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    certificate = ca.read_bytes()
    with _asking(address), RuntimeHttpClient.from_server_address(address, False, certificate, [version_, proof]) as c:
        _connect(c, ca, {})
        answer = c.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    return answer.task, str(answer.token)


def _grid(address: str, ca: Path, token: str) -> Any:
    """Return Flower's Grid over HTTP, with limits on retries and on the size of answers, and without its own SIGINT.

    larger holds limits by the last part of an answer's path, where they differ from `MAX_SMALL`.
    """
    import httpx
    from flwr.superlink.grid import HttpGrid

    from client.device.code import MAX_BUNDLE

    grid: Any = HttpGrid(address, False, ca.read_bytes(), token=token)
    # Flower's own would retry for ever, and would send this process a SIGINT if the SuperLink refuses the token.
    grid._retry_invoker.max_time = _PATIENCE
    grid._retry_invoker.should_giveup = lambda error: (
        isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (502, 503, 504)
    )
    grid.address = address
    grid.larger = {"pull-task-input": MAX_BUNDLE + 2**16, "push-messages": _NAMES, "get-nodes": _NAMES}
    _connect(grid._runtime_client, ca, grid.larger)
    return grid


def _connect(client: Any, ca: Path, larger: Mapping[str, int]) -> None:
    """Make a Flower client accept a SuperLink alone, and limit the size of its answers."""
    import httpx

    from client.device.fleet import trusting
    from client.device.https import BoundedTransport

    client._client.close()
    client._client = httpx.Client(
        transport=BoundedTransport(trusting(ca), larger), timeout=_PATIENCE, follow_redirects=False
    )


def _begin(grid: Any) -> None:
    """Do the work of Flower's executor before a ServerApp: the task's input, its identity, and its heartbeat."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, SendTaskHeartbeatRequest
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.task_identity import TaskIdentity

    def beat() -> bool:
        try:
            grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except Exception:  # the next request reports it; here it would end a thread
            return False
        return True

    task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = task.task_id
    TaskIdentity.run_id = task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid.set_run(run_from_proto(task.run))
    grid.heartbeat = HeartbeatSender(beat)
    grid.heartbeat.start()


def _end(grid: Any, status: str, details: str) -> None:
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    grid._retry_invoker.max_tries = 1
    grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))


@contextmanager
def _control(address: str, ca: Path) -> Iterator[Any]:
    from flwr.supercore.control import ControlHttpClient

    from client.device.https import host_and_port

    host_and_port(address, "--superlink")
    with _asking(address), ControlHttpClient.from_server_address(address, False, ca.read_bytes(), []) as client:
        _connect(client, ca, {})
        yield client


@contextmanager
def _asking(address: str) -> Iterator[None]:
    """Turn errors of HTTP into a UserError of one line."""
    import httpx
    from flwr.supercore.error import FlowerError
    from flwr.supercore.run import RunNotRunningException

    try:
        yield
    except httpx.HTTPStatusError as error:
        flower_error = FlowerError.from_json(error.response.text)
        reason = flower_error.message if flower_error is not None else f"HTTP status {error.response.status_code}"
        raise UserError(f"superlink: {address}: refused: {reason}") from error
    except httpx.HTTPError as error:
        raise UserError(f"superlink: {address}: cannot be reached: {error}; is it up, and its --port right?") from error
    except RunNotRunningException as error:
        raise UserError(f"superlink: {address}: the run has ended; start it anew") from error
