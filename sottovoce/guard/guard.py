"""Guard of a node: it takes a SuperNode's messages, runs their apps in a sandbox, and answers with releases alone.

A reply holds nothing that an app has made. It is built anew from a mechanism's releases, which the ledger holds before,
and from constants of the policy. Nothing that an app does decides whether there is a reply: an app that fails, in
whatever way, counts as one whose update is zero and whose labels are the first, and is charged alike. A refusal depends
on the request, on the ledger, and on whether this machine can make a sandbox at all.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from numpy.typing import NDArray

from client.accounted import Content, Outgoing
from client.charging import constant
from client.device.fleet import Unusable
from client.flower_content import content_record, plain_content
from client.policy import Refused
from sottovoce.guard.policy import GuardPolicy
from sottovoce.guard.sandbox import Broken, size_of
from sottovoce.guard.supernode import Lost, SuperNode, Task

log = logging.getLogger(__name__)

#: The node is one user: all of its data is the unit of privacy.
_USER = 0
#: Seconds between two polls for a task, and before a SuperNode that is away is tried again.
_POLL, _AGAIN = 0.1, 2.0
#: Runs whose apps' state is kept.
_RUNS = 8

#: A value that leaves an app: record, key, and shape of the array, or None for a label.
Value = tuple[str, str, tuple[int, ...] | None]


class Guard:
    """Guard of one node.

    Args:
        policy: The operator's policy.
        node: The SuperNode.
        stop: Event that stops the guard.
    """

    def __init__(self, policy: GuardPolicy, node: SuperNode, stop: threading.Event) -> None:
        self._policy, self._node, self._stop = policy, node, stop
        self._states: dict[int, bytes] = {}

    def serve(self) -> None:
        """Answer messages until the guard is stopped.

        Raises:
            ValueError: No sandbox can be made, or the SuperNode gives tasks to others too. The message is one line.
        """
        self._policy.sandbox.check()
        checked = False
        while not self._stop.is_set():
            try:
                if not checked:
                    self._node.check()
                    log.info("guarding the node")
                checked = True
                if not self._one():
                    self._stop.wait(_POLL)
            except (Lost, Unusable) as error:
                checked = False  # another SuperNode may have come
                log.info(f"the SuperNode is not there, or gives no message ({error}); trying again")
                self._stop.wait(_AGAIN)

    def _one(self) -> bool:
        """Answer one message, if there is one."""
        task = self._node.acquire()
        if task is None:
            return False
        # drawn from the operating system's generator, before the request is read
        leaves = time.monotonic() + self._policy.window * (1 + secrets.randbelow(2**32) / 2**32) / 2
        with task:
            made = self._answer(task)
            if not self._stop.wait(max(0.0, leaves - time.monotonic())):
                task.send(Message(made, reply_to=task.about))
                said = f"refused: {made.reason}" if isinstance(made, Error) else "answered"
                log.info(f"run {task.given.run.run_id}: {said}")
        return True

    def _answer(self, task: Task) -> RecordDict | Error:
        """Return the content that leaves, charged, or a constant text. Raise Lost alone."""
        try:
            return self._released(task)
        except Lost:
            raise
        except BaseException as error:  # libraries' panics are no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            log.debug("a request was not answered", exc_info=True)
            if not isinstance(error, Refused | Unusable):  # the kind of error alone: its text may be private
                log.info(f"a request was not answered: {type(error).__name__}")
            refused = constant(Refused("malformed") if isinstance(error, Unusable) else error)
            return Error(refused.code, refused.text)

    def _released(self, task: Task) -> RecordDict:
        policy = self._policy
        kind = str(task.about.metadata.message_type)
        if task.app not in policy.apps and not task.is_app_of(policy.publishers):
            raise Refused("code")
        if task.given.run.fab_hash != task.app or task.given.fab.hash_str != task.app:
            raise Refused("code")
        if kind not in policy.accountant.releases:
            raise Refused("unaccounted")
        limits = policy.sandbox.limits
        message = task.message(limit=limits.request, objects=limits.objects)
        try:
            asked = plain_content(message.content)
        except (TypeError, ValueError):
            raise Refused("malformed") from None
        about = {"app": task.app, "settings": _settings(task)}

        def run() -> Content:
            return self._run(task, message, asked, policy.accountant.releases[kind])

        return content_record(*policy.accountant.answer(kind, asked, _USER, run, about))

    def _run(self, task: Task, message: Message, asked: Content, leaving: tuple[Outgoing, ...]) -> Content:
        """Return the app's answer; where it has failed, what stands for a zero update and for no label."""
        values = _values(leaving, asked)
        size, run = size_of(values), int(task.given.run.run_id)
        sandbox = self._policy.sandbox
        whole = message_to_proto(message).SerializeToString()
        try:
            block = sandbox.run(task.given.SerializeToString(), whole, self._states.get(run, b""), values)
        except Broken as error:
            log.info(f"no app has run: {error}")
            raise Refused("failed") from None
        if len(block) < size:
            log.info(f"run {run}: the app gave no valid answer in time: a release of nothing stands for it")
            return {out.name: asked.get(out.name, {}) for out in leaving if out.norm is not None}
        while len(self._states) >= _RUNS:
            self._states.pop(next(iter(self._states)))
        state = block[size:]
        self._states[run] = state if len(state) <= sandbox.limits.state else b""
        return _read(block[:size], values)


def _settings(task: Task) -> dict[str, str]:
    """Return the run's settings, which the server may have changed, as text by name."""
    given = task.given.context.run_config
    return {name: value.SerializeToString(deterministic=True).hex() for name, value in given.items()}


def _values(leaving: tuple[Outgoing, ...], asked: Content) -> list[Value]:
    """Return what an app is to give: arrays of the keys and shapes that it was sent, and labels."""
    values: list[Value] = []
    for out in leaving:
        if out.norm is None:
            record, _, key = out.name.partition(".")
            values.append((record, key, None))
        else:
            values += [(out.name, key, array.shape) for key, array in asked.get(out.name, {}).items()]
    return values


def _read(block: bytes, values: list[Value]) -> dict[str, dict[str, Any]]:
    """Return the values in a block of 8 bytes for each number: no format is parsed, and any bytes are some values."""
    read: dict[str, dict[str, Any]] = {}
    at = 0
    for record, key, shape in values:
        length = 8 * math.prod(shape or ())
        part, at = block[at : at + length], at + length
        value: int | NDArray[Any] = (
            int.from_bytes(part, "little", signed=True) if shape is None else np.frombuffer(part, "<f8").reshape(shape)
        )
        read.setdefault(record, {})[key] = value
    return read
