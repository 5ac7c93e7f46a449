"""Command `sottovoce report`: its options. The report is in sottovoce.report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import Set, overrides

# This file must not import NumPy or matplotlib before the command runs, because `--help` must start fast.


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|FILE.toml", help="Folders of runs and sweeps; or one experiment, before it runs."
        ),
    ],
    set_: Set = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="An .html file; the privacy label is written beside it as .json."),
    ] = Path("report.html"),
) -> None:
    """Write an HTML report and a privacy label, for reviewers.

    The report is about finished runs and sweeps, or about an experiment's cost before it runs.
    """
    from simulations.errors import UserError
    from sottovoce.report.write import report, report_of_plan

    if _is_experiment(runs):
        print("\n".join(str(path) for path in report_of_plan(runs[0], out, overrides=overrides(set_, None))))
        return
    if set_:
        raise UserError("report: --set goes with FILE.toml; a run is as it was")
    print("\n".join(str(path) for path in report(list(map(Path, runs)), out)))


def _is_experiment(named: Sequence[str]) -> bool:
    """Return True if one experiment file, or one bundled experiment, is named in place of folders."""
    from simulations.experiment.toml import bundled

    return len(named) == 1 and (
        named[0].lower().endswith(".toml") or (named[0] in bundled() and not Path(named[0]).exists())
    )
