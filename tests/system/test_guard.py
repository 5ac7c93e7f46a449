"""The guard at Flower's own SuperNodes, behind Flower's own SuperLink: apps in the shapes of Flower's quickstarts train
unmodified, and kills of any process at any moment leave no release without a charge.

Every message that the SuperLink's ServerApp takes is recorded by its strategy.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_files

from client.store.ledger import Ledger
from sottovoce.deployment.processes import free_port
from tests.support.deployments import running, stop
from tests.support.guarded import SECRET, sandboxed
from tests.support.guarded_apps import APPS
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
{more}
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
    started: ExitStack
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)

    def start(self, name: str, *command: str, folder: Path | None = None) -> None:
        place = folder or self.folder / name
        place.mkdir(exist_ok=True)
        self.processes[name] = self.started.enter_context(
            running([str(_BIN / command[0]), *command[1:]], log=self.folder / f"{name}-{time.time_ns()}.log",
                    env=self.environment, cwd=place)
        )  # fmt: skip

    def supernode(self, i: int) -> None:
        port = self.ports.setdefault(i, free_port())
        place = self.folder / f"node{i}"
        self.start(
            f"supernode{i}", "flower-supernode", "--insecure", "--superlink", self.address, "--port", str(port),
            "--isolation", "process", "--superexec-auth-secret-file", str(place / "secret"),
            "--node-config", f'partition-id={i} num-partitions={self.nodes} data-path="{place / "data"}"', folder=place,
        )  # fmt: skip

    def guard(self, i: int) -> None:
        place = self.folder / f"node{i}"
        self.start(
            f"guard{i}", "sottovoce", "guard", str(place / "guard.toml"), "--secret", str(place / "secret"),
            "--supernode", f"127.0.0.1:{self.ports[i]}", folder=place,
        )  # fmt: skip

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


@contextmanager
def federated(folder: Path, app: str, nodes: int = 2, *, guarded: bool = True, **policy: Any) -> Iterator[Federation]:
    """A federation whose nodes may run one app."""
    given = {"total": 1000.0, "norm": 1.0, "mechanism": 'mechanism = "privunit"\nepsilon = 8.0', "more": ""} | policy
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join((str(_BIN), os.environ["PATH"])), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    address = f"127.0.0.1:{free_port()}"
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    for name, text in APPS[app].items():
        (folder / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "app" / name).write_text(text)
    bundle, _ = build_fab_from_files({k: v.encode() for k, v in APPS[app].items()})
    with ExitStack() as started:
        made = Federation(folder, address, environment, nodes, started)
        port = address.split(":")[1]
        made.start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port)
        for i in range(nodes):
            place = folder / f"node{i}"
            (place / "data").mkdir(parents=True)
            (place / "data" / "seed.txt").write_text(str(i))
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
