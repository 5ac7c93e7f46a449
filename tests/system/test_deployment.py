"""A study's arm on real processes: what it leaves, who sees what, and that no process outlives it."""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.device.bundle import open_bundle
from client.store.ledger import LedgerRow
from server.protocols.drive import Collected
from simulations.errors import UserError
from simulations.experiment import load
from simulations.run.prepare import prepare
from sottovoce.deployment.processes import COMMANDS, _start, command_of, running, stop
from sottovoce.deployment.score import score_arm
from sottovoce.deployment.shuffler_client import Shuffler
from sottovoce.deployment.training_server import RemoteShuffler
from tests.sottovoce.deployment.test_deploy import STUDY
from tests.support.answers import ledger_rows
from tests.support.deployments import wait_until
from tests.support.tiny_models import reviews, tiny_bert

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deployment")]  # one for all of these

SMALL = (
    STUDY.replace("[shuffle]", '[encoder]\nmodel = "bert"\nmax-length = 32\n[shuffle]')
    .replace(
        'source = "built-in"\npublic-size = 90\ntest-size = 40',
        'source = "files"\npath = "data"\ntrain = "train.tsv"\ntest = "test.tsv"\ntext = "text"\nlabel = "label"\n'
        'public = { fraction = 0.2 }\noverlap = "made of few words"',
    )
    .replace("embedding = 40.0", "embedding = 200.0")
)
NODES = 2


@dataclass(frozen=True)
class Deployed:
    """A study that was deployed and left up. place: the working folder; folder: the deployment's; pids: of parties."""

    place: Path
    folder: Path
    environment: dict[str, str]
    said: str
    results: dict[str, Any]
    pids: dict[str, int]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return sottovoce(self.place, self.environment, *arguments)

    def command(self, party: str) -> list[str]:
        """Its command line, without the variables before it."""
        line = (self.folder / COMMANDS).read_text().split(f"# {party}\n")[1].splitlines()[0]
        return [word for word in shlex.split(line) if not word.startswith("OMP_NUM_THREADS=")]

    def start(self, party: str) -> None:
        """Start a party again that was killed."""
        with open(self.folder / "again.log", "ab") as log:
            process = subprocess.Popen(
                self.command(party),
                cwd=self.place,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        self.pids[party] = process.pid

    def collect(self, stage: str) -> tuple[Collected, NDArray[np.int64]]:
        """What the training server gets of a stage, and the (user, record) of each of its rows."""
        server, command = self.folder / "server", self.command("shuffler")
        keys = {"certificate": server / "cert.pem", "key": server / "cert.key"}
        address = f"127.0.0.1:{command[command.index('--port') + 1]}"
        with Shuffler(address, root_certificates=self.folder / "ca" / "ca.pem", **keys) as line:
            users = RemoteShuffler(line, seal_keys=[server / "seal.key"], timeout=120.0)
            gathered = users.collect(replace(open_bundle(self.folder / "bundle").request, stage=stage))
        origins = np.load(self.folder / "shuffler" / "origins" / f"{stage}.npy")
        return gathered, origins[users.places[stage]]

    def rows(self, node: int) -> list[LedgerRow]:
        return ledger_rows(self.folder / "nodes" / str(node), "")

    def check(self, stage: str, gathered: Collected, owners: NDArray[np.int64], full: Collection[int] = ()) -> None:
        """Check that a stage has every user once, as the ledgers have it. full: nodes that may have refused."""
        users = owners[:, 0].tolist()
        missing = [node for node in range(NODES) if node not in {user % NODES for user in users}]
        assert set(missing) <= set(full) and len(missing) == gathered.errors.total() and not gathered.dropped
        assert sorted(users) == [user for user in range(60) if user % NODES not in missing]
        charged: dict[tuple[int, str], list[bytes]] = {}
        for row in (row for node in range(NODES) for row in self.rows(node) if row.stage == stage):
            charged.setdefault((row.user, row.channel), []).append(row.payload)
        for release in gathered.batch.releases:
            (values,) = release.payload.values()
            for user, value in zip(users, values, strict=True):
                assert charged[user, release.channel] == [value.tobytes()]


def sottovoce(place: Path, environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = command_of("sottovoce", *arguments)
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with a study of a small encoder, and an environment whose cache is in it."""
    place = tmp_path_factory.mktemp("deploy")
    tiny_bert(place / "bert")
    (place / "study.toml").write_text(SMALL)
    (place / "data").mkdir()
    for name, n, seed in (("train", 90, 1), ("test", 40, 2)):
        rows = zip(*reviews(n, seed), strict=True)
        lines = [f"{text} {name} {i}\t{'bad' if label else 'good'}" for i, (text, label) in enumerate(rows)]
        (place / "data" / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return place, os.environ | {"XDG_CACHE_HOME": str(place / "cache"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def deployed(workplace: tuple[Path, dict[str, str]]) -> Iterator[Deployed]:
    place, environment = workplace
    up = ["deploy", "up", "study.toml", "--arm", "a", "--nodes", NODES, "--out", "dep", "--stay", "--json"]
    try:
        done = sottovoce(place, environment, *up)
        assert done.returncode == 0, done.stderr
        folder = place / "dep"
        for node in folder.glob(
            "nodes/*/node.json"
        ):  # a bundle's policy gives each record once; here it is asked again
            settings = json.loads(node.read_text())
            settings["policy"] |= {"embedding": 1e5, "label": 1e5, "total": 1e6, "releases": 1000}
            node.write_text(json.dumps(settings))
        pids = {process.party: process.pid for process in running(folder)}
        left = Deployed(place, folder, environment, done.stderr, json.loads(done.stdout), pids)
        yield left
        for process in left.started:
            process.kill()
    finally:
        stop(place / "dep")


def parties(folder: Path) -> list[str]:
    return sorted(process.party for process in running(folder))


def test_a_study_goes_through_all_parties(deployed: Deployed) -> None:
    (arm,) = deployed.results["arms"]
    assert (arm["name"], arm["users"], arm["delivered"], arm["dropped"], arm["errors"]) == ("a", 60, 60, {}, {})
    assert 0 <= arm["accuracy"] <= 1 and arm["accuracy_se"] > 0 and arm["accuracy_clean_test"] is not None
    assert {rung["rung"]: rung["epsilon"] for rung in arm["ladder"]}["label"] == 2.0
    assert "operating system" in deployed.results["randomness"]
    kept = json.loads((deployed.folder / "results.json").read_text())
    assert kept == deployed.results and (deployed.folder / "results.md").is_file()
    assert parties(deployed.folder) == ["SuperLink", "model", "node 0", "node 1", "shuffler"]
    commands = [line for line in (deployed.folder / COMMANDS).read_text().splitlines() if not line.startswith("#")]
    assert [f"$ {line}" for line in commands] == [li for li in deployed.said.splitlines() if li.startswith("$ ")]
    assert "stage train: 60 users delivered" in deployed.said


def test_every_device_was_charged_for_its_own_users_and_releases_are_sealed_on_their_way(deployed: Deployed) -> None:
    payloads = []
    for node in range(NODES):
        rows = deployed.rows(node)
        assert {row.user % NODES for row in rows} == {node}
        counted = Counter((row.stage, row.channel) for row in rows)
        assert counted == {("train", "embedding"): 30, ("train", "label"): 30, ("test", "embedding"): 20}
        payloads += [row.payload for row in rows if row.channel == "embedding"]
    assert min(map(len, payloads)) == 8
    for party in ("shuffler", "superlink", "server/batches"):
        for path in (path for path in (deployed.folder / party).rglob("*") if path.is_file()):
            content = path.read_bytes()
            assert not any(payload in content for payload in payloads), path


def test_only_the_owner_reads_the_folder(deployed: Deployed) -> None:
    assert stat.S_IMODE(deployed.folder.stat().st_mode) == 0o700
    for party in ("ca", "superlink", "shuffler", "nodes", "asker"):
        for path in (deployed.folder / party, *(deployed.folder / party).rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for key in deployed.folder.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key


def test_the_model_answers_a_device(deployed: Deployed) -> None:
    (hint,) = (line for line in deployed.said.splitlines() if line.startswith("Ask the model: "))
    _, *arguments = shlex.split(hint.removeprefix("Ask the model: "))
    done = deployed.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout or "bad" in done.stdout


def test_a_shuffler_that_is_killed_within_a_stage_goes_on_and_counts_every_user_once(
    deployed: Deployed, lines: list[str]
) -> None:
    """Device 1 stands still while the shuffler dies, so that the stage is half done."""
    os.kill(deployed.pids["node 1"], signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        stage = pool.submit(deployed.collect, "again")
        try:
            wait_until(lambda: "stage again: 1 of 2 nodes, 30 users" in lines or stage.done())
            os.kill(deployed.pids["shuffler"], signal.SIGKILL)
            deployed.start("shuffler")
        finally:
            os.kill(deployed.pids["node 1"], signal.SIGCONT)
        deployed.check("again", *stage.result())


@pytest.mark.soak
def test_a_rough_day(deployed: Deployed) -> None:
    """The shuffler and devices are killed, stopped and given full disks while stages run."""
    dice, full, stages = random.Random(19), set[int](), [f"rough-{k}" for k in range(4)]

    def train() -> list[tuple[Collected, NDArray[np.int64]]]:
        results: list[tuple[Collected, NDArray[np.int64]]] = []
        end = time.monotonic() + 600.0
        while len(results) < len(stages) and time.monotonic() < end:
            with suppress(UserError):
                results.append(deployed.collect(stages[len(results)]))
        return results

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        faults = [(fault, party) for fault in ("kill", "stop", "full") for party in ("shuffler", "node 0", "node 1")]
        for fault, party in dice.sample(faults, len(faults)):
            time.sleep(dice.uniform(0.2, 1.5))
            place = deployed.folder / party.replace("node ", "nodes/")
            if fault == "kill":
                os.kill(deployed.pids[party], signal.SIGKILL)
                deployed.start(party)
            elif fault == "stop":
                os.kill(deployed.pids[party], signal.SIGSTOP)
                time.sleep(dice.uniform(0.5, 4.0))
                os.kill(deployed.pids[party], signal.SIGCONT)
            else:  # no file grows past the largest one
                full |= {int(party[-1])} if party != "shuffler" else set()
                largest = max(path.stat().st_size for path in place.rglob("*") if path.is_file())
                resource.prlimit(deployed.pids[party], resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
                time.sleep(dice.uniform(0.5, 4.0))
                with suppress(ProcessLookupError):
                    resource.prlimit(deployed.pids[party], resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        while not training.done():  # a shuffler that could not write has ended, and a supervisor starts it again
            if _start(deployed.pids["shuffler"]) is None:
                deployed.start("shuffler")
            time.sleep(0.5)
        for stage, result in zip(stages, training.result(), strict=True):
            deployed.check(stage, *result, full)


def test_a_training_server_needs_nothing_that_users_hold(deployed: Deployed) -> None:
    """The corpus is gone; from the public part and the shuffler's batches comes the same model, bit by bit."""
    arguments = deployed.command("training server")[1:]
    arguments[arguments.index("--out") + 1] = "again"
    (deployed.place / "data").rename(deployed.place / "elsewhere")
    try:
        done = deployed.run(*arguments)
    finally:
        (deployed.place / "elsewhere").rename(deployed.place / "data")
    assert done.returncode == 0, done.stderr
    first, again = deployed.folder / "server" / "run", deployed.place / "again"
    kept = {p.relative_to(first) for p in first.rglob("*") if p.is_file()}
    assert kept == {p.relative_to(again) for p in again.rglob("*") if p.is_file()}
    for path in (Path("models/a/maps.safetensors"), Path("models/a/asked/maps.safetensors"), Path("answers.json")):
        assert (first / path).read_bytes() == (again / path).read_bytes()
    secret = {line.split("\t")[0] for line in (deployed.place / "data" / "train.tsv").read_text().splitlines()[1:]}
    public = {json.loads(line)["text"] for line in (deployed.folder / "server/public/texts.jsonl").open()}
    assert public < secret and len(public) == 18
    for path in (deployed.folder / "server").rglob("*"):
        held = path.read_text(errors="replace") if path.is_file() else ""
        assert not any(text in held for text in secret - public), path


def test_what_does_not_belong_together_is_not_scored(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deployed.place)
    monkeypatch.setenv("XDG_CACHE_HOME", deployed.environment["XDG_CACHE_HOME"])
    experiment, server = load("study.toml"), deployed.folder / "server" / "run"
    prepared, whose = prepare(experiment), deployed.folder / "shuffler" / "origins"
    about = server / "models" / "a" / "model.json"
    kept = about.read_text()
    about.write_text(kept.replace('["bad", "good"]', '["good", "bad"]'))
    try:
        with pytest.raises(UserError, match="its classes are good, bad"):
            score_arm(experiment, prepared, "a", server=server, origins=whose)
    finally:
        about.write_text(kept)


def test_down_leaves_no_process(deployed: Deployed) -> None:
    done = deployed.run("deploy", "down", "dep")
    assert done.returncode == 0 and done.stdout.startswith("dep: stopped ")
    assert {"SuperLink", "model"} <= set(done.stdout.strip().partition("stopped ")[2].split(", "))
    assert parties(deployed.folder) == []
    assert deployed.run("deploy", "down", "dep").stdout == "dep: nothing is running\n"


@pytest.mark.soak
@pytest.mark.parametrize("end", ["killed", "a party dies", "Ctrl-C"])
def test_however_it_ends_no_process_is_left(workplace: tuple[Path, dict[str, str]], end: str) -> None:
    place, environment = workplace
    folder = place / end.replace(" ", "-")
    options = ["study.toml", "--arm", "a", "--nodes", NODES, "--out", folder.name]
    command = command_of("sottovoce", "deploy", "up", *options)
    pipe = subprocess.PIPE
    up = subprocess.Popen(command, cwd=place, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        wait_until(lambda: {"node 0", "node 1"} <= set(parties(folder)) or up.poll() is not None)
        if end == "a party dies":
            (victim,) = (process.pid for process in running(folder) if process.party == "node 1")
            os.kill(victim, signal.SIGKILL)
        else:
            up.send_signal(signal.SIGINT if end == "Ctrl-C" else signal.SIGKILL)
        out, said = up.communicate(timeout=60)
        assert out == "" and "Traceback" not in said
        last = said.splitlines()[-1]
        if end == "a party dies":
            assert up.returncode == 2 and "node 1 was ended by signal SIGKILL" in last
        elif end == "Ctrl-C":
            assert up.returncode == 130 and "everything is stopped" in last
        else:
            assert len(running(folder)) >= 3
            assert sottovoce(place, environment, "deploy", "down", folder.name).returncode == 0
        assert running(folder) == []
    finally:
        up.kill()
        stop(folder)
