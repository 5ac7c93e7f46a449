"""Attacks on user vectors (channel `statistic`): identification, attribute inference and membership.

Attributes are inferred twice: on the server's actual request, and on a request that a malicious server would choose.
The adversary (`adversary.estimators.statistic`) gets the releases of the nodes' ledgers, public texts, the encoder, the
maps and the mechanism. Only `adversary.attacks.scores` compares its guesses with the truth.
Membership is the exception: it sets its threshold on one half of the records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.draw import draw
from mechanisms.identity import Identity
from mechanisms.mechanism import parameters
from mechanisms.messages import questions
from mechanisms.messages.questions import CLIP_STEPS
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from server.protocols.models import ENCODER
from server.protocols.protocol import Encoding
from server.protocols.statistics import codes_asked
from simulations.artifacts.public import CachedEncoder
from simulations.experiment import slug
from simulations.run.prepare import Prepared
from sottovoce.adversary.attacks import attributes, releases, scores
from sottovoce.adversary.attacks.knowledge import arrived, maps_sent, members_and_others, prepared, values
from sottovoce.adversary.attacks.releases import Row
from sottovoce.adversary.attacks.target import Result, Skipped, Target, collect
from sottovoce.adversary.estimators import allowed, membership, statistic
from sottovoce.adversary.estimators.likelihood import log_likelihood_of_means
from sottovoce.adversary.estimators.presence import embedding_evidence
from sottovoce.adversary.estimators.statistic import Pool, VectorQuestion

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Description of each attack, by its name on the command line.
ATTACKS = {
    "vector-text": "which of so many known texts and labels a user's one vector is of",
    "vector-attribute": "the label, or an attribute of the text, behind a user's one vector",
    "vector-attribute-chosen": "the same, had the server asked by maps, codes and cap that serve this question best",
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
#: Stage of simulated releases for another request.
_STAGE = "attack-vector"


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attacks on user vectors: see `Target`."""
    try:
        attack = _Vectors.opened(target)
    except Skipped as why:
        return [], [f"{name} on {target.arm.name}: {why}" for name in names]
    return collect(names, attack.results, on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _People:
    """Users' data, each user's records together.

    users are (u,), embeddings (n, m), labels (n,). starts (u + 1,) are the first rows of each user.
    """

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
    ready: Prepared
    encoder: Encoding
    people: _People
    seen: FloatArray
    question: VectorQuestion
    stage: str

    @classmethod
    def opened(cls, target: Target) -> _Vectors:
        rows = arrived(target, "statistic")
        run_data = prepared(target.run)
        encoder, question, rows = _question(target, run_data, rows)
        stage = rows[0].released.stage
        log.info(f"{target.arm.name}: {len(rows):,} released vectors of stage {stage}")
        vectors = np.stack([values(row, question.mechanism) for row in rows])
        return cls(target, run_data, encoder, _people(encoder, rows), vectors, question, stage)

    def results(self, name: str) -> list[Result]:
        """Return an attack's results; raise Skipped if it does not apply."""
        by_own_maps = name == "vector-attribute-chosen"
        if by_own_maps and isinstance(self.question.mechanism, Identity):
            raise Skipped("there is no noise that other maps would get round")
        if name == "vector-text":
            return [self._text()]
        if name == "vector-member":
            return [self._member()]
        names = self.target.attributes or attributes.of_corpus(self.target.data)
        return [self._attribute(name, attribute, by_own_maps) for attribute in dict.fromkeys(["label", *names])]

    # --- identification

    def _text(self) -> Result:
        rows = np.sort(releases.shuffled(self.target, len(self.seen))[: self.target.limit])
        n = len(rows)
        if n < 2:
            raise Skipped("fewer than two users' vectors were delivered")
        question = self.question
        means = self._drawing(question)[1][rows]
        evidence = log_likelihood_of_means(question.mechanism, self.seen[rows], means, question.clip)
        area = scores.area_of_pairs(evidence)
        bound, bound_counts = (allowed.guess(curve, np.full(n, 1 / n)) for curve in allowed.curves(question.mechanism))
        return self._result("vector-text", question)(
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
        pool, rows, truth, count = self._values(attribute)
        question, note = self.question, ""
        if chosen and attribute == "label":
            question = statistic.for_label(self._public, self._epsilon, classes=self._classes, seed=self._seed)
        elif chosen:
            question = statistic.for_value(pool, count, self._epsilon, classes=self._classes, seed=self._seed)
        guesses = statistic.guessed(question, self._seen(question)[rows], pool, count)
        details = _about(question)
        if chosen:
            note = "; {features} features, p = {cap_probability:.4g}, drawn anew".format(**details)
        result_of = self._result(name, question)
        return attributes.result(
            result_of, attribute, guesses, truth, count, allowed.curves(question.mechanism), note=note, more=details
        )

    def _values(self, attribute: str) -> tuple[Pool, IntArray, IntArray, int]:
        """Return the public records to guess by, the attacked users, their values, and the number of values."""
        labels, people = self._public_labels, np.flatnonzero(np.diff(self.people.starts) == 1)
        if len(people) < attributes.LEAST:
            raise Skipped(f"{attribute}: {attributes.LEAST} users of one record are needed; there are {len(people)}")
        people = people[np.sort(releases.shuffled(self.target, len(people))[: self.target.limit])]
        rows = self.people.starts[people]
        if attribute == "label":
            return Pool(self._public, labels), people, self.people.labels[rows], self._classes
        column = attributes.column(self.target, self.ready.held, attribute)
        result = attributes.collected(column, list(self.ready.public.texts), [self.people.texts[row] for row in rows])
        if result.why:
            raise Skipped(f"{attribute}: {result.why}")
        pool = Pool(self._public[result.auxiliary], labels[result.auxiliary], result.labels)
        return pool, people[result.attacked], result.truth, len(result.classes)

    # --- membership

    def _member(self) -> Result:
        private_data = self.ready.held
        member_rows = np.flatnonzero(np.isin(private_data.holders.users, self.people.users))
        members, nonmembers, _ = members_and_others(self.target, private_data, member_rows)
        question = self.question
        embeddings = self.encoder.embed([*members.texts, *nonmembers.texts])
        vectors = question.vectors(embeddings, np.concatenate([members.labels, nonmembers.labels]))
        pool = Pool(self._public, self._public_labels).candidates(self._classes)
        evidence = embedding_evidence(question.mechanism, self.seen, vectors, question.vectors(*pool[:2]))
        n = len(evidence) // 2
        rate, note, details = scores.of_members(evidence, np.arange(2 * n) < n)
        limit = 1.0 if isinstance(question.mechanism, Identity) else membership.bound([(question.mechanism, 1)])
        return self._result("vector-member", question)(
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

    @property
    def _epsilon(self) -> float:
        return float(self.question.mechanism.epsilon)

    @property
    def _classes(self) -> int:
        return len(self.question.codes)

    @cached_property
    def _public(self) -> NDArray[np.float32]:
        return self.encoder.embed(self.ready.public.texts)

    @property
    def _public_labels(self) -> IntArray:
        labels = self.ready.public.labels
        return np.full(len(self._public), -1, np.int64) if labels is None else labels

    def _result(self, name: str, question: VectorQuestion) -> Callable[..., Result]:
        mechanism = question.mechanism
        return partial(
            Result,
            attack=name,
            arm=self.target.arm.name,
            stage=self.stage,
            mechanism=mechanism.name,
            epsilon=getattr(mechanism, "epsilon", None),
            worst_case_epsilon=mechanism.guarantee.worst_case(),
        )

    def _drawing(self, question: VectorQuestion) -> tuple[questions.VectorQuestion, FloatArray]:
        """Return what users are asked, and each user's mean (u, D) under it."""
        question_sent, people = _sent(self.encoder, question), self.people
        return question_sent, question_sent.means(people.embeddings, people.labels, people.starts)

    def _seen(self, question: VectorQuestion) -> FloatArray:
        """Return the releases (u, D), simulated ones for another request."""
        if question is self.question:
            return self.seen
        question_sent, means = self._drawing(question)
        users, streams = self.people.users, SimulationStreams(self._seed)
        return question_sent.decode(
            draw(question_sent, means, users, np.zeros_like(users), stage=_STAGE, streams=streams)
        )


def _about(question: VectorQuestion) -> dict[str, Any]:
    return {
        "features": question.m1.shape[1],
        "cap_probability": getattr(question.mechanism, "cap_probability", None),
    }


def _question(target: Target, ready: Prepared, rows: list[Row]) -> tuple[Encoding, VectorQuestion, list[Row]]:
    """Return the encoder and the maps that some of the releases answer, by their digest, and these releases.

    With several rounds, they are those of the last request. Raise Skipped if the run no longer holds them.
    """
    build, folder = target.setup.statistic, target.run / "models" / slug(target.arm.name)
    assert build is not None and ready.public.encoder is not None
    codes = codes_asked(ready.public, target.training.self_training)
    encoders = [CachedEncoder(path) for path in sorted(folder.glob(f"round-*/{ENCODER}"))]
    digests = {row.released.digest for row in rows}
    for maps in maps_sent(folder):
        mechanism = build(codes.shape[1] * (maps.dim + 1))
        for steps, encoder in product(range(CLIP_STEPS, 0, -1), (*encoders, ready.public.encoder)):
            question = VectorQuestion(maps.mean, maps.m1, codes, mechanism, steps / CLIP_STEPS)
            if (digest := _sent(encoder, question).digest("train")) in digests:
                return encoder, question, [row for row in rows if row.released.digest == digest]
    raise Skipped("the run does not hold the maps, or the encoder, that its users answered by")


def _sent(encoder: Encoding, question: VectorQuestion) -> questions.VectorQuestion:
    projection = questions.Projection(encoder.identity, question.mean, question.m1)
    spec = parameters(question.mechanism)
    return questions.VectorQuestion(spec, projection=projection, codes=question.codes, clip=question.clip)


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
