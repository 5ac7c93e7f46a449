"""Device as a Flower SuperNode that runs the installed client, and nothing else.

Flower's own SuperNode unpacks and runs the app that a run ships. This one only compares the app with the installed
client (`client.device.code`), and refuses a run that ships another. It is one process, without a listening port and
without child processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Error, Message
from flwr.common.logger import update_console_handler
from flwr.supercore.heartbeat import HeartbeatSender

from client.app import respond
from client.device.code import same_code
from client.device.fleet import Fleet, Lost, Rejected, WrongClock
from client.device.https import Unusable
from client.device.records import encode_records
from client.node import load_node
from mechanisms.messages.refusals import REFUSALS

log = logging.getLogger(__name__)


#: File of the process that serves a node's folder: its lock, and its node id at the SuperLink.
MARK = "served"
#: Seconds between two polls for messages: the most after the last message; the factor by which they grow with each
#: poll in vain, so that an idle device rarely wakes and rarely contacts the SuperLink; and their limit.
_POLL, _SLOWER, _SELDOM = 0.5, 1.1, 10.0
#: Seconds before an unreachable SuperLink is tried again: first, and at most.
_AGAIN = (0.5, 10.0)
#: Runs for which the result of the code comparison is cached.
_RUNS = 64

T = TypeVar("T")


class _Stopped(Exception):
    """Signal that the caller wants to stop."""


def serve(
    node: Path, *, superlink: str, root_certificates: Path, key: Path, stop: threading.Event | None = None
) -> None:
    """Answer the messages that the SuperLink passes on, for a device's folder, until `stop` is set or Ctrl-C.

    A SuperLink that is unreachable, or becomes so, is tried again.

    Args:
        node: Folder of the device.
        superlink: "host:port".
        root_certificates: File of the authority that must have signed its certificate.
        key: File of the node's private key, whose public key the SuperLink's operator has registered.
        stop: Event that stops the device.

    Raises:
        ValueError: The folder, an argument or the SuperLink cannot be used. The message is one line.
    """
    device = load_node(node)
    if device.simulated:
        raise ValueError(f"serve: {node}: is a simulation's node, with a seed; serve a device's folder")
    if device.exposed:
        raise ValueError(
            f"serve: {node}: its policy lets releases go only among those of {device.policy('').minimum_users:,} "
            "users, and it has no key to seal them to; install a bundle that holds one"
        )
    logging.getLogger("flwr").setLevel(logging.ERROR)
    update_console_handler(colored=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
    fleet = Fleet(superlink, root_certificates, key)
    with _alone(node) as mark:
        encode_records(device)
        _Server(node, fleet, superlink, stop or threading.Event()).run(mark)


class _Server:
    def __init__(self, node: Path, fleet: Fleet, address: str, stop: threading.Event) -> None:
        self._node = node
        self._window = 0.0
        self._fleet = fleet
        self._address = address
        self._stop = stop
        self._known: dict[int, bool] = {}

    def run(self, mark: Any) -> None:
        """Activate the node, and answer messages until the device is stopped."""
        heart = HeartbeatSender(self._fleet.beat)
        try:
            before = _number(mark.read())
            self._patiently(lambda: self._activate(before), starting=True)
            mark.seek(0)
            mark.write(f"{self._fleet.node_id}\n")
            mark.truncate()
            mark.flush()
            heart.start()
            log.info(f"node {self._fleet.node_id} at {self._address}")
            longest = _POLL
            # random, or devices that answered together would poll together ever after
            while not self._stop.wait(longest * (1 + secrets.randbelow(2**32) / 2**32) / 2):
                longest = min(longest * _SLOWER, _SELDOM)
                while self._one():
                    longest = _POLL
        except _Stopped:
            pass
        except Rejected:
            raise ValueError(
                f"--superlink {self._address}: does not accept this node's key; register its public key there, and "
                "serve it in one place"
            ) from None
        finally:
            if heart.is_running:
                heart.stop()
            self._fleet.close()

    def _activate(self, before: int | None) -> None:
        """Activate the node, and delay signals until the SuperLink has answered.

        A stop between its decision and its answer would leave a node behind that it believes to be active.
        """
        with _told_after():
            self._fleet.activate(before)

    def _one(self) -> bool:
        """Answer one message, if there is one. An unanswerable message is skipped, with a line of progress."""
        try:
            received = self._patiently(self._fleet.receive)
            if received is None:
                return False
            self._answer(*received)
        except (Rejected, _Stopped):
            raise
        except Exception as error:  # no content of a message prevents the next answer
            why = str(error) if isinstance(error, Unusable) else type(error).__name__
            log.info(f"a message was left unanswered: {why}")
            self._stop.wait(_POLL)
        return not self._stop.is_set()

    def _answer(self, message: Message, tree: Any) -> None:
        run = message.metadata.run_id
        request = self._fetch(message, tree) if self._ours(run) else "code"
        # Drawn from the operating system's generator after the SuperLink's last word, and before a record is read: a
        # SuperLink that holds back a part of the message moves the window, and cannot outwait it.
        leaves = time.monotonic() + self._within() * (1 + secrets.randbelow(2**32) / 2**32) / 2
        if isinstance(request, str):
            reply = Message(Error(*REFUSALS[request]), reply_to=message)
        else:
            reply = respond(request, self._node)
        if self._stop.wait(max(0.0, leaves - time.monotonic())):
            raise _Stopped
        # created anew: the time of creation in a message, to the microsecond, would reveal how long the answer took
        reply = Message(reply.error if reply.has_error() else reply.content, reply_to=message)
        about, objects = self._fleet.parts(reply)
        session, wanted = self._patiently(lambda: self._fleet.announce(about))
        for name in wanted:
            if name in objects:
                self._patiently(partial(self._fleet.push, run, session, name, objects[name]))
        outcome = f"refused: {reply.error.reason}" if reply.has_error() else "answered"
        log.info(f"run {run}: {outcome}")

    def _within(self) -> float:
        """Return the window of the current policy: a bundle may have been installed while the device is served."""
        with suppress(ValueError):  # while the file is being written, the last known window holds
            self._window = load_node(self._node).policy("").window
        return self._window

    def _fetch(self, message: Message, tree: Any) -> Message | str:
        """Return a message with its content; the name of a refusal if it is incomplete or unreadable."""
        try:
            request = self._patiently(lambda: self._fleet.fetch(message, tree))
        except Unusable as error:
            log.info(f"a message is refused: {error}")
            return "malformed"  # an answer, so that the server does not wait for more
        self._patiently(lambda: self._fleet.confirm(message))
        return request

    def _ours(self, run: int) -> bool:
        """Return whether a run ships the code that is installed here. Each run is checked once."""
        if run not in self._known:
            try:
                name, fab = self._patiently(lambda: self._fleet.fab(run))
            except Unusable:
                return False
            while len(self._known) >= _RUNS:
                self._known.pop(next(iter(self._known)))
            self._known[run] = hashlib.sha256(fab).hexdigest() == name and same_code(fab)
        return self._known[run]

    def _patiently(self, call: Callable[[], T], *, starting: bool = False) -> T:
        """Return the result of the call, once the SuperLink is reachable.

        Args:
            call: The call.
            starting: Whether an error that no waiting can resolve is raised.
        """
        wait, longest = _AGAIN
        lost = False
        while True:
            if self._stop.is_set():
                raise _Stopped
            try:
                done = call()
            except Lost as error:
                if starting and error.tls:
                    raise ValueError(f"--superlink {self._address}: {error}") from None
                if isinstance(error, WrongClock):
                    log.info(f"{error}; until then the SuperLink's time is signed")
                elif not lost:
                    log.info(f"the SuperLink at {self._address} cannot be reached ({error}); trying again")
                lost = lost or not isinstance(error, WrongClock)
                self._stop.wait(wait)
                wait = min(2 * wait, longest)
            except Unusable as error:
                if starting:
                    raise ValueError(f"--superlink {self._address}: is no SuperLink ({error})") from None
                raise
            else:
                if lost:
                    log.info(f"the SuperLink at {self._address} is there")
                return done


@contextmanager
def _told_after() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _alone(node: Path) -> Iterator[Any]:
    """Open the mark of a node's folder while no other process serves it. Raise ValueError if another does."""
    path = node / MARK
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ValueError(f"serve: {path}: cannot be written ({error.strerror})") from None
    with os.fdopen(opened, "r+", errors="replace") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"serve: {node}: is served by another process; stop that one first") from None
        yield mark


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) <= 20 else None
