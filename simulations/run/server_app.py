"""Server side of the simulation as a Flower app, which `flwr run .` starts (`client.app` is the client side).

Flower provides the grid and the nodes; `simulations.run.run` does the rest. Settings are in pyproject.toml under
[tool.flwr.app.config]: `experiment`, a bundled name or a file, and `out`, the run folder, where the simulated nodes
also find their data.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from client.node import NODE
from client.store.durable import private_file
from simulations.errors import UserError
from simulations.experiment import load, to_toml
from simulations.progress import progress_lines

# All imports are here and none in `main`: Flower runs `main` in a thread while it loads the client's app, and two
# threads that import the same packages may see them incomplete.
from simulations.run import journal as resume
from simulations.run.report import write
from simulations.run.run import run
from simulations.transport.engine import settled_nodes

log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment on the nodes that Flower has started, one cohort of users on each.

    A run that fails leaves nothing behind, unless users have released something (`simulations.run.journal`).

    Raises:
        UserError: `out` exists, or is a relative path, which nodes may resolve elsewhere.
    """
    out = Path(str(context.run_config["out"])).expanduser()
    if not out.is_absolute() or out.exists():
        raise UserError(f"out: {out}: name a folder that is not there yet, by its whole path or from ~")
    experiment = load(str(context.run_config["experiment"]))
    started = settled_nodes(grid)
    people = dataclasses.replace(experiment.population, users_per_node=math.ceil(experiment.population.users / started))
    experiment = dataclasses.replace(experiment, population=people)

    def engine(job: Any, *, nodes: int, folder: Path) -> Any:
        for node in range(nodes, started):  # cohorts of equal size may leave nodes without users
            (folder / str(node)).mkdir(mode=0o700)
            with private_file(folder / str(node) / NODE) as file:
                file.write((folder / "0" / NODE).read_bytes())
        return job(grid)

    # The nodes read their data from this folder during the run, so it is not renamed at the end.
    with progress_lines(clock=False):
        with resume.started(out, to_toml(experiment), in_place=True):
            write(run(experiment, out, engine=engine), out)
        log.info(f"results are in {out}")
