"""The guard at Flower's own SuperNodes, behind Flower's own SuperLink: apps in the shapes of Flower's quickstarts train
unmodified, and kills of any process at any moment leave no release without a charge.

Every message that the SuperLink's ServerApp takes is recorded by its strategy.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app.message.arraychunk import ArrayChunk
from flwr.cli.build import build_fab_from_files
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from client.store.ledger import Ledger
from sottovoce.deployment.processes import free_port
from tests.support.deployments import running, stop, wait_until
from tests.support.guarded import (
    SECRET,
    RecordingNode,
    expected_arrays,
    hostile,
    readable,
    recording,
    sandboxed,
    sent,
    write_policy,
)
from tests.support.guarded_apps import APPS, table
from tests.support.paths import ROOT

pytestmark = [sandboxed, pytest.mark.slow, pytest.mark.xdist_group("guard")]

_BIN = Path(sys.executable).parent
POLICY = """
ledger = "ledger.sqlite"
data = ["data"]
apps = ["{app}"]
[policy]
statistic = {total}
total = {total}
[limits]
seconds = 60
[releases.train.arrays]
{mechanism}
norm = {norm}
[releases.evaluate]
[instead]
"metrics.num-examples" = 1
"""


@dataclass
class Federation:
    """A SuperLink, and nodes that are each a SuperNode and a guard."""

    folder: Path
    address: str
    environment: dict[str, str]
    nodes: int
    guarded: bool
    started: ExitStack
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)

    def start(self, name: str, *command: str, folder: Path | None = None) -> None:
        place = folder or self.folder / name
        place.mkdir(exist_ok=True)
        self.processes[name] = self.started.enter_context(
            running(
                [str(_BIN / command[0]), *command[1:]],
                log=self.folder / f"{name}-{time.time_ns()}.log",
                env=self.environment,
                cwd=place,
            )
        )

    def supernode(self, i: int) -> None:
        port = self.ports.setdefault(i, free_port())
        place = self.folder / f"node{i}"
        isolated = ["--isolation", "process", "--superexec-auth-secret-file", str(place / "secret")]
        self.start(
            f"supernode{i}",
            "flower-supernode",
            "--insecure",
            "--superlink",
            self.address,
            "--port",
            str(port),
            *(isolated if self.guarded else []),
            "--node-config",
            f'partition-id={i} num-partitions={self.nodes} data-path="{place / "data"}"',
            folder=place,
        )

    def guard(self, i: int) -> None:
        place = self.folder / f"node{i}"
        self.start(
            f"guard{i}",
            "sottovoce",
            "guard",
            str(place / "guard.toml"),
            "--secret",
            str(place / "secret"),
            "--supernode",
            f"127.0.0.1:{self.ports[i]}",
            folder=place,
        )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def rows(self, i: int) -> list[Any]:
        path = self.folder / f"node{i}" / "ledger.sqlite"
        if not path.exists():
            return []
        with Ledger(path) as ledger:
            return ledger.rows()

    def run(self, **config: Any) -> None:
        """Start the run of the app with these settings; the ServerApp writes `seen.json` at its end."""
        settings = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        command = [str(_BIN / "flwr"), "run", "app", "here", "--run-config", settings]
        end = time.monotonic() + 120
        while True:  # the SuperLink takes a moment to listen
            done = subprocess.run(
                command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
            )
            if done.returncode == 0:
                return
            assert time.monotonic() < end, done.stdout + done.stderr
            time.sleep(1.0)

    def seen(self, seconds: float = 240.0) -> list[Any]:
        """What the ServerApp saw, once it has ended."""
        path, end = self.folder / "seen.json", time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < end, [p.read_text()[-1500:] for p in sorted(self.folder.glob("*.log"))]
            time.sleep(0.2)
        return json.loads(path.read_text())  # type: ignore[no-any-return]


# --- kills


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        todo += (new := children.get(todo.pop(), []))
        found += new
    return found


def showing(data: Path) -> list[int]:
    """Processes of sandboxes that show this data."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = line.read_bytes().split(b"\0")
            if b"bwrap" in words[0] and str(data).encode() in words:
                found.append(int(line.parent.name))
    return found


def chunks(node: RecordingNode, at: int) -> set[bytes]:
    """Contents of all arrays that a node was sent since then, whole messages or not."""
    pushed = [PushObjectRequest.FromString(body) for path, body in node.received[at:] if path == "push-object"]
    return {one.object_content for one in pushed if one.object_content.startswith(b"ArrayChunk")}


def killed(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill guard, app and SuperNode at random moments, and check what left and what was charged; counts by victim."""
    rng, port, done = np.random.default_rng(seed), free_port(), Counter[str]()
    app = hostile("time.sleep(0.3)", "return answer(asked)")
    readable(folder, secret="nothing")
    policy = write_policy(folder, app, **{"statistic = 40.0": "statistic = 1000.0", "total = 40.0": "total = 1000.0"})
    command = [
        str(_BIN / "sottovoce"),
        "guard",
        str(policy),
        "--secret",
        str(folder / "secret"),
        "--supernode",
        f"127.0.0.1:{port}",
    ]
    rows: dict[str, bytes] = {}
    with ExitStack() as stack:
        node = stack.enter_context(recording(port))
        process = stack.enter_context(running(command, log=folder / "guard.log"))
        took = 1.0
        for i in range(kills + 1):
            victim = ("nobody", "guard", "app", "supernode")[1 + (i - 1) % 3 if i else 0]
            at, nodes, start = len(node.received), [node], time.monotonic()
            names = [node.put(app, sent(round=i), {"data-path": str(folder / "data")})]
            if victim != "nobody":
                time.sleep(rng.uniform(0, took))
            if victim == "app":
                for pid in descendants(process.pid)[: int(rng.integers(1, 4))]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            elif victim == "supernode":
                node.stop()
                node = stack.enter_context(recording(port))
                nodes.append(node)
            elif victim == "guard":
                process.kill()
                process.wait()
                wait_until(lambda: not showing(folder / "data"))  # its sandbox dies with it
                process = stack.enter_context(running(command, log=folder / f"guard{i}.log"))
            if victim in ("guard", "supernode") and node.lost():  # the server sends it again
                names.append(node.put(app, sent(round=i), {"data-path": str(folder / "data")}))
            reply = node.reply(120.0, to=names)
            while reply.has_error() and reply.error.code < 100:  # Flower's own: a guard was away for too long
                names.append(node.put(app, sent(round=i), {"data-path": str(folder / "data")}))
                reply = node.reply(120.0, to=names)
            took = time.monotonic() - start if victim == "nobody" else took
            done[victim] += 1
            with Ledger(folder / "ledger.sqlite") as ledger:
                now = {row.digest: row.payload for row in ledger.rows()}
            if victim == "app" and reply.has_error():  # killed before its sandbox stood
                assert now == rows and reply.error.code == 110
                continue
            assert len(now) == len(rows) + 1, "another number of charges than of requests"
            assert all(now[digest] == payload for digest, payload in rows.items())
            (new,) = set(now) - set(rows)
            rows = now
            released = expected_arrays(now[new], sent(round=i))
            leaving = {key: array.numpy().tobytes() for key, array in reply.content["arrays"].items()}
            assert leaving == {key: array.tobytes() for key, array in released.items()}
            whole = {part.deflate() for part in get_all_nested_objects(reply).values() if isinstance(part, ArrayChunk)}
            assert set.union(*(chunks(each, at if each is nodes[0] else 0) for each in nodes)) == whole
    return done


@pytest.mark.parametrize("kills", [3, pytest.param(21, marks=pytest.mark.soak)])
def test_no_kill_leaves_a_release_without_a_charge_or_two_draws_for_one(kills: int, tmp_path: Path) -> None:
    done = killed(tmp_path, kills, seed=kills)
    assert {done[victim] for victim in ("guard", "app", "supernode")} == {kills // 3}


@contextmanager
def federated(folder: Path, app: str, nodes: int = 2, *, guarded: bool = True, **policy: Any) -> Iterator[Federation]:
    """A federation whose nodes may run one app."""
    given = {"total": 1000.0, "norm": 1.0, "mechanism": 'mechanism = "privunit"\nepsilon = 8.0'} | policy
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join((str(_BIN), os.environ["PATH"])),
        "OMP_NUM_THREADS": "1",
    }
    address = f"127.0.0.1:{free_port()}"
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    files = APPS[app] | ({} if guarded else {"quick/client.py": APPS[app]["quick/client.py"].replace(PLAIN, MOD)})
    for name, text in files.items():
        (folder / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "app" / name).write_text(text)
    bundle, _ = build_fab_from_files({k: v.encode() for k, v in files.items()})
    with ExitStack() as started:
        made = Federation(folder, address, environment, nodes, guarded, started)
        port = address.split(":")[1]
        made.start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port)
        for i in range(nodes):
            place = folder / f"node{i}"
            (place / "data").mkdir(parents=True)
            (place / "data" / "seed.txt").write_text(str(i))
            (place / "data" / "table.csv").write_text(table(1000 + i))
            (place / "secret").write_bytes(SECRET)
            (place / "guard.toml").write_text(POLICY.format(app=hashlib.sha256(bundle).hexdigest(), **given))
            made.supernode(i)
            if guarded:
                made.guard(i)
        yield made


def test_a_quickstart_trains_under_the_guard_and_every_round_is_charged(tmp_path: Path) -> None:
    with federated(tmp_path, "numpy") as made:
        made.run(seen=str(tmp_path / "seen.json"), rounds=2, strategy="FedAvg", nodes=2)
        seen = made.seen()
        assert seen["metrics"] == [{"num-examples": 1}] * 4 and seen["errors"] == []
        for i in range(2):
            assert [round(row.epsilon, 6) for row in made.rows(i)] == [8.0, 8.0]
        released = {json.dumps(one) for one in seen["updates"]}
        assert len(released) == 4
        for name in ("guard0", "supernode0", "superlink"):
            stop(made.processes[name])
    assert "loss-of-the-app" not in "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert "Traceback" not in "".join(path.read_text() for path in tmp_path.glob("guard*.log"))


#: Little noise: what is compared is the way of an update, not its privacy.
FAINT = {"mechanism": 'mechanism = "privunit"\nepsilon = 100.0', "norm": 0.3}
PLAIN = "app = ClientApp()\n"
MOD = """
from sottovoce import Policy, accounted
vector = {"mechanism": "privunit", "epsilon": 100.0, "norm": 0.3}
policy = Policy(statistic=1000.0, total=1000.0)
instead = {"metrics.num-examples": 1, "metrics.train_loss": None}
app = ClientApp(mods=[accounted("ledger.sqlite", policy, {"train": {"arrays": vector}}, instead=instead)])
"""


def accuracy(folder: Path, app: str, strategy: str, *, guarded: bool) -> float:
    """Accuracy of an app's model after five rounds of two nodes, under the guard or with the mod."""
    folder.mkdir()
    with federated(folder, app, guarded=guarded, **FAINT) as made:
        made.run(seen=str(folder / "seen.json"), rounds=5, strategy=strategy, nodes=2)
        seen = made.seen()
        assert seen["metrics"] == [{"num-examples": 1}] * 10 and seen["errors"] == []
        assert [len(made.rows(i)) for i in range(2)] == [5, 5]
    return float(seen["accuracy"])


@pytest.mark.soak  # a minute and more each
@pytest.mark.parametrize(
    ("app", "strategy"),
    [
        ("numpy", "FedAvg"),
        ("sklearn", "FedAvg+clipping"),
        ("pytorch", "FedAdam"),
        ("huggingface", "FedAvg"),
        ("table", "FedAvg"),
        ("personal", "FedAvg"),
    ],
)
def test_apps_in_flowers_own_shapes_reach_what_they_reach_with_the_mod(app: str, strategy: str, tmp_path: Path) -> None:
    guarded, with_mod = (accuracy(tmp_path / str(on), app, strategy, guarded=on) for on in (True, False))
    print(f"{app} {strategy}: {guarded:.3f} under the guard, {with_mod:.3f} with the mod")
    assert guarded == pytest.approx(with_mod, abs=0.03) and guarded > 0.6
