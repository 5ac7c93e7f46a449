"""Results of a sweep as rows, means and paired differences, for programs, people and papers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulations.errors import UserError
from simulations.experiment.result import SPLITS, ArmResult, arms_of
from simulations.output.atomic import whole
from simulations.output.figures import save
from simulations.output.markdown import table as markdown
from simulations.run import trust
from simulations.run.comparison import gap
from simulations.run.figures import pareto, priced_figure
from simulations.run.remarks import remarks
from simulations.run.table import NONE, accuracy, beside, mean
from simulations.run.table import means as means_of
from simulations.run.table import tidy as tidy_of
from simulations.sweep.definition import Study, SweepRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_FIGURES = ("accuracy.pdf", "accuracy.png")
ABOUT = "study.json"
#: Columns of the mean of a difference over seeds.
_DIFFERENCE = ("difference", "error", "error_by_text")


@dataclass(frozen=True, eq=False)
class Point:
    """Results of one point of the grid.

    Args:
        point: Values that the grid sets, by key.
        folders: Folders of its runs, in the order of the seeds.
        results: Results of its runs, in the same order.
    """

    point: Mapping[str, Any]
    folders: Sequence[Path]
    results: Sequence[Mapping[str, Any]]

    @cached_property
    def arms(self) -> list[tuple[ArmResult, ...]]:
        """Return the results of each arm over seeds."""
        return list(zip(*map(arms_of, self.results), strict=True))

    @property
    def runs(self) -> dict[str, Mapping[str, Any]]:
        """Return the results of its runs, by the names of their folders."""
        return {folder.name: item for folder, item in zip(self.folders, self.results, strict=True)}

    @property
    def label(self) -> str:
        """Return a short description of the grid's values; "" if they concern arms alone."""
        shown = {key: value for key, value in self.point.items() if key[:4] != "arm."}
        return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in shown.items())


@dataclass(frozen=True, eq=False)
class Finished:
    """Sweep of which all runs are finished.

    Args:
        name: Name of the sweep.
        axes: Keys in which runs differ.
        points: Its points, in the order of the file.
    """

    name: str
    axes: Sequence[str]
    points: Sequence[Point]

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return sum(len(point.results) for point in self.points)

    @property
    def title(self) -> str:
        """Return the title of its tables and figures."""
        return f"{self.name}: {self.runs} runs, mean ± standard error over {len(self.points[0].results)} seeds"


def write(study: Study, out: Path) -> list[Path]:
    """Write the tables and figures of a sweep whose runs are all finished, and return their paths.

    The files are tidy.csv (one row for each run, arm, metric and split), means.csv, differences.csv, study.md, the
    figures, and study.json, which records the grid values of each run.
    """
    together: dict[str, list[SweepRun]] = {}
    for run in study.runs:
        together.setdefault(json.dumps(dict(run.point), sort_keys=True), []).append(run)
    points = [{"point": dict(runs[0].point), "runs": [run.name for run in runs]} for runs in together.values()]
    about = {"name": study.name, "axes": list(study.axes), "points": points}
    with whole(out / ABOUT) as opened:
        opened.write((json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    result = read(out)
    headings, *cells = overview(result)
    page = [f"# {result.title}", "", markdown(headings, cells), "", *_notes(result.points)]
    for point in result.points:  # by class, group and user
        for title, (names, *rows) in beside(point.results):
            if title:
                page += ["", f"## {point.label}: {title}" if point.label else f"## {title}", "", markdown(names, rows)]
    tables = {"tidy": tidy(result), "means": means(result.points), "differences": differences(result.points)}
    contents = {f"{name}.csv": table.to_csv(index=False, lineterminator="\n") for name, table in tables.items()}
    contents["study.md"] = "\n".join(page) + "\n"
    for name, content in contents.items():
        with whole(out / name) as file:
            file.write(content.encode())
    drawn = figure(result)
    for name in _FIGURES:
        save(drawn, out / name)
    return [out / name for name in (*contents, *_FIGURES)]


def figure(sweep: Finished) -> Figure:
    """Return a figure of the accuracy of every point and arm against ε, with the point in the arm's name."""
    arms = [
        [replace(arm, name=f"{point.label}: {arm.name}") if point.label else arm for arm in same]
        for point in sweep.points
        for same in point.arms
    ]
    return priced_figure(arms, sweep.title, front=True)


def read(out: Path) -> Finished:
    """Return the finished sweep that `write` has left in a folder.

    Raises:
        UserError: The folder holds no finished sweep. The message is one line.
    """
    try:
        about = json.loads((out / ABOUT).read_text(encoding="utf-8"))
        points = []
        for item in about["points"]:
            folders = [out / "runs" / name for name in item["runs"]]
            results = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in folders]
            points.append(Point(item["point"], folders, results))
        return Finished(str(about["name"]), [str(axis) for axis in about["axes"]], points)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{out}: holds no finished study; run it again to go on: sottovoce sweep FILE.toml") from None


def tidy(study: Finished) -> DataFrame:
    """Return the results table of all runs (`simulations.run.table`), with the grid's keys, seed and reference."""
    import pandas

    every = []
    for point in study.points:
        result = tidy_of(point.runs)
        seeds = {name: results["seed"] for name, results in point.runs.items()}
        references = {same[0].name: same[0].reference for same in point.arms}
        result.insert(1, "seed", result["run"].map(seeds))
        result.insert(3, "reference", result["arm"].map(references))
        every.append(_at(result, {axis: point.point.get(axis) for axis in study.axes}))
    return pandas.concat(every, ignore_index=True)


def _at(table: DataFrame, point: Mapping[str, Any]) -> DataFrame:
    """Return a table with the values of a point as its first columns."""
    for place, (axis, value) in enumerate(point.items()):
        table.insert(place, axis, [value] * len(table))
        table[axis] = table[axis].astype(object)  # values of other points may be of another kind
    return table


def means(points: Sequence[Point]) -> DataFrame:
    """Return `simulations.run.table.means` of each point, over its seeds."""
    import pandas

    return pandas.concat([_at(means_of(tidy_of(point.runs)), point.point) for point in points], ignore_index=True)


def differences(points: Sequence[Point]) -> DataFrame:
    """Return one row for each point and pair of its arms, paired within a run by test text and over runs by seed.

    A row holds n, the mean of "arm" minus "less", its standard error over seeds, and the mean paired error over test
    texts.
    """
    import pandas

    rows = []
    for point in points:
        for (less, *_), (arm, *_) in combinations(point.arms, 2):
            for kind in SPLITS:
                pairs = [gap(results, arm.name, less.name, kind) or {} for results in point.results]
                result = mean((pair.get("difference"), pair.get("error")) for pair in pairs)
                if result is not None:
                    values = {"n": len(pairs), **dict(zip(_DIFFERENCE, result, strict=True))}
                    rows.append({**point.point, "arm": arm.name, "less": less.name, "kind": kind, **values})
    return pandas.DataFrame(rows, dtype=object) if rows else pandas.DataFrame(columns=["arm"])


def overview(study: Finished) -> list[list[str]]:
    """Return headings, and a row for each point and arm: accuracies and measures with their errors, and prices."""
    axes = [axis for axis in study.axes if not axis.startswith("arm.")]  # those are in the arms' prices
    every = [same for point in study.points for same in point.arms]
    places = [point for point in study.points for _ in point.arms]
    priced = trust.columns(every) | {"central ε": trust.central_columns(every)["central ε"]}
    measured = [measures for point in study.points for measures in _measured(point)]
    names = list(dict.fromkeys(name for measures in measured for name in measures))
    front, rows = _front(every), [[*axes, "arm", "accuracy, sanitized", "on device", *names, *priced]]
    for i, (point, same, measures, *paid) in enumerate(zip(places, every, measured, *priced.values(), strict=True)):
        at = [str(point.point.get(axis, "–")) for axis in axes]
        mark = " †" if same[0].reference else " *" if i in front else ""
        shown = [str(accuracy(same, split) or NONE) for split in SPLITS]
        rows.append([*at, same[0].name + mark, *shown, *(measures.get(name, NONE) for name in names), *paid])
    return rows


def _measured(point: Point) -> list[dict[str, str]]:
    """Return the measures without groups of each arm, by their headings."""
    for title, (headings, *rows) in beside(point.results):
        if not title:
            return [dict(zip(headings[1:], cells[1:], strict=True)) for cells in rows]
    return [{} for _ in point.arms]


def _front(arms: Sequence[Sequence[ArmResult]]) -> set[int]:
    """Return the places of the arms on the Pareto front of accuracy on the device against central ε."""
    priced = []
    for i, same in enumerate(arms):
        result, price = accuracy(same, "on_device"), trust.central(*same)[0]
        if not same[0].reference and price is not None and result is not None:
            priced.append((i, (price, result.value)))
    return {priced[i][0] for i in pareto([where for _, where in priced])}


def _notes(points: Sequence[Point]) -> list[str]:
    every = [arm for point in points for same in point.arms for arm in same]
    chances = [f"{results['chance']:.3f}" for point in points for results in point.results]
    classes = {len(results["classes"]) for point in points for results in point.results}
    chance = " to ".join(dict.fromkeys((min(chances), max(chances))))
    lines = ["* on the Pareto front of accuracy on the device against central ε."]
    lines += ["† a reference: not private."] if any(arm.reference for arm in every) else []
    numbers = " or ".join(map(str, sorted(classes)))
    lines += ["", f"Chance is {chance}, of {numbers} classes: always guessing the commonest."]
    for line in (*remarked(points), f"{trust.PAID_NOTE} {trust.NOTE}", *conditions(points)):
        lines += ["", line]
    return [*lines, "", "![Accuracy against ε](accuracy.png)"]


def conditions(points: Sequence[Point]) -> list[str]:
    """Return the conditions under which ε of some arms hold, one line each."""
    return list(dict.fromkeys(line for point in points for line in trust.conditions(point.results)))


def remarked(points: Sequence[Point]) -> list[str]:
    """Return warnings about the reference arms of each point, one line each."""
    return [f"{point.label}: {line}" if point.label else line for point in points for line in remarks(point.results)]
