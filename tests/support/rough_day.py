"""A deployment of real processes on a rough day: faults of every kind, drawn at random from a seed, and what is left.

Devices (`device serve`, each with a clock of its own), a SuperLink, a shuffler and a training server, each
under a supervisor; TCP lines of the test between devices and SuperLink, and between training server and shuffler.
`Day` is the deployment in a `with`; `Day.through` has it live through so many seconds of faults, and `Day.findings`
says what was wrong in the end: nothing.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from client.node import DEVICE_PUBLIC, load_node, write_node
from mechanisms.messages.sealed import sealed_bytes, unseal
from mechanisms.messages.wire import record_to_bytes, request_to_record
from simulations.shuffler import enrolment
from simulations.transport.quiet import QUIET
from sottovoce.deployment import superlink
from sottovoce.deployment.certificates import make_keys
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.processes import answers, free_port
from sottovoce.deployment.shuffler_client import Shuffler
from sottovoce.deployment.shuffler_service import ORIGINS, STORE
from tests.support.clients import OPEN, make_node
from tests.support.deployments import wait_until
from tests.support.lines import TcpLine
from tests.support.rough_checks import Gathered, Held, Owner, Told, lost, slope, twice, uncharged
from tests.support.rough_server import STAGES, TIMEOUT, asked, stage_name
from tests.support.supervised_party import Party

USERS, RECORDS = 5, 2
#: Seconds within which a device's answers leave, so that a stage lasts long enough for something to happen to it.
WINDOW = 3.0
#: Seconds that a fault lasts; between two of them, on a short day; by which a slow line is late, and a clock wrong.
LASTS, BETWEEN, LATE, WRONG = (0.5, 4.0), (0.2, 1.5), (0.05, 0.4), (-3600.0, 3600.0)
#: Seconds in which all parties end, once they are told to.
GRACE = 10.0
SUPERLINK, SHUFFLER, SERVER, DEVICE = "SuperLink", "shuffler", "training server", "device"
#: Every fault there is: what, and whose.
FAULTS = (
    *(("kill", party) for party in (SUPERLINK, SHUFFLER, SERVER, DEVICE)),
    *(("stop", party) for party in (SUPERLINK, SHUFFLER, SERVER, DEVICE)),
    *(("full disk", party) for party in (SHUFFLER, SERVER, DEVICE)),
    ("clock", DEVICE),
    ("cut", DEVICE),
    ("cut", SERVER),
    ("slow", DEVICE),
    ("slow", SERVER),
)
_CLI = [sys.executable, "-m", "sottovoce.cli.main"]


class Day:
    """The deployment, in a folder. seed: of what happens when. devices: how many, of USERS users each."""

    def __init__(self, folder: Path, seed: int, *, devices: int) -> None:
        self.folder, self.dice, self.n = folder, random.Random(seed), devices
        self.told, self.held = Told(), list[Held]()
        self.happened: list[str] = []
        self.full: set[int] = set()
        self._start = time.monotonic()
        self._over = threading.Event()
        self._block = ExitStack()
        self._ports = {party: free_port() for party in (SUPERLINK, SHUFFLER)}
        self.parties: dict[str, Party] = {}

    # -- the deployment

    def __enter__(self) -> Day:
        folder = self.folder
        make_keys(folder, nodes=self.n, hosts={})
        self.devices = [
            [(user * self.n + i, record) for user in range(USERS) for record in range(RECORDS)] for i in range(self.n)
        ]
        key, shuffler = (read_key(folder / party / "seal.pub") for party in ("server", "shuffler"))
        for i, owners in enumerate(self.devices):
            users, records = np.array(owners).T
            make_node(self._node(i), users, records, seed=None)
            write_node(self._node(i), policy=replace(OPEN, window=WINDOW), seal=key, shuffler_seal=shuffler)
            self._clock(i).write_text("0")
        with ExitStack() as block:
            self.lines = {
                DEVICE: block.enter_context(TcpLine(self._ports[SUPERLINK])),
                SERVER: block.enter_context(TcpLine(self._ports[SHUFFLER])),
            }
            self._make_parties()
            block.callback(self._end)
            self.parties[SUPERLINK].start()
            self._enrol()
            for name, party in self.parties.items():
                if name != SUPERLINK:
                    party.start()
            for thread in (self._watch, self._weigh):
                threading.Thread(target=thread, daemon=True).start()
            self._block = block.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._block.close()

    def _make_parties(self) -> None:
        folder, ca = self.folder, self.folder / "ca" / "ca.pem"
        link = ["--superlink", f"127.0.0.1:{self._ports[SUPERLINK]}", "--root-certificates", ca]
        files = {name: folder / name for name in ("superlink", "shuffler", "server")}

        def shown(place: Path) -> list[Any]:
            return ["--certificate", place / "cert.pem", "--key", place / "cert.key"]

        def add(name: str, command: list[Any], place: Path, gone: Callable[[], None] = lambda: None) -> None:
            log = folder / f"{name.replace(' ', '-')}.log"
            environment = {**QUIET, "OMP_NUM_THREADS": "1", "FLWR_HOME": str(files["superlink"] / "home")}
            self.parties[name] = Party(name, list(map(str, command)), place, log, environment, gone)

        add(SUPERLINK, superlink.command(files["superlink"], port=self._ports[SUPERLINK]), files["superlink"])
        shuffler = [
            "deploy",
            "shuffler",
            files["shuffler"],
            *link,
            "--secret",
            files["superlink"] / "secret",
            *shown(files["shuffler"]),
            "--port",
            self._ports[SHUFFLER],
            "--users",
            folder / "enrolment.jsonl",
            "--enrolment-key",
            folder / "enrolment" / "sign.pub",
            "--seal-key",
            files["shuffler"] / "seal.key",
            "--origins",
        ]
        add(SHUFFLER, [*_CLI, *shuffler], files["shuffler"], self._look_into_the_store)
        server = [sys.executable, "-m", "tests.support.rough_server", files["server"]]
        add(SERVER, [*server, f"127.0.0.1:{self.lines[SERVER].port}"], files["server"])
        for i in range(self.n):
            device = [sys.executable, "-m", "tests.support.skewed", self._clock(i), "device", "serve", self._node(i)]
            there = ["--superlink", f"127.0.0.1:{self.lines[DEVICE].port}", "--root-certificates", ca]
            add(f"{DEVICE} {i}", [*device, *there, "--key", self._node(i) / "node.key"], self._node(i))

    def _enrol(self) -> None:
        """Once a SuperLink is up: it knows no nodes, so its operator registers them, the enrolment authority signs
        their new numbers, and the shuffler, which reads that when it starts, is started anew."""
        address, ca = f"127.0.0.1:{self._ports[SUPERLINK]}", self.folder / "ca" / "ca.pem"
        wait_until(lambda: answers(self._ports[SUPERLINK]))
        enrolled = {}
        for i in range(self.n):
            number = superlink.register(address, ca, self._node(i) / "node.pub")
            users = {str(user): RECORDS for user, _ in self.devices[i]}
            enrolled[str(number)] = {"key": read_key(self._node(i) / DEVICE_PUBLIC).hex(), "users": users}
        signed = enrolment.tokens(enrolled, read_key(self.folder / "enrolment" / "sign.key"))
        (self.folder / "enrolment.jsonl").write_text(signed)
        self.parties[SHUFFLER].send(signal.SIGKILL)

    def _node(self, i: int) -> Path:
        return self.folder / "nodes" / str(i)

    def _clock(self, i: int) -> Path:
        return self.folder / f"clock-{i}"

    def _end(self) -> None:
        self._over.set()
        for party in self.parties.values():
            party.end()
        last = time.monotonic() + GRACE
        for party in self.parties.values():
            party.wait(max(0.1, last - time.monotonic()))

    # -- what happens

    def through(self, seconds: float, between: tuple[float, float] = BETWEEN) -> None:
        """Deals faults for so long, every one at least once, then lets everything recover, and waits until the stage
        that is open then, and four in all, are done. Raises AssertionError where that does not come. between: seconds
        from the end of a fault to the next one, drawn from there."""
        end, deck = time.monotonic() + seconds, []
        wait_until(lambda: self.told.users["stage-0"])
        dealt = 0
        while time.monotonic() < end or dealt < len(FAULTS):
            if not deck:
                deck = self.dice.sample(FAULTS, len(FAULTS))
            self._happens(*deck.pop())
            dealt += 1
            time.sleep(self.dice.uniform(*between))
        (self.folder / "server" / "enough").touch()
        wait_until(lambda: self.parties[SERVER].done)
        self._over.set()

    def _happens(self, what: str, whose: str) -> None:
        i = self.dice.randrange(self.n)
        party = self.parties[f"{DEVICE} {i}" if whose == DEVICE else whose]
        lasts = self.dice.uniform(*LASTS)
        self.happened.append(f"{self._minutes() * 60:6.1f} s  {what}: {party.name}, {lasts:.1f} s")
        match what:
            case "kill":
                party.send(signal.SIGKILL)
                if whose == SUPERLINK:
                    wait_until(lambda: not answers(self._ports[SUPERLINK]))
                    self._enrol()
            case "stop":
                party.send(signal.SIGSTOP)
                time.sleep(lasts)
                party.send(signal.SIGCONT)
            case "full disk":
                self.full |= {i} if whose == DEVICE else set()
                party.fill(True)
                time.sleep(lasts)
                party.fill(False)
            case "clock":
                self._clock(i).write_text(str(self.dice.uniform(*WRONG)))  # and it stays so
            case "cut":
                self.lines[whose].break_off()
                time.sleep(lasts)
                self.lines[whose].mend()
            case "slow":
                self.lines[whose].slow = self.dice.uniform(*LATE)
                time.sleep(lasts)
                self.lines[whose].mend()

    # -- what is seen of it

    def _minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    def _weigh(self) -> None:
        while not self._over.wait(0.5):
            for party in self.parties.values():
                party.sample(self._minutes())

    def _watch(self) -> None:
        """Asks the shuffler for its stages, beside the training server, and takes down what it says."""
        k = 0
        with self._client() as client:
            while not self._over.wait(0.1):
                try:
                    got = client.get(f"/v1/stages/{stage_name(k)}")
                except httpx.TransportError:
                    continue
                if got.status_code == 202:
                    self.told.of(stage_name(k), int(got.json()["users"]))
                elif got.status_code == 200:
                    about = json.loads(got.content.partition(b"\n")[0])
                    self.told.closed(stage_name(k), int(about["users"]), str(about["batch"]))
                    k += 1

    def _client(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=self.folder / "ca" / "ca.pem")
        context.load_cert_chain(self.folder / "server" / "cert.pem", self.folder / "server" / "cert.key")
        address = f"https://127.0.0.1:{self._ports[SHUFFLER]}"
        return httpx.Client(base_url=address, verify=context, trust_env=False, timeout=30.0)

    def _look_into_the_store(self) -> None:
        """What a shuffler that has just died left of the stages that are open, seen in a copy of its store."""
        copy, place = self.folder / "copy", self.folder / "shuffler"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in place.glob(f"{STORE}*"):
            shutil.copy(path, copy)
        if (copy / STORE).exists():
            self.held += read_store(copy / STORE, self.told)

    # -- the end

    def stages(self) -> Iterator[tuple[str, Gathered]]:
        """Every stage in the end, asked of the shuffler itself."""
        server, private = self.folder / "server", read_key(self.folder / "server" / "seal.key")
        with Shuffler(
            f"127.0.0.1:{self._ports[SHUFFLER]}",
            root_certificates=self.folder / "ca" / "ca.pem",
            certificate=server / "cert.pem",
            key=server / "cert.key",
        ) as line:
            for k in range(len(list((server / "stages").iterdir()))):
                request, stage = asked(k), stage_name(k)
                body = record_to_bytes(request_to_record(request))
                got = line.batch(stage, body, row_bytes=sealed_bytes(request), timeout=TIMEOUT)
                self.told.closed(stage, got.users, got.batch)
                taken = (server / "batches" / f"{stage}.batch").read_text().strip()
                assert taken == got.batch, f"{stage}: the training server took another batch"
                releases, opened = unseal(got.rows, request, private)
                assert opened.all() and not got.dropped, f"{stage}: {got.dropped}"
                owners = np.load(self.folder / "shuffler" / ORIGINS / f"{stage}.npy").tolist()
                said = [
                    {r.channel: next(iter(r.payload.values()))[i].tobytes() for r in releases}
                    for i in range(len(got.rows))
                ]
                yield stage, Gathered(list(map(tuple, owners)), [row.tobytes() for row in got.rows], said, got.errors)

    def findings(self) -> list[str]:
        """What is wrong; nothing. Once `through` has ended."""
        charged: dict[tuple[str, int, int, str], list[bytes]] = {}
        for i in range(self.n):
            with load_node(self._node(i)).ledger("") as ledger:
                for row in ledger.rows():
                    charged.setdefault((row.stage, row.user, row.record, row.channel), []).append(row.payload)
        found, n = [], 0
        for stage, got in self.stages():
            n += 1
            found += twice(stage, got)
            found += lost(stage, got, self.devices, self.held, frozenset(self.full))
            found += uncharged(stage, got, charged)
        if n < STAGES:
            found.append(f"{n} stages")
        return found + self.told.wrong

    def slopes(self, settling: float) -> dict[str, float]:
        """By how many MB a minute the memory of each party grew, where there is enough to say; see `slope`."""
        found = {name: slope(party.samples, settling) for name, party in self.parties.items()}
        return {name: mb for name, mb in found.items() if mb is not None}


def read_store(path: Path, told: Told) -> list[Held]:
    """The rows of the stages that are open in a shuffler's store that nobody has, and how many users it has told of."""
    said = dict(told.users)
    with closing(sqlite3.connect(path)) as store:
        found = []
        stages = "SELECT id, name FROM stages WHERE state = 'open'"
        for number, name in store.execute(stages).fetchall() if _has_tables(store) else ():
            rows: dict[Owner, bytes] = {
                (user, record): sealed
                for user, record, sealed in store.execute(f"SELECT user, record, sealed FROM intake_{number}")
            }
            found.append(Held(name, said.get(name, 0), rows))
        return found


def _has_tables(store: sqlite3.Connection) -> bool:
    return store.execute("SELECT 1 FROM sqlite_master WHERE name = 'stages'").fetchone() is not None
