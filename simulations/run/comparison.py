"""Differences between a run's arms, paired by test text, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from server.card import PAYERS
from simulations.experiment import Arm
from simulations.experiment.result import SPLITS, arms_of
from simulations.output.numbers import is_finite, share
from simulations.run.accuracy import difference
from simulations.run.evaluation import Answers
from simulations.run.trust import cell, paid, unprotected

Results = Mapping[str, Any]

_TRAINING = PAYERS["ladder"]


def baseline(arms: Sequence[Arm], arm: Arm) -> Arm | None:
    """Return the public-only arm whose test users ask in the same way, with the same parameters.

    The difference from its accuracy is what users added. It is None if there is none, and for a public-only arm.
    """
    if arm.public_only:
        return None
    alone = (other for other in arms if other.public_only)
    return next((other for other in alone if _asks(other) == _asks(arm)), None)


def _asks(arm: Arm) -> tuple[Any, ...]:
    return arm.embedding, arm.text, arm.answer, arm.perturb == "train"  # whose test users send their texts in clear


def differences(arms: Sequence[Arm], answers: Mapping[str, Answers]) -> list[dict[str, Any]]:
    """Return the difference of each pair of arms that have answers.

    The keys are "arm", "less", "users_added", "sanitized" and "on_device". The last two are {"difference", "error"} or
    None. "users_added" is True if `less` is the arm's baseline. Otherwise the later arm comes first.
    """
    added = {(arm.name, base.name) for arm in arms if (base := baseline(arms, arm)) is not None}
    results = []
    for earlier, later in combinations([arm.name for arm in arms if arm.name in answers], 2):
        pair = (earlier, later) if (earlier, later) in added else (later, earlier)
        first, other = (answers[name] for name in pair)
        gaps = {split: difference(first[split], other[split]) for split in SPLITS}
        by_split = {split: None if gap is None else asdict(gap) for split, gap in gaps.items()}
        results.append({"arm": pair[0], "less": pair[1], "users_added": pair in added} | by_split)
    return results


def added(results: Results) -> dict[str, dict[str, Any] | None]:
    """Return for each arm with a baseline, by name, what users added to its accuracy: {"difference", "error"}, or None.

    It is that of inference by requests, or on the device if the arm's users send none.
    """
    pairs = [pair for pair in results.get("differences") or () if pair["users_added"]]
    return {pair["arm"]: pair["sanitized"] or pair["on_device"] for pair in pairs}


def gap(results: Results, arm: str, less: str, kind: str) -> dict[str, float] | None:
    """Return {"difference", "error"} of two arms, in either order of the results."""
    for pair in results.get("differences") or ():
        if (pair["arm"], pair["less"]) == (arm, less):
            return dict(pair[kind]) if pair[kind] else None
        if (pair["arm"], pair["less"]) == (less, arm):
            return pair[kind] and {"difference": -pair[kind]["difference"], "error": pair[kind]["error"]}
    return None


def shown(pair: Mapping[str, float] | None) -> str:
    """Return a difference with its sign and its error."""
    return share(*((None, None) if pair is None else (pair["difference"], pair["error"])), signed=True)


def conclusion(results: Results) -> str:
    """Return in one sentence what training users added to the best guess without them; "" where no arm has such users.

    The best guess without users is the commonest class or a public-only arm, whichever is right more often. Accuracies
    are those on the device, with their errors by test text. The error of a difference is not said, since nothing in
    the results pairs an arm with the commonest class.
    """
    arms = [arm for arm in arms_of(results) if arm.accuracy_clean_test is not None]
    guesses = [
        (arm.accuracy_clean_test, f'"{arm.name}"')
        for arm in arms
        if not arm.delivered and not arm.reference and paid(_TRAINING, arm) is None
    ]
    if is_finite(results.get("chance")):
        guesses.append((results["chance"], "the commonest class"))
    prices = [(arm, paid(_TRAINING, arm)) for arm in arms if arm.delivered and not unprotected(arm)]
    taught = [(price.epsilon, arm, price) for arm, price in prices if price is not None and price.epsilon is not None]
    if not guesses or not taught or results.get("label_range"):
        return ""
    least, what = max(guesses)
    lines = [
        f"{share(arm.accuracy_clean_test, arm.accuracy_clean_test_se)} at ε = {cell(price)}"
        for _, arm, price in sorted(taught, key=lambda entry: entry[0])
    ]
    return f"Without users the best guess is right {least:.3f} of the time ({what}); with them {', '.join(lines)}."
