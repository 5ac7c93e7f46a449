"""Flower's quickstart with the mod, through Flower's own strategy, SuperLink and SuperNodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client.store.ledger import Ledger
from sottovoce.deployment.processes import free_port
from tests.support.deployments import running
from tests.support.paths import ROOT

# Of the app without a server tests/client/test_accounted.py shows the same.
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("deployment")]

PROJECT = """[project]
name = "quick"
version = "1.0.0"
description = "An app"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "quick.server:app"
clientapp = "quick.client:app"
[tool.flwr.app.config]
seen = ""
"""
APP = {
    "pyproject.toml": PROJECT,
    "quick/__init__.py": "",
    "quick/server.py": """
import json
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp
from tests.support.quickstart import Watching, arrays

app = ServerApp()
@app.main()
def main(grid, context):
    kept = Watching(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    kept.start(grid, arrays(), num_rounds=2, train_config=ConfigRecord({}))
    open(context.run_config["seen"], "w").write(json.dumps(kept.seen))
""",
    "quick/client.py": """
from sottovoce import Policy, accounted
from tests.support.quickstart import quickstart

vector = {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0}
instead = {"metrics.num-examples": 1, "metrics.train_loss": None}
mod = accounted("ledger.sqlite", Policy(statistic=8.0, total=8.0), {"train": {"arrays": vector}}, instead=instead)
app = quickstart([mod])
""",
}


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A SuperLink and two SuperNodes, each a process in a folder of its own; gives the environment in which `flwr run
    APP here` finds them."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    serve = ["flower-supernode", "--insecure", "--superlink", address, "--port"]
    parties = [["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", address.split(":")[1]]]
    for i in range(2):
        parties.append([*serve, str(free_port()), "--node-config", f"partition-id={i} num-partitions=2"])
    with ExitStack() as started:
        for i, command in enumerate(parties):
            (tmp_path / str(i)).mkdir()
            started.enter_context(running(command, log=tmp_path / f"{i}.log", env=environment, cwd=tmp_path / str(i)))
        yield environment


def test_through_a_superlink(federation: dict[str, str], tmp_path: Path) -> None:
    for name, text in APP.items():
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(text)
    run = ["flwr", "run", "app", "here", "--stream", "--run-config", f'seen="{tmp_path / "seen.json"}"']
    ended = time.monotonic() + 120
    while True:  # the SuperLink takes a moment to listen
        done = subprocess.run(run, cwd=tmp_path, env=federation, capture_output=True, text=True, timeout=300)
        if (tmp_path / "seen.json").exists():
            break
        assert time.monotonic() < ended, done.stdout + done.stderr
        time.sleep(1.0)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == [{"num-examples": 1}] * 4
    for node in (1, 2):
        with Ledger(tmp_path / str(node) / "ledger.sqlite") as ledger:
            assert [round(row.epsilon, 6) for row in ledger.rows()] == [2.0, 2.0]
