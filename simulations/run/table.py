"""Results of runs as one tidy table, a row for each run, arm, metric and split, and its means over runs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from mechanisms.guarantee import EXPOSURES
from simulations.experiment.result import SHOWN, SPLITS, ArmResult, Estimate, arms_of
from simulations.output.numbers import is_finite
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
        "local_epsilon_test_user": trust.asking(arm),
        "central_epsilon": trust.central(arm)[0],
    }
    condition = f": same {' and '.join(public)}" if (public := trust.public(arm)) else ""
    for name, words in EXPOSURES.items():  # short names, which trackers take
        condition = condition.replace(words, name)
    yield from arm.estimates()
    yield from (Estimate(name + condition, None, value) for name, value in prices.items() if value is not None)


def means(table: DataFrame) -> DataFrame:
    """Return a row for each arm, metric and split that all runs of a tidy table have.

    Columns are arm, metric, split, n (runs), mean, error (standard error over runs, none for one run) and error_by_text
    (mean of the runs' standard errors over test texts, none if a run has none).
    """
    groups = table.groupby(["arm", "metric", "split"], sort=False, dropna=False)
    result = groups.agg(
        n=("value", "size"),
        mean=("value", fmean),
        error=("value", _error_over_runs),
        error_by_text=("standard_error", lambda errors: fmean(errors) if all(map(is_finite, errors)) else None),
    )
    return result[result["n"] == table["run"].nunique()].reset_index()


def _error_over_runs(values: Sequence[float]) -> float | None:
    return standard_error(list(values)) if all(map(is_finite, values)) else None


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
    result, errors = means(table), "error_by_text" if len(runs) == 1 else "error"
    rows = {(row["arm"], row["metric"], row["split"]): (row["mean"], row[errors]) for row in records(result)}
    metrics = table["metric"].unique()
    groups = {name: [metric for metric in metrics if metric.startswith(f"{name}: ")] for name in names}
    measured = {(metric, split) for _, metric, split in rows}
    single = [(n, split, f"{SHOWN[n]}, {SAID[split]}") for n in names for split in SPLITS if (n, split) in measured]
    tables = [("", single)] if single else []
    for name in (name for name in names if groups[name]):
        for split in SPLITS:
            bounds: dict[str, float] = {}
            for (_, metric, where), (value, error) in rows.items():
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
                *([arm, *(mean_cell(rows.get((arm, *of))) for *of, _ in columns)] for arm in arms),
            ],
        )
        for title, columns in tables
    ]


# --- means over runs: ± the standard error over runs


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of independent finite values, (n,): deviation / √n; None for n = 1."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def moments(values: Sequence[Any], error_of_one: Any = None) -> tuple[float, float | None] | None:
    """Return the mean of runs' values (n,) and its standard error, which is `error_of_one` for one run.

    An error that is not finite is None. The result is None if a run lacks the value, or has one that is not finite.
    """
    if not all(map(is_finite, values)):
        return None
    error = standard_error(values) if len(values) > 1 else error_of_one
    return fmean(values), error if is_finite(error) else None


def mean_cell(result: tuple[float, float | None] | None) -> str:
    """Return the mean of `moments` ± its error if known, each with three digits; NONE without a mean."""
    if result is None:
        return NONE
    mean, error = result
    return f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}")


def accuracies(arms: Iterable[ArmResult], split: str) -> list[float | None]:
    """Return an arm's accuracy on a split in each run, or None."""
    scores = [arm.score(split) for arm in arms]
    return [None if score is None else score.accuracy for score in scores]
