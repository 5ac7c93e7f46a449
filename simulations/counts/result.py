"""Result of a count: its table, its files, and its words for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from server.counts import Change, Counts
from simulations.errors import UserError
from simulations.output.figures import COLOURS, new_figure, save
from simulations.output.jsonable import json_ready
from simulations.output.markdown import number, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: File of a count's results, and number of classes that a figure and a printed table show.
FILE, SHOWN = "count.json", 40


@dataclass(frozen=True)
class Row:
    """Count of one class.

    Attributes:
        name: Name of the class.
        share: Estimated share of the users.
        low: Lower end of its interval.
        high: Upper end.
        count: Estimated number of users.
        unbiased: Unbiased estimate of the share, for differences.
        error: Its standard error.
        true: Share in truth, which only a simulation knows; None if nobody does.
        curator: Share that a trusted curator would publish at the same central ε; None if there is no central ε.
    """

    name: str
    share: float
    low: float
    high: float
    count: float
    unbiased: float
    error: float
    true: float | None = None
    curator: float | None = None


@dataclass(frozen=True)
class Moved:
    """Change of one class since an earlier count.

    Attributes:
        name: Name of the class.
        change: Unbiased estimate of the change of its share.
        low: Lower end of its interval.
        high: Upper end.
        found: Whether the interval excludes 0.
    """

    name: str
    change: float
    low: float
    high: float
    found: bool


def moved(names: tuple[str, ...], changed: Change) -> tuple[Moved, ...]:
    """Return the rows of a change."""
    columns = (column.tolist() for column in (changed.shares, changed.low, changed.high))
    return tuple(
        Moved(name, share, low, high, low > 0 or high < 0)
        for name, share, low, high in zip(names, *columns, strict=True)
    )


def rows_of(
    names: tuple[str, ...], counts: Counts, true: NDArray[np.float64] | None, curator: NDArray[np.float64] | None
) -> tuple[Row, ...]:
    """Return the rows of an estimate."""
    return tuple(
        Row(
            name,
            float(counts.shares[k]),
            float(counts.low[k]),
            float(counts.high[k]),
            float(counts.users * counts.shares[k]),
            float(counts.unbiased[k]),
            float(counts.errors[k]),
            None if true is None else float(true[k]),
            None if curator is None else float(curator[k]),
        )
        for k, name in enumerate(names)
    )


def variation(rows: tuple[Row, ...], of: str = "share") -> float | None:
    """Return the total variation between a column and the truth; None if either is unknown."""
    pairs = [(getattr(row, of), row.true) for row in rows]
    if any(None in pair for pair in pairs):
        return None
    return float(sum(abs(a - b) for a, b in pairs) / 2)


@dataclass(frozen=True)
class CountResult:
    """Result of a count.

    Attributes:
        name: Name of the experiment.
        seed: Its seed.
        model: The model that devices ran, in words.
        mechanism: Parameters of the mechanism.
        chosen: Whether the mechanism was chosen by its variance.
        users: Number of users delivered.
        confidence: Probability that all intervals of a table hold.
        found: Counts of the classes that the devices found.
        corrected: Counts of true classes, by the model's confusion; none if no labelled public text is there.
        expected: Expected total variation of `found` by its standard errors.
        ladder: Rungs, JSON-ready.
        charged: Number of releases on the ledger.
        labelled: Number of labelled public texts of the confusion; 0 if there are none.
        accuracy: Accuracy of the model on them; None if there are none.
        dropped: Number of dropped rows by reason.
        week: Number of the count in a series of the same users, from 1.
        least: Smallest number of users delivered in any count of the series.
        moved: Changes since the last count of the series, in what `rows` counts; none in the first.
        many: Whether users hold several records, and each released the class of one, drawn at random. Shares are then
            means of users' own shares.
    """

    name: str
    seed: int
    model: str
    mechanism: Mapping[str, Any]
    chosen: bool
    users: int
    confidence: float
    found: tuple[Row, ...]
    corrected: tuple[Row, ...]
    expected: float
    ladder: list[dict[str, Any]]
    charged: int
    labelled: int = 0
    accuracy: float | None = None
    dropped: Mapping[str, int] | None = None
    week: int = 1
    least: int = 0
    moved: tuple[Moved, ...] = ()
    many: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, with the total variations in place of what a reader would compute."""
        whole: dict[str, Any] = json_ready(asdict(self))
        return whole | {
            "total_variation": variation(self.found),
            "total_variation_corrected": variation(self.corrected) if self.corrected else None,
            "total_variation_curator": variation(self.found, "curator"),
        }

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return the counts of true classes where there are some, else those that the devices found."""
        return self.corrected or self.found

    def rung(self, name: str) -> dict[str, Any]:
        """Return a rung of the ladder."""
        return next(rung for rung in self.ladder if rung["rung"] == name)

    def write(self, folder: Path) -> None:
        """Write count.json, counts.csv and counts.png into a folder."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")
        (folder / "counts.csv").write_text(self._csv(), encoding="utf-8")
        save(figure(self), folder / "counts.png")

    def _csv(self) -> str:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["of", *Row.__dataclass_fields__])
        for of, rows in (("found by devices", self.found), ("true classes", self.corrected)):
            writer.writerows(
                [of, *(f"{v:.6g}" if isinstance(v, float) else v for v in asdict(row).values())] for row in rows
            )
        return lines.getvalue()

    def text(self) -> str:
        """Return the result for a terminal."""
        of = "true classes" if self.corrected else "classes that the devices found"
        largest = sorted(self.rows, key=lambda row: -row.share)[:SHOWN]
        known = ("truth",) if self.rows[0].true is not None else ()
        cells = [
            (
                row.name,
                f"{row.count:,.0f}",
                f"{row.share:.4f}",
                f"{row.low:.4f} to {row.high:.4f}",
                *(number(row.true) for _ in known),
            )
            for row in largest
        ]
        size = f", sets of {self.mechanism['subset']}" if "subset" in self.mechanism else ""
        chosen = ", chosen by its variance" if self.chosen else ""
        local, central = self.rung("answer")["epsilon"], self.rung("shuffled")
        why = f"none: {central['assumption']}"
        rest = len(self.rows) - len(largest)
        lines = [
            f"{self.users:,} users{', one of the texts of each' * self.many}; model: {self.model}; "
            f"{self.mechanism['mechanism']}{size}{chosen}",
            f"local ε = {local:.4g}; central ε = "
            + (why if central["epsilon"] is None else f"{central['epsilon']:.4g} at δ = {central['delta']:g}"),
            "",
            table((of, "users", "share", f"{self.confidence:.0%} interval, all together", *known), cells),
        ]
        lines += [f"and {rest:,} smaller ones: see counts.csv"] if rest else []
        whole = self.to_dict()
        for said, value in (
            ("devices' classes, total variation", whole["total_variation"]),
            ("  expected", self.expected),
            ("  of a trusted curator", whole["total_variation_curator"]),
            ("true classes, total variation", whole["total_variation_corrected"]),
        ):
            lines += [] if value is None else [f"{said}: {value:.4f}"]
        if self.moved:
            largest_moves = sorted(self.moved, key=lambda row: -abs(row.change))[:SHOWN]
            moves = [
                (row.name, f"{row.change:+.4f}", f"{row.low:+.4f} to {row.high:+.4f}", "yes" if row.found else "no")
                for row in largest_moves
            ]
            lines += ["", table((f"change since week {self.week - 1}", "share", "interval", "found"), moves)]
        return "\n".join(lines)


def figure(result: CountResult) -> Figure:
    """Return a figure of the counts with their intervals, largest first."""
    rows = sorted(result.rows, key=lambda row: -row.share)[:SHOWN]
    drawn, axes = new_figure(5.0, 0.8 + 0.22 * len(rows))
    places = np.arange(len(rows))
    shares = np.array([row.share for row in rows])
    spread = np.array([[row.share - row.low for row in rows], [row.high - row.share for row in rows]])
    axes.errorbar(shares, places, xerr=np.maximum(spread, 0), fmt="o", color=COLOURS[0], label="estimate", capsize=2)
    if rows[0].true is not None:
        axes.plot([row.true for row in rows], places, "|", color=COLOURS[1], markersize=10, label="truth")
    axes.set_yticks(places, [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"share of {result.users:,} users, with {result.confidence:.0%} intervals for all together")
    axes.legend(frameon=False)
    return drawn


def read(folder: Path) -> CountResult:
    """Read the result that `CountResult.write` wrote.

    Raises:
        UserError: The folder holds none of this version.
    """
    try:
        whole = json.loads((folder / FILE).read_text(encoding="utf-8"))
        known = {name: whole[name] for name in CountResult.__dataclass_fields__}
        known |= {of: tuple(Row(**row) for row in known[of]) for of in ("found", "corrected")}
        return CountResult(**known | {"moved": tuple(Moved(**row) for row in known["moved"])})
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{folder / FILE}: is no count of this version; count again") from None


def counts_of(result: CountResult, rows: tuple[Row, ...]) -> Counts:
    """Return the estimate behind a result's rows."""
    columns = ("share", "unbiased", "error", "low", "high")
    shares, unbiased, errors, low, high = (np.array([getattr(row, name) for row in rows]) for name in columns)
    return Counts(result.users, shares, unbiased, errors, low, high, result.confidence)
