"""One arm whose users release sanitized texts: training end to end on them, sanitized and clean inference."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.request import Request
from server.model import Pipeline
from server.training.sanitized_text import train_on_text
from simulations.arm_base import ArmBase, Outcome
from simulations.evaluation import Score, score
from simulations.experiment import PUBLIC_ONLY, Arm, Experiment
from simulations.gather import Users
from simulations.masked_lm import masked_lm_folder
from simulations.prepare import Prepared, Progress
from simulations.public_part import DEFAULT_DIM
from simulations.resume import Journal
from simulations.text_channel import as_lines


class TextArmRun(ArmBase):
    """models: the folder under which the trained checkpoint is saved, by the arm's slug.

    Labelled public text joins what users release, sanitized by the same mechanism: a model that has to read sanitized
    texts learns nothing from clean ones that it could not learn from these.
    """

    def __init__(
        self, experiment: Experiment, arm: Arm, prepared: Prepared, *, models: Path, journal: Journal | None = None
    ) -> None:
        super().__init__(experiment, arm, prepared, journal=journal)
        assert prepared.words is not None
        self.words = prepared.words
        self.text = self.words.mechanism(arm)
        self.models = models

    def run(self, users: Users, *, progress: Progress) -> Outcome:
        """Runs the arm. Raises ValueError where its parameters do not fit the data."""
        start = time.perf_counter()
        pipeline = self.trained(users, progress)
        sanitized, clean = None, None
        if pipeline is not None:
            sanitized = self._sanitized_inference(users, pipeline, progress)
            test = self.prepared.split.test
            clean = score(_guesses(pipeline, as_lines(test)), test.labels, sentences=len(test))
        line = self.line(
            self.text, self.arm.text, dim=DEFAULT_DIM, sanitized=sanitized, clean=clean,
            seconds=time.perf_counter() - start,
        )  # fmt: skip
        if pipeline is not None:
            pipeline.save_pretrained(self.models / self.slug, about=line)
        return Outcome(None if pipeline is None else pipeline.maps(), line, self.spent(text=self.text))

    def trained(
        self, users: Users, progress: Progress, *, stage: str = "train", part: tuple[int, int] = (0, 1),
        dim: int = DEFAULT_DIM, mechanism: Mechanism | None = None,
    ) -> Pipeline | None:  # fmt: skip
        """A pipeline from labelled public text and what the users of `part` release; None where there is neither.

        mechanism: whose noise is in the loop, of embeddings in `dim`.
        """
        texts, labels, likelihood = self._public()
        if self.arm.way != PUBLIC_ONLY:
            released = self._released(users, progress, stage, part)
            texts += released[0]
            labels, likelihood = np.concatenate([labels, released[1]]), np.concatenate([likelihood, released[2]])
        if not texts:
            return None
        settings, training = self.experiment.encoder, self.experiment.training
        return train_on_text(
            self._checkpoint(progress), texts, labels, classes=self.classes, dim=dim, label_transition=likelihood,
            mechanism=mechanism, epochs=training.epochs, batch_size=training.batch_size, seed=self.experiment.seed,
            pooling=settings.pooling, max_length=settings.max_length,
            progress=lambda said: progress(f"{self.arm.name}: {said}"),
        )  # fmt: skip

    def _public(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64]]:
        """Sanitized public texts, their labels and the likelihoods of these; nothing where they have no labels."""
        public = self.prepared.split.public
        if not self.experiment.data.public.labels or not len(public):
            return [], np.zeros(0, np.int64), np.zeros((0, self.classes))
        lines = self.words.sanitize_public(self.text, as_lines(public), seed=self.experiment.seed, stage="public-text")
        return lines, public.labels, np.eye(self.classes)[public.labels]

    def _released(
        self, users: Users, progress: Progress, stage: str, part: tuple[int, int]
    ) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64]]:
        """What training users release: texts, labels, and the likelihood of each label under each class."""
        label = self.label_mechanism()
        batch, _ = self.collect(users, self._request(label, stage=stage, split="train", part=part), progress)
        text, labels = batch.channel("text"), batch.channel("label")
        if text is None or labels is None:
            return [], np.zeros(0, np.int64), np.zeros((0, self.classes))
        y = labels.payload["y"].astype(np.int64)
        if isinstance(label, Identity):
            likelihood = np.eye(self.classes)[y]
        else:
            likelihood = np.exp(self.log_transition(label, y, np.zeros((len(y), 0)), None))
        return [self.words.vocabulary.text(row) for row in text.payload["w"]], y, likelihood

    def _checkpoint(self, progress: Progress) -> str | Path:
        """What training starts from: the encoder as it is, or pretrained on sanitized public text."""
        model = self.experiment.encoder.model
        if not self.experiment.text.pretrain:
            return model
        folder = masked_lm_folder(
            model, as_lines(self.prepared.split.public), seed=self.experiment.seed, sanitizer=self.text,
            steps=self.experiment.text.pretrain_steps, progress=lambda said: progress(f"{self.arm.name}: {said}"),
        )  # fmt: skip
        return folder / "checkpoint"

    def _sanitized_inference(self, users: Users, pipeline: Pipeline, progress: Progress) -> Score | None:
        """Test users release their texts like any other; the server guesses, and the truth's owner scores."""
        batch, origin = self.collect_tests(users, self._request(None, stage="test", split="test"), progress)
        release = batch.channel("text")
        if release is None:
            return None
        return self.score(_guesses(pipeline, [self.words.vocabulary.text(row) for row in release.payload["w"]]), origin)

    def _request(
        self, label: Mechanism | None, *, stage: str, split: str, part: tuple[int, int] = (0, 1)
    ) -> Request:
        return self.request(
            stage=stage, split=split, part=part, text=parameters(self.text), vocabulary=self.words.vocabulary,
            masked_lm=self.words.identity(self.text), label=None if label is None else parameters(label),
        )  # fmt: skip


def _guesses(pipeline: Pipeline, texts: list[str]) -> NDArray[np.int64]:
    maps = pipeline.maps()
    return maps.predict(maps.project(pipeline.embed(texts)))
