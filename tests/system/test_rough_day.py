"""A SuperLink, a shuffler and devices as real processes that are killed, stopped and given a full disk while stages
run: each release counts once, is charged, and the batch of a stage stays."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.node import DEVICE_PUBLIC, load_node, write_node
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import sealed_bytes, unseal
from mechanisms.messages.wire import record_to_bytes, request_to_record
from simulations.errors import UserError
from simulations.shuffler import enrolment
from simulations.transport.quiet import QUIET
from sottovoce.deployment import superlink
from sottovoce.deployment.certificates import make_keys
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.processes import answers, free_port
from sottovoce.deployment.shuffler_client import Shuffler
from sottovoce.deployment.shuffler_service import ORIGINS
from sottovoce.deployment.training_server import RemoteShuffler
from tests.support.clients import OPEN, make_node, request
from tests.support.deployments import _with_us, stop, wait_until

DEVICES, USERS, RECORDS, STAGES = 4, 5, 2, 4
#: Seconds that devices have for a stage, longer than all faults; and within which a device's answer leaves.
TIMEOUT, WINDOW = 600.0, 3.0
SUPERLINK, SHUFFLER, DEVICE = "superlink", "shuffler", "device"
FAULTS = [
    *((fault, party) for fault in ("kill", "stop") for party in (SUPERLINK, SHUFFLER, DEVICE)),
    *(("full disk", party) for party in (SHUFFLER, DEVICE)),
]


class Party:
    """A process that a supervisor starts again, and whose files in `place` may be unable to grow."""

    def __init__(self, command: list[object], place: Path) -> None:
        self.command, self.place = [str(word) for word in command], place
        self.full = self.ending = False
        self.process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._supervise, daemon=True)

    def _supervise(self) -> None:
        environment = os.environ | QUIET | {"OMP_NUM_THREADS": "1", "FLWR_HOME": str(self.place / "home")}
        with open(self.place.with_suffix(".log"), "ab") as log:
            while not self.ending:
                self.process = subprocess.Popen(
                    self.command, stdout=log, stderr=log, env=environment, start_new_session=True, preexec_fn=_with_us
                )
                self.fill(self.full)
                self.process.wait()
                time.sleep(1.0)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def fill(self, full: bool) -> None:
        """No file of the process grows past the largest one there is, as on a full disk; or it may again."""
        self.full = full
        sizes = (path.stat().st_size for path in self.place.rglob("*") if path.is_file())
        most = max(sizes, default=0) if full else resource.RLIM_INFINITY
        if self.process is not None:
            with suppress(ProcessLookupError):
                resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def end(self) -> None:
        self.ending = True
        if self.process is not None:
            self.send(signal.SIGCONT)
            stop(self.process)
        self.thread.join()


class Deployment:
    """The parties' folders, keys and processes. owners: (user, record) of each device."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ports = folder, {party: free_port() for party in (SUPERLINK, SHUFFLER)}
        self.ca = folder / "ca" / "ca.pem"
        make_keys(folder, nodes=DEVICES, hosts={})
        self.owners = [
            [(user * DEVICES + i, record) for user in range(USERS) for record in range(RECORDS)] for i in range(DEVICES)
        ]
        seal, shuffler_seal = (read_key(folder / party / "seal.pub") for party in ("server", "shuffler"))
        for i, owners in enumerate(self.owners):
            make_node(self.node(i), *np.array(owners).T, seed=None)
            policy = replace(OPEN, window=WINDOW)
            write_node(self.node(i), policy=policy, seal=seal, shuffler_seal=shuffler_seal)
        cli, place = [sys.executable, "-m", "sottovoce.cli.main"], folder / "shuffler"
        link = ["--superlink", f"127.0.0.1:{self.ports[SUPERLINK]}", "--root-certificates", self.ca]
        keys = ["--certificate", place / "cert.pem", "--key", place / "cert.key", "--seal-key", place / "seal.key"]
        enrolled = ["--users", folder / "enrolment.jsonl", "--enrolment-key", folder / "enrolment" / "sign.pub"]
        shuffler = [*cli, "deploy", "shuffler", place, *link, "--secret", folder / "superlink" / "secret"]
        shuffler += [*keys, *enrolled, "--port", self.ports[SHUFFLER], "--origins"]
        self.parties = {
            SUPERLINK: Party(superlink.command(folder / "superlink", port=self.ports[SUPERLINK]), folder / "superlink"),
            SHUFFLER: Party(shuffler, place),
        }
        for i in range(DEVICES):
            serve = [*cli, "device", "serve", self.node(i), *link, "--key", self.node(i) / "node.key"]
            self.parties[f"{DEVICE} {i}"] = Party(serve, self.node(i))

    def node(self, i: int) -> Path:
        return self.folder / "nodes" / str(i)

    def enrol(self) -> None:
        """Register the devices at a new SuperLink, which knows none, and start the shuffler anew with their numbers."""
        wait_until(lambda: answers(self.ports[SUPERLINK]))
        table = {}
        for i, owners in enumerate(self.owners):
            number = superlink.register(f"127.0.0.1:{self.ports[SUPERLINK]}", self.ca, self.node(i) / "node.pub")
            users = {str(user): RECORDS for user, _ in owners}
            table[str(number)] = {"key": read_key(self.node(i) / DEVICE_PUBLIC).hex(), "users": users}
        signed = enrolment.tokens(table, read_key(self.folder / "enrolment" / "sign.key"))
        (self.folder / "enrolment.jsonl").write_text(signed)
        self.parties[SHUFFLER].send(signal.SIGKILL)

    def shuffler(self) -> Shuffler:
        server = self.folder / "server"
        return Shuffler(
            f"127.0.0.1:{self.ports[SHUFFLER]}",
            root_certificates=self.ca,
            certificate=server / "cert.pem",
            key=server / "cert.key",
        )


def stage_request(k: int) -> Request:
    return request(arm="", stage=f"stage-{k}", minimum_users=10)


def train(deployment: Deployment, batches: list[str]) -> None:
    """Take the batch of one stage after another, whatever becomes of the shuffler."""
    while len(batches) < STAGES:
        try:
            with deployment.shuffler() as line:
                users = RemoteShuffler(line, seal_keys=[deployment.folder / "server" / "seal.key"], timeout=TIMEOUT)
                users.collect(stage_request(len(batches)))
                batches.append(fetch(line, len(batches)).batch)
        except UserError:
            time.sleep(1.0)


def fetch(line: Shuffler, k: int):
    wanted = stage_request(k)
    body = record_to_bytes(request_to_record(wanted))
    return line.batch(wanted.stage, body, row_bytes=sealed_bytes(wanted), timeout=TIMEOUT)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.xdist_group("deployment")
def test_a_rough_day(tmp_path: Path) -> None:
    deployment, dice = Deployment(tmp_path), random.Random(19)
    parties, full, batches = deployment.parties, set[int](), list[str]()
    with ExitStack() as ends:
        for party in parties.values():
            ends.callback(party.end)
        parties[SUPERLINK].thread.start()
        deployment.enrol()
        for name, party in parties.items():
            if name != SUPERLINK:
                party.thread.start()
        training = threading.Thread(target=train, args=(deployment, batches), daemon=True)
        training.start()
        wait_until(lambda: answers(deployment.ports[SHUFFLER]))
        for fault, kind in dice.sample(FAULTS, len(FAULTS)):
            i, seconds = dice.randrange(DEVICES), dice.uniform(0.5, 4.0)
            party = parties[f"{DEVICE} {i}" if kind == DEVICE else kind]
            print(f"{fault}: {kind} {i}, {seconds:.1f} s")
            if fault == "kill":
                party.send(signal.SIGKILL)
                if kind == SUPERLINK:
                    wait_until(lambda: not answers(deployment.ports[SUPERLINK]))
                    deployment.enrol()
            elif fault == "stop":
                party.send(signal.SIGSTOP)
                time.sleep(seconds)
                party.send(signal.SIGCONT)
            else:
                full |= {i} if kind == DEVICE else set()
                party.fill(True)
                time.sleep(seconds)
                party.fill(False)
            time.sleep(dice.uniform(0.2, 1.5))
        training.join(TIMEOUT)
        assert len(batches) == STAGES
        with deployment.shuffler() as line:
            for k, batch in enumerate(batches):
                check(deployment, line, k, batch, full)


def check(deployment: Deployment, line: Shuffler, k: int, batch: str, full: set[int]) -> None:
    """Check that a stage has each record of a device once, as its ledger has it; a device whose disk was full may
    refuse, and is counted."""
    got, wanted, stage = fetch(line, k), stage_request(k), f"stage-{k}"
    assert got.batch == batch, "the batch of a stage has changed"
    releases, opened = unseal(got.rows, wanted, read_key(deployment.folder / "server" / "seal.key"))
    assert opened.all() and not got.dropped
    owners = [tuple(owner) for owner in np.load(deployment.folder / "shuffler" / ORIGINS / f"{stage}.npy").tolist()]
    assert max(Counter(owners).values()) == 1
    missing = [i for i, mine in enumerate(deployment.owners) if not set(mine) & set(owners)]
    assert set(missing) <= full and len(missing) == sum(got.errors.values())
    assert set(owners) == {owner for i, mine in enumerate(deployment.owners) if i not in missing for owner in mine}
    charged: dict[tuple[int, int, str], list[bytes]] = {}
    for i in range(DEVICES):
        with load_node(deployment.node(i)).ledger("") as ledger:
            for row in (row for row in ledger.rows() if row.stage == stage):
                charged.setdefault((row.user, row.record, row.channel), []).append(row.payload)
    for release in releases:
        (values,) = release.payload.values()
        for (user, record), value in zip(owners, values, strict=True):
            assert charged[user, record, release.channel] == [value.tobytes()]
