"""Warnings about arms: references that are no upper line, and models that have learned nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from server.protocols.declaration import CENTRALISED, PUBLIC_ONLY
from simulations.experiment.result import ArmResult, arms_of
from simulations.output.numbers import is_finite
from simulations.run import trust
from simulations.run.comparison import gap, shown
from simulations.run.table import accuracy, mean

Results = Mapping[str, Any]


def remarks(runs: Sequence[Results]) -> list[str]:
    """Return warnings about arms, a line each. `runs` have the same arms, one run for each seed.

    A reference without noise is named if private arms are better on the device by more than the error of the
    difference, or if a centralised arm is. A model is named if it predicts one class for all texts, or is worse than
    that would be. A batch is named if honest users alone would hardly have sent it. Class names are named that public
    labels or users contradict.
    """
    arms = arms_of(runs[0])
    groups = list(zip(*map(arms_of, runs), strict=True))
    lines = [line for same in groups for line in _of_model(runs, same)]
    batches = [line for run in runs for arm in arms_of(run) for line in _of_batches(arm)]
    doubts = dict.fromkeys(f"{arm.name}: {doubt}." for run in runs for arm in arms_of(run) for doubt in arm.doubts)
    return [*_of_references(runs, arms), *lines, *batches, *doubts]


def _of_batches(arm: ArmResult) -> list[str]:
    return [f"{arm.name}, stage {test.stage}: {test.finding}." for test in arm.batch_tests if test.alarm]


def _of_references(runs: Sequence[Results], arms: Sequence[ArmResult]) -> list[str]:
    private = [arm.name for arm in arms if not trust.unprotected(arm)]
    centralised = [arm.name for arm in arms if arm.way == CENTRALISED.name]
    lines = []
    for arm in (arm for arm in arms if arm.reference and arm.budget.central_epsilon is None):  # without noise
        name, other = arm.name, arm.way != CENTRALISED.name
        if above := [item for item in private if _below(runs, name, item)]:
            why = _MAPS if other else _HEAD
            lines.append(f"{name}: lies below {', '.join(above)}, which are private: {why}.")
        for best in centralised if other else ():
            if (result := _below(runs, name, best)) is not None:
                lines.append(
                    f"{name}: lies below {best}, by {shown(result).removeprefix('+')}: that much is lost on the way to "
                    "what users release, before any noise."
                )
    return lines


_MAPS = (
    "its maps or its head are the limit (too little public text?), so what it has over the others is not what noise "
    "costs"
)
_HEAD = "its head is the limit, so it is no upper line for these data"


def _below(runs: Sequence[Results], name: str, other: str) -> dict[str, float] | None:
    """Return {"difference", "error"} of `other` over `name` if it exceeds its error; otherwise, or if unknown, None."""
    pairs = [gap(results, other, name, "on_device") or {} for results in runs]
    result = mean((pair.get("difference"), pair.get("error")) for pair in pairs)
    if result is None or result.value <= result.largest_error:
        return None
    return {"difference": result.value, "error": result.largest_error}


#: Share of test texts in one class at which a model counts as constant, and number of standard errors below chance at
#: which it counts as worse, which happens to one in 44 random models.
ONE_CLASS, _BELOW_CHANCE = 0.99, 2.0
_WHERE = {"on_device": "on the device", "sanitized": "of sanitized texts"}


def _of_model(runs: Sequence[Results], same: Sequence[ArmResult]) -> list[str]:
    """Return lines on an arm's model, at most one for each split. `same` is the arm in each run."""
    lines = []
    for where, place in _WHERE.items():
        line = _one_class(runs, same, where) or _below_chance(runs, same, where)
        lines += [f"{same[0].name}: {place} {line}."] if line else []
    return lines


def _one_class(runs: Sequence[Results], same: Sequence[ArmResult], where: str) -> str:
    """Return in how many runs a model predicts one class for (nearly) all texts; "" if in none."""
    classes = []
    for run, arm in zip(runs, same, strict=True):
        counts = arm.guessed.get(where) or []
        if counts and max(counts) >= ONE_CLASS * sum(counts):
            most = counts.index(max(counts))
            of = "every text" if counts[most] == sum(counts) else f"{counts[most]:,} of {sum(counts):,} texts"
            classes.append(f'of {of} "{run["classes"][most]}"')
    if not classes:
        return ""
    often = "" if len(runs) == 1 else f" with {len(classes)} of {len(runs)} seeds"
    return f"its model says {' and '.join(dict.fromkeys(classes))}{often}: it tells no classes apart"


def _below_chance(runs: Sequence[Results], same: Sequence[ArmResult], where: str) -> str:
    """Return a line if a model is right less often than the most frequent class; otherwise "".

    Labels that are numbers are left out, since a near prediction counts there.
    """
    result = accuracy(same, where)
    chances: list[Any] = [run.get("chance") for run in runs]
    if result is None or result.by_text is None or runs[0].get("label_range") or not all(map(is_finite, chances)):
        return ""
    chance, error = fmean(chances), result.largest_error
    if result.value >= chance - _BELOW_CHANCE * error:
        return ""
    by_names = not all(arm.queried for arm in same) or same[0].way == PUBLIC_ONLY.name
    return (
        f"its accuracy, {result.value:.3f} ± {error:.3f}, lies below chance, {chance:.3f}, which always saying the "
        f"commonest class gives{'; if it learned from class names, these may be swapped' if by_names else ''}"
    )
