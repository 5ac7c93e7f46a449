"""Losses of accuracy by class and by group, and warnings where an arm's loss falls on one of them.

An arm's loss in a group is the accuracy of its reference there less its own, paired by test text. A warning is a test
of the hypothesis that the group loses at most MARGIN more than all other texts. Its level is divided by the number of
tests of a run, so that a run in which the hypothesis holds everywhere is warned about with a probability of FALSE_ALARM
at most. Texts of one user are one draw where users hold several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from server.protocols.centralised import PROTOCOL as CENTRALISED
from server.protocols.public_only import PROTOCOL as PUBLIC_ONLY
from simulations.experiment.result import SPLITS, ArmResult
from simulations.experiment.sections import Data
from simulations.run import trust
from simulations.run.accuracy import Contrast, Counts, contrast
from simulations.run.evaluation import Answers
from simulations.run.prepare import Held

Line = Mapping[str, Any]
Results = Mapping[str, Any]

#: Probability of a warning in a run without cause, loss beyond that of others that is no cause, and least number of
#: independent clusters in a group and outside of it.
FALSE_ALARM, MARGIN, LEAST = 0.01, 0.05, 5
#: Metrics of losses, with the word for a group.
LOSSES = {"loss-by-class": "class", "loss-by-group": "group"}
_WHERE = {"on_device": "on the device", "sanitized": "of sanitized texts"}


def without_noise(arm: ArmResult) -> bool:
    """Return True if an arm is a reference without noise."""
    return arm.reference and arm.budget.central_epsilon is None


def with_losses(lines: Sequence[Line], answers: Mapping[str, Answers], held: Held, data: Data) -> list[Line]:
    """Return the lines of arms with the losses of private arms, by class and by group, among their measures.

    An entry "loss-by-class: NAME" has the loss as "value", its "error", "n", the loss of all other texts as "rest", the
    reference as "against", and as "falls" whether a warning is due.
    """
    arms = [ArmResult.from_dict(line) for line in lines]
    found: list[tuple[int, str, str, str, Contrast]] = []
    for number, arm in enumerate(arms):
        for split in SPLITS if not arm.reference and arm.way != PUBLIC_ONLY.name else ():
            if (against := _reference(arms, arm, answers, split)) is not None:
                one, other = (_counts(answers[name], split) for name in (against, arm.name))
                found += [(number, split, key, against, of) for key, of in _contrasts(held, data, one, other)]
    made: list[dict[str, Any]] = [dict(line) for line in lines]
    for number, split, key, against, of in found:
        threshold = stats.t.isf(FALSE_ALARM / len(found), of.clusters + 1)
        beyond = of.loss - of.rest - MARGIN > threshold * of.more_error
        entry = {
            "value": of.loss,
            "error": of.error,
            "n": of.n,
            "rest": of.rest,
            "against": against,
            "falls": bool(beyond and of.loss > 0 and of.clusters >= LEAST),
        }
        measures = made[number].get("measures") or {}
        made[number]["measures"] = measures | {split: (measures.get(split) or {}) | {key: entry}}
    return list(made)


def _reference(arms: Sequence[ArmResult], arm: ArmResult, answers: Mapping[str, Answers], split: str) -> str | None:
    """Return the reference without noise that an arm is compared with: of its own protocol, if there is one."""
    there = [
        other
        for other in arms
        if without_noise(other) and trust.unprotected(other) and _counts(answers[other.name], split).guesses.any()
    ]
    there.sort(key=lambda other: (other.way != arm.way, other.way == CENTRALISED.name))
    return there[0].name if there else None


def _counts(answers: Answers, split: str) -> Counts:
    return {"sanitized": answers.sanitized, "on_device": answers.device}[split]


def _contrasts(held: Held, data: Data, reference: Counts, arm: Counts) -> list[tuple[str, Contrast]]:
    """Return the contrast of each class and group that has predictions, by the name of its metric.

    Class, group and user of a text that occurs several times are those of its first occurrence.
    """
    first = np.unique(held.test_texts, return_index=True)[1]
    owners = np.arange(len(first)) if held.owners is None else np.unique(held.owners[first], return_inverse=True)[1]
    groups: dict[str, NDArray[np.str_]] = {}
    if data.numbers is None:
        groups["loss-by-class"] = np.array(held.test.classes)[held.test.labels[first]]
    if (of_rows := held.groups(data.group)) is not None:
        groups["loss-by-group"] = of_rows[first]
    return [
        (f"{metric}: {name}", found)
        for metric, names in groups.items()
        for name in dict.fromkeys(names.tolist())
        if (found := contrast(reference, arm, names == name, owners)) is not None
    ]


def warnings(runs: Sequence[Results], found: Sequence[ArmResult]) -> list[str]:
    """Return a line for each split and kind of group on which an arm's loss falls. `found` is the arm in each run."""
    lines = []
    for split, where in _WHERE.items():
        for metric, kind in LOSSES.items():
            worst, others = [], set()
            for arm in found:
                entries = {
                    name.removeprefix(f"{metric}: "): each
                    for name, each in (arm.measures.get(split) or {}).items()
                    if name.startswith(f"{metric}: ") and each["falls"]
                }
                if entries:
                    worst.append(max(entries.items(), key=lambda pair: pair[1]["value"] - pair[1]["rest"]))
                    others |= set(entries)
            if worst:
                lines.append(f"{found[0].name}: {where} {_said(kind, worst, others, len(runs))}")
    return lines


def _said(kind: str, worst: Sequence[tuple[str, Mapping[str, Any]]], others: set[str], runs: int) -> str:
    """Return a warning in words: of the group that is most often worst, with means over runs."""
    name = Counter(name for name, _ in worst).most_common(1)[0][0]
    entries = [entry for each, entry in worst if each == name]
    loss, rest, error = (fmean(entry[key] for entry in entries) for key in ("value", "rest", "error"))
    often = "" if runs == 1 else f" with {len(entries)} of {runs} seeds"
    also = f", and on {more} more" if (more := len(others - {name})) else ""
    return (
        f'the loss falls on {kind} "{name}"{also}{often}: {loss:.3f} ± {error:.3f} less accuracy than '
        f"{entries[0]['against']}, and {abs(rest):.3f} {'less' if rest >= 0 else 'more'} in all other texts."
    )
