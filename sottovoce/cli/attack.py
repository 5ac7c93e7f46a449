"""Command `sottovoce attack`: its options. The attacks are in sottovoce.adversary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import print_json, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Its folder.")],
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="Only this one; may be repeated (default: all that apply)."),
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="NAME", help="Only this arm; may be repeated (default: all).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Texts of each arm, at most.")] = 500,
    masked_lm: Annotated[
        Path | None,
        typer.Option(
            "--masked-lm",
            metavar="FOLDER",
            help="Checkpoint with a masked-LM head, for the attack `mask` (default: the run's own, if it has one).",
        ),
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(
            "--shadows",
            help="Models that membership-shadow and -lira train (default: 16; none where that means to train BERT).",
        ),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME",
            help="Column that attribute inference guesses; may be repeated (default: what the corpus has).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:
    """Attack a run's releases as the server would.

    Write attacks.json and attacks.md into its folder. If a named attack has no result, the others are kept, and the
    exit code is 2.
    """
    from simulations.analysis.attack_results import table
    from sottovoce.adversary.attacks import run as attacks

    show_progress()
    results = attacks.attack(
        run,
        *(attack or ()),
        arms=arm or (),
        limit=limit,
        masked_lm=masked_lm,
        attributes=attribute or (),
        shadows=shadows,
    )
    if as_json:
        print_json(results)
    else:
        print(table(results))
    for line in results["refused"]:
        print(f"sottovoce: {line}", file=sys.stderr)
    if results["refused"]:
        raise typer.Exit(2)
