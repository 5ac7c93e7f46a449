"""Differences between a run's arms, paired by test text, and how tables show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from simulations.experiment import Arm
from simulations.experiment.result import SPLITS, arms_of
from simulations.output.numbers import is_finite
from simulations.run.evaluation import Answers, difference

Results = Mapping[str, Any]
Cell = Callable[[str, str, str], str]

_HEADINGS = {"sanitized": "on sanitized test sentences", "on_device": "on the device"}


def baseline(arms: Sequence[Arm], arm: Arm) -> Arm | None:
    """The public-only arm whose test users ask in the same way, down to the last parameter: what its accuracy lacks is
    what users added. None where there is none, and of a public-only arm."""
    if arm.public_only:
        return None
    alone = (other for other in arms if other.public_only)
    return next((other for other in alone if _asks(other) == _asks(arm)), None)


def _asks(arm: Arm) -> tuple[Any, ...]:
    return arm.embedding, arm.text, arm.answer, arm.perturb == "train"  # whose askers send their texts in clear


def differences(arms: Sequence[Arm], answers: Mapping[str, Answers]) -> list[dict[str, Any]]:
    """Each pair of the arms that have answered once: {"arm", "less", "users_added", "sanitized", "on_device"}, the last
    two {"difference", "error"} or None. users_added: whether `less` is the arm's baseline; elsewhere the later arm
    stands first."""
    added = {(arm.name, base.name) for arm in arms if (base := baseline(arms, arm)) is not None}
    found = []
    for earlier, later in combinations([arm.name for arm in arms if arm.name in answers], 2):
        pair = (earlier, later) if (earlier, later) in added else (later, earlier)
        one, other = (answers[name] for name in pair)
        gaps = difference(one.sanitized, other.sanitized), difference(one.device, other.device)
        said = {kind: None if gap is None else asdict(gap) for kind, gap in zip(SPLITS, gaps, strict=True)}
        found.append({"arm": pair[0], "less": pair[1], "users_added": pair in added} | said)
    return found


def added(results: Results) -> dict[str, dict[str, Any]]:
    """What users added to each arm that has a baseline, by its name: the pair as `differences` has it."""
    return {pair["arm"]: pair for pair in results.get("differences") or () if pair["users_added"]}


def gap(results: Results, arm: str, less: str, kind: str) -> dict[str, float] | None:
    """{"difference", "error"} of two arms, whichever way round the results have it."""
    for pair in results.get("differences") or ():
        if (pair["arm"], pair["less"]) == (arm, less):
            return dict(pair[kind]) if pair[kind] else None
        if (pair["arm"], pair["less"]) == (less, arm):
            return pair[kind] and {"difference": -pair[kind]["difference"], "error": pair[kind]["error"]}
    return None


def shown(pair: Mapping[str, float] | None) -> str:
    """A difference with its sign and its error."""
    if pair is None:
        return "–"
    return f"{pair['difference']:+.3f}" + (f" ± {pair['error']:.3f}" if is_finite(pair["error"]) else "")


def matrices(results: Results, *, most: int, cell: Cell | None = None) -> list[tuple[str, list[list[str]]]]:
    """Of each kind of accuracy, what it is called, and every arm that has one less every earlier one: headings, and a
    row for each, its number and name first. Left out where fewer than two arms or more than `most` have one.

    cell(arm, less, kind): what is shown of a pair; its `shown` difference in these results where None.
    """
    cell = cell or (lambda arm, less, kind: shown(gap(results, arm, less, kind)))
    found = []
    for kind, heading in _HEADINGS.items():
        names = [arm.name for arm in arms_of(results) if arm.score(kind) is not None]
        if not 2 <= len(names) <= most or not results.get("differences"):
            continue
        rows = [["less", *map(str, range(1, len(names)))]]
        for number, name in enumerate(names):
            gaps = [cell(name, other, kind) for other in names[:number]]
            rows.append([f"{number + 1} {name}", *gaps, *[""] * (len(names) - 1 - number)])
        found.append((heading, rows))
    return found
