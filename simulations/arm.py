"""One arm of a study, end to end: public maps, releases by stages, training on them, sanitized inference."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.release import Release
from mechanisms.request import Request
from server.maps import Maps
from server.training.release_once import train_head
from server.training.sharpen import sharpened
from simulations.arm_base import ArmBase, Outcome
from simulations.evaluation import Score, clean_score
from simulations.experiment import PUBLIC_ONLY, Arm, Experiment
from simulations.gather import Users
from simulations.prepare import Prepared, Progress
from simulations.public_part import PublicPart, dim_of
from simulations.resume import Journal


class ArmRun(ArmBase):
    """An arm whose users release embeddings and labels.

    Raises ValueError where m' does not fit the encoder: before Flower is started for it.
    """

    def __init__(
        self, experiment: Experiment, arm: Arm, prepared: Prepared, public: PublicPart, *,
        journal: Journal | None = None,
    ) -> None:  # fmt: skip
        super().__init__(experiment, arm, prepared, journal=journal)
        self.public = public
        self.candidates = public.candidates(arm)  # an m' that cannot be is refused before Flower starts

    def run(self, users: Users, *, progress: Progress) -> Outcome:
        """Runs the arm. Raises ValueError where its parameters do not fit the data."""
        start = time.perf_counter()
        progress(f"{self.arm.name}: learning maps on {len(self.prepared.split.public):,} public texts")
        mechanism = self.public.best(self.candidates)
        maps, asked = self.public.maps(mechanism), None
        if self.arm.way != PUBLIC_ONLY:
            asked = maps
            maps = self._train(users, maps, mechanism, progress)
        # Training users are asked for all m' directions, since the best ones are not known yet; test users for what
        # decides.
        maps = sharpened(maps, public=self.prepared.public_embeddings)
        sanitized = self._sanitized_inference(users, maps, mechanism, progress) if self.arm.embedding else None
        clean = clean_score(maps, self.prepared.test_embeddings, self.prepared.split.test.labels)
        seconds = time.perf_counter() - start
        released = mechanism if self.arm.embedding else None
        line = self.line(
            released, self.arm.embedding, dim=dim_of(mechanism), sanitized=sanitized, clean=clean, seconds=seconds
        )
        return Outcome(maps, line, self.spent(embedding=released), asked)

    def _train(self, users: Users, maps: Maps, mechanism: Mechanism, progress: Progress) -> Maps:
        """Asks disjoint users stage by stage; after each stage, trains M2 and the head on all that has come."""
        label = self.label_mechanism()
        stages = self.experiment.training.label_stages
        z, y, transitions = [], [], []
        for index in range(stages):
            prior = maps.folded() if getattr(label, "needs_prior", False) else None
            stage = "train" if stages == 1 else f"train-{index + 1}"
            request = self._request(
                maps, mechanism, label, stage=stage, split="train", part=(index, stages), prior=prior
            )
            batch, _ = self.collect(users, request, progress)
            embedding, labels = batch.channel("embedding"), batch.channel("label")
            if embedding is None or labels is None:
                continue
            z.append(decoded(mechanism, embedding))
            y.append(labels.payload["y"].astype(np.int64))
            transitions.append(self.log_transition(label, y[-1], z[-1], prior))
            maps = train_head(
                maps, np.concatenate(z), np.concatenate(y),
                label_transition=None if isinstance(label, Identity) else np.exp(np.concatenate(transitions)),
                seed=self.experiment.seed,
            )  # fmt: skip
        return maps

    def _sanitized_inference(self, users: Users, maps: Maps, mechanism: Mechanism, progress: Progress) -> Score | None:
        """Test users release embeddings like any other; the server guesses, and the truth's owner scores."""
        request = self._request(maps, mechanism, None, stage="test", split="test")
        batch, origin = self.collect_tests(users, request, progress)
        release = batch.channel("embedding")
        return None if release is None else self.score(maps.predict(decoded(mechanism, release)), origin)

    def _request(
        self, maps: Maps, mechanism: Mechanism, label: Mechanism | None, *,
        stage: str, split: str, part: tuple[int, int] = (0, 1), prior: Any = None,
    ) -> Request:  # fmt: skip
        return self.request(
            stage=stage, split=split, encoder=self.prepared.encoder.identity, mean=maps.mean, m1=maps.m1,
            embedding=parameters(mechanism), label=None if label is None else parameters(label), part=part,
            prior=prior,
        )  # fmt: skip


def decoded(mechanism: Mechanism, release: Release) -> NDArray[np.float64]:
    """Released embeddings (n, m') as numbers."""
    codes = release.payload["z"]
    return codes.astype(np.float64) if mechanism.grid is None else mechanism.grid.decode(codes)
