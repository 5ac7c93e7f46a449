"""Many nodes in one process, for a benchmark: each makes the Fleet API's calls of a device, without real work.

Each node has its own key, and calls as `client.device.fleet` does. `python -m benchmarks.nodes` reads a `Crowd` as JSON
on stdin's first line, and connects all of its nodes. It then answers each line of stdin with a line of counts, {"up",
"seconds", "polls", "held", "answered"}, until stdin ends. held is the number of nodes that the SuperLink has answered
within the last minute.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import numpy as np
from flwr.app import Message

from client.device.fleet import Fleet, Lost
from client.node import DEVICE_KEY
from mechanisms.messages.sealed import Sealed, envelop, sealed_bytes
from mechanisms.messages.wire import request_from_record, request_identity, sealed_to_record

#: Threads that work for the nodes in turn, and seconds between a node's heartbeats.
_THREADS, _BEAT = 8, 20.0
#: Seconds after which a node without an answer counts as lost: Flower's own limit for a silent node.
_HELD = 60.0


@dataclass(frozen=True)
class Crowd:
    """Nodes of one process.

    Args:
        superlink: HOST:PORT.
        root_certificates: Certificates of the authority.
        nodes: Their folders, each with node.key and device.key.
        first: Number of the first node's user; node i has user `first` + i.
        rows: Rows in one node's answer, by stage.
        shuffler: Public key of the shuffler (hex).
    """

    superlink: str
    root_certificates: str
    nodes: list[str]
    first: int
    rows: dict[str, int]
    shuffler: str


class Nodes:
    """Nodes that work until the process ends.

    Args:
        crowd: The nodes.
    """

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._waiting: Queue[tuple[int, Fleet]] = Queue()
        self._beaten: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self.up = self.polls = self.answered = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Return the number of nodes whose call the SuperLink has answered within the last minute."""
        with self._lock:
            return sum(time.monotonic() - at < _HELD for at in self._heard.values())

    def start(self) -> None:
        """Connect all nodes, and then poll for messages."""
        start = time.perf_counter()
        coming = list(enumerate(self._crowd.nodes))
        self._together(lambda: self._come(coming))
        self.seconds = time.perf_counter() - start
        for _ in range(_THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    def _together(self, work: object) -> None:
        threads = [threading.Thread(target=work) for _ in range(_THREADS)]  # type: ignore[arg-type]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _come(self, coming: list[tuple[int, str]]) -> None:
        while True:
            with self._lock:
                if not coming:
                    return
                i, folder = coming.pop()
            fleet = Fleet(self._crowd.superlink, Path(self._crowd.root_certificates), Path(folder) / "node.key")
            while True:
                with suppress(Lost):
                    fleet.activate(None)
                    break
            self._beaten[i] = self._heard[i] = time.monotonic()
            self._waiting.put((i, fleet))
            with self._lock:
                self.up += 1

    def _work(self) -> None:
        while True:
            i, fleet = self._waiting.get()
            with suppress(Lost):
                if time.monotonic() - self._beaten[i] > _BEAT:
                    fleet.beat()
                    self._beaten[i] = time.monotonic()
                received = fleet.receive()
                with self._lock:
                    self.polls += 1
                    self._heard[i] = time.monotonic()
                if received is not None:
                    self._answer(i, fleet, *received)
            self._waiting.put((i, fleet))

    def _answer(self, i: int, fleet: Fleet, about: Message, tree: object) -> None:
        message = fleet.fetch(about, tree)
        fleet.confirm(about)
        request = request_from_record(message.content)
        n, width = self._crowd.rows[request.stage], sealed_bytes(request)
        rows = np.frombuffer(os.urandom(n * width), np.uint8).reshape(n, width)  # nobody opens them
        users, records = np.full(n, self._crowd.first + i, np.int64), np.arange(n, dtype=np.int64)
        device = bytes.fromhex((Path(self._crowd.nodes[i]) / DEVICE_KEY).read_text())
        identity, shuffler = request_identity(message.content), bytes.fromhex(self._crowd.shuffler)
        outer = envelop(Sealed(users, records, rows), identity, shuffler, device)
        reply = Message(sealed_to_record(outer), reply_to=message)
        announced, objects = fleet.parts(reply)
        session, wanted = fleet.announce(announced)
        for name in wanted:
            fleet.push(about.metadata.run_id, session, name, objects[name])
        with self._lock:
            self.answered += 1


def main() -> None:
    """Run the nodes."""
    nodes = Nodes(Crowd(**json.loads(sys.stdin.readline())))
    nodes.start()
    for _ in sys.stdin:
        done = {
            "up": nodes.up,
            "seconds": nodes.seconds,
            "polls": nodes.polls,
            "held": nodes.held,
            "answered": nodes.answered,
        }
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
