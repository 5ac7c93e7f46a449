"""Results of a sweep as rows, means and paired differences, for programs, people and papers."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simulations.errors import UserError
from simulations.output import latex
from simulations.output.atomic import whole
from simulations.output.figures import save
from simulations.output.markdown import table as markdown
from simulations.output.numbers import epsilon as epsilon_said
from simulations.output.numbers import is_finite
from simulations.run import trust
from simulations.run.comparison import KINDS, gap
from simulations.run.frontier import pareto, study_figure
from simulations.run.over_runs import mean_said, moments, standard_error
from simulations.run.references import remarks
from simulations.sweep.definition import Run, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
#: The two metrics that have a standard error over test texts.
_ACCURACIES = tuple(KINDS.values())
METRICS = (
    *_ACCURACIES, "local_epsilon", "local_epsilon_test_user", "central_epsilon", "metric_epsilon", "delivered",
    "bytes_per_user", "dim", "seconds",
)
_FIGURES = ("accuracy.pdf", "accuracy.png")
ABOUT = "study.json"


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

    @property
    def arms(self) -> list[tuple[Mapping[str, Any], ...]]:
        """Return the results of each arm over seeds."""
        return list(zip(*(each["arms"] for each in self.results), strict=True))

    @property
    def said(self) -> str:
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

    The files are tidy.csv and tidy.parquet (one row for each run, arm and metric), means.csv, differences.csv,
    study.md, study.tex, the figures, and study.json, which records the grid values of each run.
    """
    with whole(out / ABOUT) as opened:
        opened.write((json.dumps(_about(study), indent=1, ensure_ascii=False) + "\n").encode())
    found = read(out)
    points = found.points
    rows = list(tidy(found))
    tables = {"tidy": rows, "means": list(means(points)), "differences": list(differences(points))}
    paths = [_csv(out / f"{name}.csv", found) for name, found in tables.items()]
    paths.append(_parquet(out / "tidy.parquet", rows))
    headings, *cells = overview(found)
    text = {
        "study.md": "\n".join([f"# {found.title}", "", markdown(headings, cells), "", *_notes(points)]) + "\n",
        "study.tex": latex.table(headings, cells, caption=found.title),
    }
    for name, said in text.items():
        with whole(out / name) as file:
            file.write(said.encode())
        paths.append(out / name)
    drawn = figure(found)
    for name in _FIGURES:
        save(drawn, out / name)
        paths.append(out / name)
    return paths


def figure(found: Finished) -> Figure:
    """Return a figure of the accuracy of every point and arm against ε."""
    return study_figure([_named(point, same) for point in found.points for same in point.arms], found.title)


def _about(study: Study) -> dict[str, Any]:
    """Return the description of a sweep by points, in the order of the file."""
    together: dict[str, list[Run]] = {}
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
        points = [_point(out, each["point"], each["runs"]) for each in about["points"]]
        return Finished(str(about["name"]), [str(axis) for axis in about["axes"]], points)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{out}: holds no finished study; run it again to go on: sottovoce study FILE.toml") from None


def _point(out: Path, point: Mapping[str, Any], names: Sequence[str]) -> Point:
    folders = [out / "runs" / name for name in names]
    return Point(point, folders, [json.loads((at / "results.json").read_text(encoding="utf-8")) for at in folders])


def tidy(study: Finished) -> Iterator[Row]:
    """Yield one row for each run, arm and metric: the grid's keys, seed, arm, reference, metric, value and error.

    The error is the standard error over test texts; None if the metric has none. A value that does not apply has no
    row.
    """
    for point in study.points:
        for results in point.results:
            for arm in results["arms"]:
                for metric, value, error in _metrics(arm):
                    yield {
                        **{axis: point.point.get(axis) for axis in study.axes}, "seed": results["seed"],
                        "arm": arm["name"], "reference": arm["reference"], "metric": metric, "value": value,
                        "error": error,
                    }  # fmt: skip


def _metrics(arm: Mapping[str, Any]) -> Iterator[tuple[str, float, float | None]]:
    values = {
        **arm, "local_epsilon": trust.local(arm), "local_epsilon_test_user": trust.asking(arm),
        "central_epsilon": trust.central(arm)[0], "metric_epsilon": trust.metric(arm),
    }  # fmt: skip
    for metric in METRICS:
        if (value := values.get(metric)) is not None:
            error = arm.get(f"{metric}_se")
            yield metric, float(value), float(error) if is_finite(error) else None


def means(points: Sequence[Point]) -> Iterator[Row]:
    """Yield one row for each point, arm and metric that all its runs have.

    A row holds n, the mean, its standard error over seeds (None for one seed), and the mean error over test texts.
    """
    for point in points:
        for same in point.arms:
            found = [{metric: (value, error) for metric, value, error in _metrics(arm)} for arm in same]
            for metric in METRICS:
                if all(metric in each for each in found):
                    values, errors = zip(*(each[metric] for each in found), strict=True)
                    said = {"metric": metric, "n": len(values), "mean": fmean(values), "error": _error(values)}
                    yield {**point.point, "arm": same[0]["name"], **said, "error_by_text": _mean(errors)}


def differences(points: Sequence[Point]) -> Iterator[Row]:
    """Yield one row for each point and pair of its arms, paired within a run by test text and over runs by seed.

    A row holds n, the mean of "arm" minus "less", its standard error over seeds, and the mean paired error over test
    texts.
    """
    for point in points:
        names = [same[0]["name"] for same in point.arms]
        for i, less in enumerate(names):
            for arm in names[i + 1 :]:
                for kind in KINDS:
                    pairs = [gap(results, arm, less, kind) for results in point.results]
                    there = [pair for pair in pairs if pair]
                    if len(there) == len(pairs):
                        values = [pair["difference"] for pair in there]
                        yield {
                            **point.point, "arm": arm, "less": less, "kind": kind, "n": len(values),
                            "difference": fmean(values), "error": _error(values),
                            "error_by_text": _mean([pair["error"] for pair in there]),
                        }  # fmt: skip


def overview(study: Finished) -> list[list[str]]:
    """Return headings, and a row for each point and arm: accuracies with their errors, and privacy losses."""
    axes = [axis for axis in study.axes if not axis.startswith("arm.")]  # those are in the arms' prices
    asked = any(trust.asking(*same) is not None for point in study.points for same in point.arms)
    to_ask = ["local ε, test user"] if asked else []
    rows = [[*axes, "arm", "accuracy, sanitized", "on device", "local ε", *to_ask, "central ε", "metric ε"]]
    best = _front(study.points)
    for point in study.points:
        for same in point.arms:
            shown = [mean_said(moments([arm.get(key) for arm in same])) for key in _ACCURACIES]
            local = (trust.local(*same), trust.asking(*same))[: 1 + asked]
            prices = (*local, trust.central(*same)[0], trust.metric(*same))
            mark = " †" if same[0]["reference"] else " *" if (id(point), same[0]["name"]) in best else ""
            at = [str(point.point.get(axis, "–")) for axis in axes]
            rows.append([*at, same[0]["name"] + mark, *shown, *map(epsilon_said, prices)])
    return rows


def _front(points: Sequence[Point]) -> set[tuple[int, str]]:
    """Return the points and arms on the Pareto front of accuracy on the device against central ε."""
    priced = []
    for point in points:
        for same in point.arms:
            values, price = [arm.get("accuracy_clean_test") for arm in same], trust.central(*same)[0]
            if not same[0]["reference"] and price is not None and all(map(is_finite, values)):
                priced.append(((id(point), same[0]["name"]), (price, fmean(values))))
    return {priced[i][0] for i in pareto([where for _, where in priced])}


def _notes(points: Sequence[Point]) -> list[str]:
    every = [arm for point in points for same in point.arms for arm in same]
    lines = ["* on the Pareto front of accuracy on the device against central ε."]
    lines += ["† a reference: not private."] if any(arm["reference"] for arm in every) else []
    lines += ["", _chance(points)]
    for line in remarked(points):
        lines += ["", line]
    local = "Local ε: what a training user, or a test user, who asks, releases at worst, trusting nobody."
    lines += ["", f"{local} {trust.NOTE}"]
    return [*lines, "", "![Accuracy against ε](accuracy.png)"]


def _chance(points: Sequence[Point]) -> str:
    """Return a sentence on the accuracy of always guessing the most frequent class of the test texts."""
    every = [(results["chance"], len(results["classes"])) for point in points for results in point.results]
    least, most = (pick(chance for chance, _ in every) for pick in (min, max))
    classes = sorted({count for _, count in every})
    said = f"{least:.3f}" if f"{least:.3f}" == f"{most:.3f}" else f"{least:.3f} to {most:.3f}"
    return f"Chance is {said}, of {' or '.join(map(str, classes))} classes: always guessing the commonest."


def remarked(points: Sequence[Point]) -> list[str]:
    """Return warnings about the reference arms of each point, one line each."""
    return [f"{point.said}: {line}" if point.said else line for point in points for line in remarks(point.results)]


def _named(point: Point, same: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return an arm's results with the point in its name."""
    said = point.said
    return [arm | {"name": f"{said}: {arm['name']}" if said else arm["name"]} for arm in map(dict, same)]


def _error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean over seeds; None for one value, or if a value is not finite."""
    return standard_error(values) if all(map(math.isfinite, values)) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if is_finite(value)]
    return fmean(known) if known and len(known) == len(values) else None


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _csv(path: Path, rows: Sequence[Row]) -> Path:
    """Write a header and the rows atomically; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows) or ["arm"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with whole(path) as file:
        file.write(text.getvalue().encode())
    return path


def _parquet(path: Path, rows: Sequence[Row]) -> Path:
    """Write the rows as a table; a column of mixed kinds of values becomes one of texts."""
    import pyarrow
    from pyarrow import parquet

    columns = {}
    for name in _columns(rows):
        values = [row.get(name) for row in rows]
        kinds = {type(value) for value in values if value is not None}
        mixed = len(kinds - {int, float}) + bool(kinds & {int, float}) > 1 or kinds & {list, dict}
        columns[name] = [None if value is None else str(value) for value in values] if mixed else values
    with whole(path) as file:
        parquet.write_table(pyarrow.table(columns), file)
    return path
