"""The study as a Flower app: what `flwr run .` starts on the server's side (`client.app` is the other).

Flower brings the grid and the nodes; everything else is `simulations.run.run`. Settings are in pyproject.toml under
[tool.flwr.app.config]: `experiment`, a bundled name or a file; `out`, the run folder, where the simulated nodes
find their shards too.
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

# All imports stand here and none in `main`: Flower loads the two apps one after the other, but runs `main` in a
# thread while it loads the client's, and two threads that import the same packages may see them half-made.
from simulations.run import journal as resume
from simulations.run.report import write
from simulations.run.run import run
from simulations.transport.engine import settled_nodes

log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment on the nodes that Flower has started, one cohort of users on each.

    Raises UserError where `out` is a relative path (the nodes may work in another folder) or is there already. A
    run that fails leaves nothing behind, unless users have released something: see `simulations.run.journal`.
    """
    out = Path(str(context.run_config["out"])).expanduser()
    if not out.is_absolute() or out.exists():
        raise UserError(f"out: {out}: name a folder that is not there yet, by its whole path or from ~")
    experiment = load(str(context.run_config["experiment"]))
    started = settled_nodes(grid)
    people = dataclasses.replace(
        experiment.population, users_per_node=math.ceil(experiment.population.users / started)
    )
    experiment = dataclasses.replace(experiment, population=people)

    def engine(job: Any, *, nodes: int, folder: Path) -> Any:
        for node in range(nodes, started):  # cohorts of equal size may leave nodes over: nobody lives there
            (folder / str(node)).mkdir(mode=0o700)
            with private_file(folder / str(node) / NODE) as file:
                file.write((folder / "0" / NODE).read_bytes())
        return job(grid)

    # The nodes read their shards from this folder while the run goes on, so it is not renamed at the end.
    with progress_lines(clock=False):
        with resume.started(out, to_toml(experiment), in_place=True):
            write(run(experiment, out, engine=engine), out)
        log.info(f"results are in {out}")
