"""Target of an attack: one arm of a finished run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from client.node import Node
from simulations.corpora.corpus import Split
from simulations.corpora.parts import load_split
from simulations.experiment import Arm, ArmSetup, EncoderConfig
from simulations.experiment.sections import Data, Population, TrainingConfig
from sottovoce.adversary.attacks.scores import Rate

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Target:
    """One arm of a finished run, with the settings of its attacks.

    Each kind of attack is a module with ATTACKS, a description of each attack by name, and entries(target, names). The
    function returns the entry of each result, and a line with the reason for each attack that does not apply. `names`
    are some of its ATTACKS.

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
    encoder: EncoderConfig
    training: TrainingConfig
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


@dataclass(frozen=True, kw_only=True)
class Result:
    """Success of one attack on one arm: an entry of attacks.json. Unknown values are None.

    Args:
        attack: Name of the attack.
        arm: Name of the arm.
        mechanism: Name of the mechanism.
        epsilon: ε that the mechanism names.
        worst_case_epsilon: ε of the theorem between any two inputs.
        stage: Names of the stages of the releases.
        texts: Number of attacked texts.
        tokens: Number of scored tokens.
        rate: Success.
        baseline: Success of a guess without any release.
        best: Largest success of any such attack.
        bound: Bound of the theorem for guesses from one release at a time.
        bound_counts: Bound of the theorem for an adversary who sees all releases and knows the number of each value
            (`adversary.estimators.allowed`).
        expected: Expected success of this attack, where theory gives it.
        attribute: Name of the guessed attribute.
        note: Further figures, for people.
        more: Further entries.
    """

    attack: str
    arm: str
    mechanism: str | None
    epsilon: float | None
    worst_case_epsilon: float
    stage: str
    texts: int
    tokens: int | None = None
    rate: Rate
    baseline: float
    best: float | None = None
    bound: float | None = None
    bound_counts: float | None = None
    expected: float | None = None
    attribute: str | None = None
    note: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("rate", "more", "attribute")}
        attribute = {} if self.attribute is None else {"attribute": self.attribute}
        return values | asdict(self.rate) | attribute | dict(self.more)


def collect(
    names: Iterable[str], attack: Callable[[str], Iterable[Result]], *, on: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attack(name) for each name, and a line for each that raises Skipped.

    Args:
        names: Names of attacks.
        attack: Function from a name to results.
        on: Name of the target.
    """
    entries: list[dict[str, Any]] = []
    skipped: list[str] = []
    for name in names:
        try:
            for result in attack(name):
                suffix = "" if result.attribute is None else f" of {result.attribute}"
                log.info(f"{on}: {name}{suffix}: {result.rate.success:.3f} ± {result.rate.error:.3f}")
                entries.append(result.to_dict())
        except Skipped as reason:
            skipped.append(f"{name} on {on}: {reason}")
    return entries, skipped
