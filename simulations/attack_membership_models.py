"""The trained model of an arm as membership attacks see it: what it says about records, and models like it.

A shadow model is trained by the arm's own code, on what people of the adversary's choice would have released:
`collect`, which asks users in a run, draws their releases here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from client import texts as client_texts
from client.words import joined
from mechanisms import catalogue
from mechanisms.projection import project, softmax
from mechanisms.release import Release
from mechanisms.request import Request
from mechanisms.streams import SimulationStreams
from mechanisms.text import KEPT, TEXT_FIELDS, Text
from server.maps import Maps
from server.training.sharpen import sharpened
from simulations.arm import ArmRun, decoded
from simulations.attack_target import Progress
from simulations.cache import embed
from simulations.corpus import Text as Written
from simulations.experiment import Arm, Experiment, slug, text_mechanism
from simulations.gather import Gathered
from simulations.prepare import Prepared
from simulations.public_part import PublicPart, dim_of
from simulations.shuffler import Batch, Origin
from simulations.text_arm import TextArmRun

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Asked:
    """The records that the adversary asks about: n texts and their labels (n,). trained: how many records the attacked
    model was trained on."""

    texts: Sequence[Written]
    labels: IntArray
    trained: int


class Model(Protocol):
    """shadows: how many shadow models are trained where nobody says; None where that takes too long to do unasked."""

    shadows: int | None

    def outputs(self) -> FloatArray:
        """Log-probabilities of the classes (n, K) for the records that are asked about, by the run's model."""
        ...

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        """The same by a model trained like it on the records `inside` (n,), filled up with labelled public ones to the
        number that the run's model saw, if there are enough; and how many that made."""
        ...


@dataclass(frozen=True, eq=False)
class _People:
    """Whose releases a shadow model is trained on, where a run has its users."""

    texts: Sequence[Written]
    labels: IntArray
    embeddings: Any
    streams: SimulationStreams
    masked_lm: Path | None = None

    def gather(self, request: Request, *, enrolled: range) -> Gathered:
        """What they release when they are asked, each as user of a number of their own; in no other order."""
        del enrolled  # all who are asked are there
        index, count = request.part
        people = np.arange(len(self.texts), dtype=np.int64)
        people = people[people % count == index]
        none = np.zeros_like(people)
        drawn: dict[str, NDArray[Any]] = {}
        for channel in request.channels:
            mechanism: Any = request.mechanism(channel)
            rng = self.streams.rows(people, none, stage=request.stage, channel=channel)
            if channel == "text":
                lines = [joined(self.texts[i]) for i in people]
                drawn[channel] = client_texts.draw(
                    mechanism, lines, people, none, streams=self.streams, stage=request.stage,
                    masked_lm=self.masked_lm,
                )  # fmt: skip
            elif channel == "embedding":
                assert request.mean is not None and request.m1 is not None
                z = mechanism.sample(project(self.embeddings[people], request.mean, request.m1), rng=rng)
                drawn[channel] = z.astype(np.float32) if mechanism.grid is None else mechanism.grid.encode(z)
            elif request.prior is None:
                drawn[channel] = mechanism.sample(self.labels[people], rng=rng)
            else:
                z = decoded(request.mechanism("embedding"), _release(request, "embedding", drawn["embedding"]))
                prior = softmax(z, *request.prior)
                drawn[channel] = mechanism.sample(self.labels[people], prior=prior, rng=rng)
        releases = tuple(_release(request, channel, values) for channel, values in drawn.items())
        return Gathered(Batch(releases, users=len(people), duplicates=0), Origin(people, none))


def _release(request: Request, channel: str, values: NDArray[Any]) -> Release:
    guarantee, digest = request.mechanism(channel).guarantee, request.digest(channel)
    return Release({request.form(channel)[0]: values}, channel, request.stage, guarantee, digest)


def _filled(asked: Asked, inside: BoolArray, prepared: Prepared, study: Experiment, number: int) -> IntArray:
    """Rows of labelled public text that join the records `inside` in the training of a shadow model."""
    public = len(prepared.split.public) if study.data.public.labels else 0
    rng = np.random.default_rng([study.seed, 8, number])
    return np.sort(rng.permutation(public)[: max(0, asked.trained - int(inside.sum()))]).astype(np.int64)


def _quiet(line: str) -> None:
    del line


class _OnReleases(ArmRun):
    """Of the way release-once: M2 and the head on releases, under public maps."""

    shadows: int | None = 16

    def __init__(
        self, study: Experiment, arm: Arm, prepared: Prepared, public: PublicPart, asked: Asked, *, folder: Path,
        progress: Progress,
    ) -> None:  # fmt: skip
        super().__init__(study, arm, prepared, public)
        self.asked, self.folder = asked, folder
        progress(f"{arm.name}: learning maps on {len(prepared.split.public):,} public texts")
        self.mechanism = public.best(self.candidates)
        self.before = public.maps(self.mechanism)
        self.embeddings = np.asarray(embed(prepared.encoder, asked.texts, progress=progress))

    def outputs(self) -> FloatArray:
        return self._log_p(Maps.load(self.folder))

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        fill = _filled(self.asked, inside, self.prepared, self.experiment, number)
        public = self.prepared.split.public
        people = _People(
            texts=[*(self.asked.texts[i] for i in np.flatnonzero(inside)), *(public.texts[i] for i in fill)],
            labels=np.concatenate([self.asked.labels[inside], public.labels[fill]]),
            embeddings=np.concatenate([self.embeddings[inside], self.prepared.public_embeddings[fill]]),
            streams=_streams(self.experiment, number),
        )
        maps = self._train(people, self.before, self.mechanism, _quiet)
        return self._log_p(sharpened(maps, public=self.prepared.public_embeddings)), len(people.texts)

    def units(self, embeddings: NDArray[Any]) -> FloatArray:
        """What a user's device sanitizes: mapped, normalized rows under the maps that users were asked with."""
        return self.before.project(embeddings)

    def _log_p(self, maps: Maps) -> FloatArray:
        found: FloatArray = log_softmax(maps.logits(maps.project(self.embeddings)), axis=1)
        return found


class _OnTexts(TextArmRun):
    """Of the way sanitized-text: BERT, maps and head on released texts and labelled public ones, sanitized alike. It is
    asked in the form in which it was trained: the words that the vocabulary has of a text, up to the arm's length."""

    shadows: int | None = None

    def __init__(
        self, study: Experiment, arm: Arm, prepared: Prepared, asked: Asked, *, folder: Path, progress: Progress
    ) -> None:
        super().__init__(study, arm, prepared, models=folder.parent)
        self.asked, self.folder = asked, folder
        assert arm.text is not None
        form = {k: v for k, v in arm.text.items() if k in TEXT_FIELDS}
        plain: Text = text_mechanism({"mechanism": "identity"} | form | {"length": KEPT}, self.words.vocabulary)
        lines = [joined(text) for text in asked.texts]
        self.lines = self.words.sanitize_public(plain, lines, seed=study.seed, stage="attack-membership")

    def outputs(self) -> FloatArray:
        from server.model import Pipeline

        return _said(Pipeline.from_pretrained(self.folder), self.lines)

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        chosen = np.flatnonzero(inside)[: self.asked.trained]
        people = _People(
            texts=[self.asked.texts[i] for i in chosen], labels=self.asked.labels[chosen], embeddings=None,
            streams=_streams(self.experiment, number), masked_lm=self.words.masked_lm,
        )  # fmt: skip
        pipeline = self.trained(people, _quiet)
        assert pipeline is not None
        return _said(pipeline, self.lines), len(people.texts)


class _AsPublished:
    """Of the way paper: everything trained on texts, with fresh noise at every step."""

    shadows: int | None = None

    def __init__(
        self, study: Experiment, arm: Arm, prepared: Prepared, public: PublicPart, asked: Asked, *, folder: Path
    ) -> None:
        self.study, self.arm, self.prepared, self.asked, self.folder = study, arm, prepared, asked, folder
        self.mechanism = public.candidates(arm)[0]

    def outputs(self) -> FloatArray:
        from server.model import Pipeline

        return _said(Pipeline.from_pretrained(self.folder), self.asked.texts)

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        from server.training.paper import train_paper

        study, public = self.study, self.prepared.split.public
        fill = _filled(self.asked, inside, self.prepared, study, number)
        texts = [*(self.asked.texts[i] for i in np.flatnonzero(inside)), *(public.texts[i] for i in fill)]
        labels = np.concatenate([self.asked.labels[inside], public.labels[fill]])
        if self.arm.label is not None:
            mechanism: Any = catalogue.build(self.arm.label, channel="label", classes=len(public.classes))
            rows = np.arange(len(labels), dtype=np.int64)
            rng = _streams(study, number).rows(rows, np.zeros_like(rows), stage="train", channel="label")
            labels = mechanism.sample(labels, rng=rng)
        pipeline = train_paper(
            study.encoder.model, texts, labels, mechanism=self.mechanism, dim=dim_of(self.mechanism),
            classes=len(public.classes), epochs=study.training.epochs, batch_size=study.training.batch_size,
            seed=_seed(study, number), acknowledged=True, pooling=study.encoder.pooling,
            max_length=study.encoder.max_length,
        )  # fmt: skip
        return _said(pipeline, self.asked.texts), len(texts)


def model_of(
    study: Experiment, arm: Arm, prepared: Prepared, public: PublicPart | None, asked: Asked, *, run: Path,
    progress: Progress,
) -> _OnReleases | _OnTexts | _AsPublished:  # fmt: skip
    """The arm's model in the run folder. Raises ValueError, in one line, where it cannot be loaded or made again."""
    folder = run / "models" / slug(arm.name)
    if study.training.way == "sanitized-text":
        return _OnTexts(study, arm, prepared, asked, folder=folder, progress=progress)
    assert public is not None
    if study.training.way == "paper":
        return _AsPublished(study, arm, prepared, public, asked, folder=folder)
    return _OnReleases(study, arm, prepared, public, asked, folder=folder, progress=progress)


def _said(pipeline: Any, texts: Sequence[Written]) -> FloatArray:
    maps = pipeline.maps()
    found: FloatArray = log_softmax(maps.logits(maps.project(pipeline.embed(texts))), axis=1)
    return found


def _seed(study: Experiment, number: int) -> int:
    """Of the adversary's own draws: none of the study's users has them."""
    return int(np.random.default_rng([study.seed, 9, number]).integers(2**31))


def _streams(study: Experiment, number: int) -> SimulationStreams:
    return SimulationStreams(_seed(study, number))
