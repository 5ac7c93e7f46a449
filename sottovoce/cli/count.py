"""Command `sottovoce count`: its options. The count is in simulations.counts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, Data, Set, overrides, print_json, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Local ε of a release.", show_default=False)]
Central = Annotated[
    float | None,
    typer.Option("--central", help="Central ε, for which ε and mechanism are planned.", show_default=False),
]
MechanismName = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        metavar="NAME",
        show_default=False,
        help="randomized-response or subset-selection (default: the one of least variance).",
    ),
]
TrainedModel = Annotated[
    Path | None, typer.Option("--model", metavar="FOLDER", help="A run's trained model.", show_default=False)
]
Since = Annotated[
    Path | None,
    typer.Option(
        "--since",
        metavar="FOLDER",
        show_default=False,
        help="Last count of the same users: charge their ledgers, and show changes.",
    ),
]
Confidence = Annotated[float, typer.Option("--confidence", help="Of all intervals together.")]


def command(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="Experiment, or the name of a bundled one.")],
    epsilon: Epsilon = None,
    central: Central = None,
    mechanism: MechanismName = None,
    topics: Annotated[
        list[Path] | None,
        typer.Option(
            "--topics", metavar="FILE", show_default=False, help="Topics, one a line; may be repeated, a question each."
        ),
    ] = None,
    model: TrainedModel = None,
    since: Since = None,
    confidence: Confidence = 0.95,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            show_default=False,
            help="Results folder, new or empty (default: runs/count-NAME-DATE-TIME).",
        ),
    ] = None,
    data: Data = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Count the classes of users' texts, with intervals."""
    from simulations.counts.count import count, count_several
    from simulations.errors import UserError
    from simulations.experiment import load, slug

    experiment = load(file, overrides(set_, data))
    folder = out or Path(f"runs/count-{slug(experiment.name)}-{datetime.now():%Y%m%d-%H%M%S}")
    show_progress()
    if topics and len(topics) > 1:
        if mechanism or model or since:
            raise UserError("--topics: several go without --mechanism, --model and --since")
        results = count_several(
            experiment, folder, topics=topics, epsilon=epsilon, central=central, confidence=confidence
        )
    else:
        results = (
            count(
                experiment,
                folder,
                epsilon=epsilon,
                central=central,
                mechanism=mechanism,
                topics=topics[0] if topics else None,
                model=model,
                confidence=confidence,
                since=since,
            ),
        )
    if as_json:
        print_json(results[0].to_dict() if len(results) == 1 else [result.to_dict() for result in results])
        return
    print("\n\n".join(result.text() for result in results))
    print(f"\n{folder}: count.json, counts.csv and counts.png{' of each' * (len(results) > 1)}, nodes/")
