"""The command `sottovoce check`: what an experiment will cost and cut, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from simulations.commands.ladder_table import LEGEND, number, table
from simulations.commands.options import AsJson, Data, Set, overrides, print_json
from simulations.progress import progress_lines

# Nothing here may import NumPy or the accounting before the command runs: `--help` must answer at once.


def command(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="An experiment, or the name of a bundled one.")],
    data: Data = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run would cost in ε, time and memory, and what it would cut. Runs nothing, releases nothing."""
    from simulations.experiment import load
    from simulations.study.forecast import forecast

    found = forecast(load(file, overrides(set_, data)), progress=progress_lines())
    if as_json:
        return print_json(found)
    print("\n".join(lines(found)))


def lines(found: Mapping[str, Any]) -> list[str]:
    """What `forecast` has found, for people."""
    said = [f"{found['name']}, way {found['way']}", ""]
    for name, part in found["parts"].items():
        classes = ", ".join(f"{label} {n:,} ({n / max(1, part['rows']):.0%})" for label, n in part["classes"].items())
        said.append(f"{name:<8} {part['rows']:>9,} texts: {classes}")
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
        for who, key in (("a training user", "ladder"), ("a test user", "test_ladder")):
            if arm[key] is not None:
                rungs = [rung for rung in arm[key] if rung["epsilon"] is not None]
                worst = next((number(rung["worst_case"]) for rung in rungs if rung["rung"] == "user"), "–")
                said += [f" {who}, ε = {worst} at worst:", *table(rungs)]
    said += [*LEGEND, "", *_estimate(found["estimate"])]
    return [*said, *(["", *(f"Look at: {line}." for line in found["warnings"])] if found["warnings"] else [])]


def _estimate(estimate: Mapping[str, Any] | None) -> list[str]:
    if estimate is None:
        return ["Time and memory: not estimated, as the encoder is not on this machine."]
    work = [f"{_time(estimate[name])} {name}" for name in ("encoding", "training") if estimate[name] >= 1]
    of = f", of these {' and '.join(work)}" if work else ""
    return [
        f"About {_time(estimate['seconds'])}{of}; {estimate['memory'] / 2**30:.1f} GiB of memory, "
        f"{estimate['disk'] / 2**20:,.0f} MiB in the cache:",
        f"{estimate['how']}.",
    ]


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
