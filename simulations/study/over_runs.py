"""Means over runs, as tables say them: ± the standard error over the runs, and in brackets the error by test text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from simulations.output.numbers import is_finite

NONE = "–"


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent runs' values, (n,), each finite: their sample deviation over √n; None of one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def mean_accuracy(arms: Sequence[Mapping[str, Any]], key: str) -> str:
    """Of one arm in each run, its accuracy of this name; NONE where a run lacks it."""
    values = [arm[key] for arm in arms]
    return NONE if any(value is None for value in values) else _mean(values, [arm.get(f"{key}_se") for arm in arms])


def mean_difference(pairs: Sequence[Mapping[str, float] | None]) -> str:
    """Of one difference in each run, as `simulations.study.comparison.gap` has it; NONE where a run lacks it."""
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
