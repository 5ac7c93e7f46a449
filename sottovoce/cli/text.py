"""Commands `sottovoce text`: sanitize texts, and compare text mechanisms."""

from __future__ import annotations

import typer

from sottovoce.cli import deniability, paraphraser, sanitize, similarity

app = typer.Typer(help="Sanitize texts, and compare text mechanisms.", no_args_is_help=True)
app.command("sanitize")(sanitize.command)
app.command("deniability")(deniability.command)
app.command("similarity")(similarity.command)
app.command("paraphraser")(paraphraser.command)
