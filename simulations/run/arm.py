"""One arm of a run, from its protocol to its line of the results: users release, and the model is scored."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from server.protocols.drive import Driver
from server.protocols.protocol import Channels, Conversation, Training
from simulations.artifacts.ways import channels_of, protocol_of
from simulations.experiment import ArmSetup, slug
from simulations.experiment.guarantees import released, spent
from simulations.experiment.ladder import of_run
from simulations.experiment.result import ArmResult, arm_result
from simulations.experiment.sections import Data
from simulations.run.accuracy import score
from simulations.run.collect import FlowerUsers
from simulations.run.evaluation import Answers, Scored, asked, guessed, measures, on_device, sanitized
from simulations.run.journal import Journal
from simulations.run.perturbed import CountedUsers
from simulations.run.prepare import Prepared

log = logging.getLogger(__name__)


class Finished(NamedTuple):
    """Arm that has run.

    Attributes:
        result: Line of the results.
        model: Model (`server.protocols.protocol.Model`); None if too little was delivered to train one.
        answers: Predictions of the test texts.
    """

    result: ArmResult
    model: Any
    answers: Answers


class ArmRun:
    """Arm whose protocol is ready to run. Its parameters are checked before Flower is started.

    `data` names the measures, `models` is the folder of the models' folders, and `journal`, of a run that may be
    resumed, receives every request before users do.

    Raises:
        ValueError: The arm's parameters do not fit the data or the encoder.
    """

    def __init__(
        self,
        setup: ArmSetup,
        training: Training,
        data: Data,
        prepared: Prepared,
        *,
        models: Path,
        journal: Journal | None = None,
    ) -> None:
        self.setup, self.arm, self._data, self._seed = setup, setup.arm, data, training.seed
        self._held = prepared.held
        self._channels: Channels = channels_of(setup, prepared.public)
        place = models / slug(setup.arm.name)
        self._protocol: Conversation = protocol_of(setup, training, prepared.public, folder=place)
        self._journal = journal

    def run(self, users: FlowerUsers) -> Finished:
        """Run the protocol with the users, and score its model on the test users' sentences.

        Raises:
            UserError: A request differs from the one that users of its stage have answered already.
        """
        start = time.perf_counter()
        before = (lambda request: None) if self._journal is None else self._journal.ask
        counted = CountedUsers(users, self._held)
        driver = Driver(counted, name=self.arm.name, before=before)
        model = driver.train(self._protocol)
        scores = clean = origin = None
        if model is not None and (question := model.question()) is not None:
            scores = model.scores(driver.ask(question))
            origin = users.origins[question.stage]
        counts, unknown = sanitized(self._held, _classes(scores), origin)
        if unknown:
            driver.asking.dropped["unknown record"] += unknown
        if model is not None:
            clean = model.rate(self._held.test.texts)
        answers = Answers(counts, on_device(self._held, _classes(clean)))
        seconds = time.perf_counter() - start
        result = arm_result(self.setup, self._channels, model, driver, seconds=seconds)
        log.info(f"{self.arm.name}: accounting: what one user's releases cost, rung by rung")
        what = released(self.setup, self._channels, model, driver)
        rungs = of_run(
            self.setup,
            spent(what, self._channels, driver),
            records=self._held.holders.most,
            test_records=self._held.test_holders.most,
        )
        result = result.scored(score(answers.sanitized), score(answers.device))
        values = measures(
            self._data,
            self._held,
            seed=self._seed,
            sanitized=None
            if scores is None or origin is None
            else Scored(scores, asked(self._held, origin), origin.users),
            on_device=None if clean is None else Scored(clean, np.arange(len(self._held.test))),
        )
        by_split = {"sanitized": _classes(scores), "on_device": _classes(clean)}
        guesses = {split: guessed(self._held, classes) for split, classes in by_split.items()}
        result = replace(result, **rungs, measures=values, perturbed=counted.counts, guessed=guesses)
        return Finished(result, model, answers)


def _classes(scores: Any) -> Any:
    return None if scores is None else scores.argmax(axis=1).astype(np.int64)
