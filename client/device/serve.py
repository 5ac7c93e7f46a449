"""A device as a Flower SuperNode that runs the installed client, and nothing else.

Flower's own SuperNode unpacks the app that a run ships, and runs it. Here a run's app is only compared with the
installed client (`client.device.code`): a run that ships another is refused. One process, no port that listens, no
child.
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
from client.device.code import identity, same_code
from client.device.fleet import Fleet, Lost, Rejected, Unusable, WrongClock
from client.device.records import encode_records
from client.node import load_node
from mechanisms.messages.refusals import REFUSALS

Progress = Callable[[str], None]

#: Kept by whoever serves a node's folder: its lock, and the node id that the SuperLink knows it by.
MARK = "served"
#: Seconds between two questions for messages: at most so many after the last message; by what factor they grow with
#: each question in vain, so that an idle device wakes, and a SuperLink is asked, seldom; and where that ends.
_POLL, _SLOWER, _SELDOM = 0.5, 1.1, 10.0
#: Seconds before a SuperLink that is not there is tried again: first, and at most.
_AGAIN = (0.5, 10.0)
#: Runs whose code is remembered to be this client's, or not.
_RUNS = 64

T = TypeVar("T")


class _Stopped(Exception):
    """Whoever started this wants it to end."""


def serve(
    node: Path, *, superlink: str, root_certificates: Path, key: Path, progress: Progress,
    stop: threading.Event | None = None,
) -> None:  # fmt: skip
    """Answer what the SuperLink passes on, for a device's folder, until `stop` is set or Ctrl-C.

    superlink: "host:port". root_certificates: of the authority that its certificate must come from. key: the node's
    private key, whose public one the SuperLink's operator has registered. progress: is given lines for people; nothing
    that came from the SuperLink is in them.
    Raises ValueError, one line, where the folder, an argument or the SuperLink cannot be used. A SuperLink that is not
    there, or goes away, is waited for.
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
        _Server(node, fleet, superlink, progress, stop or threading.Event()).run(mark)


class _Server:
    def __init__(self, node: Path, fleet: Fleet, address: str, progress: Progress, stop: threading.Event) -> None:
        self._node = node
        self._window = 0.0
        self._fleet = fleet
        self._address = address
        self._progress = progress
        self._stop = stop
        self._known: dict[int, bool] = {}

    def run(self, mark: Any) -> None:
        heart = HeartbeatSender(self._fleet.beat)
        try:
            before = _number(mark.read())
            self._patiently(lambda: self._activate(before), starting=True)
            mark.seek(0)
            mark.write(f"{self._fleet.node_id}\n")
            mark.truncate()
            mark.flush()
            heart.start()
            self._progress(f"node {self._fleet.node_id} at {self._address}, with the client {identity()[:16]}")
            longest = _POLL
            # by chance, or devices that have answered together would ask together ever after
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
        """Told to end between the SuperLink's decision and its answer, this would leave a node behind that is believed
        to be there; so it is told after."""
        with _told_after():
            self._fleet.activate(before)

    def _one(self) -> bool:
        """Answer one message, if there is one. A message that cannot be answered is left, with a line."""
        try:
            received = self._patiently(self._fleet.receive)
            if received is None:
                return False
            self._answer(*received)
        except (Rejected, _Stopped):
            raise
        except Exception as error:  # whatever a message holds, the next one is answered
            why = str(error) if isinstance(error, Unusable) else type(error).__name__
            self._progress(f"a message was left unanswered: {why}")
            self._stop.wait(_POLL)
        return not self._stop.is_set()

    def _answer(self, message: Message, tree: Any) -> None:
        run = message.metadata.run_id
        # drawn from the operating system's generator, before the question is looked at
        leaves = time.monotonic() + self._within() * (1 + secrets.randbelow(2**32) / 2**32) / 2
        reply = self._reply(message, tree) if self._ours(run) else Message(Error(*REFUSALS["code"]), reply_to=message)
        if self._stop.wait(max(0.0, leaves - time.monotonic())):
            raise _Stopped
        # made anew: a message says to the microsecond when it was made, and that would be how long the answer took
        reply = Message(reply.error if reply.has_error() else reply.content, reply_to=message)
        about, objects = self._fleet.parts(reply)
        session, wanted = self._patiently(lambda: self._fleet.announce(about))
        for name in wanted:
            if name in objects:
                self._patiently(partial(self._fleet.push, run, session, name, objects[name]))
        said = f"refused: {reply.error.reason}" if reply.has_error() else "answered"
        self._progress(f"run {run}: {said}")

    def _within(self) -> float:
        """The window of the policy as it is now: a bundle may have been installed since the device is served."""
        with suppress(ValueError):  # of a file that somebody is writing: the window that there was
            self._window = load_node(self._node).policy("").window
        return self._window

    def _reply(self, message: Message, tree: Any) -> Message:
        """What this device says to a message; a constant text where it does not come whole or cannot be read, so that
        nobody waits for more."""
        try:
            whole = self._patiently(lambda: self._fleet.fetch(message, tree))
        except Unusable as error:
            self._progress(f"a message is refused: {error}")
            return Message(Error(*REFUSALS["malformed"]), reply_to=message)
        self._patiently(lambda: self._fleet.confirm(message))
        return respond(whole, self._node)

    def _ours(self, run: int) -> bool:
        """Whether a run ships the code that is installed here. Looked at once for each run."""
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
        """What the call returns, once the SuperLink is there. starting: what no waiting mends is an error."""
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
                    self._progress(f"{error}; until then the SuperLink's time is signed")
                elif not lost:
                    self._progress(f"the SuperLink at {self._address} cannot be reached ({error}); trying again")
                lost = lost or not isinstance(error, WrongClock)
                self._stop.wait(wait)
                wait = min(2 * wait, longest)
            except Unusable as error:
                if starting:
                    raise ValueError(f"--superlink {self._address}: is no SuperLink ({error})") from None
                raise
            else:
                if lost:
                    self._progress(f"the SuperLink at {self._address} is there")
                return done


@contextmanager
def _told_after() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the block has ended."""
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
    """The mark of a node's folder, opened, while nobody else serves it. Raises ValueError where somebody does."""
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
