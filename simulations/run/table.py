"""Results of runs as one tidy table, a row for each run, arm, metric and split, and its means over runs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from mechanisms.guarantee import EXPOSURES
from server.card import PAYERS
from simulations.experiment.result import SHOWN, SPLITS, ArmResult, Estimate, arms_of
from simulations.output.numbers import is_finite, share
from simulations.run import trust

if TYPE_CHECKING:
    from pandas import DataFrame

# pandas is imported where it is called: it takes half a second.

COLUMNS = ("run", "arm", *Estimate._fields)
#: Splits in words.
SAID = {split: split.replace("_", " ") for split in SPLITS}
#: Most groups of a measure that a table shows.
MOST_GROUPS = 12
#: Cell of a mean that does not exist.
NONE = "–"
#: Headings, and a row for each arm.
Rows = list[list[str]]


def tidy(runs: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """Return the results table of runs, whose keys are their names. Its columns are COLUMNS."""
    import pandas

    rows = [(name, arm.name, *item) for name, run in runs.items() for arm in arms_of(run) for item in estimates(arm)]
    table = pandas.DataFrame(rows, columns=COLUMNS)
    return table.astype({"value": float, "standard_error": float, "n": "Int64"})


def estimates(arm: ArmResult) -> Iterator[Estimate]:
    """Yield the metrics of an arm: accuracies, measures, what users pay, and numbers.

    The name of an ε that holds only between data that agree in something public says so: "local_epsilon: same label".
    """
    prices = {
        "local_epsilon": trust.local(arm),
        "local_epsilon_test_user": trust.local(arm, whose=PAYERS["test_ladder"]),
        "central_epsilon": trust.central(arm)[0],
    }
    condition = f": same {' and '.join(public)}" if (public := trust.public(arm)) else ""
    for name, words in EXPOSURES.items():  # short names, which trackers take
        condition = condition.replace(words, name)
    yield from arm.estimates()
    yield from (Estimate(name + condition, None, value) for name, value in prices.items() if value is not None)


def means(table: DataFrame) -> DataFrame:
    """Return a row for each arm, metric and split that all runs of a tidy table have.

    Columns are arm, metric, split, n (runs), mean, error and error_by_text, as in `Mean`.
    """
    import pandas

    runs, rows = table["run"].nunique(), []
    for key, group in table.groupby(["arm", "metric", "split"], sort=False, dropna=False):
        result = mean(zip(group["value"], group["standard_error"], strict=True))
        if len(group) == runs and result is not None:
            rows.append((*key, runs, *result))
    table = pandas.DataFrame(rows, columns=["arm", "metric", "split", "n", "mean", "error", "error_by_text"])
    return table.astype({"mean": float, "error": float, "error_by_text": float})


def records(table: DataFrame) -> list[dict[Hashable, Any]]:
    """Return the rows of a table as dicts, with None for a value that does not apply."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def beside(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, Rows]]:
    """Return titles and tables of the measures in SHOWN: one of all that have no groups, titled "", one for each other.

    A cell is the mean over runs ± its standard error: over seeds, and of one run by test text or by user. `runs` have
    the same arms, one run for each seed. Of more than MOST_GROUPS groups, a table has those in which some arm is
    lowest, by its mean and two errors, so that small groups do not come first by chance.
    """
    names = [name for name in runs[0].get("measures") or () if name in SHOWN]
    if not names:
        return []
    table = tidy({str(number): run for number, run in enumerate(runs)})
    errors = "error_by_text" if len(runs) == 1 else "error"
    rows = {(row["arm"], row["metric"], row["split"]): Mean(row["mean"], row[errors]) for row in records(means(table))}
    metrics = table["metric"].unique()
    groups = {name: [metric for metric in metrics if metric.startswith(f"{name}: ")] for name in names}
    measured = {(metric, split) for _, metric, split in rows}
    single = [(n, split, f"{SHOWN[n]}, {SAID[split]}") for n in names for split in SPLITS if (n, split) in measured]
    tables = [("", single)] if single else []
    for name in (name for name in names if groups[name]):
        for split in SPLITS:
            bounds: dict[str, float] = {}
            for (_, metric, where), (value, error, _) in rows.items():
                if metric in groups[name] and where == split:
                    bounds[metric] = min(bounds.get(metric, math.inf), value + 2 * (error or 0.0))
            lowest = sorted(bounds, key=bounds.__getitem__)[:MOST_GROUPS]
            columns = [(metric, split, metric.removeprefix(f"{name}: ")) for metric in groups[name] if metric in lowest]
            note = f": the lowest {len(lowest)} of {len(bounds)}" if len(lowest) < len(bounds) else ""
            tables += [(f"{SHOWN[name]}, {SAID[split]}{note}", columns)] if columns else []
    arms = [arm.name for arm in arms_of(runs[0])]
    return [
        (
            title,
            [
                ["arm", *(heading for *_, heading in columns)],
                *([arm, *(str(rows.get((arm, *of), NONE)) for *of, _ in columns)] for arm in arms),
            ],
        )
        for title, columns in tables
    ]


# --- means over runs


class Mean(NamedTuple):
    """Mean of a value over runs.

    Args:
        value: Mean.
        error: Standard error over runs; None for one run.
        by_text: Mean of the runs' standard errors over test texts; None if a run has none.
    """

    value: float
    error: float | None
    by_text: float | None = None

    @property
    def largest_error(self) -> float:
        """Return the larger one of both errors, since runs may share their test texts; 0 if none is known."""
        return max(self.error or 0.0, self.by_text or 0.0)

    def __str__(self) -> str:
        """Return the mean ± its error over runs if known, each with three digits."""
        return share(self.value, self.error)


def mean(values: Iterable[tuple[Any, Any]]) -> Mean | None:
    """Return the mean of independent runs' values, each with its standard error over test texts.

    The error over runs is deviation / √n. There is at least one run. None if one lacks the value, or has one that is
    not finite.
    """
    numbers, errors = map(list, zip(*values, strict=True))
    if not all(map(is_finite, numbers)):
        return None
    over_runs = stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else None
    return Mean(fmean(numbers), over_runs, fmean(errors) if all(map(is_finite, errors)) else None)


def accuracy(arms: Iterable[ArmResult], split: str) -> Mean | None:
    """Return the mean accuracy of an arm on a split over its runs; None if a run has none."""
    scores = (arm.score(split) for arm in arms)
    return mean((None, None) if score is None else (score.accuracy, score.error) for score in scores)
