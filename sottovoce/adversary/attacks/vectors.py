"""Attacks on user vectors (channel `statistic`): identification, attribute inference and membership.

Attributes are inferred twice: on the server's actual request, and on a request that a malicious server would choose.
The adversary (`adversary.estimators.vectors`) gets the releases of the nodes' ledgers, public texts, the encoder, the
maps and the mechanism. Only `adversary.attacks.scores` compares its guesses with the truth.
Membership is the exception: it sets its threshold on one half of the records.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.identity import Identity
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import CLIP_STEPS, Projection, VectorQuestion
from mechanisms.pieces import Text
from server.protocols.models import ENCODER
from server.protocols.protocol import Encoding
from server.protocols.statistics import codes_asked
from simulations.artifacts.public import CachedEncoder
from sottovoce.adversary.attacks import attributes, scores
from sottovoce.adversary.attacks.target import (
    Result,
    Row,
    Skipped,
    Target,
    arrived,
    collect,
    maps_sent,
    members_and_others,
    points_of,
    result_of,
    shuffled,
)
from sottovoce.adversary.estimators import allowed, membership, vectors
from sottovoce.adversary.estimators.membership import embedding_evidence
from sottovoce.adversary.estimators.vectors import Pool, Question, log_likelihood_of_means

log = logging.getLogger(__name__)


#: Description of each attack, by its name on the command line.
ATTACKS = {
    "vector-text": "which of so many known texts and labels a user's one vector is of",
    "vector-attribute": "the label, or an attribute of the text, behind a user's one vector",
    "vector-attribute-chosen": "the label or an attribute, under the maps, codes and cap that serve this question best",
    "vector-member": "whether a known text and label is among the vectors of all users",
}
#: Explanation of their table's columns.
READING = (
    "One vector: guesses by the exact density, under public texts for a prior. Success is the share of vectors guessed "
    "right (text: among so many candidates; ties are broken by chance), of membership balanced accuracy; baseline: "
    "chance, the most frequent value, a coin. The theorem allows: the largest success of any attack on one release of "
    "this mechanism. Attributes are guessed of users of one record. A server that departs from what it declares may "
    'choose maps, codes and cap for its question, under the same ε: "chosen" redraws what users would then have '
    "released. A device that compares what it is asked with what was declared answers only the honest question."
)


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attacks on user vectors: see `Target`."""
    opened = cache(lambda: _Vectors.opened(target))
    return collect(names, lambda name: opened().results(name), on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _People:
    """Data of users (u,), each user's records together: embeddings (n, m), labels (n,), first rows (u + 1,)."""

    users: IntArray
    embeddings: NDArray[np.float32]
    labels: IntArray
    texts: list[Text]
    starts: IntArray


@dataclass(frozen=True, eq=False)
class _Vectors:
    """Attacks on one arm.

    encoder is that of its users. people are the truth, for scores and for simulated releases. seen are the releases (u,
    D).
    """

    target: Target
    encoder: Encoding
    people: _People
    seen: FloatArray
    question: VectorQuestion
    stage: str

    @classmethod
    def opened(cls, target: Target) -> _Vectors:
        rows = arrived(target, "statistic")
        encoder, question, rows = _question(target, rows)
        stage = rows[0].released.stage
        log.info(f"{target.arm.name}: {len(rows):,} released vectors of stage {stage}")
        return cls(target, encoder, _people(encoder, rows), points_of(rows, question.mechanism), question, stage)

    def results(self, name: str) -> list[Result]:
        """Return an attack's results; raise Skipped if it does not apply."""
        by_own_maps = name == "vector-attribute-chosen"
        if by_own_maps and isinstance(self.question.mechanism, Identity):
            raise Skipped("there is no noise that other maps would get round")
        if name == "vector-text":
            return [self._text()]
        if name == "vector-member":
            return [self._member()]
        return [self._attribute(name, attribute, by_own_maps) for attribute in attributes.wanted(self.target, "label")]

    # --- identification

    def _text(self) -> Result:
        rows = np.sort(shuffled(self.target, len(self.seen))[: self.target.limit])
        n = len(rows)
        if n < 2:
            raise Skipped("fewer than two users' vectors were delivered")
        question, people = self.question, self.people
        means = question.means(people.embeddings, people.labels, people.starts)[rows]
        evidence = log_likelihood_of_means(question.mechanism, self.seen[rows], means, question.clip)
        area = scores.area_of_pairs(evidence)
        bound, bound_counts = (allowed.guess(curve, np.full(n, 1 / n)) for curve in allowed.curves(question.mechanism))
        return result_of(self.target, question.mechanism, self.stage)(
            attack="vector-text",
            rate=scores.matched(evidence),
            texts=n,
            baseline=1 / n,
            bound=bound,
            bound_counts=bound_counts,
            note=f"AUC {area.success:.3f} ± {area.error:.3f}",
            more=_about(question) | {"auc": area.success, "auc_error": area.error},
        )

    # --- attributes

    def _attribute(self, name: str, attribute: str, chosen: bool) -> Result:
        pool, users, truth, count = self._values(attribute)
        question: Question = self.question
        seen, note = self.seen[users], ""
        try:
            if chosen and attribute == "label":
                question = vectors.for_label(self.question, self._public, seed=self._seed)
            elif chosen:
                question = vectors.for_value(self.question, pool, count, seed=self._seed)
        except ValueError as error:
            raise Skipped(str(error)) from error
        details = _about(question)
        if chosen:
            rows = self.people.starts[users]
            points = vectors.inputs(question, self.people.embeddings[rows], self.people.labels[rows])
            seen = vectors.drawn(question, points, seed=self._seed, stage="attack-vector")
            note = "; {features} features, p = {cap_probability:.4g}, drawn anew".format(**details)
        guesses = vectors.guessed(question, seen, pool, count)
        named = partial(result_of(self.target, question.mechanism, self.stage), attack=name)
        curves = allowed.curves(question.mechanism)
        return attributes.result(named, attribute, guesses, truth, count, curves, note=note, more=details)

    def _values(self, attribute: str) -> tuple[Pool, IntArray, IntArray, int]:
        """Return the public records to guess by, the attacked users, their values, and the number of values."""
        labels, people = self._public_labels, np.flatnonzero(np.diff(self.people.starts) == 1)
        if len(people) < attributes.LEAST:
            raise Skipped(f"{attribute}: {attributes.LEAST} users of one record are needed; there are {len(people)}")
        people = people[np.sort(shuffled(self.target, len(people))[: self.target.limit])]
        rows = self.people.starts[people]
        if attribute == "label":
            return Pool(self._public, labels), people, self.people.labels[rows], self.question.classes
        texts = [self.people.texts[row] for row in rows]
        result = attributes.collected(self.target, attribute, self.target.prepared.public.texts, texts)
        pool = Pool(self._public[result.auxiliary], labels[result.auxiliary], result.labels)
        return pool, people[result.attacked], result.truth, len(result.classes)

    # --- membership

    def _member(self) -> Result:
        member_rows = np.flatnonzero(np.isin(self.target.prepared.held.holders.users, self.people.users))
        members, nonmembers, _ = members_and_others(self.target, member_rows)
        question = self.question
        embeddings = self.encoder.embed([*members.texts, *nonmembers.texts])
        records = vectors.inputs(question, embeddings, np.concatenate([members.labels, nonmembers.labels]))
        pool = Pool(self._public, self._public_labels).candidates(question.classes)
        public = vectors.inputs(question, *pool[:2])
        evidence = embedding_evidence(question.mechanism, self.seen, records, public)
        n = len(evidence) // 2
        rate, note, details = scores.of_members(evidence, np.arange(2 * n) < n)
        limit = 1.0 if isinstance(question.mechanism, Identity) else membership.bound([(question.mechanism, 1)])
        return result_of(self.target, question.mechanism, self.stage)(
            attack="vector-member",
            rate=rate,
            texts=n,
            baseline=0.5,
            bound=limit,
            bound_counts=limit,
            note=f"{note}; among {len(self.seen):,} vectors",
            more=_about(question) | {"others": n} | details,
        )

    # --- knowledge of the adversary

    @property
    def _seed(self) -> int:
        return self.target.seed

    @cached_property
    def _public(self) -> NDArray[np.float32]:
        return self.encoder.embed(self.target.prepared.public.texts)

    @property
    def _public_labels(self) -> IntArray:
        labels = self.target.prepared.public.labels
        return np.full(len(self._public), -1, np.int64) if labels is None else labels


def _about(question: Question) -> dict[str, Any]:
    return {
        "features": question.projection.dim,
        "cap_probability": getattr(question.mechanism, "cap_probability", None),
    }


def _question(target: Target, rows: list[Row]) -> tuple[Encoding, VectorQuestion, list[Row]]:
    """Return the encoder and the maps that some of the releases answer, by their digest, and these releases.

    With several rounds, they are those of the last request. Raise Skipped if the run no longer holds them.
    """
    build, public = target.setup.statistic, target.prepared.public
    assert build is not None and public.encoder is not None
    codes = codes_asked(public, target.experiment.training.self_training)
    encoders = [CachedEncoder(path) for path in sorted(target.model.glob(f"round-*/{ENCODER}"))]
    digests = {row.released.digest for row in rows}
    for maps in maps_sent(target.model):
        spec = parameters(build(codes.shape[1] * (maps.dim + 1)))
        for steps, encoder in product(range(CLIP_STEPS, 0, -1), (*encoders, public.encoder)):
            projection = Projection(encoder.identity, maps.mean, maps.m1)
            question = VectorQuestion(spec, projection=projection, codes=codes, clip=steps / CLIP_STEPS)
            if (digest := question.digest("train")) in digests:
                return encoder, question, [row for row in rows if row.released.digest == digest]
    raise Skipped("the run does not hold the maps, or the encoder, that its users answered by")


def _people(encoder: Encoding, rows: list[Row]) -> _People:
    """Return the users who released `rows`, in their order."""
    records_by_user: dict[int, list[tuple[int, Text, int]]] = {}
    for node in {row.node.folder: row.node for row in rows}.values():
        shard = node.shard("train")
        assert shard.labels is not None
        for i, (user, record) in enumerate(zip(shard.users.tolist(), shard.records.tolist(), strict=True)):
            records_by_user.setdefault(user, []).append((record, shard.texts[i], int(shard.labels[i])))
    record_lists = [sorted(records_by_user[row.released.user]) for row in rows]
    records = [record for records in record_lists for record in records]
    texts = [text for _, text, _ in records]
    starts = np.concatenate([[0], np.cumsum([len(records) for records in record_lists])]).astype(np.int64)
    return _People(
        np.array([row.released.user for row in rows], dtype=np.int64),
        encoder.embed(texts),
        np.array([label for _, _, label in records], dtype=np.int64),
        texts,
        starts,
    )
