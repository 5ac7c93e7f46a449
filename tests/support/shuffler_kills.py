"""A shuffler's store killed at every write and every acknowledgement, and what it holds afterwards.

`python -m tests.support.shuffler_kills FOLDER [--power] [--every N]` prints how many kills there were,
by the call that was about to be made, and ends with an error at the first one that a promise does not survive.
It runs in a process of its own: forks of one that has threads can stand still.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from mechanisms.messages.sealed import Sealed
from simulations.shuffler.store import OPEN, Store
from tests.support.kill_points import Points

NODES, USERS = 3, 4
STAGES = ("one", "two")
#: In front of every user's number, so that it is found in a file wherever it is.
MARK = 0x5EC2E7 << 24
Owner = tuple[int, int]


def row(user: int, record: int, time: int) -> bytes:
    """What a node sends of a record: other bytes each time, as it is sealed anew."""
    return hashlib.sha256(f"{user} {record} {time}".encode()).digest()


def owners(node: int) -> list[Owner]:
    """Users and records that live on a node; each user has two records."""
    return [(MARK + node * USERS + user, record) for user in range(USERS) for record in (0, 1)]


def reply(node: int, time: int) -> Sealed:
    mine = owners(node)
    rows = np.frombuffer(b"".join(row(*owner, time) for owner in mine), np.uint8).reshape(len(mine), -1)
    users, records = np.array(mine, np.int64).T.copy()
    return Sealed(users, records, rows)


def gather(store: Store, told: Path, time: int) -> None:
    """A shuffler's work from first to last; every acknowledgement is a line of `told`."""

    def tell(*words: object) -> None:
        with open(told, "ab", buffering=0) as network:
            network.write((json.dumps(words) + "\n").encode())

    for stage in STAGES:
        there = store.open_stage(stage, b"asked " + stage.encode(), row_bytes=32, minimum_users=5, timeout=1.0)
        for node in range(NODES) if there.state == OPEN else ():
            store.add(stage, reply(node, time))
            tell("added", stage, node, time)
        store.close(stage, dropped={}, errors={})
        tell("closed", stage, store.batch(stage).tobytes().hex())


def check(folder: Path, told: Path) -> None:
    """After a kill: the store opens, goes on, and gives every acknowledged row once, in a batch that stays."""
    lines = told.read_bytes().splitlines(keepends=True) if told.exists() else []
    before = [json.loads(line) for line in lines if line.endswith(b"\n")]
    with Store(folder / "store.sqlite") as store:
        gather(store, told, time=1)
    with Store(folder / "store.sqlite") as store:
        batches = {stage: store.batch(stage).tobytes() for stage in STAGES}
        counted = {stage: store.stage(stage) for stage in STAGES}
    for stage, batch in batches.items():
        first = {(node, time) for kind, s, node, time in (b for b in before if b[0] == "added") if s == stage}
        rows = Counter(batch[i : i + 32] for i in range(0, len(batch), 32))
        for node in range(NODES):
            for owner in owners(node):
                times = [time for time in (0, 1) if rows[row(*owner, time)]]
                assert len(times) == 1 and rows[row(*owner, times[0])] == 1, "a row is lost, or there twice"
                assert times == [0] or (node, 0) not in first, "an acknowledged row is lost"
        assert rows.total() == NODES * USERS * 2
        about = counted[stage]
        assert about is not None and (about.users, about.rows) == (NODES * USERS, rows.total())
    for kind, stage, batch in (b for b in before if b[0] == "closed"):
        assert batches[stage].hex() == batch, f"{kind} twice: another batch"
    left = b"".join(path.read_bytes() for path in folder.iterdir())
    assert (MARK >> 24).to_bytes(3, "big") not in left, "a user's number is in the file"


def run(folder: Path, *, power: bool, every: int) -> Counter[str]:
    """Kills at every `every`-th point; how many there were, by the call that was not made."""
    kills: Counter[str] = Counter()
    place, told = folder / "place", folder / "told"

    def child() -> None:
        with Store(place / "store.sqlite") as store:
            gather(store, told, time=0)

    k = 0
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        place.mkdir(parents=True)
        call = Points(child, place).kill(k, power=power)
        if call is not None:
            kills[call] += 1
        check(place, told)
        if call is None:
            return kills
        k += every


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(run(given.folder, power=given.power, every=given.every)))


if __name__ == "__main__":
    main()
