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
class Comparison:
    """Our numbers of an item beside the paper's.

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
) -> list[Comparison]:
    """Run each item in its own folder under `out`. A finished item is not run again.

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
    comparisons = []
    for item in items:
        if not arms_of(item, quick=quick):
            comparisons.append(Comparison(item.name, why="not a part of a quick run"))
            continue
        file = training_file(item, data)
        if not file.is_file():
            comparisons.append(
                Comparison(item.name, why=f"{file} is not here; name the folder of the data with --data")
            )
            continue
        # The folder's name holds the size: a run of another size, or of another default, is not mistaken for this one.
        folder = out / f"{slug(paper.name)}-{slug(item.name)}-{'quick' if quick else users}"
        path = folder / "results.json"
        if path.is_file():
            results: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        elif item.hours and len(items) > 1:
            comparisons.append(
                Comparison(item.name, why=f'{item.hours}; it is run by itself, with --table "{item.name}"')
            )
            continue
        else:
            with file.open("rb") as lines:
                rows = sum(1 for _ in lines) - 1
            log.info(f"{paper.name}, {item.name}: {len(arms_of(item, quick=quick))} arms")
            results = run(experiment_of(paper, item, quick=quick, data=data, rows=rows, users=users), folder)
        comparisons.append(_beside(item, results, quick=quick))
    return comparisons


def _beside(item: Item, results: Mapping[str, Any], *, quick: bool) -> Comparison:
    entries = {arm.name: arm for arm in results_of(results)}
    rows = []
    for arm in arms_of(item, quick=quick):
        if arm["name"] not in entries:
            raise UserError(f"{item.name}: the run has no arm {arm['name']}; remove its folder and run it again")
        estimate = entries[arm["name"]].estimate(item.measure, "sanitized")
        rows.append((arm["name"], arm["theirs"], estimate and estimate.value, estimate and estimate.standard_error))
    return Comparison(item.name, rows, chance=results["chance"])


def text(
    paper: Paper, items: Sequence[Item], comparisons: Sequence[Comparison], *, quick: bool, users: int = USERS
) -> str:
    """Return the paper's numbers beside ours in Markdown, with the reasons why they differ."""
    how = how_run(quick=quick, users=users)
    lines = [f"# {paper.title}"]
    by_name = {item.name: item for item in items}
    for comparison in comparisons:
        item = by_name[comparison.item]
        lines += ["", f"## {comparison.item}: {item.measure}", ""]
        if comparison.why:
            lines.append(f"Not run: {comparison.why}.")
            continue
        none = any(value is None or not is_finite(value) for _, _, value, _ in comparison.rows)
        rows = [
            [name, f"{paper_value:.3f}", _shown(value, error)] for name, paper_value, value, error in comparison.rows
        ]
        lines += [markdown_table(["arm", "paper", "ours"], rows), ""]
        if item.measure == "accuracy":
            lines += [
                f"Always guessing the commonest class of our test sentences is right of {comparison.chance:.3f}.",
                "",
            ]
        lines += ["Why they differ:", ""]
        lines += [f"- {reason}" for reason in (*item.differences, how)]
        lines += ["- –: all guesses are of one class, of which there is no correlation"] if none else []
    return "\n".join(lines) + "\n"


def _shown(value: float | None, error: float | None) -> str:
    if not is_finite(value):
        return "–"
    return f"{value:.3f}" + (f" ± {error:.3f}" if is_finite(error) else "")
