"""Commands `sottovoce encoders`: their options. The encoders are in simulations.artifacts.encoders."""

from __future__ import annotations

from typing import Annotated

import typer

from sottovoce.cli.options import show_progress

# This file must not import NumPy or torch before a command runs, because `--help` must start fast.

app = typer.Typer(help="List and download sentence encoders.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the named encoders, and which are on this machine."""
    from simulations.artifacts.encoders import ENCODERS, here

    for name, known in ENCODERS.items():
        print(f"{name:<12} {'here' if here(name) else '-':<5} {known.about} ({known.license})")
    print("\nencoder.model takes a name, a folder, or a model of a hub. To download: sottovoce encoders get NAME")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of the list, or of a model on a hub.")],
    prefix: Annotated[str | None, typer.Option(help="Text before every sentence, as 'query: '.")] = None,
) -> None:
    """Download an encoder into the cache, and check its SHA-256."""
    from simulations.artifacts import encoders

    show_progress()
    print(encoders.get(name, prefix=prefix))
