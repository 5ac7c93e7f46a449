"""Command `sottovoce explore`: its options. The page is in sottovoce.explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN_DIR", help="Of this finished run: its data, its model.", show_default=False),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="DIR", help="Or of this device's bundle.", show_default=False),
    ] = None,
    node: Annotated[
        Path | None,
        typer.Option(
            "--node", metavar="DIR", show_default=False,
            help="With --bundle: this device's own ledger, which is charged (default: one that is thrown away).",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of the page (0: a free one).")] = 0,
) -> None:
    """Serve a page for your browser that shows what leaves a device for a sentence, what it reveals, and its cost."""
    from sottovoce.explore import serve

    serve.run(run=run, bundle=bundle, node=node, port=port, say=lambda line: print(line, flush=True))
