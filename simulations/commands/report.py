"""The command `sottovoce report`: its options; the report is in simulations.report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Nothing here may import NumPy or matplotlib before the command runs: `--help` must answer at once.


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_OR_STUDY_DIR...")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="An .html file; the privacy label stands beside it as .json.")
    ] = Path("report.html"),
) -> None:
    """One HTML file on finished runs and studies for who has to judge them, and a privacy label for machines."""
    from simulations.report.write import report

    print("\n".join(str(path) for path in report(runs, out)))
