"""Command `sottovoce text deniability`: its options. The measurements are in simulations.analysis.deniability."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.errors import UserError
from sottovoce.cli.options import MOST_SEED, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    mechanism: Annotated[
        list[str],
        typer.Option(
            "--mechanism", metavar="NAME:KEY=VALUE,...", help="Mechanism and its parameters; repeat to compare."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for tables and figures; new or empty.")],
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", help="ε to try; may be repeated (default: 5, 10, 25).")
    ] = None,
    words: Annotated[
        str, typer.Option("--words", help="Public word vectors: a text file, or a checkpoint's own words.")
    ] = "minilm",
    sample: Annotated[int, typer.Option("--sample", help="Words to draw from, at random.")] = 1000,
    draws: Annotated[int, typer.Option("--draws", help="Draws of each word.")] = 100,
    quantile: Annotated[float, typer.Option("--quantile", help="With --target: of N_x over the words.")] = 0.5,
    target: Annotated[
        float | None, typer.Option("--target", help="Compare where this N_x is reached, not at given ε.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Root seed.")] = 1,
) -> None:
    """Compare word mechanisms: how often do words stay?"""
    from simulations.analysis.deniability import Study, check, load_words, run, table, write
    from simulations.output.atomic import staged

    if target is not None and epsilon:
        raise UserError("--target: finds each mechanism's ε itself; leave --epsilon out")
    study = Study(tuple(mechanism), tuple(epsilon or Study.epsilons), words, sample, draws, quantile, target, seed)
    check(study)
    show_progress()
    with staged(out) as part:
        results = run(study, load_words(study.words))
        write(results, part)
    print(table(results))
    print(f"\nTables and figures: {out}")
