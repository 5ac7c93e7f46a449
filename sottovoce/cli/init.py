"""Command `sottovoce init`: an experiment on your own table of texts and labels."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

# This file must not import NumPy before the command runs, because `--help` must start fast.


def command(
    from_: Annotated[Path, typer.Option("--from", metavar="FILE", help="CSV, TSV, JSONL or Parquet, a text a row.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the new folder (default: the file's).")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Column of the texts.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column of the labels.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Column that names the user of a row.")] = None,
    second: Annotated[str | None, typer.Option("--second", help="Column of the second texts of pairs.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="Further column to copy, as of groups.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", help="What to compare: vectors (one a user), or texts (sanitized word by word).")
    ] = "vectors",
    records: Annotated[
        int | None,
        typer.Option(
            "--records",
            min=1,
            help="Records of a typical user (default: the median of the users whose rows become public).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split into training and test rows.")] = 1,
) -> None:
    """Write an experiment on your own table of texts and labels."""
    from simulations.experiment.values import MOST_SEED, whole
    from simulations.run.proposal import propose

    out = Path(name or from_.stem)
    made = propose(
        from_,
        out,
        text=text,
        label=label,
        user=user,
        second=second,
        kept=tuple(keep or ()),
        seed=whole(0, most=MOST_SEED)(seed, "--seed"),
        kind=kind,
        records=records,
    )
    study = shlex.quote(str(made.file))
    print("\n".join(made.found))
    print(
        f"\nWritten: {made.file}, {out / 'train.csv'}, {out / 'test.csv'}. Next:\n"
        f"    sottovoce check {study}      # what it costs, before it runs\n"
        f"    sottovoce simulate {study}\n"
        f"    sottovoce sweep {study}      # {'' if kind == 'texts' else 'five ε by '}three seeds: a figure, and "
        "tables for a paper"
    )
