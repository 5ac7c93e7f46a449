"""Command `sottovoce people`: its options. The comparison is in sottovoce.adversary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import print_json, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="SynthPAI's comments.tsv and profiles.tsv.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the results.")],
    labelled: Annotated[
        Path | None,
        typer.Option(
            "--labelled",
            metavar="FILE",
            show_default=False,
            help="Labelled sentences (TSV: label 0 or 1, sentence) for the task's teacher.",
        ),
    ] = None,
    masked_lm: Annotated[
        str | None,
        typer.Option(
            "--masked-lm",
            metavar="FOLDER",
            show_default=False,
            help="Masked language model in client form for DP-MLM, or minilm for the bundled one.",
        ),
    ] = None,
    comments: Annotated[
        int | None, typer.Option("--comments", show_default=False, help="Comments of each author, at most.")
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option("--release", metavar="NAME", help="Only this text release; may be repeated (default: all)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:
    """Compare what releases of people's texts tell an attacker."""
    from sottovoce.adversary.attacks import people

    show_progress()
    results = people.run(
        folder, out, labelled=labelled, masked_lm=masked_lm, most=comments, releases=release or (), seed=seed
    )
    if as_json:
        print_json(results)
    else:
        print(people.summary(results))
