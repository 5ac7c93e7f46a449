"""Arms of the way `paper`: the published procedure as a trusted simulation, in one process, without a ledger.

It is not a protocol between parties: gradients through M1 and BERT depend on raw text. It exists to reproduce
published tables, and every output of it says so.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms import catalogue
from mechanisms.mechanism import Mechanism
from mechanisms.streams import SimulationStreams
from server.training.noise import sanitize_public
from server.training.paper import train_paper
from simulations.arm_base import Outcome
from simulations.arm_ladder import Spent
from simulations.evaluation import score
from simulations.experiment import Arm, Experiment, slug
from simulations.gather import Users
from simulations.prepare import Prepared, Progress
from simulations.public_part import PublicPart, dim_of


@dataclass(frozen=True)
class PaperArm:
    """An arm to be trained by the published procedure, and scored on sanitized and on clean test sentences. folder:
    where the pipeline is saved."""

    experiment: Experiment
    arm: Arm
    prepared: Prepared
    mechanism: Mechanism
    folder: Path

    def run(self, users: Users | None, *, progress: Progress) -> Outcome:
        """As an arm that asks users, and asks none."""
        return _run_arm(self.experiment, self.arm, self.mechanism, self.prepared, self.folder, progress)


def paper_arms(experiment: Experiment, arms: list[Arm], prepared: Prepared, *, models: Path) -> list[PaperArm]:
    """Of the experiment's arms, those given. Raises ValueError for an m' that cannot be, before any is trained."""
    public = PublicPart(experiment, prepared)
    return [
        PaperArm(experiment, arm, prepared, public.candidates(arm)[0], models / slug(arm.name)) for arm in arms
    ]


def _run_arm(
    experiment: Experiment, arm: Arm, mechanism: Mechanism, prepared: Prepared, folder: Path, progress: Progress
) -> Outcome:
    start = time.perf_counter()
    training, seed = experiment.training, experiment.seed
    train, test = prepared.split.train, prepared.split.test
    classes = len(train.classes)
    dim = dim_of(mechanism)
    labels, label_guarantee = _labels(arm, prepared, seed, classes)
    pipeline = train_paper(
        experiment.encoder.model, train.texts, labels, mechanism=mechanism, dim=dim, classes=classes,
        epochs=training.epochs, batch_size=training.batch_size, seed=seed,
        pooling=experiment.encoder.pooling, max_length=experiment.encoder.max_length,
        acknowledged=training.acknowledge_not_private,
        progress=lambda line: progress(f"{arm.name}: {line}"),
    )  # fmt: skip
    maps = pipeline.maps()
    z = maps.project(pipeline.embed(test.texts))
    truth = np.tile(test.labels, experiment.data.test_repeats)
    noisy = sanitize_public(
        mechanism, np.tile(z, (experiment.data.test_repeats, 1)), seed=seed, stage="paper-test"
    )
    sanitized = score(maps.predict(noisy), truth, sentences=len(test))
    clean = score(maps.predict(z), test.labels, sentences=len(test))
    embedding = mechanism.guarantee
    line: dict[str, Any] = {
        "name": arm.name,
        "mechanism": mechanism.name,
        "label_mechanism": (arm.label or {}).get("mechanism"),
        "epsilon": (arm.embedding or {}).get("epsilon"),
        "label_epsilon": (arm.label or {}).get("epsilon"),
        "dim": dim,
        "accuracy": sanitized.accuracy,
        "accuracy_se": sanitized.error,
        "accuracy_clean_test": clean.accuracy,
        "accuracy_clean_test_se": clean.error,
        "users": experiment.population.users,
        "delivered": len(train),
        "dropped": {},
        "errors": {},
        "bytes_per_user": None,
        "seconds": time.perf_counter() - start,
        "reference": arm.reference,
        "way": "paper",
        "budget": {
            "metric_epsilon": embedding.epsilon * training.epochs,
            "metric": embedding.metric,
            "statement": (
                f"{training.epochs} epochs × {embedding.epsilon:g}·d_{embedding.metric} for the embeddings; "
                "∞ for the gradients, which depend on raw text"
            ),
            "worst_case_epsilon": math.inf,
            "label_epsilon": label_guarantee,
        },
    }
    pipeline.save_pretrained(folder, about=line)
    label = None if arm.label is None else catalogue.build(arm.label, channel="label", classes=classes)
    return Outcome(maps, line, Spent(embedding=mechanism, label=label, train=(len(train),), test=None))


def _labels(arm: Arm, prepared: Prepared, seed: int, classes: int) -> tuple[Any, float | None]:
    """The labels that are trained on, drawn once, and their ε; in clear and None where the arm names no mechanism."""
    labels = prepared.split.train.labels
    if arm.label is None:
        return labels, None
    mechanism = catalogue.build(arm.label, channel="label", classes=classes)
    held = prepared.held
    rng = SimulationStreams(seed).rows(held.users, held.records, stage="train", channel="label")
    return mechanism.sample(labels, rng=rng), mechanism.guarantee.worst_case()
