"""Means over runs in tables: ± the standard error over runs, and in brackets the error by test text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from simulations.experiment.result import ArmResult
from simulations.output.numbers import is_finite

NONE = "–"


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


def mean_said(found: tuple[float, float | None] | None) -> str:
    """Return the mean of `moments` ± its error if known, each with three digits; NONE without a mean."""
    if found is None:
        return NONE
    mean, error = found
    return f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}")


def accuracies(arms: Iterable[ArmResult], split: str) -> list[float | None]:
    """Return an arm's accuracy on a split in each run, or None."""
    scores = [arm.score(split) for arm in arms]
    return [None if score is None else score.accuracy for score in scores]


def mean_accuracy(arms: Sequence[ArmResult], split: str) -> str:
    """Return an arm's mean accuracy on a split over runs; NONE if a run lacks it."""
    found = [score for arm in arms if (score := arm.score(split)) is not None]
    return NONE if len(found) < len(arms) else _mean([each.accuracy for each in found], [each.error for each in found])


def mean_difference(pairs: Sequence[Mapping[str, float] | None]) -> str:
    """Return the mean of one difference over runs (`simulations.run.comparison.gap`); NONE if a run lacks it."""
    there = [pair for pair in pairs if pair is not None]
    if len(there) < len(pairs):
        return NONE
    return _mean([p["difference"] for p in there], [p["error"] for p in there], "+.3f")


def _mean(values: Sequence[float], by_text: Sequence[float | None], form: str = ".3f") -> str:
    """Return mean and errors. The error by text is the mean of the runs' errors: more runs do not reduce it."""
    error = standard_error(values)
    over_runs = "" if error is None else f" ± {error:.3f}"
    known = [error for error in by_text if is_finite(error)]
    texts = f" ({fmean(known):.3f})" if len(known) == len(by_text) else ""
    return f"{fmean(values):{form}}{over_runs}{texts}"
