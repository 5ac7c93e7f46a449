"""Command `sottovoce count`: its options. The count is in simulations.counts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, Data, Set, overrides, print_json, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="Experiment, or the name of a bundled one.")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Local ε of a release.", show_default=False)
    ] = None,
    central: Annotated[
        float | None,
        typer.Option("--central", help="Central ε, for which ε and mechanism are planned.", show_default=False),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            "--mechanism", metavar="NAME", show_default=False,
            help="randomized-response or subset-selection (default: the one of least variance).",
        ),
    ] = None,
    topics: Annotated[
        Path | None, typer.Option("--topics", metavar="FILE", help="Topics, one a line.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FOLDER", help="A run's trained model.", show_default=False)
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            "--since", metavar="FOLDER", show_default=False,
            help="Last count of the same users: charge their ledgers, and show changes.",
        ),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of all intervals together.")] = 0.95,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", show_default=False,
            help="Results folder, new or empty (default: runs/count-NAME-DATE-TIME).",
        ),
    ] = None,
    data: Data = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Count the classes of users' texts, with intervals."""
    from simulations.counts.count import count
    from simulations.experiment import load, slug

    experiment = load(file, overrides(set_, data))
    folder = out or Path(f"runs/count-{slug(experiment.name)}-{datetime.now():%Y%m%d-%H%M%S}")
    show_progress()
    result = count(
        experiment, folder, epsilon=epsilon, central=central, mechanism=mechanism, topics=topics, model=model,
        confidence=confidence, since=since,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
        return
    print(result.text())
    print(f"\n{folder}: count.json, counts.csv, counts.png, nodes/")
