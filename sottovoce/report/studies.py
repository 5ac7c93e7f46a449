"""Part of the report about a sweep: every point of its grid and every arm, over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulations.errors import UserError
from simulations.output.figures import inline
from simulations.output.numbers import is_finite
from simulations.run.table import records
from simulations.sweep import tables
from sottovoce.report.html import Cell, Markup, element, joined, table
from sottovoce.report.reading import Finished, read

if TYPE_CHECKING:
    from pandas import DataFrame

#: Most rows of a table in the page; longer tables are in the study's folder alone.
MOST_ROWS = 3000
_BESIDE = ("attacks.json", "audit/audit.json")


@dataclass(frozen=True)
class Study:
    """Finished study in its folder.

    Args:
        folder: Folder of the study.
        found: Its tables.
        runs: Runs that the report shows one by one: for each point, the first seed, and all that were attacked or
            audited.
    """

    folder: Path
    found: tables.Finished
    runs: Sequence[Finished]


def is_study(folder: Path) -> bool:
    """Return True if the folder is a study's, finished or not, and no run's."""
    return (folder / "runs").is_dir() and not (folder / "results.json").is_file()


def read_study(folder: Path) -> Study:
    """Read a finished study.

    Raises:
        UserError: It is not finished, or a run in it cannot be read. The message is one line.
    """
    found = tables.read(folder)
    if not found.points:
        raise UserError(f"{folder}: the study has no runs")
    shown = [place for point in found.points for i, place in enumerate(point.folders)
             if not i or any((place / name).is_file() for name in _BESIDE)]  # fmt: skip
    return Study(folder, found, [read(place) for place in shown])


def section(study: Study) -> Markup:
    """Return its means, figure, remarks, differences and rows."""
    found = study.found
    seeds = ", ".join(str(results["seed"]) for results in found.points[0].results)
    said = (
        f"{found.runs} runs: {len(found.points)} points of the grid, each with the seeds {seeds}. An ε here is that of "
        "the dearest seed, an accuracy the mean ± its standard error over seeds. Below, of each point, one run stands "
        "for the others: what leaves a device is the same with every seed, and who was delivered differs a little."
    )
    headings, *rows = tables.overview(found)
    drawn = inline(tables.figure(found), found.title, f"study-{sha256(str(study.folder).encode()).hexdigest()[:8]}-")
    caption = "Accuracy on the device against ε; numbers are in the table above."
    marks = "* nothing in the study is as accurate at a central ε as small; † a reference: not private."
    return joined([
        element("p", said),
        table(f"{found.title}", headings, [[_cell(text) for text in row] for row in rows], sorts=True,
              marked={i: "bad" for i, row in enumerate(rows) if any(text.endswith(" †") for text in row)}),
        element("p", marks, class_="soft"),
        *(element("p", line, class_="warn") for line in tables.remarked(found.points)),
        element("figure", Markup(drawn), element("figcaption", caption), tabindex="0"),
        _folded("Paired differences of arms", tables.differences(found.points), study.folder / "differences.csv"),
        _folded("All rows: one a run, arm, metric and split", tables.tidy(found), study.folder / "tidy.csv"),
    ])  # fmt: skip


def told(study: Study) -> dict[str, Any]:
    """Return its entry in the label."""
    found, means = study.found, records(tables.means(study.found.points))
    return {"name": found.name, "runs": found.runs, "axes": list(found.axes), "means": means}


def _folded(caption: str, found: DataFrame, file: Path) -> Markup:
    """Return a collapsed table, or the file that holds it."""
    summary = element("summary", f"{caption} ({len(found):,})")
    if not 0 < len(found) <= MOST_ROWS:
        return element("details", summary, element("p", "There are none." if found.empty else f"They are in {file}."))
    cells = ([_value(value) for value in row.values()] for row in records(found))
    return element("details", summary, table(caption, list(found.columns), cells, sorts=True))


def _value(value: Any) -> str | Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return Cell(f"{value:.4g}" if isinstance(value, float) else f"{value:,}", value if is_finite(value) else math.inf)


def _cell(text: str) -> str | Cell:
    """Return a text of the overview, with its leading number."""
    first: Iterable[str] = text.split(" ", 1)[:1]
    try:
        number = float(next(iter(first), "").replace(",", "").replace("∞", "inf"))
    except ValueError:
        return text
    return Cell(text, number)
