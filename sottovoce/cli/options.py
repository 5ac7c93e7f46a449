"""Options that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from simulations.progress import progress_lines

if TYPE_CHECKING:
    from simulations.experiment.result import ArmResult

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
File = Annotated[str, typer.Argument(metavar="FILE.toml", help="An experiment, or the name of a bundled one.")]
SuperLink = Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="Address of Flower's SuperLink.")]
Authority = Annotated[Path, typer.Option("--root-certificates", metavar="FILE", help="Certificate of the authority.")]
OneArm = Annotated[str | None, typer.Option("--arm", metavar="NAME", help="Which arm, if there are several.")]
Data = Annotated[Path | None, typer.Option("--data", help="Data folder, in place of data.path.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as population.users=500."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Join the Ray cluster whose head is there; its machines need not share a folder.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="KIND:PLACE",
        help="Tell a tracker of each arm too: mlflow:URI, tensorboard:FOLDER or wandb:PROJECT.",
    ),
]


def print_json(answer: Any) -> None:
    """Print one JSON object, with "inf" for infinity."""
    from simulations.output import jsonable

    jsonable.print_json(answer)


def overrides(set_: Sequence[str] | None, data: Path | None) -> list[str]:
    """Return the overrides of --set and --data in a study. Raises UserError for a key that is set twice."""
    from simulations.errors import UserError

    result = list(set_ or ())
    keys = [item.partition("=")[0].strip() for item in result]
    for i, key in enumerate(keys):
        if key in keys[:i] or (key == "data.path" and data is not None):
            other = "--data" if key not in keys[:i] else result[keys.index(key)].strip()
            raise UserError(f"--set {result[i]}: {key} is set twice, by {other} too; leave one of them")
    if data is not None:
        # A JSON string is a TOML string, so a folder called "1" stays a text.
        result.append(f"data.path={json.dumps(str(data), ensure_ascii=False)}")
    return result


def show_progress(*, clock: bool = True) -> None:
    """Print progress lines on stderr until the command ends, as `simulations.progress.progress_lines` does."""
    click.get_current_context().with_resource(progress_lines(clock=clock))


def end_undelivered(arms: Sequence[ArmResult]) -> None:
    """End the command with 1 if no user of an arm reached the server after a request."""
    from simulations.run.report import undelivered

    lines = undelivered(arms)
    for line in lines:
        print(f"sottovoce: {line}", file=sys.stderr)
    if lines:
        raise typer.Exit(1)
