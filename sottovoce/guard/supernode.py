"""Runtime API of Flower's SuperNode, as the process that runs ClientApps sees it. No other module here calls it.

In Flower's isolation mode "process" a SuperNode runs no app. It hands each message to a process that shares a secret
with it, as a task with a token, and takes back a reply. The guard is that process, in place of Flower's SuperExec and
`flwr-clientapp`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SubStatus
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PullTaskInputResponse,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.start_client_internal import _verify_fab

from client.device.code import MAX_BUNDLE
from client.device.fleet import BoundedTransport, Unusable, assemble

_NAME = "sottovoce-guard"
_PROTECTED = {"/flwr.proto.Runtime/AcquireTask"}
_TIMEOUT = 30.0
#: Seconds that a message may take to reach the SuperNode after its task, and between two looks.
_SENDING, _AGAIN = 60.0, 0.1
#: Bytes of a task's input beside its app, and of any answer but an object.
_BESIDE = 2**20


class Lost(Exception):
    """Error of a SuperNode that is not reached, or that refuses a call."""


class SuperNode:
    """Runtime API of one SuperNode on this machine.

    Args:
        address: "host:port", of the loopback interface: the API has no encryption there.
        secret: File of the secret that the SuperNode was started with.
        request: Bytes of the largest object of a message.

    Raises:
        ValueError: An argument cannot be used. The message is one line.
    """

    def __init__(self, address: str, secret: Path, request: int) -> None:
        host, _, port = address.rpartition(":")
        try:
            local = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            local = False
        if not local or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(f"--supernode {address}: must be HOST:PORT on this machine, as 127.0.0.1:9094")
        try:
            shared = secret.read_bytes().strip()
        except OSError as error:
            raise ValueError(f"--secret {secret}: cannot be read ({error.strerror})") from None
        if not shared:
            raise ValueError(f"--secret {secret}: is empty; write one with: openssl rand -hex 32")
        self._address, self._request = address, request
        self._client = self._connect(SuperExecAuthHttpInterceptor(master_secret=shared, protected_methods=_PROTECTED))

    def check(self) -> None:
        """Check that tasks are given to holders of the secret alone, so that no other process runs this node's apps.

        Raises:
            Lost: The SuperNode is not reached.
            ValueError: It gives tasks to anybody, or does not know this secret. The message is one line.
        """
        asked = AcquireTaskRequest()  # of no type: takes no task
        with self._connect() as anybody:
            try:
                with _calling():
                    anybody.AcquireTask(asked)
            except Lost as error:
                if not _refused(error):
                    raise
            else:
                raise ValueError(
                    f"guard: the SuperNode at {self._address} gives tasks to anybody; start it with --isolation "
                    "process --superexec-auth-secret-file FILE"
                )
        try:
            with _calling():
                self._client.AcquireTask(asked)
        except Lost as error:
            if not _refused(error):
                raise
            raise ValueError(f"guard: the SuperNode at {self._address} was started with another secret") from None

    def acquire(self) -> Task | None:
        """Return the oldest waiting task, which is then this guard's; None if there is none.

        Raises:
            Lost: The SuperNode is not reached, or refuses.
        """
        with _calling():
            answer = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        return Task(self._connect(RuntimeTokenHttpInterceptor(str(answer.token)))) if answer.token else None

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def _connect(self, *interceptors: Any) -> RuntimeHttpClient:
        known = [RuntimeVersionHttpInterceptor(component_name=_NAME), *interceptors]
        client: Any = RuntimeHttpClient.from_server_address(self._address, True, None, known)
        client._client.close()
        larger = {"pull-task-input": MAX_BUNDLE + _BESIDE, "pull-messages": _BESIDE}
        larger["pull-object"] = self._request + 2**12
        bounded: Any = BoundedTransport(False, larger)  # type: ignore[arg-type]
        client._client = httpx.Client(transport=bounded, timeout=_TIMEOUT, follow_redirects=False)
        made: RuntimeHttpClient = client
        return made


class Task:
    """One message that the SuperNode wants answered. Use it in a `with`, which keeps the task alive.

    Attributes:
        given: Flower's input of the task: app, run, context.
        about: The message without its content.
    """

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client = client
        self._heart = HeartbeatSender(self._beat)

    def __enter__(self) -> Task:
        """Read what the message is about.

        Raises:
            Lost: The SuperNode is not reached, or refuses.
            Unusable: It gives no message.
        """
        self._heart.start()
        try:
            with _calling():
                self.given: PullTaskInputResponse = self._client.PullTaskInput(PullTaskInputRequest())
                messages = self._client.PullMessages(PullAppMessagesRequest())
                end = time.monotonic() + _SENDING
                while not messages.messages_list and time.monotonic() < end:
                    time.sleep(_AGAIN)  # the SuperNode makes the task first
                    messages = self._client.PullMessages(PullAppMessagesRequest())
            if len(messages.messages_list) != 1 or len(messages.message_object_trees) != 1:
                raise Unusable("a task has no message")
            self._tree = messages.message_object_trees[0]
            self.about = _about(messages.messages_list[0], self._tree.object_id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._heart.is_running:
            self._heart.stop()
        self._client.close()

    @property
    def app(self) -> str:
        """Return the SHA-256 (hex) of the app bundle's content."""
        return hashlib.sha256(self.given.fab.content).hexdigest()

    def is_app_of(self, publishers: Mapping[str, str]) -> bool:
        """Return whether one of these publishers has signed the app bundle."""
        fab = self.given.fab
        try:
            return bool(publishers) and _verify_fab(Fab(self.app, fab.content, dict(fab.verifications)), {**publishers})
        except Exception:  # a signature of another form
            return False

    def message(self, *, limit: int, objects: int) -> Message:
        """Return the message with its content, and let the SuperNode forget it.

        Raises:
            Lost: The SuperNode is not reached, or refuses.
            Unusable: The message cannot be read, or exceeds the limits.
        """
        run, node = self.given.run.run_id, FlowerNode(node_id=self.given.context.node_id)
        end = time.monotonic() + _SENDING

        def pull(name: str) -> bytes:
            while True:
                answer = self._client.PullObject(PullObjectRequest(node=node, run_id=run, object_id=name))
                if answer.object_available:
                    return bytes(answer.object_content)
                if not answer.object_found or time.monotonic() > end:
                    raise Unusable("an object of a message is missing")
                time.sleep(_AGAIN)  # the SuperNode gives the task first, and is still receiving the message

        with _calling():
            whole = assemble(self._tree, pull, limit=limit, objects=objects)
            done = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=self._tree.object_id)
            self._client.ConfirmMessageReceived(done)
        return make_message(self.about.metadata, whole.content)

    def send(self, reply: Message) -> None:
        """Send a reply.

        Raises:
            Lost: The SuperNode is not reached, or refuses.
        """
        with _calling(), no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            answer = self._client.PushMessages(
                PushAppMessagesRequest(
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                )
            )
            objects, run = get_all_nested_objects(reply), self.given.run.run_id
            for name in answer.objects_to_push:
                if name in objects:
                    self._client.PushObject(
                        PushObjectRequest(
                            node=FlowerNode(node_id=self.given.context.node_id),
                            run_id=run,
                            object_id=name,
                            session_id=answer.session_id,
                            object_content=objects[name].deflate(),
                        )
                    )
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def _beat(self) -> bool:
        try:
            self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except Exception:  # the next call reports it; here it would end a thread
            return False
        return True


def _about(proto: Any, name: str) -> Message:
    from flwr.common.serde import message_from_proto

    message = message_from_proto(proto)
    message.metadata.__dict__["_message_id"] = name
    return message


@contextmanager
def _calling() -> Iterator[None]:
    """Turn errors of HTTP into Lost."""
    try:
        yield
    except (httpx.HTTPError, FlowerError) as error:
        raise Lost(f"{type(error).__name__}") from error


def _refused(error: Lost) -> bool:
    """Return whether the SuperNode has answered, and does not accept the caller."""
    cause = error.__cause__
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code in (401, 403)
