"""Means over runs, as tables say them: ± the standard error over the runs, and in brackets the error by test text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from simulations.experiment.result import ArmResult
from simulations.output.numbers import is_finite

NONE = "–"


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent runs' values, (n,), each finite: their sample deviation over √n; None of one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def moments(values: Sequence[Any], error_of_one: Any = None) -> tuple[float, float | None] | None:
    """Mean of runs' values (n,) and its standard error: of one run `error_of_one`, and None where that is no finite
    number. None where a run lacks the value, or has one that is not finite."""
    if not all(map(is_finite, values)):
        return None
    error = standard_error(values) if len(values) > 1 else error_of_one
    return fmean(values), error if is_finite(error) else None


def mean_said(found: tuple[float, float | None] | None) -> str:
    """The mean of `moments`, ± the error that is known, each to three digits; NONE where there is no mean."""
    if found is None:
        return NONE
    mean, error = found
    return f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}")


def accuracies(arms: Iterable[ArmResult], split: str) -> list[float | None]:
    """The accuracy on a split of one arm in each run; None of a run that lacks it."""
    scores = [arm.score(split) for arm in arms]
    return [None if score is None else score.accuracy for score in scores]


def mean_accuracy(arms: Sequence[ArmResult], split: str) -> str:
    """Of one arm in each run, its accuracy on a split; NONE where a run lacks it."""
    found = [score for arm in arms if (score := arm.score(split)) is not None]
    return NONE if len(found) < len(arms) else _mean([each.accuracy for each in found], [each.error for each in found])


def mean_difference(pairs: Sequence[Mapping[str, float] | None]) -> str:
    """Of one difference in each run, as `simulations.run.comparison.gap` has it; NONE where a run lacks it."""
    there = [pair for pair in pairs if pair is not None]
    if len(there) < len(pairs):
        return NONE
    return _mean([p["difference"] for p in there], [p["error"] for p in there], "+.3f")


def _mean(values: Sequence[float], by_text: Sequence[float | None], form: str = ".3f") -> str:
    """The error by text is the mean of those of the runs, where all are known: more runs do not make it smaller."""
    error = standard_error(values)
    over_runs = "" if error is None else f" ± {error:.3f}"
    known = [error for error in by_text if is_finite(error)]
    texts = f" ({fmean(known):.3f})" if len(known) == len(by_text) else ""
    return f"{fmean(values):{form}}{over_runs}{texts}"
