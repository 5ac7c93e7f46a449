"""Flower ClientApp that answers one query with releases or a constant text, and a mod for other ClientApps."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray

from client.accounted import Accountant
from client.charging import constant
from client.node import Node, load_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.store.ledger import LedgerError
from mechanisms.mechanism_text import read_mechanism
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import envelop, seal
from mechanisms.messages.wire import reply_to_record, request_from_record, request_identity, sealed_to_record

NODES = "SOTTOVOCE_NODES"
_log = logging.getLogger(__name__)

app = ClientApp()


@app.query("release")
def release(message: Message, context: Context) -> Message:
    """Answer a `query.release` message, for one user or a cohort."""
    return _reply(message, lambda: answer(message.content, find_node(context)))


def respond(message: Message, folder: Path, *, load: Callable[[Path], Node] = load_node) -> Message:
    """Return the reply of the node in a folder, in its current state, to a message: releases, or a constant text.

    Args:
        message: The message.
        folder: Folder of the node.
        load: Function that reads the node.
    """
    return _reply(message, lambda: answer(message.content, load(folder)))


def accounted(
    ledger: Path | str,
    policy: Policy | None = None,
    releases: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    *,
    instead: Mapping[str, float | None] | None = None,
    total: float | None = None,
    update: str | None = None,
    norm: float = 1.0,
    delta: float = 0.0,
) -> Mod:
    """Return a mod that lets another ClientApp's answers leave only through mechanisms, each charged before it is sent.

        ClientApp(mods=[accounted("ledger.sqlite", total=8.0, update="privunit:epsilon=2.0")])

    In this short form the arrays of each `train` answer leave as one update, and no metric does: num-examples is 1.
    `policy` and `releases` state anything else.

    Any other content of the app's answer makes the mod refuse the whole answer with a constant text. So does any
    exception of the app. Message types without an entry in `releases` are refused.

    Args:
        ledger: File of the user's ledger, created if it is missing, in a folder that exists. Clients may share it if
            each has a partition-id of its own: without one, all of them are one user.
        policy: Policy of the user, with a finite total, which holds at the policy's total_delta.
        releases: Parts that leave, by message type: all arrays of a record as one update, {"train": {"arrays":
            {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0}}}, or a label, {"query": {"metrics.label":
            {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 2}}}.
        instead: "record.key" -> the constant that replaces the app's value, or None to send nothing. "record.*" -> None
            for all other keys of the record.
        total: ε that a user may spend in all; the short form's policy. Pure ε: the sum of all answers' worst cases.
        update: Mechanism of the update and its parameters, as "privunit:epsilon=2.0"; without its size.
        norm: Length to which the update is clipped.
        delta: δ of the total, 0 or above. Above 0 all answers together are (total, delta)-private, by a privacy filter:
            it admits more answers of a small ε, whose worst cases may sum to more than the total.

    Raises:
        ValueError: The arguments do not fit together. The message is one line.
    """
    if (update is None) != (total is None) or (update is None) != (policy is not None and releases is not None):
        raise ValueError("accounted: give total and update, or a policy and releases")
    if policy is not None and delta:
        raise ValueError("accounted: delta goes with total; a policy has total_delta")
    if update is not None and total is not None:
        spec = read_mechanism(update, "accounted: update")
        if "norm" in spec:
            raise ValueError(f"accounted: update: give norm as an argument of its own, norm={spec['norm']}")
        policy, releases = _short(spec, total, delta, norm)
        instead = {"metrics.num-examples": 1, "metrics.*": None} | dict(instead or {})
    assert policy is not None and releases is not None
    if not (folder := Path(ledger).parent).is_dir():  # a mistyped path would be a new budget
        raise ValueError(f"accounted: {folder}: is no folder, so the ledger cannot be there; make it first")
    accountant = Accountant(ledger, policy, releases, instead or {})

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        def run() -> dict[str, dict[str, Any]]:
            try:
                answered = call_next(message, context)
            except SystemExit:  # its text is the app's, and Ray would send it to the server
                raise Refused("failed") from None
            except KeyboardInterrupt:
                raise KeyboardInterrupt from None
            if answered.has_error():
                raise Refused("failed")
            return plain_content(answered.content)

        def make() -> RecordDict:
            try:
                content = plain_content(message.content)
            except (TypeError, ValueError):
                raise Refused("malformed") from None
            user = int(context.node_config.get("partition-id", 0))
            try:
                return content_record(*accountant.answer(message.metadata.message_type, content, user, run))
            except Refused as refused:
                _log.warning("user %s: no answer leaves: %s", user, refused.text)
                raise

        return _reply(message, make)

    return mod


def _short(spec: dict[str, Any], total: float, delta: float, norm: float) -> tuple[Policy, dict[str, Any]]:
    """Return the policy and the releases of `accounted` with one update in each `train` answer."""
    policy = Policy(statistic=total, total=total, total_delta=delta)
    return policy, {"train": {"arrays": spec | {"norm": norm}}}


def _reply(message: Message, make: Callable[[], RecordDict]) -> Message:
    """Return the reply of a function, or a constant text. Never raise: the text of an exception would be sent."""
    try:
        return Message(make(), reply_to=message)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers' panics are no Exception
        _log.debug("a request was not answered", exc_info=True)
        if isinstance(error, LedgerError):  # its text names files and the system, and stays here
            _log.warning("%s", error)
        refused = constant(error)
        return Message(Error(refused.code, refused.text), reply_to=message)


def answer(content: RecordDict, node: Node) -> RecordDict:
    """Return a node's reply to a request, both as Flower records, sealed if the node has a key to seal to.

    Raises:
        Refused: The node does not answer the request. Other exceptions pass through.
    """
    try:
        request = request_from_record(content, node.vocabulary)
    except ValueError:
        raise Refused("malformed") from None
    policy = node.policy(request.arm)
    if node.exposed:
        raise Refused("unsealed")
    shard = node.shard(request.split)
    with node.ledger(request.arm) as ledger:
        reply = Sanitizer(policy, ledger, node.streams).answer(request, shard)
    return outgoing(reply, request, content, node)


def outgoing(reply: Reply, request: Request, content: RecordDict, node: Node) -> RecordDict:
    """Return a reply as it leaves a node: in clear without keys, else sealed to training server and shuffler.

    Args:
        reply: The reply.
        request: Its request.
        content: The request as it came.
        node: The node.
    """
    if node.seal is None or node.shuffler_seal is None:
        return reply_to_record(reply)
    sealed = seal(reply, request, node.seal)
    return sealed_to_record(envelop(sealed, request_identity(content), node.shuffler_seal, node.device_key))


def find_node(context: Context) -> Node:
    """Return the node of this process.

    It is a folder named by the partition, in $SOTTOVOCE_NODES, or, in a simulation, in `nodes` of the run's folder. A
    device is not found through the run's folder, because that comes with the run. Nor is a device whose answers leave
    within a window: they would leave at once.
    """
    partition = str(int(context.node_config["partition-id"]))
    if NODES in os.environ:
        node = load_node(Path(os.environ[NODES]) / partition)
        if not node.simulated and node.policy("").window:
            raise ValueError("node: `device serve` keeps its policy's window, and nothing does here")
        return node
    node = load_node(Path(str(context.run_config["out"])).expanduser() / "nodes" / partition)
    if not node.simulated:
        raise ValueError(f"node: a device's folder is named by ${NODES}")
    return node


def plain_content(record: RecordDict) -> dict[str, dict[str, Any]]:
    """Return a message's records, with arrays as NumPy arrays.

    Raises:
        ValueError: An array cannot be read.
        TypeError: An array is of no type that NumPy has.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Array):
            return value.numpy().copy()
        return f"bytes {value.hex()}" if isinstance(value, bytes) else value

    return {name: {key: plain(value) for key, value in values.items()} for name, values in record.items()}


def content_record(
    arrays: Mapping[str, Mapping[str, NDArray[Any]]], numbers: Mapping[str, Mapping[str, float]]
) -> RecordDict:
    """Return arrays and numbers, each by record and key, as a message's content."""
    records: dict[str, Any] = {
        name: ArrayRecord({key: Array(array) for key, array in of.items()}) for name, of in arrays.items()
    }
    return RecordDict(records | {name: MetricRecord({**values}) for name, values in numbers.items()})
