"""Flower's quickstart through Flower's own server, strategy and SuperNodes, on Ray and as processes: as it is, and with
the mod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from client.store.ledger import Ledger
from sottovoce.deployment.processes import free_port
from tests.support.deployments import running
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

NODES, ROUNDS = 3, 2
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
"""
PROGRAM = """
import json, sys
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from sottovoce import Policy, accounted
from tests.support.quickstart import Watching, arrays, quickstart

vector = {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0}
instead = {"metrics.num-examples": 1, "metrics.train_loss": None}
mod = accounted("ledger.sqlite", Policy(statistic=8.0, total=8.0), {"train": {"arrays": vector}}, instead=instead)
server = ServerApp()

@server.main()
def main(grid, context):
    kept = Watching(fraction_evaluate=0.0, min_train_nodes=int(sys.argv[2]), min_available_nodes=int(sys.argv[2]))
    kept.start(grid, arrays(), num_rounds=int(sys.argv[3]), train_config=ConfigRecord(json.loads(sys.argv[4])))
    open("seen.json", "w").write(json.dumps(kept.seen))

run_simulation(server, quickstart([mod] if sys.argv[1] == "with" else []), num_supernodes=int(sys.argv[2]))
"""


def ran(folder: Path, how: str, **config: Any) -> list[Any]:
    """What the server saw beside the arrays, of each answer."""
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", how, str(NODES), str(ROUNDS), json.dumps(config)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: list[Any] = json.loads((folder / "seen.json").read_text())
    return seen


@pytest.mark.soak  # shown of the app without a server in tests/client/test_accounted.py
def test_without_it_the_server_reads_losses_and_numbers_of_examples(tmp_path: Path) -> None:
    seen = ran(tmp_path, "without")
    assert sorted({told["num-examples"] for told in seen}) == [5, 6, 7] and all(told["train_loss"] > 0 for told in seen)


def test_with_it_constants_and_every_user_is_charged_for_every_round(tmp_path: Path) -> None:
    assert ran(tmp_path, "with") == [{"num-examples": 1}] * (NODES * ROUNDS)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        rows = ledger.rows()
    assert sorted(row.user for row in rows) == sorted([*range(NODES)] * ROUNDS)
    assert {round(row.epsilon, 6) for row in rows} == {2.0}


@pytest.mark.soak  # as above
def test_what_it_raises_is_a_constant_text(tmp_path: Path) -> None:
    assert {told if isinstance(told, str) else "an answer" for told in ran(tmp_path, "with", **{"break": 1})} == {
        "the request could not be answered"
    }


# --- through a SuperLink and SuperNodes of their own, as a deployment has them

APP = {
    "pyproject.toml": PROJECT
    + """seen = ""
""",
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
app = quickstart([mod] if MOD else [])
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
    nodes = [
        [
            "flower-supernode",
            "--insecure",
            "--superlink",
            address,
            "--port",
            str(free_port()),
            "--node-config",
            f"partition-id={i} num-partitions=2",
        ]
        for i in range(2)
    ]
    parties = [["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", address.split(":")[1]], *nodes]
    with ExitStack() as started:
        for i, command in enumerate(parties):
            (tmp_path / str(i)).mkdir()
            started.enter_context(running(command, log=tmp_path / f"{i}.log", env=environment, cwd=tmp_path / str(i)))
        yield environment


@pytest.mark.soak  # a minute; on Flower's own simulation above
@pytest.mark.parametrize("mod", [True, False])
def test_through_a_superlink(mod: bool, federation: dict[str, str], tmp_path: Path) -> None:
    for name, text in APP.items():
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(text.replace("MOD", str(mod)))
    run = ["flwr", "run", "app", "here", "--stream", "--run-config", f'seen="{tmp_path / "seen.json"}"']
    ended = time.monotonic() + 120
    while True:  # the SuperLink takes a moment to listen
        done = subprocess.run(run, cwd=tmp_path, env=federation, capture_output=True, text=True, timeout=300)
        if (tmp_path / "seen.json").exists():
            break
        assert time.monotonic() < ended, done.stdout + done.stderr
        time.sleep(1.0)
    seen = json.loads((tmp_path / "seen.json").read_text())
    if not mod:
        assert sorted(told["num-examples"] for told in seen) == [5, 5, 6, 6] and all("train_loss" in t for t in seen)
        return
    assert seen == [{"num-examples": 1}] * 4
    for node in (1, 2):
        with Ledger(tmp_path / str(node) / "ledger.sqlite") as ledger:
            assert [round(row.epsilon, 6) for row in ledger.rows()] == [2.0, 2.0]
