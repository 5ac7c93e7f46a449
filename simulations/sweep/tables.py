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
from simulations.output import latex
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

    The files are tidy.csv (one row for each run, arm, metric and split), means.csv, differences.csv, study.md,
    study.tex, the figures, and study.json, which records the grid values of each run.
    """
    with whole(out / ABOUT) as opened:
        opened.write((json.dumps(_about(study), indent=1, ensure_ascii=False) + "\n").encode())
    result = read(out)
    points = result.points
    headings, *cells = overview(result)
    page = [f"# {result.title}", "", markdown(headings, cells), "", *_notes(points), *_by_group(points)]
    caption = ". ".join([result.title, *conditions(points)])
    tables = {"tidy": tidy(result), "means": means(points), "differences": differences(points)}
    contents = {f"{name}.csv": table.to_csv(index=False, lineterminator="\n") for name, table in tables.items()}
    contents["study.md"] = "\n".join(page) + "\n"
    contents["study.tex"] = latex.table(headings, cells, caption=caption)
    for name, content in contents.items():
        with whole(out / name) as file:
            file.write(content.encode())
    drawn = figure(result)
    for name in _FIGURES:
        save(drawn, out / name)
    return [out / name for name in (*contents, *_FIGURES)]


def figure(sweep: Finished) -> Figure:
    """Return a figure of the accuracy of every point and arm against ε."""
    arms = [_named(point, same) for point in sweep.points for same in point.arms]
    return priced_figure(arms, sweep.title, front=True)


def _about(study: Study) -> dict[str, Any]:
    """Return the description of a sweep by points, in the order of the file."""
    together: dict[str, list[SweepRun]] = {}
    for run in study.runs:
        together.setdefault(json.dumps(dict(run.point), sort_keys=True), []).append(run)
    points = [{"point": dict(runs[0].point), "runs": [run.name for run in runs]} for runs in together.values()]
    return {"name": study.name, "axes": list(study.axes), "points": points}


def read(out: Path) -> Finished:
    """Return the finished sweep that `write` has left in a folder.

    Raises:
        UserError: The folder holds no finished sweep. The message is one line.
    """
    try:
        about = json.loads((out / ABOUT).read_text(encoding="utf-8"))
        points = [_point(out, item["point"], item["runs"]) for item in about["points"]]
        return Finished(str(about["name"]), [str(axis) for axis in about["axes"]], points)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{out}: holds no finished study; run it again to go on: sottovoce sweep FILE.toml") from None


def _point(out: Path, point: Mapping[str, Any], names: Sequence[str]) -> Point:
    folders = [out / "runs" / name for name in names]
    return Point(point, folders, [json.loads((at / "results.json").read_text(encoding="utf-8")) for at in folders])


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
    priced = trust.columns(every) | {"central ε": trust.central_columns(every)["central ε"]}
    paid = zip(*priced.values(), strict=True)
    measured = [_measured(point) for point in study.points]
    names = list(dict.fromkeys(name for arms in measured for cells in arms.values() for name in cells))
    rows = [[*axes, "arm", "accuracy, sanitized", "on device", *names, *priced]]
    best = _front(study.points)
    for point, by_arm in zip(study.points, measured, strict=True):
        for same in point.arms:
            shown = [str(accuracy(same, split) or NONE) for split in SPLITS]
            mark = " †" if same[0].reference else " *" if (id(point), same[0].name) in best else ""
            at = [str(point.point.get(axis, "–")) for axis in axes]
            others = [by_arm.get(same[0].name, {}).get(name, NONE) for name in names]
            rows.append([*at, same[0].name + mark, *shown, *others, *next(paid)])
    return rows


def _measured(point: Point) -> dict[str, dict[str, str]]:
    """Return the measures without groups of each arm, by their headings."""
    tables = [rows for title, rows in beside(point.results) if not title]
    return {arm: dict(zip(headings, cells, strict=True)) for (_, *headings), *rows in tables for arm, *cells in rows}


def _front(points: Sequence[Point]) -> set[tuple[int, str]]:
    """Return the points and arms on the Pareto front of accuracy on the device against central ε."""
    priced = []
    for point in points:
        for same in point.arms:
            result, price = accuracy(same, "on_device"), trust.central(*same)[0]
            if not same[0].reference and price is not None and result is not None:
                priced.append(((id(point), same[0].name), (price, result.value)))
    return {priced[i][0] for i in pareto([where for _, where in priced])}


def _notes(points: Sequence[Point]) -> list[str]:
    every = [arm for point in points for same in point.arms for arm in same]
    lines = ["* on the Pareto front of accuracy on the device against central ε."]
    lines += ["† a reference: not private."] if any(arm.reference for arm in every) else []
    lines += ["", _chance(points)]
    for line in remarked(points):
        lines += ["", line]
    lines += ["", f"{trust.PAID_NOTE} {trust.NOTE}"]
    for line in conditions(points):
        lines += ["", line]
    return [*lines, "", "![Accuracy against ε](accuracy.png)"]


def conditions(points: Sequence[Point]) -> list[str]:
    """Return the conditions under which ε of some arms hold, one line each."""
    return list(dict.fromkeys(line for point in points for line in trust.conditions(point.results)))


def _by_group(points: Sequence[Point]) -> list[str]:
    """Return the tables of measures by class, group and user, of each point."""
    lines = []
    for point in points:
        for title, (headings, *rows) in beside(point.results):
            if title:
                where = f"{point.label}: {title}" if point.label else title
                lines += ["", f"## {where}", "", markdown(headings, rows)]
    return lines


def _chance(points: Sequence[Point]) -> str:
    """Return a sentence on the accuracy of always guessing the most frequent class of the test texts."""
    every = [(results["chance"], len(results["classes"])) for point in points for results in point.results]
    least, most = (pick(chance for chance, _ in every) for pick in (min, max))
    classes = sorted({count for _, count in every})
    text = f"{least:.3f}" if f"{least:.3f}" == f"{most:.3f}" else f"{least:.3f} to {most:.3f}"
    return f"Chance is {text}, of {' or '.join(map(str, classes))} classes: always guessing the commonest."


def remarked(points: Sequence[Point]) -> list[str]:
    """Return warnings about the reference arms of each point, one line each."""
    return [f"{point.label}: {line}" if point.label else line for point in points for line in remarks(point.results)]


def _named(point: Point, same: Sequence[ArmResult]) -> list[ArmResult]:
    """Return an arm's results with the point in its name."""
    return [replace(arm, name=f"{point.label}: {arm.name}") if point.label else arm for arm in same]
