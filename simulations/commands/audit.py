"""The command `sottovoce audit`: its options; the audit itself is in simulations.audit.run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.commands.options import print_json
from simulations.progress import progress_lines

# Nothing here may import NumPy or the mechanisms before the command runs: `--help` must answer at once.


def command(
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="NAME", help="Only this one; may be repeated (default: all)."),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", help="Draws of each of two inputs.")] = 200_000,
    delta: Annotated[float, typer.Option("--delta", help="δ at which ε is compared beside the pure one.")] = 1e-3,
    seed: Annotated[int, typer.Option("--seed", help="Root seed.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for audit.json and audit.md; new or empty.", show_default=False),
    ] = None,
) -> None:
    """Measure lower bounds of ε beside what is claimed; exit code 1 where a claim is violated.

    NAME: a mechanism of the catalogue, length, text, client, client-timing or shuffler; or somebody else's, by its
    package's name for it or as package.module:Class.
    """
    from simulations.audit.run import audit, table

    results = audit(*(mechanism or ()), draws=draws, delta=delta, seed=seed, out=out, progress=progress_lines())
    if as_json:
        print_json(results)
    else:
        print(table(results))
    if results["violated"]:
        raise typer.Exit(1)
