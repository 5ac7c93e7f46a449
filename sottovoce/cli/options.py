"""Options that several commands have."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, and everything else on stderr.")
]
OneArm = Annotated[
    str | None, typer.Option("--arm", metavar="NAME", help="Which arm, if there are several.", show_default=False)
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Data folder, in place of data.path.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the study, as population.users=500 or arm.0.embedding.epsilon=4.",
    ),
]


RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Join the Ray cluster whose head is there; its machines need not share a folder.",
        show_default=False,
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="KIND:PLACE",
        help="Tell a tracker of each arm too: mlflow:URI, tensorboard:FOLDER or wandb:PROJECT.",
    ),
]


def refuse_repeats(arguments: Sequence[str], root: Any) -> None:
    """Raises UserError for an option given twice of which one alone would count: the other would be passed over in
    silence, and with it a column that is to be sanitized, or a limit. root: the click command."""
    from simulations.errors import UserError

    words, command = list(arguments), root
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    takes = {
        name: parameter for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
    }  # fmt: skip
    seen: set[str] = set()
    words = words[: words.index("--")] if "--" in words else words
    while words:
        name, equals, _ = words.pop(0).partition("=")
        parameter = takes.get(name)
        if parameter is None or not name.startswith("-"):
            continue
        if not (getattr(parameter, "is_flag", False) or getattr(parameter, "count", False)) and not equals and words:
            words.pop(0)  # its value, whatever it looks like
        if parameter.name in seen and not getattr(parameter, "multiple", False):
            raise UserError(f"{name}: is given twice; leave one of them")
        seen.add(parameter.name)


def print_json(answer: Any) -> None:
    """As `simulations.output.jsonable.print_json`, which needs NumPy."""
    from simulations.output import jsonable

    jsonable.print_json(answer)


def overrides(set_: Sequence[str] | None, data: Path | None) -> list[str]:
    """What --set and --data override in a study. UserError for a key that is set twice."""
    from simulations.errors import UserError

    found = list(set_ or ())
    keys = [each.partition("=")[0].strip() for each in found]
    for i, key in enumerate(keys):
        if key in keys[:i] or (key == "data.path" and data is not None):
            other = "--data" if key not in keys[:i] else found[keys.index(key)].strip()
            raise UserError(f"--set {found[i]}: {key} is set twice, by {other} too; leave one of them")
    if data is not None:
        # A JSON string is a TOML string: a folder called "1" stays a text.
        found.append(f"data.path={json.dumps(str(data), ensure_ascii=False)}")
    return found


def end_where_nobody_was_delivered(results: Mapping[str, Any]) -> None:
    """Ends the command with 1 where an arm's users were asked and none of them reached the server: it says why."""
    from simulations.run.report import undelivered

    lines = undelivered(results)
    for line in lines:
        print(f"sottovoce: {line}", file=sys.stderr)
    if lines:
        raise typer.Exit(1)
