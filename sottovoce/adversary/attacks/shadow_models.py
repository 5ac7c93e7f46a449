"""Trained model of an arm for membership attacks: its outputs on records, and shadow models.

The arm's own protocol trains a shadow model, on simulated releases of people whom the adversary chooses.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from client.draw import draw
from mechanisms.mechanism import Mechanism
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import Projection, Question
from mechanisms.messages.request import Request
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from mechanisms.words.text import KEPT, TEXT_FIELDS, TextMechanism
from server.maps import Maps
from server.protocols.drive import Collected, Driver
from server.protocols.protocol import Channels, Encoding, Public, Training
from server.protocols.public_maps import dim_of
from simulations.artifacts.ways import channels_of, embeddings_of, protocol_of, training_of
from simulations.experiment import ArmSetup, label_of, slug, text_mechanism
from sottovoce.adversary.attacks.target import Target

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AttackedRecords:
    """Target records of the adversary.

    Args:
        texts: n texts.
        labels: Labels (n,).
        trained: Number of records that the attacked model was trained on.
    """

    texts: Sequence[Text]
    labels: IntArray
    trained: int


class Model(Protocol):
    """Attacked model. `shadows` is the default number of shadow models; None if they take too long by default."""

    shadows: int | None

    def outputs(self, texts: Sequence[Text] | None = None) -> FloatArray:
        """Return log-probabilities of the classes (n, K), by the run's model.

        Args:
            texts: Texts; None for the target records.
        """
        ...

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        """Return log-probabilities of the target records by a shadow model, and its number of training records.

        Args:
            inside: Target records to train on, (n,). Labelled public records fill them up to the size of the run's
                training set, if there are enough.
            number: Number of the shadow model.
        """
        ...


@dataclass(frozen=True, eq=False)
class _People:
    """People whose releases train a shadow model, in place of a run's users (`server.protocols.drive.Users`).

    embeddings are (n, m), of the encoder's full width; None if texts are released.
    """

    texts: Sequence[Text]
    labels: IntArray
    streams: SimulationStreams
    embeddings: Any = None
    masked_lm: Path | None = None

    def collect(self, request: Request) -> Collected:
        """Return their releases for a request, each person as a user of their own, in their given order."""
        index, count = request.part
        people = np.arange(len(self.texts), dtype=np.int64)
        people = people[people % count == index]
        zeros = np.zeros_like(people)
        draws: dict[Question | None, NDArray[Any]] = {}
        for question in request.questions:
            draws[question] = draw(
                question,
                question.values(_Records(self), people, np.arange(len(people) + 1)),
                people,
                zeros,
                stage=request.stage,
                streams=self.streams,
                released=draws.get(question.given),
                masked_lm=self.masked_lm,
            )
        releases = tuple(request.release(question, draws[question]) for question in request.questions)
        return Collected(Batch(releases, users=len(people), duplicates=0))

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        raise NotImplementedError("no way that is attacked so publishes an encoder")


@dataclass(frozen=True)
class _Records:
    """Records of these people, as questions read them."""

    people: _People

    def texts(self, rows: IntArray) -> list[Text]:
        """Return texts."""
        return [self.people.texts[i] for i in rows]

    def labels(self, rows: IntArray) -> IntArray:
        """Return labels."""
        return self.people.labels[rows]

    def embeddings(self, rows: IntArray, projection: Projection) -> NDArray[np.float32]:
        """Return embeddings."""
        result: NDArray[np.float32] = self.people.embeddings[rows]
        return result


def _filled(records: AttackedRecords, inside: BoolArray, public: Public, seed: int, number: int) -> IntArray:
    """Return rows of labelled public text that join the records `inside` in the training of a shadow model."""
    count = 0 if public.labels is None else len(public.texts)
    rng = np.random.default_rng([seed, 8, number])
    return np.sort(rng.permutation(count)[: max(0, records.trained - int(inside.sum()))]).astype(np.int64)


class _OnReleases:
    """Model of the protocol release-once: M2 and the head on releases, under public maps.

    mechanism is that of embeddings. before are the maps that users received.
    """

    shadows: int | None = 16

    def __init__(
        self, setup: ArmSetup, training: Training, public: Public, records: AttackedRecords, *, folder: Path
    ) -> None:
        self.setup, self.training, self.public, self.records, self.folder = setup, training, public, records, folder
        assert public.maps is not None and public.encoder is not None
        log.info(f"{setup.arm.name}: learning maps on {len(public.texts):,} public texts")
        self.channels: Channels = channels_of(setup, public)
        self.mechanism: Mechanism = public.maps.best(self.channels.embedding)
        self.before = public.maps.of(self.mechanism)
        self.embeddings = public.encoder.embed(records.texts)

    def outputs(self, texts: Sequence[Text] | None = None) -> FloatArray:
        return self._log_p(Maps.load(self.folder), texts)

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        public = self.public
        fill = _filled(self.records, inside, public, self.training.seed, number)
        labels = self.records.labels[inside]
        if public.labels is not None:
            labels = np.concatenate([labels, public.labels[fill]])
        people = _People(
            texts=[*compress(self.records.texts, inside), *(public.texts[i] for i in fill.tolist())],
            labels=labels,
            embeddings=np.concatenate([self.embeddings[inside], np.asarray(public.embeddings)[fill]]),
            streams=_streams(self.training.seed, number),
        )
        protocol = protocol_of(self.setup, self.training, public, folder=self.folder)
        model = Driver(people).train(protocol)
        assert model is not None
        return self._log_p(model.maps), len(people.texts)

    def units(self, embeddings: NDArray[Any]) -> FloatArray:
        """Return the input of a user's mechanism: mapped, normalized rows under the maps that users received."""
        return self.before.project(embeddings)

    def _log_p(self, maps: Maps, texts: Sequence[Text] | None = None) -> FloatArray:
        assert self.public.encoder is not None
        embeddings = self.embeddings if texts is None else self.public.encoder.embed(texts)
        log_p: FloatArray = log_softmax(maps.logits(maps.project(embeddings)), axis=1)
        return log_p


class _OnTexts:
    """Model of the protocol sanitized-text: encoder, maps and head on released and sanitized public texts.

    Queries have the form of its training texts: the vocabulary's words of a text, up to the arm's length.
    """

    shadows: int | None = None

    def __init__(
        self, setup: ArmSetup, training: Training, public: Public, records: AttackedRecords, *, folder: Path
    ) -> None:
        self.setup, self.training, self.public, self.records, self.folder = setup, training, public, records, folder
        arm = setup.arm
        assert arm.text is not None and public.rewriter is not None
        self.channels: Channels = channels_of(setup, public)
        self.text: TextMechanism = self.channels.text_of("train")
        form = {k: v for k, v in arm.text.items() if k in TEXT_FIELDS}
        self.plain = text_mechanism({"mechanism": "identity"} | form | {"length": KEPT}, public.rewriter.vocabulary)
        self.lines = self._in_words(records.texts)

    def _in_words(self, texts: Sequence[Text]) -> Sequence[Text]:
        assert self.public.rewriter is not None
        lines: Sequence[Text] = self.public.rewriter.sanitize(
            self.plain, texts, seed=self.training.seed, stage="attack-membership"
        )
        return lines

    def outputs(self, texts: Sequence[Text] | None = None) -> FloatArray:
        from server.model import Pipeline

        return _log_p(Pipeline.from_pretrained(self.folder), self.lines if texts is None else self._in_words(texts))

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        rows = np.flatnonzero(inside)[: self.records.trained]
        people = _People(
            texts=[self.records.texts[i] for i in rows],
            labels=self.records.labels[rows],
            streams=_streams(self.training.seed, number),
            masked_lm=getattr(self.public.rewriter, "masked_lm", None),
        )
        protocol = protocol_of(self.setup, self.training, self.public, folder=self.folder)
        model: Any = Driver(people).train(protocol)
        return _log_p(model.pipeline, self.lines), len(people.texts)


class _AsPublished:
    """Model of the protocol paper: everything trained on texts, with fresh noise at every step."""

    shadows: int | None = None

    def __init__(
        self, setup: ArmSetup, training: Training, public: Public, records: AttackedRecords, *, model: str, folder: Path
    ) -> None:
        self.arm, self.training, self.public, self.records, self.folder = setup.arm, training, public, records, folder
        self.model, self.mechanism = model, embeddings_of(setup, public)[0]

    def outputs(self, texts: Sequence[Text] | None = None) -> FloatArray:
        from server.model import Pipeline

        return _log_p(Pipeline.from_pretrained(self.folder), self.records.texts if texts is None else texts)

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        from server.training.end_to_end import train_paper

        training, public = self.training, self.public
        fill = _filled(self.records, inside, public, training.seed, number)
        texts = [*compress(self.records.texts, inside), *(public.texts[i] for i in fill.tolist())]
        labels = self.records.labels[inside]
        if public.labels is not None:
            labels = np.concatenate([labels, public.labels[fill]])
        if self.arm.label is not None:
            mechanism: Any = label_of(self.arm, len(public.classes))
            rows = np.arange(len(labels), dtype=np.int64)
            rng = _streams(training.seed, number).rows(rows, np.zeros_like(rows), stage="train", channel="label")
            labels = mechanism.sample(labels, rng=rng)
        pipeline = train_paper(
            self.model,
            texts,
            labels,
            mechanism=self.mechanism,
            dim=dim_of(self.mechanism),
            classes=len(public.classes),
            epochs=training.epochs,
            batch_size=training.batch_size,
            seed=_seed(training.seed, number),
            acknowledged=True,
            pooling=training.pooling,
            max_length=training.max_length,
            **training.descent,
        )
        return _log_p(pipeline, self.records.texts), len(texts)


def model_of(target: Target, public: Public, records: AttackedRecords) -> _OnReleases | _OnTexts | _AsPublished:
    """Return the arm's model in the run folder.

    Raises:
        ValueError: It cannot be loaded or made again. The message is one line.
    """
    setup, folder = target.setup, target.run / "models" / slug(target.arm.name)
    training = training_of(target.training, target.encoder, target.seed)
    if setup.protocol.releases_text:
        return _OnTexts(setup, training, public, records, folder=folder)
    if not setup.protocol.private:
        return _AsPublished(setup, training, public, records, model=target.encoder.model, folder=folder)
    return _OnReleases(setup, training, public, records, folder=folder)


def _log_p(pipeline: Any, texts: Sequence[Text]) -> FloatArray:
    maps = pipeline.maps()
    log_p: FloatArray = log_softmax(maps.logits(maps.project(pipeline.embed(texts))), axis=1)
    return log_p


def _seed(seed: int, number: int) -> int:
    """Return a seed of the adversary's own draws, different from those of the study's users."""
    return int(np.random.default_rng([seed, 9, number]).integers(2**31))


def _streams(seed: int, number: int) -> SimulationStreams:
    return SimulationStreams(_seed(seed, number))
