"""Membership inference for a record, from the trained model and from the releases.

The adversary (`adversary.estimators`) knows the target records, the trained model, public data, the protocol and, if
users release something, their releases. Only `adversary.attacks.scores` compares its guesses with the true
members. Attacks that set a threshold are the exception: they see the truth about one half of the records, and are
scored on the other. The arm's own protocol trains shadow models, on simulated releases of people whom the adversary
chooses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from client.draw import draw
from client.models.tokens import padded_word_ids
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.channels import LABEL
from mechanisms.identity import Identity
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import Projection, Question
from mechanisms.messages.request import Request
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from mechanisms.words.text import KEPT, TEXT_FIELDS
from server.maps import Maps
from server.protocols.drive import Collected, Driver
from server.protocols.protocol import Encoding, Public
from server.training.head import log_transition
from server.training.public_maps import dim_of
from simulations.artifacts.encoder import training_of
from simulations.artifacts.ways import channels_of, embeddings_of, protocol_of
from simulations.errors import UserError
from simulations.experiment import label_of, text_mechanism
from simulations.progress import prefixed
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.attacks.target import (
    Result,
    Row,
    Skipped,
    Target,
    collect,
    delivered,
    members_and_others,
    payloads,
    points_of,
    rows_of,
    rows_of_members,
    stages,
)
from sottovoce.adversary.attacks.words import channel_of
from sottovoce.adversary.estimators import membership
from sottovoce.adversary.estimators.channel import Table

log = logging.getLogger(__name__)


#: Description of each attack, by its name on the command line.
ATTACKS = {
    "membership-confidence": "how sure the model is of the record's own label",
    "membership-drops": "that of the record and of copies that lack words at random, on average (Du et al. 2023)",
    "membership-shadow": "a network of 64 hidden units, trained on what models of the server's own making say",
    "membership-lira": "the likelihood ratio of what the model says, record by record, from such models",
    "membership-releases": "whether one of the releases is the record's, by their likelihood, whatever the model says",
}
#: Explanation of their table's columns.
READING = (
    "Membership: of so many texts of training users and as many of nobody's, which are which? Success is balanced "
    "accuracy, and a coin has .5. Attacks that set a threshold choose it on one half of the records, whose "
    "membership they are told, and are scored on the other. AUC, and the share of members found where 1 % of the "
    "others are taken for some, are of all records and need no threshold. The theorem allows: the largest balanced "
    "accuracy that any guess about one record can have, (1 + TV)/2 with TV from the loss distributions of all that a "
    "record releases; 1 where a part of it is in clear."
)
#: Most public texts that represent the population of texts.
_POOL = 1000
#: Copies of each record with dropped words, and the share of words that each drops.
_COPIES, _DROPPED = 8, 0.1
_SHADOWS = ("membership-shadow", "membership-lira")


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of membership inference: see `Target`.

    Raises:
        UserError: The run's data or models are missing. The message is one line.
    """
    opened = cache(lambda: _Membership.opened(target))
    return collect(names, lambda name: [opened().result(name)], on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _Membership:
    """Membership inference on one arm. members is the truth, for scores and for the half that sets thresholds."""

    target: Target
    model: Any
    members: BoolArray
    delivered: list[Row] | None

    @classmethod
    def opened(cls, target: Target) -> _Membership:
        arm = target.arm
        if arm.public_only:
            raise Skipped("no user takes part in it")
        if arm.centralised:
            raise Skipped("nothing is released: its server has every text")
        delivery = delivered(target)
        member_rows = (
            np.arange(len(target.prepared.held.train)) if delivery is None else rows_of_members(target, delivery)
        )
        member_records, nonmembers, rng = members_and_others(target, member_rows)
        order = rng.permutation(2 * len(member_records))
        texts = [*member_records.texts, *nonmembers.texts]
        labels = np.concatenate([member_records.labels, nonmembers.labels])
        model_type: type[_Model] = _OnTexts if target.setup.protocol.releases_text else _OnReleases
        if not target.setup.protocol.private:
            model_type = _AsPublished
        try:
            model = model_type(target, [texts[i] for i in order], labels[order], trained=len(member_rows))
        except ValueError as error:
            raise UserError(f'{target.run}: arm "{arm.name}": {error}') from error
        return cls(target, model, order < len(member_records), delivery)

    def result(self, name: str) -> Result:
        """Return one attack's result; raise Skipped if it does not apply."""
        shadow_counts: dict[str, Any] = {}
        if name in _SHADOWS:
            evidence, shadow_counts = self._by_shadows(name)
            rate, note, details = scores.of_members(evidence, self.members, 0.0)
        else:
            evidence = {
                "membership-confidence": lambda: membership.confidence(self._outputs, self.model.labels),
                "membership-drops": self._beside_drops,
                "membership-releases": self._by_releases,
            }[name]()
            rate, note, details = scores.of_members(evidence, self.members)
        arm = self.target.arm
        notes = [note]
        if "shadow_models" in shadow_counts:
            notes.append(f"{shadow_counts['shadow_models']} shadow models of {shadow_counts['shadow_texts']:,} texts")
        bound = self._allowed
        notes += [bound["bound_why"]] if bound["bound_why"] else []
        spec = arm.text or arm.embedding or {}
        return Result(
            attack=name,
            arm=arm.name,
            mechanism=spec.get("mechanism"),
            epsilon=spec.get("epsilon"),
            worst_case_epsilon=bound["worst_case_epsilon"],
            stage="every step" if self.delivered is None else stages(self.delivered),
            texts=int(self.members.sum()),
            rate=rate,
            baseline=0.5,
            bound=bound["bound"],
            bound_counts=bound["bound"],
            note="; ".join(notes),
            more={
                "others": int((~self.members).sum()),
                "trained": self.model.trained,
                "bound_protected": bound["bound_protected"],
                "bound_why": bound["bound_why"],
            }
            | details
            | shadow_counts,
        )

    # --- evidence from the model

    @cached_property
    def _outputs(self) -> FloatArray:
        try:
            result: FloatArray = self.model.outputs()
        except ValueError as error:
            raise UserError(f'{self.target.run}: arm "{self.target.arm.name}": {error}') from error
        return result

    def _beside_drops(self) -> FloatArray:
        """Return the mean confidence of each record and its copies; the model gets all copies at once."""
        model, rng = self.model, np.random.default_rng([self.target.seed, 12])
        copies = [membership.without_words(t, share=_DROPPED, rng=rng) for _ in range(_COPIES) for t in model.texts]
        result = membership.confidence(model.outputs(copies), np.tile(model.labels, _COPIES))
        confidences = membership.confidence(self._outputs, model.labels)
        return (confidences + result.reshape(_COPIES, -1).sum(axis=0)) / (_COPIES + 1)

    def _by_shadows(self, name: str) -> tuple[FloatArray, dict[str, Any]]:
        members, outputs, texts = self._shadows
        counts = {"shadow_models": len(members), "shadow_texts": texts}
        if name == "membership-lira":
            labels = self.model.labels
            shadows = np.stack([membership.scaled(item, labels) for item in outputs])
            return membership.likelihood_ratio(membership.scaled(self._outputs, labels), shadows, members), counts
        evidence = membership.shadow_network(np.concatenate(outputs), members.ravel(), seed=self.target.seed)
        return evidence(self._outputs), counts

    @cached_property
    def _shadows(self) -> tuple[BoolArray, list[FloatArray], int]:
        """Return each shadow model's training records (S, n), its outputs, and the least number of training texts."""
        count = self.target.shadows or self.model.shadows
        if count is None:
            raise Skipped("trains BERT anew for each shadow model; say how many with --shadows, as --shadows 8")
        rng = np.random.default_rng([self.target.seed, 11])
        members = membership.halves(len(self.members), count, rng=rng)
        outputs, texts = [], []
        for number, row in enumerate(members):
            if not number or number % max(1, count // 8) == 0:
                log.info(f"{self.target.arm.name}: shadow model {number + 1} of {count}")
            with prefixed(None):  # one line a model is enough
                log_probs, text_count = self.model.shadow(row, number)
            outputs.append(log_probs)
            texts.append(text_count)
        return members, outputs, min(texts)

    # --- evidence from the releases

    def _by_releases(self) -> FloatArray:
        rows, model = self.delivered, self.model
        if rows is None:
            raise Skipped("nothing is released in this way: its noise is drawn anew at every step")
        if self.target.arm.text is not None:
            return self._by_texts(payloads(rows, np.int32).astype(np.int64))
        public, labels = model.public, None
        response: Any = model.channels.label
        known = {(row.key, row.released.stage): row for row in rows_of(self.target, LABEL.name)}
        label_rows = [known.get((row.key, row.released.stage)) for row in rows]
        if all(label_rows) and public.labels is not None and not response.needs_prior:
            y = payloads([row for row in label_rows if row], np.int16)[:, 0].astype(np.int64)
            if isinstance(response, Identity):
                law = np.where(y[:, None] == np.arange(len(public.classes)), 0.0, -np.inf)
            else:
                law = log_transition(response, y, classes=len(public.classes))
            labels = law, model.labels, public.labels
        z, records = points_of(rows, model.mechanism), model.units(model.embeddings)
        return membership.embedding_evidence(model.mechanism, z, records, model.units(public.embeddings), labels=labels)

    def _by_texts(self, released: IntArray) -> FloatArray:
        text = self.model.text
        word_ids, public = (padded_word_ids(item, text) for item in (self.model.texts, self.model.public.texts[:_POOL]))
        try:
            channel = channel_of(self.target, text)
        except Skipped:  # more than the word in its place decides a released word
            return membership.overlap(released, word_ids, len(text.vocabulary))
        table = Table.of(channel, np.concatenate([word_ids, public]), released)
        try:
            return membership.text_evidence(table, released, word_ids, public)
        except ValueError as error:
            raise Skipped(str(error)) from error

    # --- bounds of the theorem

    @cached_property
    def _allowed(self) -> dict[str, Any]:
        """Return bound, worst_case_epsilon, bound_protected and bound_why.

        bound_protected is between records that agree in their public part.
        """
        arm = self.target.arm
        if self.delivered is None:
            return {
                "bound": 1.0,
                "bound_protected": None,
                "worst_case_epsilon": math.inf,
                "bound_why": "nothing is promised: gradients depend on raw text",
            }
        data = self.model.text if arm.text is not None else self.model.mechanism
        label = self.model.channels.label
        declarations = self.target.setup.declared
        names = data.guarantee.exposes
        public = [name for name in names if name in declarations]
        worst = data.guarantee.worst_case(declared=tuple(public))
        # a text's draws compose more tightly than the text's own theorem, which alone knows what it exposes
        parts = list(data.parts()) if arm.text is not None and not names else [(data, 1)]
        if arm.label is None and LABEL.name in declarations:
            public.append(LABEL.name)
        else:
            worst += label.guarantee.worst_case()
            parts.append((label, 1))
        result = membership.bound(parts) if set(names) <= set(declarations) else 1.0
        reason = ""
        if public and not arm.reference:
            reason = f"{' and '.join(public)} in clear: between records alike in that, the theorem allows {result:.3g}"
        return {
            "bound": 1.0 if public else result,
            "bound_protected": result,
            "worst_case_epsilon": worst,
            "bound_why": reason,
        }


# --- the attacked model, and its shadows


@dataclass(frozen=True, eq=False)
class _People:
    """People whose releases train a shadow model, in place of a run's users, with one record each.

    They are `server.protocols.drive.Users`, and `mechanisms.messages.questions.Records`. Embeddings are (n, m), of the
    encoder's full width; None if texts are released.
    """

    own_texts: Sequence[Text]
    own_labels: IntArray
    streams: SimulationStreams
    own_embeddings: Any = None
    masked_lm: Path | None = None

    def collect(self, request: Request) -> Collected:
        """Return their releases for a request, each person as a user of their own, in their given order."""
        index, count = request.part
        people = np.arange(len(self.own_texts), dtype=np.int64)
        people = people[people % count == index]
        draws: dict[Question | None, NDArray[Any]] = {}
        for question in request.questions:
            draws[question] = draw(
                question,
                question.values(self, people, np.arange(len(people) + 1)),
                people,
                np.zeros_like(people),
                stage=request.stage,
                streams=self.streams,
                released=draws.get(question.given),
                masked_lm=self.masked_lm,
            )
        releases = tuple(request.release(question, draws[question]) for question in request.questions)
        return Collected(Batch(releases, users=len(people), duplicates=0))

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        raise NotImplementedError("no way that is attacked so publishes an encoder")

    def texts(self, rows: IntArray) -> list[Text]:
        return [self.own_texts[i] for i in rows]

    def labels(self, rows: IntArray) -> IntArray:
        return self.own_labels[rows]

    def embeddings(self, rows: IntArray, projection: Projection) -> NDArray[np.float32]:
        return self.own_embeddings[rows]


@dataclass(eq=False)
class _Model:
    """Attacked model of an arm.

    Args:
        target: Attacked arm.
        texts: Target records of the adversary, n texts.
        labels: Their labels (n,).
        trained: Number of records that the model was trained on.
    """

    target: Target
    texts: list[Text]
    labels: IntArray
    trained: int

    #: Default number of shadow models; None if they take too long by default.
    shadows: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        self.setup, self.folder = self.target.setup, self.target.model
        self.public: Public = self.target.prepared.public
        self.training = training_of(self.target.experiment)

    def outputs(self, texts: Sequence[Text] | None = None) -> FloatArray:
        """Return log-probabilities of the classes (n, K), by the run's model, of texts or of the target records."""
        from server.model import Pipeline  # torch

        pipeline = Pipeline.from_pretrained(self.folder)
        return _log_p(pipeline.maps(), pipeline.embed(self._read(self.texts if texts is None else texts)))

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        """Return log-probabilities of the target records by a shadow model, and its number of training records.

        It is trained on the target records `inside`, (n,). Labelled public records fill them up to the size of the
        run's training set, if there are enough.
        """
        raise NotImplementedError

    def _read(self, texts: Sequence[Text]) -> Sequence[Text]:
        """Return texts in the form in which the model reads them."""
        return texts

    def _filled(self, inside: BoolArray, number: int) -> tuple[IntArray, list[Text], IntArray]:
        """Return the public rows that fill up some records, and the texts and labels of both."""
        public, rows = self.public, np.flatnonzero(inside)
        count = 0 if public.labels is None else len(public.texts)
        rng = np.random.default_rng([self.training.seed, 8, number])
        fill = np.sort(rng.permutation(count)[: max(0, self.trained - len(rows))]).astype(np.int64)
        labels = self.labels[rows]
        if public.labels is not None:
            labels = np.concatenate([labels, public.labels[fill]])
        return fill, [*(self.texts[i] for i in rows), *(public.texts[i] for i in fill)], labels

    def _seed(self, number: int) -> int:
        """Return a seed of the adversary's own draws, different from those of the study's users."""
        return int(np.random.default_rng([self.training.seed, 9, number]).integers(2**31))

    def _driven(self, people: _People) -> Any:
        """Return the model that the arm's protocol trains on releases of people."""
        return Driver(people).train(protocol_of(self.setup, self.training, self.public, folder=self.folder))


class _OnReleases(_Model):
    """Model of the protocol release-once: M2 and the head on releases, under public maps."""

    shadows = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        public = self.public
        assert public.maps is not None and public.encoder is not None
        log.info(f"{self.target.arm.name}: learning maps on {len(public.texts):,} public texts")
        self.channels = channels_of(self.setup, public)
        self.mechanism = public.maps.best(self.channels.embedding)
        self.before = public.maps.of(self.mechanism)  # the maps that users received
        self.encoder, self.embeddings = public.encoder, public.encoder.embed(self.texts)

    def outputs(self, texts: Sequence[Text] | None = None) -> FloatArray:
        return _log_p(Maps.load(self.folder), self.embeddings if texts is None else self.encoder.embed(texts))

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        fill, texts, labels = self._filled(inside, number)
        embeddings = np.concatenate([self.embeddings[inside], np.asarray(self.public.embeddings)[fill]])
        people = _People(texts, labels, SimulationStreams(self._seed(number)), embeddings)
        return _log_p(self._driven(people).maps, self.embeddings), len(texts)

    def units(self, embeddings: NDArray[Any]) -> FloatArray:
        """Return the input of a user's mechanism: mapped, normalized rows under the maps that users received."""
        return self.before.project(embeddings)


class _OnTexts(_Model):
    """Model of the protocol sanitized-text: encoder, maps and head on released and sanitized public texts.

    Queries have the form of its training texts: the vocabulary's words of a text, up to the arm's length.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        spec, rewriter = self.target.arm.text, self.public.rewriter
        assert spec is not None and rewriter is not None
        self.rewriter, self.channels = rewriter, channels_of(self.setup, self.public)
        self.text = self.channels.text_of("train")
        form = {k: v for k, v in spec.items() if k in TEXT_FIELDS}
        self.plain = text_mechanism({"mechanism": "identity"} | form | {"length": KEPT}, rewriter.vocabulary)

    def _read(self, texts: Sequence[Text]) -> Sequence[Text]:
        return self.rewriter.sanitize(self.plain, texts, seed=self.training.seed, stage="attack-membership")

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        rows = np.flatnonzero(inside)[: self.trained]
        texts, masked_lm = [self.texts[i] for i in rows], getattr(self.rewriter, "masked_lm", None)
        people = _People(texts, self.labels[rows], SimulationStreams(self._seed(number)), masked_lm=masked_lm)
        pipeline = self._driven(people).pipeline
        return _log_p(pipeline.maps(), pipeline.embed(self._read(self.texts))), len(texts)


class _AsPublished(_Model):
    """Model of the protocol paper: everything trained on texts, with fresh noise at every step."""

    def shadow(self, inside: BoolArray, number: int) -> tuple[FloatArray, int]:
        from server.training.end_to_end import train_paper  # torch

        training, classes = self.training, len(self.public.classes)
        _, texts, labels = self._filled(inside, number)
        if self.setup.arm.label is not None:
            mechanism: Any = label_of(self.setup.arm, classes)
            rows = np.arange(len(labels), dtype=np.int64)
            streams = SimulationStreams(self._seed(number))
            labels = mechanism.sample(labels, rng=streams.rows(rows, 0 * rows, stage="train", channel="label"))
        embedding = embeddings_of(self.setup, self.public)[0]
        pipeline = train_paper(
            self.target.experiment.encoder.model,
            texts,
            labels,
            mechanism=embedding,
            dim=dim_of(embedding),
            classes=classes,
            epochs=training.epochs,
            batch_size=training.batch_size,
            seed=self._seed(number),
            acknowledged=True,
            pooling=training.pooling,
            max_length=training.max_length,
            **training.descent,
        )
        return _log_p(pipeline.maps(), pipeline.embed(self.texts)), len(texts)


def _log_p(maps: Maps, embeddings: NDArray[Any]) -> FloatArray:
    return log_softmax(maps.logits(maps.project(embeddings)), axis=1)
