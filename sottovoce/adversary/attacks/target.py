"""What an attack is pointed at: one arm of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.node import Node
from simulations.experiment import Arm, Experiment


@dataclass(frozen=True, eq=False)
class Target:
    """run: the run's folder. study: its experiment, of which `arm` is an arm. nodes: the nodes of the run, with their
    ledgers and the truth. limit: texts that are attacked, at most. masked_lm: a checkpoint with a prediction head, for
    attacks that want one; None: that of the run, if it has one. attributes: columns that attribute inference guesses;
    none: those that the corpus has. shadows: models that membership inference trains like the run's; None: as many as
    take seconds. unprotected: whether embeddings are attacked too as they would be without any mechanism.

    Each kind of attack is a module with ATTACKS, what its attacks do by name, and entries(target, names, *, progress):
    a JSON-ready object for each result, and a line for each attack that does not apply, with the reason. `names` are
    some of its ATTACKS. An entry has the keys of ENTRY, of which `success` is a rate from 0 to 1, `error` its standard
    error, `observations` and `weight` of how many (`adversary.attacks.intervals`), `baseline` what a guess without
    any release gives, `best` the most that any such attack can give and `expected` what this one should, where theory
    says so, and `bound` what the theorem allows to who guesses from one release at a time, `bound_counts` to who looks
    at all of them and knows how many there are of each value (`adversary.estimators.allowed`); None what is not known.
    """

    run: Path
    study: Experiment
    arm: Arm
    nodes: list[Node]
    limit: int
    masked_lm: Path | None = None
    attributes: tuple[str, ...] = ()
    shadows: int | None = None
    unprotected: bool = False


class Skipped(Exception):
    """An attack that does not apply, and why."""


def each(
    names: Iterable[str], attack: Callable[[str], list[dict[str, Any]]], *, on: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries of attack(name), name by name, and a line for each that raises Skipped. on: what is attacked."""
    found: list[dict[str, Any]] = []
    skipped: list[str] = []
    for name in names:
        try:
            found += attack(name)
        except Skipped as why:
            skipped.append(f"{name} on {on}: {why}")
    return found, skipped


#: Keys that every entry has.
ENTRY = (
    "attack", "arm", "mechanism", "epsilon", "worst_case_epsilon", "stage", "texts", "tokens", "success", "error",
    "observations", "weight", "baseline", "best", "bound", "bound_counts", "expected",
)  # fmt: skip
