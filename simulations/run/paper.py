"""Arms of the protocol `paper`: the published procedure as a trusted simulation, in one process, without a ledger.

Gradients through M1 and BERT depend on raw text, so it holds the true data and is not private. It reproduces published
tables, and every output says so.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.streams import SimulationStreams
from server.model import Pipeline
from server.training.end_to_end import train_paper
from server.training.noise import sanitize_public
from server.training.public_maps import dim_of
from simulations.artifacts.encoder import pooling_of
from simulations.experiment import Arm, ArmSetup, Experiment, label_of
from simulations.experiment.guarantees import Promise
from simulations.experiment.ladder import Spent, of_run
from simulations.experiment.result import ArmResult
from simulations.progress import prefixed
from simulations.run.evaluation import Finished, Scored, evaluate
from simulations.run.prepare import Held

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Published:
    """Pipeline in the form from which a model's folder is written."""

    pipeline: Pipeline
    encoder: None = None

    def save(self, folder: Path) -> None:
        self.pipeline.save_pretrained(folder, about={})


@dataclass(frozen=True)
class PaperArm:
    """Arm that is trained by the published procedure, and scored on sanitized and on clean test sentences."""

    experiment: Experiment
    setup: ArmSetup
    held: Held
    mechanism: Mechanism

    @property
    def arm(self) -> Arm:
        """Return the arm."""
        return self.setup.arm

    def run(self, users: None) -> Finished:
        """Train and score the arm, as `simulations.run.arm.ArmRun.run` does, without querying users."""
        del users
        start = time.perf_counter()
        arm, test, data, seed = self.arm, self.held.test, self.experiment.data, self.experiment.seed
        training, encoder, repeats = self.experiment.training, self.experiment.encoder, data.test_repeats
        labels, label = self._labels()
        with prefixed(f"{arm.name}: "):
            pipeline = train_paper(
                encoder.model,
                self.held.train.texts,
                labels,
                mechanism=self.mechanism,
                dim=dim_of(self.mechanism),
                classes=len(test.classes),
                epochs=training.epochs,
                batch_size=training.batch_size,
                seed=seed,
                pooling=pooling_of(encoder),
                max_length=encoder.max_length,
                acknowledged=training.acknowledge_not_private,
                **training.descent,
            )
        maps = pipeline.maps()
        z = maps.project(pipeline.embed(test.texts))
        noisy = sanitize_public(self.mechanism, np.tile(z, (repeats, 1)), seed=seed, stage="paper-test")
        rows = np.arange(len(test))
        result = ArmResult(
            name=arm.name,
            mechanism=self.mechanism.name,
            label_mechanism=(arm.label or {}).get("mechanism"),
            epsilon=(arm.embedding or {}).get("epsilon"),
            label_epsilon=(arm.label or {}).get("epsilon"),
            dim=dim_of(self.mechanism),
            users=self.setup.users,
            delivered=len(self.held.train),
            seconds=time.perf_counter() - start,
            reference=arm.reference,
            way="paper",
            budget=self._promise(label),
            parameters=arm.parameters,
        )
        log.info(f"{arm.name}: accounting: what one user's releases cost, rung by rung")
        spent = Spent(embedding=self.mechanism, label=label, train=(len(self.held.train),), test=None)
        rungs = of_run(self.setup, spent, records=self.held.holders.most, test_records=None)
        result, answers = evaluate(
            replace(result, **rungs),
            data,
            self.held,
            seed=seed,
            sanitized=Scored(maps.logits(noisy), np.tile(rows, repeats)),
            on_device=Scored(maps.logits(z), rows),
        )
        return Finished(result, _Published(pipeline), answers)

    def _promise(self, label: Mechanism | None) -> Promise:
        embedding, epochs = self.mechanism.guarantee, self.experiment.training.epochs
        return Promise(
            metric_epsilon=embedding.epsilon * epochs,
            metric=embedding.metric,
            statement=(
                f"{epochs} epochs × {embedding.epsilon:g}·d_{embedding.metric} for the embeddings; "
                "∞ for the gradients, which depend on raw text"
            ),
            worst_case_epsilon=math.inf,
            label_epsilon=None if label is None else label.guarantee.worst_case(),
        )

    def _labels(self) -> tuple[NDArray[np.int64], Mechanism | None]:
        """Return the training labels, drawn once, and their mechanism; None if the arm names none."""
        labels, holders = self.held.train.labels, self.held.holders
        mechanism: Any = label_of(self.arm, len(self.held.train.classes))
        if isinstance(mechanism, Identity) and self.arm.label is None:
            return labels, None
        streams = SimulationStreams(self.experiment.seed)
        rng = streams.rows(holders.users, holders.records, stage="train", channel="label")
        return mechanism.sample(labels, rng=rng), mechanism
