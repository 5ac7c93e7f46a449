"""Programs killed before any one of their writes and sends, and what they keep afterwards: Linux on x86_64, by ptrace.

`python -m tests.support.kills SCENARIO FOLDER [--power] [--every N]` prints how many kills there were, by the call that
was about to be made, and fails at the first kill that a promise does not survive. It runs in a process of its own:
forks of one that has threads can stand still.

Every system call that changes a file or sends is a point. Between two points nothing changes, so all points are all
the ways to be killed. A power cut also leaves the folder as a disk may hold it: of each file what was last synced,
under the names of the folder's last sync.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from client.app import NODES, release
from client.device.records import add_records
from client.node import write_node
from client.policy import Policy
from client.shard import Shard
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import Sealed
from mechanisms.messages.wire import reply_from_record
from simulations.shuffler.shuffle import shuffle
from simulations.shuffler.store import OPEN, Store
from tests.support.answers import ledger_rows
from tests.support.clients import context, make_node, message, request, with_prior

# -- system calls

#: Those that write, by number; those that open a file count where they make it.
_CALLS = {1: "write", 18: "pwrite64", 20: "writev", 296: "pwritev", 74: "fsync", 75: "fdatasync", 76: "truncate"}
_CALLS |= {77: "ftruncate", 82: "rename", 264: "renameat", 316: "renameat2", 86: "link", 265: "linkat", 87: "unlink"}
_CALLS |= {263: "unlinkat", 83: "mkdir", 258: "mkdirat", 2: "open", 257: "openat", 44: "sendto", 46: "sendmsg"}
_TRACEME, _PEEKUSER, _SYSCALL, _SETOPTIONS = 0, 3, 24, 0x4200
_OPTIONS = 1 | 0x100000  # system calls are told from signals, and the fork dies with this process
#: Where the number of a call and its first three arguments are in the tracee's registers.
_CALL, _ARGUMENTS = 120, (112, 104, 96)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def _ptrace(call: int, pid: int, address: int = 0, data: int = 0) -> int:
    value: int = _libc.ptrace(call, pid, address, data)
    if value < 0 and call != _PEEKUSER:
        raise OSError(ctypes.get_errno(), "ptrace")
    return value


def traceable() -> bool:
    """Whether this system lets a process trace its own fork, whose calls have these numbers."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(int(_libc.ptrace(_TRACEME, 0, 0, 0) < 0))
    return os.waitpid(pid, 0)[1] == 0


class Disk:
    """What of a folder is safe from a power cut: contents by inode, and names as of the folder's last sync."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = {path.name: path.stat().st_ino for path in folder.iterdir()}  # what was there before is safe
        self.contents = {path.stat().st_ino: path.read_bytes() for path in folder.iterdir()}

    def synced(self, path: Path) -> None:
        """The file or folder of that path was synced."""
        if path == self.folder:
            self.names = {p.name: p.stat().st_ino for p in self.folder.iterdir()}
            self.contents = {i: self.contents[i] for i in self.names.values() if i in self.contents}
        elif path.parent == self.folder:
            self.contents[path.stat().st_ino] = path.read_bytes()

    def cut(self) -> None:
        """Leave the folder as it is when the power comes back."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, inode in self.names.items():
            (self.folder / name).write_bytes(self.contents.get(inode, b""))


def kill(child: Callable[[], None], k: int, disk: Disk | None) -> str | None:
    """Run child() in a fork, and kill it as it enters its point k, from 0.

    Returns the name of the call that it was about to make, or None where it had no such point and has ended well.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            child()
            status = 0
        finally:
            os._exit(status)
    os.waitpid(pid, 0)
    _ptrace(_SETOPTIONS, pid, 0, _OPTIONS)
    entering, passed = False, 0
    syncing: Path | None = None
    while True:
        _ptrace(_SYSCALL, pid, 0, passed)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            assert os.WIFEXITED(status) and not os.WEXITSTATUS(status), "the child failed by itself"
            return None
        passed = 0
        if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
            passed = os.WSTOPSIG(status)
            continue
        entering = not entering
        if not entering:
            if syncing is not None and disk is not None:
                disk.synced(syncing)
            syncing = None
            continue
        name = _CALLS.get(_ptrace(_PEEKUSER, pid, _CALL))
        if name is None:
            continue
        first, second, third = (_ptrace(_PEEKUSER, pid, at) for at in _ARGUMENTS)
        if name.startswith("open") and not (second if name == "open" else third) & os.O_CREAT:
            continue
        if k == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return name
        k -= 1
        if name in ("fsync", "fdatasync"):
            syncing = Path(os.readlink(f"/proc/{pid}/fd/{first}"))


# -- programs


class Scenario:
    """A program that is killed. place: the only folder that it writes; sent: file of what it has sent, line by line."""

    def __init__(self, folder: Path) -> None:
        self.place, self.sent, self.template = folder / "place", folder / "sent", folder / "template"

    def prepare(self) -> None:
        """Make `template`, what is in `place` before the program runs."""
        self.template.mkdir(parents=True)

    def child(self) -> None:
        """Run the program."""
        raise NotImplementedError

    def check(self, *, killed: bool) -> None:
        """Check what the program has left, and that it goes on from there."""
        raise NotImplementedError

    def send(self, value: object) -> None:
        with open(self.sent, "ab", buffering=0) as network:
            network.write((json.dumps(value) + "\n").encode())

    def received(self) -> list:
        """What was sent whole."""
        lines = self.sent.read_bytes().splitlines(keepends=True) if self.sent.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]


# -- a device's ledger

USERS = 3
MORE = {"stage": "more", "embedding": {"mechanism": "planar-laplace", "epsilon": 3.0}}


class Device(Scenario):
    """A device that answers requests, each sent as soon as it is answered. before: what it has answered already."""

    def __init__(self, folder: Path, before: list[Request], during: list[Request]) -> None:
        super().__init__(folder)
        self.before, self.during = before, during
        self.place = folder / "nodes" / "0"

    def prepare(self) -> None:
        os.environ[NODES] = str(self.place.parent)
        make_node(self.place, range(USERS), seed=None)
        for asked in self.before:
            self.answer(asked)
        shutil.copytree(self.place, self.template)
        for asked in self.during:
            self.answer(asked)
        self.charged = len(ledger_rows(self.place, ""))

    def answer(self, asked: Request) -> Reply:
        answer = release(message(asked), context(0))
        assert not answer.has_error(), answer.error.reason
        return reply_from_record(answer.content)

    def child(self) -> None:
        for asked in self.during:
            self.send([asked.stage, {c: data.hex() for c, data in payloads(self.answer(asked)).items()}])

    def check(self, *, killed: bool) -> None:
        rows = ledger_rows(self.place, "")
        known: dict[str, dict[str, bytes]] = {}
        for row in rows:  # in the order of users
            channels = known.setdefault(row.stage, {})
            channels[row.channel] = channels.get(row.channel, b"") + row.payload
        for stage, sent in self.received():
            for channel, data in sent.items():
                assert known[stage][channel].hex() == data, "what left is not on the ledger"
        counts = Counter((row.stage, row.channel) for row in rows)
        assert set(counts.values()) <= {USERS}, "an answer was charged by halves"
        replies: dict[str, list[Reply]] = {}
        for asked in (*self.before, *self.during):
            reply = self.answer(asked)
            replies.setdefault(asked.stage, []).append(reply)
            for channel, data in payloads(reply).items():
                assert known.get(asked.stage, {}).get(channel, data) == data, "a release was drawn twice"
        assert len(ledger_rows(self.place, "")) == self.charged, "a release was counted twice"
        for stage, given in replies.items():  # what was sent before and is sent again counts once
            batch = shuffle([*given, *given], minimum_users=0, rng=np.random.default_rng(0)).batch
            assert batch.users == USERS and batch.duplicates == USERS * (2 * len(given) - 1), f"{stage}: counted twice"


def payloads(reply: Reply) -> dict[str, bytes]:
    return {r.channel: next(iter(r.payload.values())).tobytes() for r in reply.releases}


# -- a device's records

OLD, NEW = ["one", "two books"], ["three", "", "four films"]


class Records(Scenario):
    """Records that are added to a device: all of them are there, or none."""

    def prepare(self) -> None:
        write_node(self.template, policy=Policy(embedding=100.0, total=1000.0))
        add_records(self.template, "train", OLD, None)

    def child(self) -> None:
        add_records(self.place, "train", NEW, None)

    def check(self, *, killed: bool) -> None:
        shard = Shard.load(self.place, "train")
        texts = list(shard.texts)
        assert texts == OLD + NEW or (killed and texts == OLD), texts
        assert shard.records.tolist() == list(range(len(texts)))
        add_records(self.place, "train", ["again"], None)
        assert list(Shard.load(self.place, "train").texts) == [*texts, "again"]
        assert not list(self.place.glob(".draft*")), "a draft is left"


# -- a shuffler's store

SHUFFLED_NODES, NODE_USERS, STAGES = 3, 4, ("one", "two")
#: In front of every user's number, so that it is found in a file wherever it is.
MARK = 0x5EC2E7 << 24
Owner = tuple[int, int]


def sealed_row(owner: Owner, time: int) -> bytes:
    """What a node sends of a record: other bytes each time, as it is sealed anew."""
    return hashlib.sha256(f"{owner} {time}".encode()).digest()


def owners(node: int) -> list[Owner]:
    """Users and records of a node; each user has two records."""
    return [(MARK + node * NODE_USERS + user, record) for user in range(NODE_USERS) for record in (0, 1)]


class Shuffler(Scenario):
    """A shuffler's work from first to last, which sends every acknowledgement."""

    def gather(self, time: int) -> None:
        with Store(self.place / "store.sqlite") as store:
            for stage in STAGES:
                there = store.open_stage(stage, stage.encode(), row_bytes=32, minimum_users=5, timeout=1.0)
                for node in range(SHUFFLED_NODES) if there.state == OPEN else ():
                    rows = b"".join(sealed_row(owner, time) for owner in owners(node))
                    users, records = np.array(owners(node), np.int64).T.copy()
                    store.add(stage, Sealed(users, records, np.frombuffer(rows, np.uint8).reshape(len(users), -1)))
                    self.send(["added", stage, [node, time]])
                store.close(stage, dropped={}, errors={})
                self.send(["closed", stage, store.batch(stage).tobytes().hex()])

    def child(self) -> None:
        self.gather(time=0)

    def check(self, *, killed: bool) -> None:
        before = self.received()
        self.gather(time=1)
        with Store(self.place / "store.sqlite") as store:
            batches = {stage: store.batch(stage).tobytes() for stage in STAGES}
            assert {store.stage(stage).users for stage in STAGES} == {SHUFFLED_NODES * NODE_USERS}
        for stage, batch in batches.items():
            rows = Counter(batch[i : i + 32] for i in range(0, len(batch), 32))
            assert rows.total() == SHUFFLED_NODES * NODE_USERS * 2
            for node in range(SHUFFLED_NODES):
                for owner in owners(node):
                    times = [time for time in (0, 1) if rows[sealed_row(owner, time)]]
                    assert len(times) == 1 and rows[sealed_row(owner, times[0])] == 1, "a row is lost, or there twice"
                    assert times == [0] or ["added", stage, [node, 0]] not in before, "an acknowledged row is lost"
        assert all(batches[stage].hex() == batch for kind, stage, batch in before if kind == "closed"), "another batch"
        left = b"".join(path.read_bytes() for path in self.place.iterdir())
        assert (MARK >> 24).to_bytes(3, "big") not in left, "a user's number is in the file"


SCENARIOS: dict[str, Callable[[Path], Scenario]] = {
    "first": lambda folder: Device(folder, [], [request(arm="")]),
    "later": lambda folder: Device(folder, [request(arm="")], [with_prior(arm="", stage="later")]),
    "two": lambda folder: Device(folder, [], [request(arm="", label=None), request(arm="", **MORE)]),
    "again": lambda folder: Device(folder, [request(arm="")], [request(arm=""), request(arm="", **MORE, label=None)]),
    "many": lambda folder: Device(folder, [], [request(arm="", stage=f"stage-{i}") for i in range(6)]),
    "records": Records,
    "shuffler": Shuffler,
}


def run(scenario: Scenario, *, power: bool, every: int) -> Counter[str]:
    """Kill the program at every `every`-th point, and count the kills by the call that was not made."""
    scenario.prepare()
    kills: Counter[str] = Counter()
    k, call = 0, ""
    while call is not None:
        shutil.rmtree(scenario.place, ignore_errors=True)
        scenario.sent.unlink(missing_ok=True)
        shutil.copytree(scenario.template, scenario.place)
        disk = Disk(scenario.place) if power else None
        call = kill(scenario.child, k, disk)
        if disk is not None:
            disk.cut()
        scenario.check(killed=call is not None)
        kills.update([call] if call else [])
        k += every
    return kills


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(run(SCENARIOS[given.scenario](given.folder), power=given.power, every=given.every)))
