"""Flower's quickstart through Flower's own server, strategy and SuperNodes on Ray: as it is, and with the mod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client.store.ledger import Ledger
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

NODES, ROUNDS = 3, 2
PROGRAM = """
import json, sys
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sottovoce import Policy, accounted
from tests.support.quickstart import arrays, quickstart

vector = {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0}
instead = {"metrics.num-examples": 1, "metrics.train_loss": None}
mod = accounted("ledger.sqlite", Policy(statistic=8.0, total=8.0), {"train": {"arrays": vector}}, instead=instead)
seen = []

class Watching(FedAvg):
    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        seen.extend(dict(r.content["metrics"].items()) if r.has_content() else r.error.reason for r in replies)
        return super().aggregate_train(server_round, replies)

server = ServerApp()

@server.main()
def main(grid, context):
    kept = Watching(fraction_evaluate=0.0, min_train_nodes=int(sys.argv[2]), min_available_nodes=int(sys.argv[2]))
    kept.start(grid, arrays(), num_rounds=int(sys.argv[3]), train_config=ConfigRecord(json.loads(sys.argv[4])))
    open("seen.json", "w").write(json.dumps(seen))

run_simulation(server, quickstart([mod] if sys.argv[1] == "with" else []), num_supernodes=int(sys.argv[2]))
"""


def ran(folder: Path, how: str, **config: Any) -> list[Any]:
    """What the server saw beside the arrays, of each answer."""
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", how, str(NODES), str(ROUNDS), json.dumps(config)], cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
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
