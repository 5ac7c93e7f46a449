"""Means over runs in tables: ± the standard error over runs, and in brackets the error by test text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
