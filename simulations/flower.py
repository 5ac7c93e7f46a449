"""The study as a Flower app: what `flwr run .` starts on the server's side (`client.app` is the other).

Flower brings the grid and the nodes; everything else is `simulations.run`. Settings are in pyproject.toml under
[tool.flwr.app.config]: `experiment`, a bundled name or a file; `out`, the run folder, where the simulated nodes
find their shards too.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment on the nodes that Flower has started, one cohort of users on each."""
    from simulations.engine import wait_for_nodes
    from simulations.experiment import load
    from simulations.report import write
    from simulations.run import run

    experiment = load(str(context.run_config["experiment"]))
    nodes = len(wait_for_nodes(grid, 1))
    people = dataclasses.replace(
        experiment.population, users_per_node=math.ceil(experiment.population.users / nodes)
    )
    experiment = dataclasses.replace(experiment, population=people)

    def engine(job: Any, *, nodes: int, folder: Path) -> Any:
        return job(grid)

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    out = Path(str(context.run_config["out"])).expanduser()
    # The nodes read their shards from this folder while the run goes on, so it is not renamed at the end.
    out.mkdir(parents=True)
    write(run(experiment, out, progress=progress, engine=engine), out)
    progress(f"results are in {out}")
