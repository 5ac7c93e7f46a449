"""Time and memory of one round of simulated users through Flower on Ray.

Each user releases an embedding and a label.

    python -m benchmarks.round 10000 100000 1000000
    python -m benchmarks.round flower 1000

The second command has plain Flower with a node for each user and no work in it.

Everything but the encoder is real: nodes' folders as `hand_out` writes them, the client's handler with its policy and
ledger, Flower's messages, validation and the shuffler. Embeddings are random unit vectors of one shared table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.models.embeddings import TableEmbeddings, Tables
from client.store.text_column import TextColumn
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, Projection
from mechanisms.messages.request import Request
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from server.protocols.drive import Driver
from server.protocols.protocol import Public
from server.query import MESSAGE_TYPE
from simulations.corpora.corpus import Corpus
from simulations.experiment import ArmSetup, from_table
from simulations.experiment.sections import Population
from simulations.progress import progress_lines
from simulations.run.collect import FlowerUsers
from simulations.run.partition import hand_out
from simulations.run.prepare import Held, Holders
from simulations.transport.engine import run_on_flower

WIDTH, DIM, CLASSES = 384, 16, 2
_IDENTITY = "be" * 32
_NAMES = tuple(str(c) for c in range(CLASSES))
_EMBEDDING, _LABEL = Purkayastha(dim=DIM, epsilon=10.0), RandomizedResponse(epsilon=2.0, classes=CLASSES)
_ROWS = 1 << 14  # rows of the table that are made at once
_SAMPLE_SECONDS = 0.5

#: Client without any work, which leaves Flower's own cost of a message.
idle = ClientApp()


@idle.query("release")
def _answer_at_once(message: Message, context: Context) -> Message:
    del context
    return Message(RecordDict(), reply_to=message)


def run(users: int, *, seed: int, folder: Path) -> dict[str, Any]:
    """Run one round of users with one record each, in an empty folder.

    "round" is the time from the request to the shuffled batch. Before it, "warm-up" sends every node an empty request,
    so that "round" includes no actor's imports. Memory is the proportional set size of this process, Ray's and the
    actors' together; "before" is that of set-up.

    Args:
        users: Number of users.
        seed: Seed of the round.
        folder: Empty folder.

    Returns:
        {"users", "nodes", "delivered", "seconds": {phase: s}, "users_per_second", "bytes_per_user" (on the wire, of the
        round's answers), "memory": {"before", "peak", "after"} in bytes}.
    """
    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[name], clock = now - clock, now

    folder.mkdir(parents=True, exist_ok=True)
    setups, people = _settings(users, seed)
    least = setups[0].shuffle.least
    held = _held(users, _table(users, seed, folder / "table.npy"), seed)
    lap("table")
    placed = hand_out(setups, people, Public((), None, _NAMES, _Shared()), held, folder / "nodes", seed=seed)
    lap("hand-out")
    memory: dict[str, int] = {}
    delivered = wire = 0

    def job(grid: Any) -> None:
        nonlocal delivered, wire
        lap("start")
        asking = FlowerUsers(grid, people, held, seed=seed, nodes=folder / "nodes")
        driver = Driver(asking, name="round")
        driver.ask(_request(seed, least, "test"))
        lap("warm-up")
        with Memory() as sampled:
            batch = driver.ask(_request(seed, least, "train"))
            lap("round")
        memory.update(before=sampled.before, peak=sampled.peak, after=sampled.now())
        delivered = batch.users
        wire = sum(r.bytes_per_row for r in batch.releases) + 2 * np.dtype(np.int64).itemsize

    run_on_flower(job, nodes=placed, folder=folder / "nodes")
    lap("stop")
    return {
        "users": users,
        "nodes": placed,
        "delivered": delivered,
        "seconds": seconds,
        "users_per_second": users / seconds["round"],
        "bytes_per_user": wire,
        "memory": memory,
    }


def flower_per_user_rate(nodes: int, *, folder: Path) -> float:
    """Return Flower's answers a second on Ray, with one node for each user and no work in the client.

    It is that of a second round of `nodes` messages, so that one-time costs do not count.
    """
    rate = 0.0

    def job(grid: Any) -> None:
        nonlocal rate
        for _ in range(2):
            start = time.perf_counter()
            ids = list(grid.get_node_ids())
            messages = [Message(content=RecordDict(), dst_node_id=n, message_type=MESSAGE_TYPE) for n in ids]
            answers = list(grid.send_and_receive(messages, timeout=3600.0))
            rate = len(answers) / (time.perf_counter() - start)

    run_on_flower(job, nodes=nodes, folder=folder, app=idle)
    return rate


class Memory:
    """Context that samples the memory of this process and its descendants. It needs Linux, and reads 0 elsewhere."""

    def __init__(self) -> None:
        self.before = self.peak = self.now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, self.now())

    def now(self) -> int:
        """Return the bytes now, with a page that k processes share counted as a k-th for each."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:  # the name in brackets may hold any character; after it come the state and the parent
                parent = int(entry.read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(entry.parent.name))
        family, total = [os.getpid()], 0
        for process in family:
            family += children.get(process, [])
            total += _proportional(process)
        return total

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, self.now())


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _table(users: int, seed: int, path: Path) -> Tables:
    """Write random unit vectors, one for each user, in pieces."""
    rng = np.random.default_rng([seed, 7])
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (users, WIDTH)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, users, _ROWS):
            x = rng.standard_normal((min(_ROWS, users - start), WIDTH), dtype=np.float32)
            file.write((x / np.linalg.norm(x, axis=1, keepdims=True)).tobytes())
    return Tables((path,))


def _settings(users: int, seed: int) -> tuple[Sequence[ArmSetup], Population]:
    experiment = from_table(
        {
            "name": "round",
            "seed": seed,
            # never read
            "data": {"source": "files", "path": ".", "train": "t", "test": "t", "text": "t", "label": "l"},
            "population": {"users": users, "users-per-node": "auto"},
            "shuffle": {"minimum-users": min(users, 1000)},
            "policy": {"embedding": _EMBEDDING.guarantee.worst_case(), "label": 2.0},
            "arm": [
                {
                    "name": "round",
                    "embedding": {"mechanism": "purkayastha", "epsilon": _EMBEDDING.epsilon, "dim": DIM},
                    "label": {"mechanism": "randomized-response", "epsilon": _LABEL.epsilon},
                }
            ],
        }
    )
    return experiment.setups, experiment.population


@dataclass(frozen=True)
class _Shared:
    """Encoder that never runs: users have its embeddings."""

    identity: str = _IDENTITY


def _held(users: int, tables: Tables, seed: int) -> Held:
    """Return one record for each user, with a random row of the table, and no test users."""
    places = np.random.default_rng([seed, 8]).permutation(users)
    none = np.zeros(0, np.int64)
    train = Corpus(TextColumn.of(str(i) for i in range(users)), np.arange(users, dtype=np.int64) % CLASSES, _NAMES)
    return Held(
        train=train,
        test=Corpus((), none, _NAMES),
        holders=Holders(np.arange(users, dtype=np.int64), np.zeros(users, np.int64)),
        test_holders=Holders(none, none),
        test_rows=none,
        train_embeddings=TableEmbeddings(tables, places),  # type: ignore[arg-type]
    )


def _request(seed: int, least: int, split: str) -> Request:
    m1 = np.random.default_rng([seed, 9]).standard_normal((WIDTH, DIM), dtype=np.float32)
    projection = Projection(_IDENTITY, np.zeros(WIDTH, np.float32), m1)
    embedding = EmbeddingQuestion(parameters(_EMBEDDING), projection=projection, classes=CLASSES)
    labels = () if split == "test" else (LabelQuestion(parameters(_LABEL), classes=CLASSES),)
    return Request(arm="round", stage=split, split=split, minimum_users=least, questions=(embedding, *labels))


def main(arguments: Sequence[str]) -> None:
    """Run a round for each number of users, each in its own process, so that memory is that of one round."""
    first, *others = arguments
    with tempfile.TemporaryDirectory(prefix="sottovoce-round-") as folder, progress_lines(clock=False):
        if first == "flower":
            print(f"{flower_per_user_rate(int(others[0]), folder=Path(folder)):,.0f} users/s")
        elif not others:
            print(json.dumps(run(int(first), seed=1, folder=Path(folder))))
    for users in arguments if others and first != "flower" else ():
        subprocess.run([sys.executable, "-m", "benchmarks.round", users], check=True)


if __name__ == "__main__":
    # Flower sends the client app by its module's name, which `__main__` is not.
    from benchmarks import round as bench_round

    bench_round.main(sys.argv[1:])
