"""Command `sottovoce explore`: its options. The page is in sottovoce.explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN_DIR", help="Finished run whose data and encoder are used.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page (0: a free one).")] = 0,
) -> None:
    """Serve a local page: type a sentence, see what leaves a device."""
    from sottovoce.explore import serve

    serve.run(run=run, port=port, say=lambda line: print(line, flush=True))
