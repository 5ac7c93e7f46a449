"""Command `sottovoce report`: its options. The report is in sottovoce.report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

# This file must not import NumPy or matplotlib before the command runs, because `--help` must start fast.


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN_OR_STUDY...", help="Their folders, or their URLs.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="An .html file; the privacy label stands beside it as .json.")
    ] = Path("report.html"),
) -> None:
    """Write one HTML report of finished runs and studies for reviewers, with a machine-readable privacy label."""
    from simulations.run.published import finished
    from sottovoce.report.write import report

    with ExitStack() as copies:
        folders = [copies.enter_context(finished(run, lambda name: "models/" not in name)) for run in runs]
        paths = report(folders, out)
    print("\n".join(str(path) for path in paths))
