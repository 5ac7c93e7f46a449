"""Connection of a node to its SuperLink; the only file of the client that uses Flower's Fleet API.

It has TLS and the node's key, as Flower's own SuperNode has, with stricter rules. An answer is read up to a limit of
its kind (`MAX_RESPONSE` at most) and never decompressed. Redirections are not followed. No message of a SuperLink ends
the process or is logged. The time that an answer took is not reported.
"""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_tree,
    get_object_type_from_object_content,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient

from client.device.code import MAX_BUNDLE
from client.device.https import SUPERLINK, BoundedTransport, Unusable, context_for, host_and_port, tls_error
from mechanisms.messages.wire import MAX_REQUEST_BYTES

#: Bytes of one answer of a SuperLink, and of all objects of one message: the largest request, and its descriptions.
MAX_RESPONSE = MAX_REQUEST_BYTES + 2**20
#: A message is made of its records, their arrays and their chunks, each an object.
MAX_OBJECTS = 256
#: Bytes of all objects of a message but chunks: data in many small parts takes some 70 times its own memory.
MAX_PARTS = 2**20
_LARGER = {"pull-object": MAX_RESPONSE, "get-fab": MAX_BUNDLE + 2**12}
#: First bytes of a chunk's content, and the largest size of its head.
_CHUNK, _HEAD = b"ArrayChunk ", 64
#: Seconds until a node that is not heard of counts as gone is twice this (flwr.common.constant.HEARTBEAT_PATIENCE). It
#: is the pace of Flower's HeartbeatSender, whatever interval it was promised: with less, a node is gone between beats.
HEARTBEAT = 30.0
#: Seconds that the SuperLink may take for a step of an answer, and for the last words.
_TIMEOUT = 30.0
_LAST = 3.0
#: Seconds that a message which was announced may take to come whole, and between two looks.
_SENDING, _AGAIN = 60.0, 0.2
#: HTTP statuses of a SuperLink that is temporarily unavailable, and of a failed activation in Flower.
_BUSY = (502, 503, 504)
_NOT_ACTIVATED = 2004
#: Seconds that a clock may be ahead, or behind, before that is why a SuperLink refuses a key. Its Date has whole ones.
_AHEAD, _BEHIND = 3.0, 295.0
#: A time that differs more, by a century, is refused: near the end of the calendar nothing could be signed any more.
_FARTHEST = 100 * 365.25 * 24 * 3600.0

T = TypeVar("T")


class Lost(Exception):
    """Error of a SuperLink that cannot be reached now.

    Attributes:
        tls: Whether the other side does not match the certificate, or has no TLS.
    """

    def __init__(self, why: str, *, tls: bool = False) -> None:
        self.tls = tls
        super().__init__(why)


class WrongClock(Lost):
    """Error of a SuperLink that refuses this device's time; later requests are signed with the SuperLink's time.

    Attributes:
        seconds: Seconds by which this clock is ahead.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        where = "ahead of" if seconds > 0 else "behind"
        super().__init__(f"this device's clock is {abs(seconds):,.0f} s {where} the SuperLink's; set it right")


class Rejected(Exception):
    """Error of a SuperLink that does not know this node's key."""


class Fleet:
    """Connection of one node. Its methods raise Lost, Rejected or Unusable, and nothing else."""

    def __init__(self, address: str, root_certificates: Path, key: Path) -> None:
        """Check the arguments, without connecting.

        Raises:
            ValueError: An argument cannot be used. The message is one line.
        """
        self._private_key = _key(key)
        host_and_port(address, "--superlink")
        self._client = _Client(f"https://{address}", trusting(root_certificates), self._private_key)
        self._node = FlowerNode()

    @property
    def node_id(self) -> int:
        """Return the number by which the SuperLink identifies this node, once it is active."""
        return int(self._node.node_id)

    def activate(self, before: int | None) -> None:
        """Report the node as active to the SuperLink.

        Args:
            before: Node id of an earlier process that was active and has ended, perhaps without deactivating. Flower
                does not activate a node that it believes to be active.
        """
        key = public_key_to_bytes(self._private_key.public_key())
        request = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT)
        try:
            self._node = FlowerNode(node_id=self._call(self._client.ActivateNode, request).node_id)
        except Rejected:
            if before is None:
                raise
            self._call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=before))
            self._node = FlowerNode(node_id=self._call(self._client.ActivateNode, request).node_id)

    def beat(self) -> bool:
        """Send a heartbeat to the SuperLink, and return whether it arrived. Never raise."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        try:
            return bool(self._call(self._client.SendNodeHeartbeat, request).success)
        except Exception:  # it has its own thread; the next call reports the error
            return False

    def close(self) -> None:
        """Deactivate the node if the SuperLink can be reached, and disconnect. Never raise."""
        self._client.hurry()
        try:
            if self.node_id:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))
        except Exception:
            pass
        self._client.close()

    def receive(self) -> tuple[Message, Any] | None:
        """Return a message for this node, without its content, and the tree of its objects; None if there is none."""
        answer = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        with _reading():
            message = message_from_proto(answer.messages_list[0])
            tree = answer.message_object_trees[0]
        return message, tree

    def fab(self, run: int) -> tuple[str, bytes]:
        """Return the app that a run ships: its SHA-256 (hex) as the run states it, and the archive."""
        name = str(self._call(self._client.GetRun, GetRunRequest(node=self._node, run_id=run)).run.fab_hash)
        answer = self._call(self._client.GetFab, GetFabRequest(node=self._node, hash_str=name, run_id=run))
        return name, bytes(answer.fab.content)

    def fetch(self, message: Message, tree: Any) -> Message:
        """Return the message with its content."""
        run, end = message.metadata.run_id, time.monotonic() + _SENDING

        def pull(name: str) -> bytes:
            request = PullObjectRequest(node=self._node, run_id=run, object_id=name)
            while True:
                answer = self._call(self._client.PullObject, request)
                if answer.object_available:
                    return bytes(answer.object_content)
                if not answer.object_found or time.monotonic() > end:
                    raise Unusable("an object of a message is missing")
                time.sleep(_AGAIN)  # the sender has announced the message, and is still sending it

        full_message = assemble(tree, pull, limit=MAX_RESPONSE)
        with _reading():
            return make_message(message.metadata, full_message.content)

    def confirm(self, message: Message) -> None:
        """Allow the SuperLink to delete a message."""
        about = message.metadata
        self._call(
            self._client.ConfirmMessageReceived,
            ConfirmMessageReceivedRequest(node=self._node, run_id=about.run_id, message_object_id=about.message_id),
        )

    def parts(self, reply: Message) -> tuple[PushMessagesRequest, dict[str, bytes]]:
        """Return a reply as it is sent: its address, and its objects by their hashes."""
        with _reading(), no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            about = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
        return about, objects

    def announce(self, about: PushMessagesRequest) -> tuple[str, list[str]]:
        """Announce a reply, and return its session and the names of the objects that the SuperLink requests."""
        answer = self._call(self._client.PushMessages, about)
        return str(answer.session_id), [str(name) for name in answer.objects_to_push]

    def push(self, run: int, session: str, name: str, content: bytes) -> None:
        """Send an object of a reply."""
        request = PushObjectRequest(
            node=self._node, run_id=run, session_id=session, object_id=name, object_content=content
        )
        self._call(self._client.PushObject, request)

    def _call(self, method: Callable[[Any], T], request: Any) -> T:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            refusal = _refusal(error.response)
            if isinstance(refusal, Rejected) and (wrong := self._client.corrected(error.response)) is not None:
                raise WrongClock(wrong) from None
            raise refusal from None
        except httpx.TransportError as error:
            raise _lost(error) from None
        except Unusable:
            raise
        except Exception as error:  # any error of the reader
            raise Unusable(f"an answer of the SuperLink cannot be read ({type(error).__name__})") from None


def assemble(tree: Any, pull: Callable[[str], bytes], *, limit: int, objects: int = MAX_OBJECTS) -> Any:
    """Return a message of Flower's, assembled from its objects.

    Args:
        tree: Tree of the objects.
        pull: Function that returns an object by its name.
        limit: Bytes of all objects together, and of their assembled size: an array may name the same chunk many times.
        objects: Number of objects.

    Raises:
        Unusable: The objects are no message, or exceed the limit. Exceptions of `pull` pass through.
    """
    with _reading():
        names = [part.object_id for part in islice(iterate_object_tree(tree), objects + 1)]
    if len(names) > objects:
        raise Unusable("a message has too many objects")
    contents: dict[str, bytes] = {}
    size = parts = 0
    for name in names:
        if name not in contents:
            content = contents[name] = pull(name)
            size += len(content)
            parts += 0 if _is_chunk(content) else len(content)
        if size > limit or parts > MAX_PARTS:
            raise Unusable("a message is too large")
    with _reading():
        if sum(_grown(content, contents) for content in contents.values()) > limit:
            raise Unusable("a message is too large")
        return inflate_object_from_contents(tree.object_id, contents)


def _is_chunk(content: bytes) -> bool:
    """Return whether an object is a piece of an array: plain bytes after a short head."""
    return content.startswith(_CHUNK) and content.find(b"\0", 0, _HEAD) > 0


def _grown(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return the number of bytes of an object after assembly, if it is an array; 0 for others."""
    if get_object_type_from_object_content(content) != "Array":
        return 0
    chunks = get_object_children_ids_from_object_content(content)
    named = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return sum(len(contents[chunks[i]]) for i in named)


@contextmanager
def _reading() -> Iterator[None]:
    """Turn any exception from reading a SuperLink's data into Unusable."""
    try:
        yield
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"a message cannot be read ({type(error).__name__})") from None


class _Client(FleetHttpClient):
    """Flower's client of the Fleet API, with limits on what it reads; signs each request as Flower's SuperNodes do.

    The signed time is the SuperLink's if that differs: it accepts no time that is 5 s ahead of its own or 305 s behind.
    """

    def __init__(self, url: str, context: ssl.SSLContext, key: ec.EllipticCurvePrivateKey) -> None:
        super().__init__(url, interceptors=[self], verify=context)
        self._client.close()
        bounded = BoundedTransport(context, _LARGER)
        self._client = httpx.Client(transport=bounded, timeout=_TIMEOUT, follow_redirects=False)
        self._key, self.offset = key, timedelta(0)

    def hurry(self) -> None:
        """Shorten the timeout to that of the last messages."""
        self._client.timeout = httpx.Timeout(_LAST)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Sign a request and send it."""
        time_of_it = (_now() + self.offset).isoformat()
        public, signature = public_key_to_bytes(self._key.public_key()), sign_message(self._key, time_of_it.encode())
        context.request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = b64encode(public).decode()
        context.request.headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(signature).decode()
        context.request.headers[TIMESTAMP_HEADER] = time_of_it
        return call_next(context)

    def corrected(self, response: httpx.Response) -> float | None:
        """Return by how many seconds the signed time is ahead of the SuperLink's (negative: behind), and correct it.

        Later requests are signed with the SuperLink's time. Return None if it does not differ, or if the SuperLink does
        not state its time.
        """
        try:
            server_time = parsedate_to_datetime(response.headers["date"])
            wrong = (_now() + self.offset - server_time).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
        if -_BEHIND < wrong < _AHEAD or abs(wrong) > _FARTHEST:
            return None
        self.offset = server_time - _now()
        return wrong


def _now() -> datetime:
    return datetime.now(UTC)


def _refusal(response: httpx.Response) -> Exception:
    status = response.status_code
    if status in _BUSY:
        return Lost(f"HTTP status {status}")
    try:
        error = FlowerError.from_json(response.text)
    except Exception:  # JSON too deep for its reader, or an unheard-of encoding
        error = None
    if status == httpx.codes.UNAUTHORIZED or (error is not None and error.code == _NOT_ACTIVATED):
        return Rejected()
    return Unusable(f"the SuperLink answers with HTTP status {status}")


def _lost(error: httpx.TransportError) -> Lost:
    cause = tls_error(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Lost(f"its certificate is not good for it: {cause.verify_message}", tls=True)
    if cause is not None and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Lost("what answers there does not speak TLS", tls=True)
    return Lost(str(error) or type(error).__name__)


def trusting(path: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts these certificates for a SuperLink, and no certificates of the system."""
    context = context_for(SUPERLINK)
    try:
        context.load_verify_locations(cadata=path.read_text(encoding="ascii"))
    except (ssl.SSLError, ValueError):
        raise ValueError(f"--root-certificates {path}: holds no certificate in PEM") from None
    except OSError as error:
        raise ValueError(f"--root-certificates {path}: cannot be read ({error.strerror})") from None
    return context


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ValueError(f"--key {path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"--key {path}: is no elliptic-curve private key in OpenSSH's format without a password")
    return key
