"""One arm of a run, from its protocol to its line of the results: users release, and the model predicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechanisms.messages.request import Request
from server.protocols.drive import Driver
from server.protocols.protocol import Channels, Conversation, Training
from simulations.artifacts.ways import channels_of, protocol_of
from simulations.experiment import ArmSetup, slug
from simulations.experiment.result import arm_result
from simulations.run.collect import FlowerUsers
from simulations.run.evaluation import Trained, predicted, requested
from simulations.run.prepare import Prepared


class ArmRun:
    """Arm whose protocol is ready to run. Its parameters are checked before Flower is started.

    `models` is the folder of the models' folders. `before` receives every request before users do; it may raise.

    Raises:
        ValueError: The arm's parameters do not fit the data or the encoder.
    """

    def __init__(
        self,
        setup: ArmSetup,
        training: Training,
        prepared: Prepared,
        *,
        models: Path,
        before: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self._setup, self._held, self._before = setup, prepared.held, before
        self._channels: Channels = channels_of(setup, prepared.public)
        place = models / slug(setup.arm.name)
        self._protocol: Conversation = protocol_of(setup, training, prepared.public, folder=place)

    def run(self, users: FlowerUsers) -> Trained:
        """Run the protocol with the users, and predict the test users' sentences by its model.

        Raises:
            UserError: A request differs from the one that users of its stage have answered already.
        """
        start = time.perf_counter()
        arm, held = self._setup.arm, self._held
        driver = Driver(users, name=arm.name, before=self._before)
        model = driver.train(self._protocol)
        sanitized = on_device = None
        if model is not None and (question := model.question()) is not None:
            scores = model.scores(driver.ask(question))
            origin = users.origins[question.stage]
            if scores is not None:
                sanitized = predicted(scores, requested(held, origin), origin.users)
                if unknown := int((sanitized.sentences < 0).sum()):
                    driver.asking.dropped["unknown record"] += unknown
        if model is not None:
            on_device = predicted(model.rate(held.test.texts), np.arange(len(held.test)))
        result = arm_result(
            self._setup,
            self._channels,
            model,
            driver,
            seconds=time.perf_counter() - start,
            records=held.holders.most,
            test_records=held.test_holders.most,
        )
        words = users.words.get(slug(arm.name), {})
        predictions = {"sanitized": sanitized, "on_device": on_device}
        return Trained(replace(result, perturbed=words), model, predictions)
