"""Commands `sottovoce dev`: measurements for developers of Sottovoce."""

from __future__ import annotations

import typer

from sottovoce.cli import bench

app = typer.Typer(help="Measure speed, for developers of Sottovoce.", no_args_is_help=True)
app.command("bench")(bench.command)
