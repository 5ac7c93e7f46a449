"""The operator's side of Flower's SuperLink, and the one module that knows it: how it is started, told of nodes and of
runs, and asked to pass requests on.

A deployment's ServerApp is the shuffler. Flower would start one from the app that a run ships; here a process that is
there already takes the run's task, as Flower's own executor does, with the secret that it shares with the SuperLink.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simulations.errors import UserError
from simulations.transport.quiet import QUIET, hush_flower

# Flower is imported where it is used: the command line must answer at once.

#: Seconds between two looks for replies.
_POLL = 0.2
#: Seconds for which a SuperLink that does not answer is asked again, and a reply that has begun is waited for.
_PATIENCE = 30.0
#: What Flower says of a node that is not there, after a moment; and seconds before it is asked again: at first, and at
#: most.
AWAY = "code 5"
_SOON, _SELDOM = 1.0, 30.0
#: Seconds before a node that is there and says nothing is asked again, at first and at most. Flower passes a message on
#: once: it is gone with a process that was killed over it, or with the connection on which it was.
_SILENT, _PATIENT = 30.0, 600.0
#: How many of those at a time, at least, and which share of all who are waited for.
_FEW, _SHARE = 8, 16
#: Replies that are announced in one answer, which is read up to `client.device.fleet.MAX_SMALL`.
_TOGETHER = 64
#: Bytes of the SuperLink's own words about all nodes.
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
    """The command line of a SuperLink with TLS and SuperNode authentication. Its files are in the folder: cert.pem,
    cert.key, ca.pem, secret."""
    return [
        str(Path(sys.executable).with_name("flower-superlink")), "--host", host, "--port", str(port),
        "--ssl-certfile", str(folder / "cert.pem"), "--ssl-keyfile", str(folder / "cert.key"),
        "--ssl-ca-certfile", str(folder / "ca.pem"), "--enable-supernode-auth",
        "--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret"),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """The environment of a process that runs a part of Flower: what it keeps is in the folder, and nobody is phoned."""
    return {**os.environ, **QUIET, "FLWR_HOME": str((folder / "home").absolute())}


def wait_until_up(address: str, ca: Path, *, process: Any, log: Path | None = None, seconds: float = 60.0) -> None:
    """Return once the SuperLink answers at the address, "host:port". process: its subprocess.Popen. log: its output.

    Raises UserError where it has ended, with the last line of its log, or does not answer in time.
    """
    import httpx

    end = time.monotonic() + seconds
    with httpx.Client(verify=_trusting(ca)) as client:
        while True:
            if process.poll() is not None:
                raise UserError(f"superlink: {address}: it ended with code {process.returncode}: {_last_line(log)}")
            try:
                client.get(f"https://{address}/")
                return
            except httpx.TransportError as error:
                if time.monotonic() > end:
                    raise UserError(f"superlink: {address}: no answer in {seconds:.0f} s: {error}") from None
            time.sleep(_POLL / 2)


def check_party(address: str, ca: Path) -> None:
    """UserError, in one line, where nothing answers at the address, "host:port", or another party than a SuperLink."""
    import httpx

    trusting = _trusting(ca)
    try:
        with httpx.Client(verify=trusting, timeout=_PATIENCE) as client:
            client.get(f"https://{address}/")
    except httpx.TransportError as error:
        raise UserError(f"--superlink {address}: no SuperLink of this authority answers there: {error}") from None
    except (httpx.InvalidURL, ValueError):
        raise UserError(f"--superlink {address}: must be HOST:PORT, without a scheme") from None


def register(address: str, ca: Path, public_key: Path) -> int:
    """Tell the SuperLink of a SuperNode, by its public key's file. Returns the node id that it is given."""
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
    """The app of a run: the client's code as installed here, so that a device can see that it is its own."""
    from flwr.cli.build import build_fab_from_files

    from client.device.code import installed

    about = _APP.format(version=version("sottovoce")).encode()
    return build_fab_from_files({"pyproject.toml": about, **installed()})[0]


def start_run(address: str, ca: Path, fab: bytes) -> int:
    """Give a run to the SuperLink. Returns its id. Nothing is asked of any node before its task is acquired."""
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
    """Take the task of a run that has been started, and with it the Grid that reaches its nodes.

    secret: the file that the SuperLink was started with. One process takes one task: Flower keeps which it is for the
    whole process. Tasks of earlier runs that nobody took are ended as failed: whoever started them is gone.
    Raises UserError, in one line, where the secret is wrong, nothing answers, or the task does not come in time.
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
    """End the run's task, as completed, and let the Grid go. Never raises: what was asked is answered."""
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
    """Send a request, as a RecordDict, to nodes, and yield (node id, reply or None, error or None), as they come.

    nodes: by their id, how many bytes each one's reply may have. One that is away is asked again, ever less often,
        until it is back or the time is over: what it has released already it repeats at no cost.
    One for each node, and none twice. The node is the one that was asked, whatever its reply says. error: "code N" of
    the client's or of Flower's error, "unreadable reply", or "no answer" within `timeout` seconds, as in
    `server.query.Answer`. Nothing that a node sends can make this raise. Raises UserError where the SuperLink does not
    answer, or has ended the run.
    """
    end = time.monotonic() + timeout
    asked = _Asked(grid, record, end)
    asked.push(list(nodes), asked.together)
    for node in set(nodes) - set(asked.together.values()):
        yield node, None, "no answer"  # the SuperLink does not know it
    away: dict[int, tuple[float, float]] = {}  # nodes that are not there: when they are asked again, and how often
    coming: dict[int, tuple[Any, Any, float]] = {}  # replies that nodes may still be sending, by the node
    while asked.together or asked.alone or coming or away:
        for group in asked.groups():
            announced = _announced(grid, group)
            if announced is not None:
                for about, tree in announced:
                    if (found := asked.take(about.metadata.reply_to_message_id, group)) is not None:
                        coming[found] = about, tree, time.monotonic() + _PATIENCE
            elif group[0] in asked.alone:
                node = asked.alone[group[0]]
                asked.take(group[0], group)
                away.pop(node, None)
                yield node, None, "unreadable reply"
            else:  # one of them announces more than anybody may: they are asked again, each by itself
                there = [asked.together.pop(name) for name in group if name in asked.together]
                asked.push(list(dict.fromkeys(there)), asked.alone)
        for node, (about, tree, last) in list(coming.items()):
            with _asking(grid.address):
                reply = _read(grid, about, tree, nodes[node])
            if reply is None and time.monotonic() < min(last, end):
                continue
            del coming[node]
            if reply is None:  # its end was lost, with the process that was sending it
                asked.push([node], asked.together)
            elif reply == (None, AWAY) and time.monotonic() < end:
                _, pause = away.get(node, (0.0, _SOON / 2))
                pause = min(2 * pause, _SELDOM)
                away[node] = time.monotonic() + pause, pause
            else:
                away.pop(node, None)
                yield node, *reply
        now, busy = time.monotonic(), asked.nodes() | set(coming)
        if due := [node for node, (at, _) in away.items() if at <= now < end and node not in busy]:
            away |= {node: (now + away[node][1], away[node][1]) for node in due}
            asked.push(due, asked.together)
        asked.remind()
        if now > end:
            left = asked.nodes() | set(away)
            yield from ((node, None, AWAY if node in away else "no answer") for node in left)
            return
        if busy or away:
            time.sleep(_POLL)


class _Asked:
    """By which messages nodes are asked, name -> node. together: looked after many at a time. alone: each by itself,
    since one of those that they were with announced more than is read."""

    def __init__(self, grid: Any, record: Any, end: float) -> None:
        self.together: dict[str, int] = {}
        self.alone: dict[str, int] = {}
        self._grid, self._record, self._end = grid, record, end
        self._again: dict[int, tuple[float, float]] = {}  # when a node is asked again, and seconds since it was asked
        self._often: set[int] = set()  # nodes that were asked by more than one message
        self._calm = 0.0  # until then nobody is asked again

    def nodes(self) -> set[int]:
        """Who has not answered."""
        return {*self.together.values(), *self.alone.values()}

    def groups(self) -> list[list[str]]:
        """The messages whose answers are asked for at once."""
        names = list(self.together)
        return [names[i : i + _TOGETHER] for i in range(0, len(names), _TOGETHER)] + [[name] for name in self.alone]

    def push(self, nodes: Sequence[int], names: dict[str, int]) -> None:
        """Asks nodes, by messages that join `names`."""
        now = time.monotonic()
        names |= _push(self._grid, self._record, nodes, self._end - now)
        for node in nodes:
            self._again.setdefault(node, (now + _SILENT, _SILENT))

    def take(self, name: str, group: Sequence[str]) -> int | None:
        """The node whose message of that group is answered: from now on it is not asked. None where it was none."""
        names = self.together if name in self.together else self.alone
        node = names.pop(name, None) if name in group else None
        if node is None:
            return None
        del self._again[node]
        if node in self._often:
            for some in (self.together, self.alone):
                for other in [other for other, of in some.items() if of == node]:
                    del some[other]
            self._often.discard(node)
        return node

    def remind(self) -> None:
        """Asks those again that have been silent for long: what they have released they repeat at no cost. A few at a
        time: where all are slow because the SuperLink is busy, asking them again would keep it so."""
        now = time.monotonic()
        for names in (self.together, self.alone) if self._calm <= now < self._end else ():
            late = [node for node in dict.fromkeys(names.values()) if self._again[node][0] <= now]
            late = late[: max(_FEW, len(names) // _SHARE)]
            for node in late:
                pause = min(2 * self._again[node][1], _PATIENT)
                self._again[node], self._calm = (now + pause, pause), now + _SILENT
            if late:
                self._often |= set(late)
                self.push(late, names)


def _push(grid: Any, record: Any, nodes: Sequence[int], timeout: float) -> dict[str, int]:
    """Sends a request to nodes; who is asked, by the message's name."""
    from flwr.app import Message

    life = max(0.0, timeout) + _PATIENCE  # or the SuperLink would give up first, with an error of its own
    # Flower takes a reply from any node that knows the message's name, which is a hash: each holds a secret of its own.
    messages = [
        Message(record, dst_node_id=n, message_type="query.release", ttl=life, group_id=secrets.token_hex(16))
        for n in nodes
    ]
    with _asking(grid.address):
        return {m: n for m, n in zip(grid.push_messages(messages), nodes, strict=False) if m}


def _announced(grid: Any, names: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """The replies to these messages that are there, without their content, with the trees of their objects; None where
    they announce more than is read. The SuperLink does not announce them again."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    from client.device.fleet import Unusable

    try:
        with _asking(grid.address):
            answer = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=names))
    except Unusable:
        return None
    return list(zip(answer.messages_list, answer.message_object_trees, strict=False))


def _read(grid: Any, about: Any, tree: Any, limit: int) -> tuple[Any | None, str | None] | None:
    """A reply's content, or what is wrong with it; None while it is not all there. As Flower's `Grid.pull_messages`,
    but one reply at a time, and no further than `limit` bytes: there, one that cannot be read takes the others with
    it."""
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
        done = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=name)
        client.ConfirmMessageReceived(done)
        if message.has_error():
            return None, f"code {int(message.error.code)}"
        return message.content, None
    except ObjectUnavailableError:
        return None
    except (httpx.HTTPError, RunNotRunningException):
        raise  # the SuperLink's doing
    except Exception:  # one broken reply must not stop a round
        return None, "unreadable reply"


def _acquire(address: str, ca: Path, secret: Path) -> tuple[Any, str]:
    """A task that waits for somebody, and its token: "" where there is none."""
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
    """Flower's Grid over HTTP, which gives up in the end, kills nobody, and reads an answer up to a limit of its kind.
    larger: those limits, by the last part of an answer's path, where they are not `MAX_SMALL`."""
    import httpx
    from flwr.superlink.grid import HttpGrid

    from client.device.code import MAX_BUNDLE

    grid: Any = HttpGrid(address, False, ca.read_bytes(), token=token)
    # Flower's own would try for ever, and would send this process a SIGINT where the SuperLink refuses the token.
    grid._retry_invoker.max_time = _PATIENCE
    grid._retry_invoker.should_giveup = lambda error: (
        isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (502, 503, 504)
    )
    grid.address = address
    grid.larger = {"pull-task-input": MAX_BUNDLE + 2**16, "push-messages": _NAMES, "get-nodes": _NAMES}
    _connect(grid._runtime_client, ca, grid.larger)
    return grid


def _connect(client: Any, ca: Path, larger: Mapping[str, int]) -> None:
    """Has a client of Flower's speak to a SuperLink alone, and read what it answers up to a limit of its kind."""
    import httpx

    from client.device.fleet import BoundedTransport

    client._client.close()
    client._client = httpx.Client(
        transport=BoundedTransport(_trusting(ca), larger), timeout=_PATIENCE, follow_redirects=False
    )


def _trusting(ca: Path) -> Any:
    from client.device.roles import SUPERLINK, context_for

    context = context_for(SUPERLINK)
    try:
        context.load_verify_locations(cafile=str(ca))
    except FileNotFoundError:
        raise UserError(f"--root-certificates {ca}: there is no such file") from None
    except OSError as error:  # an ssl.SSLError among them
        raise UserError(f"--root-certificates {ca}: holds no certificate in PEM ({error.strerror})") from None
    return context


def _begin(grid: Any) -> None:
    """What Flower's executor does before it calls a ServerApp: the task's input, who this is, and its heartbeat."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, SendTaskHeartbeatRequest
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.task_identity import TaskIdentity

    def beat() -> bool:
        try:
            grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except Exception:  # whoever asks next is told; here it would end a thread
            return False
        return True

    given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = given.task_id
    TaskIdentity.run_id = given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid.set_run(run_from_proto(given.run))
    grid.heartbeat = HeartbeatSender(beat)
    grid.heartbeat.start()


def _end(grid: Any, status: str, details: str) -> None:
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    grid._retry_invoker.max_tries = 1
    grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))


@contextmanager
def _control(address: str, ca: Path) -> Iterator[Any]:
    from flwr.supercore.control import ControlHttpClient

    with _asking(address), ControlHttpClient.from_server_address(address, False, ca.read_bytes(), []) as client:
        _connect(client, ca, {})
        yield client


@contextmanager
def _asking(address: str) -> Iterator[None]:
    """Turns what HTTP raises into one line."""
    import httpx
    from flwr.supercore.error import FlowerError
    from flwr.supercore.run import RunNotRunningException

    try:
        yield
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        why = said.message if said is not None else f"HTTP status {error.response.status_code}"
        raise UserError(f"superlink: {address}: refused: {why}") from error
    except httpx.HTTPError as error:
        raise UserError(f"superlink: {address}: cannot be reached: {error}; is it up, and its --port right?") from error
    except RunNotRunningException as error:
        raise UserError(f"superlink: {address}: the run has ended; start it anew") from error


def _last_line(log: Path | None) -> str:
    if log is None or not log.is_file():
        return "it says no more"
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return said[-1] if said else "its log is empty"
