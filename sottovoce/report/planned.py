"""Report data of a protocol that has not run, from its experiment alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.analysis.budget import ladders_of_experiment
from simulations.experiment import ArmSetup, load
from simulations.experiment.guarantees import Promise
from simulations.experiment.result import ArmResult
from simulations.run.journal import versions
from sottovoce.report.reading import Finished


def planned(file: Path | str, overrides: list[str]) -> Finished:
    """Return an experiment as a run without results.

    The crowd is that of the users whom the experiment expects. It reads the data if arms release texts.

    Args:
        file: TOML file, or the name of a bundled experiment.
        overrides: Changes to its keys.

    Raises:
        UserError: The experiment is invalid.
    """
    experiment = load(file, overrides)
    ladders = ladders_of_experiment(experiment, records=None, classes=None)
    arms = [_line(setup, told).to_dict() for setup, told in zip(experiment.setups, ladders["arms"], strict=True)]
    results = {
        "name": experiment.name,
        "seed": experiment.seed,
        "way": experiment.training.way,
        "way_sentence": ladders.get("way_sentence"),
        "arms": arms,
        "versions": versions(),
        "policy": experiment.allowed(),
        "encoder": {"model": experiment.encoder.model, "precision": experiment.encoder.precision, "sha256": None},
    }
    return Finished(Path(file), results, None, None, None, has_run=False)


def _line(setup: ArmSetup, told: dict[str, Any]) -> ArmResult:
    """Return an arm's results, as far as it is known before a run."""
    arm = setup.arm
    spec = arm.statistic or arm.embedding or arm.text or arm.answer or {}
    budget = Promise()
    if arm.curator is not None:
        budget = Promise(central_epsilon=arm.curator["epsilon"], central_delta=arm.curator["delta"])
    return ArmResult(
        name=arm.name,
        way=told["way"],
        reference=arm.reference,
        ladder=told["ladder"],
        test_ladder=told["test_ladder"],
        liars=told["liars"],
        budget=budget,
        mechanism=spec.get("mechanism"),
        label_mechanism=(arm.label or {}).get("mechanism"),
        users=0 if arm.public_only else setup.users,
    )
