"""Command `sottovoce text paraphraser`: its options. The training is in server.training.paraphrase."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer

from simulations.errors import UserError
from sottovoce.cli.options import MOST_SEED, show_progress

# This file must not import torch before the command runs, because `--help` must start fast.


def command(
    model: Annotated[str, typer.Option("--model", help="A checkpoint that generates text: its folder, or a hub name.")],
    pairs: Annotated[Path, typer.Option("--pairs", metavar="FILE", help="Public pairs: TSV, CSV, JSONL or Parquet.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="For the trained checkpoint, new or empty.")],
    column: Annotated[
        list[str], typer.Option("--column", help="Twice: the column of the texts, then that of their paraphrases.")
    ],
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    lr: Annotated[float, typer.Option(help="Of AdamW, at its highest.")] = 5e-5,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED)] = 0,
) -> None:
    """Fine-tune a model on public paraphrases, for dp-paraphrase."""
    from simulations.corpora.rewriting import blocks, format_of
    from simulations.output.atomic import staged

    if not format_of(pairs):
        raise UserError(f"{pairs}: pairs stand in columns; give a TSV, CSV, JSONL or Parquet file")
    if len(set(column)) != 2 or len(column) != 2:
        raise UserError(f"--column: give two, of the texts and of their paraphrases; got {', '.join(column)}")
    read = [cells for block in blocks(pairs, BytesIO(), column, 1024) for cells in block.texts]
    with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
        from server.training.paraphrase import finetune_paraphraser

        show_progress()
        with staged(out) as folder:
            finetune_paraphraser(
                model,
                [(text, paraphrase) for text, paraphrase in read],
                folder,
                epochs=epochs,
                batch_size=batch_size,
                lr=lr,
                seed=seed,
            )
    print(f"{out}: a checkpoint that paraphrases, for --generator and text.paraphraser")
