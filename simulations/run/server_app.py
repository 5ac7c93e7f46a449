"""Server side of the simulation as a Flower app, which `flwr run .` starts (`client.app` is the client side).

Flower provides the grid and the nodes; `simulations.run.run` does the rest. Settings are in pyproject.toml under
[tool.flwr.app.config]: `experiment`, a bundled name or a file, and `out`, the run folder, where the simulated nodes
also find their data.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from simulations.errors import UserError
from simulations.experiment import load
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
    # The nodes read their data from this folder during the run, so it is not renamed at the end.
    with progress_lines(clock=False):
        with resume.started(out, in_place=True):
            resume.Journal(out).keep_nodes(settled_nodes(grid))
            write(run(experiment, out, engine=lambda job, **_: job(grid)), out)
        log.info(f"results are in {out}")
