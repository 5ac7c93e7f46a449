"""Command `sottovoce text similarity`: its options. The measures are in simulations.analysis.similarity."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="TSV, CSV, JSONL, Parquet or lines.")],
    rewritten: Annotated[Path, typer.Argument(metavar="REWRITTEN", help="The same rows after `text sanitize`.")],
    column: Annotated[
        list[str] | None, typer.Option("--column", help="The column of the texts; again, of pairs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare texts with their originals: BLEU and cosine."""
    with redirect_stdout(sys.stderr):
        from simulations.analysis.similarity import of_files

        show_progress()
        found = of_files(original, rewritten, column or ())
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    print(f"{found.texts:,} texts, {found.same:.1%} of them unchanged")
    bleu = "–, as no text has four words" if found.bleu is None else f"{found.bleu:.2f}   ({found.bleu_signature})"
    error = "" if found.cosine_error is None else f" ± {found.cosine_error:.4f}"
    print(f"BLEU    {bleu}")
    print(f"cosine  {found.cosine:.4f}{error}   (all-MiniLM-L6-v2, 128 tokens of each)")
