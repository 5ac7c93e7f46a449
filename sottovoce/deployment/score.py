"""Score of a deployed model against the true labels, by the operator of a study.

A study's shuffler records the users of a batch's rows (`--origins`); no real shuffler does. The training server never
sees this record, nor the labels of test users.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulations.artifacts.model_folder import classify, read_about
from simulations.errors import UserError
from simulations.experiment import Experiment, slug
from simulations.experiment.result import ArmResult
from simulations.run.evaluation import Answers, Predicted, requested, with_accuracies
from simulations.run.prepare import Prepared
from simulations.run.report import Results
from simulations.run.run import results
from simulations.shuffler.shuffle import Origin
from sottovoce.deployment.training_server import ANSWERS, RESULT

#: Source of the users' noise, in the results.
RANDOMNESS = "deployment: the operating system's generator on each device, nothing seeded"
_STAGE = "test"


def score_arm(experiment: Experiment, prepared: Prepared, arm: str, *, server: Path, origins: Path) -> Results:
    """Return the results of a deployed arm.

    Args:
        experiment: The study.
        prepared: Its data.
        arm: Name of the arm.
        server: Folder that the training server left.
        origins: Folder in which the study's shuffler records the users of rows.

    Raises:
        UserError: One of the folders is not what it should be.
    """
    result, answers = _scored(arm, prepared, server=server, origins=origins)
    return results(
        experiment, prepared, [result.to_dict()], {arm: answers}, seconds=result.seconds, randomness=RANDOMNESS
    )


def _scored(arm: str, prepared: Prepared, *, server: Path, origins: Path) -> tuple[ArmResult, Answers]:
    """Return the result of a deployed arm, and its answers to test users."""
    records = prepared.held
    try:
        result = ArmResult.from_dict(json.loads((server / RESULT).read_text(encoding="utf-8")))
        answers = json.loads((server / ANSWERS).read_text(encoding="utf-8"))
        places, guesses = (np.array(answers[name], np.int64) for name in ("places", "guesses"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{server}: holds no trained arm; name the folder that `deploy train` left") from error
    sanitized, dropped = None, dict(result.dropped)
    if len(guesses):
        path = origins / f"{_STAGE}.npy"
        try:
            owners = np.load(path, allow_pickle=False)[places]
        except (OSError, ValueError, IndexError):
            raise UserError(f"--origins {path}: does not say whose the rows of the stage's batch are") from None
        sanitized = Predicted(guesses, requested(records, Origin(owners[:, 0], owners[:, 1])))
        if unknown := int((sanitized.sentences < 0).sum()):
            dropped["test: unknown record"] = unknown
    model = server / "models" / slug(arm)
    classes, _ = read_about(model)
    if classes != prepared.public.classes:
        raise UserError(
            f"{model}: its classes are {', '.join(classes)}, and those of the study's data "
            f"{', '.join(prepared.public.classes)}, in these orders; score it with the data that it was made for"
        )
    clean = classify(model, prepared.public, records.test.texts)
    on_device = Predicted(clean, np.arange(len(clean)))
    predictions = {"sanitized": sanitized, "on_device": on_device}
    return with_accuracies(replace(result, dropped=dropped), records, predictions)
