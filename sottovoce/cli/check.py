"""Command `sottovoce check`: ε, crowds and truncation of an experiment, before it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import click
import typer

from simulations.output.streams import in_unicode
from sottovoce.cli.ladder_table import LEGEND, table
from sottovoce.cli.options import AsJson, Data, Set, overrides, print_json, show_progress

# This file must not import NumPy or the accounting before the command runs, because `--help` must start fast.


def command(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE.toml", help="An experiment, or the name of a bundled one.")
    ] = None,
    data: Data = None,
    set_: Set = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print all keys of experiment files, as JSON Schema for editors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a run's ε, crowds and warnings, without running it."""
    if schema:
        from simulations.experiment import schema as keys

        print(json.dumps(keys.schema(), indent=1, ensure_ascii=not in_unicode()))
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE.toml', or --schema")
    from simulations.experiment import load
    from simulations.run import check

    show_progress()
    found = check.check(load(file, overrides(set_, data)))
    if as_json:
        return print_json(found)
    print("\n".join(lines(found)))


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the results of `check` as lines for people."""
    from server.card import PAYERS, price_of

    said = [f"{found['name']}, way {found['way']}", ""]
    for name, part in found["parts"].items():
        said.append(f"{name:<8} {part['rows']:>9,} texts: {_classes(part)}")
    if found["dropped"]:
        said.append(f"{found['dropped']:,} rows have a text that is in another part, and are left out")
    for who, crowd in found["crowds"].items():
        met = "met" if crowd["users"] >= crowd["least"] else "NOT met"
        said.append(f"{who} users in a batch: {crowd['users']:,} expected, of at least {crowd['least']:,}: {met}")
    for cut in found["cut"]:
        said.append(
            f"{cut['where']} = {cut['most']}: cuts {cut['share']:.1%} of the texts (median {cut['median']:,.0f} "
            f"{cut['unit']}, longest {cut['longest']:,})"
        )
    for arm in found["arms"]:
        said += ["", f"{arm['arm']}{' (a reference: not private)' if arm['reference'] else ''}"]
        for key, whose in PAYERS.items():
            if (price := price_of(arm[key], whose)) is not None:
                rungs = [rung for rung in arm[key] if rung["epsilon"] is not None]
                said += [f" All that one {whose} releases: {price}", *table(rungs)]
        said += [f" {arm['liars']}"] if arm["liars"] else []
        said += [f" {_expected(**arm['expected'])}"] if arm["expected"] else []
    said += LEGEND
    return [*said, *(["", *(f"Look at: {line}." for line in found["warnings"])] if found["warnings"] else [])]


def _expected(*, share: float, half: int | None) -> str:
    """Return what users should teach, in a sentence."""
    users = (
        "half of it would take more than a billion users"
        if half is None
        else f"half of it takes about {float(f'{half:.2g}'):,.0f} users"
    )
    return f"If the encoder holds the labels, users teach about {share:.0%} of what they would without noise; {users}"


#: Classes that are listed one by one.
_LISTED = 12


def _classes(part: Mapping[str, Any]) -> str:
    """How many texts each class has; of many classes, the most and the fewest."""
    counts = part["classes"]
    said = {label: f"{label} {n:,} ({n / max(1, part['rows']):.0%})" for label, n in counts.items()}
    if len(said) <= _LISTED:
        return ", ".join(said.values())
    most, fewest = (said[pick(counts, key=counts.get)] for pick in (max, min))
    return f"{len(said)} classes, from {most} to {fewest}"
