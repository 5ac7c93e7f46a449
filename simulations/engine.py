"""The one place that starts Flower and Ray."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: Set before Flower or Ray is imported: a privacy tool phones nobody, not even to ask for updates.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}


def wait_for_nodes(grid, nodes: int, *, seconds: float = 60.0) -> list[int]:
    """Node ids of all `nodes` SuperNodes: their registration races the ServerApp's main function."""
    end = time.monotonic() + seconds
    while len(ids := sorted(grid.get_node_ids())) < nodes:
        if time.monotonic() > end:
            raise RuntimeError(f"only {len(ids)} of {nodes} Flower nodes registered within {seconds:.0f} s")
        time.sleep(0.05)
    return ids


def settled_nodes(grid, *, seconds: float = 1.0) -> int:
    """How many SuperNodes there are, where nobody says how many to wait for: once none has come for so long."""
    known, since = len(wait_for_nodes(grid, 1)), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.05)
        if (now := len(grid.get_node_ids())) != known:
            known, since = now, time.monotonic()
    return known


def run_on_flower(job: Callable[[object], T], *, nodes: int, folder: Path, cpus_per_actor: float = 1.0) -> T:
    """Starts `nodes` SuperNodes that run `client.app`, each with its data under `folder`, and runs job(grid).

    Returns what the job returns and re-raises what it raises. Ray is started for this call and stopped after
    it. Actors take one thread each, so that they do not fight over the cores.
    """
    # Ray's workers inherit this process' environment; Flower passes a runtime_env of its own.
    os.environ.update(QUIET | {"SOTTOVOCE_NODES": str(folder.resolve())})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from client.app import app as client_app

    # What the job makes stays in this process: the ServerApp runs in a thread of it.
    outcome: list[T] = []
    failure: list[BaseException] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid, context) -> None:
        try:
            wait_for_nodes(grid, nodes)
            outcome.append(job(grid))
        except BaseException as error:  # Flower would turn it into a log line and another exception
            failure.append(error)

    configuration = {
        "init_args": {
            "include_dashboard": False,
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        },
        # Flower hands these to Ray as the actors' options. It puts a dead actor back into its pool, where it would
        # fail every later message at once: Ray must start it again. The message it died on is tried once more,
        # which the ledgers make safe: what was charged before is sent again, and not drawn anew.
        "client_resources": {
            "num_cpus": cpus_per_actor,
            "num_gpus": 0.0,
            "max_restarts": -1,
            "max_task_retries": 1,
        },
    }
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(server_app, client_app, num_supernodes=nodes, backend_config=configuration)
    if failure:
        raise failure[0]
    if not outcome:
        raise RuntimeError("Flower ended before the server had finished; its log says why")
    return outcome[0]
