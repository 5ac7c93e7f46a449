"""One arm of a run, from its protocol to its line of the results: users release, and the model is scored."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from server.protocols.drive import Driver
from server.protocols.protocol import Channels, Conversation, Training
from simulations.artifacts.ways import channels_of, protocol_of
from simulations.experiment import ArmSetup, slug
from simulations.experiment.guarantees import released, spent
from simulations.experiment.ladder import of_run
from simulations.experiment.result import arm_result
from simulations.experiment.sections import Data
from simulations.run.collect import FlowerUsers
from simulations.run.evaluation import Finished, Scored, evaluate, requested
from simulations.run.journal import Journal
from simulations.run.perturbed import CountedUsers
from simulations.run.prepare import Prepared

log = logging.getLogger(__name__)


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
        sanitized = on_device = None
        if model is not None and (question := model.question()) is not None:
            scores = model.scores(driver.ask(question))
            origin = users.origins[question.stage]
            if scores is not None:
                sanitized = Scored(scores, requested(self._held, origin), origin.users)
                if unknown := int((sanitized.sentences < 0).sum()):
                    driver.asking.dropped["unknown record"] += unknown
        if model is not None:
            on_device = Scored(model.rate(self._held.test.texts), np.arange(len(self._held.test)))
        result = arm_result(self.setup, self._channels, model, driver, seconds=time.perf_counter() - start)
        log.info(f"{self.arm.name}: accounting: what one user's releases cost, rung by rung")
        what = released(self.setup, self._channels, model, driver)
        rungs = of_run(
            self.setup,
            spent(what, self._channels, driver),
            records=self._held.holders.most,
            test_records=self._held.test_holders.most,
        )
        result, answers = evaluate(
            replace(result, **rungs, perturbed=counted.counts),
            self._data,
            self._held,
            seed=self._seed,
            sanitized=sanitized,
            on_device=on_device,
        )
        return Finished(result, model, answers)
