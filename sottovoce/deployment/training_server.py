"""Training server of a deployment: it sends requests to a shuffler, opens the delivered batches, and trains.

It has only the public part of a study's data, and never learns who sent which row. It answers test users like any
others. The score of its answers needs the truth (`sottovoce.deployment.score`).
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from client.device.bundle import Bundle
from mechanisms.messages.batch import Batch
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import sealed_bytes
from mechanisms.messages.wire import record_to_bytes, request_to_record
from server.protocols.drive import Collected, Driver
from server.protocols.protocol import Encoding, Public, Training
from server.sealed_batches import Taken, open_batch
from simulations.artifacts.model_folder import save_model
from simulations.artifacts.ways import channels_of, protocol_of
from simulations.errors import UserError
from simulations.experiment import ArmSetup, slug
from simulations.experiment.result import ArmResult, arm_result
from simulations.output.atomic import staged
from simulations.output.jsonable import json_ready
from simulations.shuffler.core import shortfall
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.questions import wait_for_signature
from sottovoce.deployment.shuffler_client import Shuffler

log = logging.getLogger(__name__)

#: Files that a training server leaves beside the model: the arm's result, and its answers to test users, {"places",
#: "guesses"}. The place is that of each opened row in its stage's batch.
RESULT, ANSWERS = "result.json", "answers.json"


class RemoteShuffler:
    """Users behind a shuffler (`server.protocols.drive.Users`).

    `places` holds the places (n,) of the opened rows in each stage's last batch.

    Args:
        shuffler: Connection to the shuffler.
        seal_keys: Files of the private keys that devices seal to, newest first. batches/ beside them records taken
            batches.
        timeout: Seconds that devices have to answer.
        bundle: Bundle of the devices. Unlisted requests wait for its publisher's signature
            (`sottovoce.deployment.questions`). None sends them at once.
    """

    def __init__(
        self, shuffler: Shuffler, *, seal_keys: Sequence[Path], timeout: float, bundle: Bundle | None = None
    ) -> None:
        self._shuffler = shuffler
        self._keys = [read_key(path) for path in seal_keys]
        self._place = seal_keys[0].parent
        self._taken = Taken(self._place / "batches")
        self._bundle, self._timeout = bundle, timeout
        self.places: dict[str, NDArray[np.int64]] = {}

    def collect(self, request: Request) -> Collected:
        """Return the batch of a stage, the same at every call. The shuffler checks enrolment.

        Raises:
            UserError: The shuffler refuses, is unreachable, or delivers an invalid batch: rows of another length, a
                batch of another stage, or another batch than before.
        """
        request = replace(request, arm="")  # a device has one arm, without a name
        if self._bundle is not None:
            wait_for_signature(request, self._place / "questions", self._bundle, timeout=self._timeout)
        delivery = self._shuffler.batch(
            request.stage,
            record_to_bytes(request_to_record(request)),
            row_bytes=sealed_bytes(request),
            timeout=self._timeout,
        )
        dropped, users, reply = Counter(delivery.dropped), delivery.users, None
        if len(delivery.rows):
            self._taken.take(request.stage, delivery.batch, delivery.rows)
            reply, lost = open_batch(delivery.rows, request, self._keys)
            if closed := lost["does not open"]:
                log.info(f"stage {request.stage}: {closed:,} rows were sealed to no --seal-key given, or changed")
            # A rejected row may have been its user's only row. The server cannot tell, and may only underestimate n.
            dropped, users = lost + dropped, max(0, users - sum(lost.values()))
        reason = shortfall(users, request.minimum_users)
        if reply is None or reason is not None:
            self.places[request.stage] = np.zeros(0, np.int64)
            batch = Batch((), 0, delivery.duplicates, reason or "no release arrived")
        else:
            self.places[request.stage] = reply.records
            batch = Batch(reply.releases if len(reply) else (), users, delivery.duplicates)
        return Collected(batch, dropped, Counter(delivery.errors))

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        """Refuse to publish an encoder.

        Raises:
            UserError: Always, because a deployment cannot give its devices another encoder.
        """
        raise UserError("a deployment cannot give its devices another encoder yet; choose another way of training")


def train(
    setup: ArmSetup, training: Training, public: Public, out: Path, *, experiment: str, users: RemoteShuffler
) -> ArmResult:
    """Train one arm on users' releases, and answer those who query the model.

    It writes experiment.toml, models/ARM as in a simulation, RESULT and ANSWERS into `out`, all or nothing.

    Args:
        setup: The arm.
        training: Settings of the training.
        public: Public data.
        out: Folder for the results.
        experiment: Text of the study's file.
        users: Users behind the shuffler.

    Returns:
        The arm's result, without a score.

    Raises:
        UserError: The user can correct the error. The message is one line.
    """
    start = time.perf_counter()
    with staged(out) as part:
        (part / "experiment.toml").write_text(experiment, encoding="utf-8")
        place = part / "models" / slug(setup.arm.name)
        driver = Driver(users, name=setup.arm.name)
        channels = channels_of(setup, public)
        with threadpool_limits(1, user_api="blas"):  # as in a simulation, with which its results are compared
            model = driver.train(protocol_of(setup, training, public, folder=place))
            answers: dict[str, list[int]] = {"places": [], "guesses": []}
            if model is not None and (question := model.question()) is not None:
                guesses = model.answer(driver.ask(question))
                if guesses is not None:
                    answers = {"places": users.places[question.stage].tolist(), "guesses": guesses.tolist()}
            result = arm_result(
                setup,
                channels,
                model,
                driver,
                seconds=time.perf_counter() - start,
                records=setup.records,
                test_records=setup.test_records,
            )
        save_model(place, model, public, result)
        result = replace(result, model=str(place.relative_to(part)))
        (part / ANSWERS).write_text(json.dumps(answers) + "\n", encoding="utf-8")
        (part / RESULT).write_text(json.dumps(json_ready(result.to_dict()), indent=1) + "\n", encoding="utf-8")
    return result
