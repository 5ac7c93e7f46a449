"""Part of the report about a sweep: every point of its grid and every arm, over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from simulations.errors import UserError
from simulations.output.figures import inline
from simulations.output.numbers import is_finite
from simulations.run.table import records
from simulations.sweep import tables
from sottovoce.report.reading import Finished, read

if TYPE_CHECKING:
    from pandas import DataFrame

#: Most rows of a table in the page; longer tables are in the study's folder alone.
MOST_ROWS = 3000
_BESIDE = ("attacks.json", "audit/audit.json")


class Cell(NamedTuple):
    """Cell of a table.

    Args:
        shown: Text of the cell.
        value: Number by which its column is sorted, if it differs from the text.
    """

    shown: str
    value: float | None = None

    @property
    def marked(self) -> bool:
        """Return True in a row of an arm without protection."""
        return self.shown.endswith(" †")


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
    result = tables.read(folder)
    if not result.points:
        raise UserError(f"{folder}: the study has no runs")
    places = [
        place
        for point in result.points
        for i, place in enumerate(point.folders)
        if not i or any((place / name).is_file() for name in _BESIDE)
    ]
    return Study(folder, result, [read(place) for place in places])


def view(study: Study) -> dict[str, Any]:
    """Return its means, figure, remarks, differences and rows for templates/study.html."""
    result = study.found
    headings, *rows = tables.overview(result)
    figure = inline(tables.figure(result), result.title, f"study-{sha256(str(study.folder).encode()).hexdigest()[:8]}-")
    return {
        "name": result.name,
        "title": result.title,
        "runs": result.runs,
        "points": len(result.points),
        "seeds": ", ".join(str(results["seed"]) for results in result.points[0].results),
        "headings": headings,
        "rows": [[_cell(text) for text in row] for row in rows],
        "remarks": tables.remarked(result.points),
        "conditions": tables.conditions(result.points),
        "drawn": Markup(figure),
        "differences": _long(tables.differences(result.points), study.folder / "differences.csv"),
        "tidy": _long(tables.tidy(result), study.folder / "tidy.csv"),
    }


def summary(study: Study) -> dict[str, Any]:
    """Return its entry in the label."""
    result, means = study.found, records(tables.means(study.found.points))
    return {"name": result.name, "runs": result.runs, "axes": list(result.axes), "means": means}


def _long(table: DataFrame, file: Path) -> dict[str, Any]:
    """Return a table, without its rows if they are too many for the page."""
    rows = records(table) if len(table) <= MOST_ROWS else ()
    cells = [[_value(value) for value in row.values()] for row in rows]
    return {"count": len(table), "file": file, "headings": list(table.columns), "rows": cells}


def _value(value: Any) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell("–" if value is None else str(value))
    return Cell(f"{value:.4g}" if isinstance(value, float) else f"{value:,}", value if is_finite(value) else math.inf)


def _cell(text: str) -> Cell:
    """Return a text of the overview, with its leading number."""
    first: Iterable[str] = text.split(" ", 1)[:1]
    try:
        number = float(next(iter(first), "").replace(",", "").replace("∞", "inf"))
    except ValueError:
        return Cell(text)
    return Cell(text, number)
