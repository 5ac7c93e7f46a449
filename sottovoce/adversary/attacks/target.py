"""Target of an attack: one arm of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.node import Node
from simulations.corpora.corpus import Split
from simulations.corpora.parts import load_split
from simulations.experiment import Arm, ArmSetup, Encoder
from simulations.experiment.sections import Data, Population, Training


@dataclass(frozen=True, eq=False)
class Target:
    """One arm of a finished run, with the settings of its attacks.

    Each kind of attack is a module with ATTACKS, a description of each attack by name, and entries(target,
    names). The function returns a JSON-ready object for each result, and a line with the reason for each attack
    that does not apply. `names` are some of its ATTACKS.

    An entry has the keys of ENTRY; unknown values are None.

    - `success` is a rate from 0 to 1, and `error` its standard error.
    - `observations` and `weight` are the sample size (`adversary.attacks.intervals`).
    - `baseline` is the success of a guess without any release.
    - `best` is the largest success of any such attack.
    - `expected` is the expected success of this attack, where theory gives it.
    - `bound` is the theorem's bound for guesses from one release at a time.
    - `bound_counts` is the theorem's bound for an adversary who sees all releases and knows the number of each value
      (`adversary.estimators.allowed`).

    Args:
        run: Folder of the run.
        setup: Arm of the experiment.
        seed: Seed of the experiment.
        data: Table [data] of the experiment.
        population: Table [population].
        encoder: Table [encoder].
        training: Table [training].
        clear: Name of a reference arm of the experiment whose texts leave unchanged, if there is one.
        nodes: Nodes of the run, with their ledgers and the truth.
        limit: Most texts to attack.
        masked_lm: Checkpoint with a prediction head, for attacks that need one; None for that of the run, if it has
            one.
        attributes: Columns that attribute inference guesses; () for those of the corpus.
        shadows: Number of shadow models of membership inference; None for as many as take seconds.
        unprotected: Whether to attack also embeddings without any mechanism.
    """

    run: Path
    setup: ArmSetup
    seed: int
    data: Data
    population: Population
    encoder: Encoder
    training: Training
    clear: str | None
    nodes: list[Node]
    limit: int
    masked_lm: Path | None = None
    attributes: tuple[str, ...] = ()
    shadows: int | None = None
    unprotected: bool = False

    @property
    def arm(self) -> Arm:
        """Return the arm of the experiment."""
        return self.setup.arm

    def split(self) -> Split:
        """Return the parts of the run's data, before users are chosen."""
        return load_split(self.data, self.population, self.seed)[0]


class Skipped(Exception):
    """Reason why an attack does not apply."""


def each(
    names: Iterable[str], attack: Callable[[str], list[dict[str, Any]]], *, on: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attack(name) for each name, and a line for each that raises Skipped.

    Args:
        names: Names of attacks.
        attack: Function from a name to entries.
        on: Name of the target.
    """
    found: list[dict[str, Any]] = []
    skipped: list[str] = []
    for name in names:
        try:
            found += attack(name)
        except Skipped as why:
            skipped.append(f"{name} on {on}: {why}")
    return found, skipped


#: Keys of every entry.
ENTRY = (
    "attack",
    "arm",
    "mechanism",
    "epsilon",
    "worst_case_epsilon",
    "stage",
    "texts",
    "tokens",
    "success",
    "error",
    "observations",
    "weight",
    "baseline",
    "best",
    "bound",
    "bound_counts",
    "expected",
)
