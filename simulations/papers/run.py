"""Runs of a paper's items, and a report with the paper's numbers and ours side by side."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulations.errors import UserError
from simulations.experiment import slug
from simulations.experiment.result import arms_of as results_of
from simulations.output.markdown import table as markdown_table
from simulations.output.numbers import is_finite
from simulations.papers.definition import (
    QUICK_TESTS,
    QUICK_USERS,
    TESTS,
    USERS,
    Item,
    Paper,
    Runner,
    arms_of,
    experiment_of,
    training_file,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """Outcome of an item.

    Args:
        item: Name of the item.
        rows: For each arm its name, the paper's number, our number and its standard error.
        why: Reason if it was not run.
        chance: Accuracy of always guessing the most frequent class of our test sentences.
    """

    item: str
    rows: list[tuple[str, float, float | None, float | None]] = field(default_factory=list)
    why: str = ""
    chance: float | None = None


def how_run(*, quick: bool, users: int = USERS) -> str:
    """Return the size of a run, in words."""
    if quick:
        return (
            f"a quick run of {QUICK_USERS} training sentences, {QUICK_TESTS} test sentences, one epoch and one seed, "
            "which shows that it runs"
        )
    return f"a run of {users:,} training and {TESTS} test sentences, or what there are, three epochs, one seed"


def reproduce(
    paper: Paper, items: Sequence[Item], *, quick: bool, data: Path, out: Path, run: Runner, users: int = USERS
) -> list[Found]:
    """Run each item that has arms, in its own folder under `out`. A finished item is not run again.

    An item without its data is reported as such. An item that takes hours is left out, unless it is the only one or
    finished.

    Args:
        paper: The paper.
        items: Its items to run.
        quick: True for a quick run.
        data: Folder of the data.
        out: Folder for the runs.
        run: Function that runs one experiment.
        users: Number of users; see `experiment_of`.

    Raises:
        UserError: A run fails.
    """
    found = []
    for item in items:
        if not item.arms:
            continue
        if not arms_of(item, quick=quick):
            found.append(Found(item.name, why="not a part of a quick run"))
            continue
        file = training_file(item, data)
        if not file.is_file():
            found.append(Found(item.name, why=f"{file} is not here; name the folder of the data with --data"))
            continue
        # The folder's name holds the size: a run of another size, or of another default, is not mistaken for this one.
        folder = out / f"{slug(paper.name)}-{slug(item.name)}-{'quick' if quick else users}"
        known = folder / "results.json"
        if known.is_file():
            results: Mapping[str, Any] = json.loads(known.read_text(encoding="utf-8"))
        elif item.hours and len(items) > 1:
            found.append(Found(item.name, why=f'{item.hours}; it is run by itself, with --table "{item.name}"'))
            continue
        else:
            with file.open("rb") as lines:
                rows = sum(1 for _ in lines) - 1
            log.info(f"{paper.name}, {item.name}: {len(arms_of(item, quick=quick))} arms")
            results = run(experiment_of(paper, item, quick=quick, data=data, rows=rows, users=users), folder)
        found.append(_beside(item, results, quick=quick))
    return found


def _beside(item: Item, results: Mapping[str, Any], *, quick: bool) -> Found:
    entries = {arm.name: arm for arm in results_of(results)}
    rows = []
    for arm in arms_of(item, quick=quick):
        if arm["name"] not in entries:
            raise UserError(f"{item.name}: the run has no arm {arm['name']}; remove its folder and run it again")
        ours = entries[arm["name"]].estimate(item.measure, "sanitized")
        rows.append((arm["name"], arm["theirs"], ours and ours.value, ours and ours.standard_error))
    return Found(item.name, rows, chance=results["chance"])


def text(paper: Paper, items: Sequence[Item], found: Sequence[Found], *, quick: bool, users: int = USERS) -> str:
    """Return a Markdown page: all items with their status, then the paper's numbers beside ours, with reasons."""
    how = how_run(quick=quick, users=users)
    shown = [[item.name, item.what, item.status, _by(paper, item)] for item in items]
    table = markdown_table(["item", "what it shows", "status", "by"], shown)
    size = " --quick" if quick else "" if users == USERS else f" --users {users}"
    made_by = f"`sottovoce reproduce {paper.name}{size}`"
    lines = [f"# {paper.title}", "", f"{made_by} made this page, by {how}.", "", table]
    by_name = {item.name: item for item in items}
    for each in found:
        item = by_name[each.item]
        lines += ["", f"## {each.item}: {item.measure}", ""]
        if each.why:
            lines.append(f"Not run: {each.why}.")
            continue
        none = any(ours is None or not is_finite(ours) for _, _, ours, _ in each.rows)
        rows = [[name, f"{theirs:.3f}", _shown(ours, error)] for name, theirs, ours, error in each.rows]
        lines += [markdown_table(["arm", "paper", "ours"], rows), ""]
        if item.measure == "accuracy":
            lines += [f"Always guessing the commonest class of our test sentences is right of {each.chance:.3f}.", ""]
        lines += ["Why they differ:", ""]
        lines += [f"- {reason}" for reason in (*item.differences, how)]
        lines += ["- –: all guesses are of one class, of which there is no correlation"] if none else []
        if item.measured:
            lines += ["", f"Of more users and seeds: [{item.measured}](../{item.measured})."]
    return "\n".join(lines) + "\n"


def _by(paper: Paper, item: Item) -> str:
    if item.cannot or item.missing:
        return item.cannot or item.missing
    if item.arms:
        return f"`sottovoce reproduce {paper.name}`"
    return f"`sottovoce {item.command}`" + (f"; {item.note}" if item.note else "")


def _shown(value: float | None, error: float | None) -> str:
    if not is_finite(value):
        return "–"
    return f"{value:.3f}" + (f" ± {error:.3f}" if is_finite(error) else "")
