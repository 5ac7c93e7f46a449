"""Attacks of dishonest users on a finished run: the model that its protocol trains if some delivered users lie.

The releases in the nodes' ledgers are kept, except that liars replace a share of the users. A liar sends what the wire
allows. Accuracy is on the clear test texts, on the device. Only this module compares models with true labels here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.draw import draw
from mechanisms.accounting.liars import moved
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, Question, TextQuestion, VectorQuestion
from mechanisms.messages.request import Request
from mechanisms.privunit import PrivUnit
from mechanisms.streams import SimulationStreams
from server.protocols.drive import Collected, Driver
from server.protocols.protocol import Encoding, Model
from server.training.robust_mean import honest_moment, robust_mean
from server.training.statistic_head import linear_head, mean_noise, of_users, simplex_codes
from simulations.artifacts.ways import protocol_of, training_of
from simulations.experiment import slug
from simulations.run.prepare import Prepared
from sottovoce.adversary.attacks import knowledge, releases
from sottovoce.adversary.attacks.releases import Row
from sottovoce.adversary.attacks.scores import Rate
from sottovoce.adversary.attacks.target import Result, Skipped, Target, collect
from sottovoce.adversary.estimators import poison

IntArray = NDArray[np.int64]

#: Description of each attack, by its name on the command line.
ATTACKS = {
    "poison-flip": "how many test texts a model gets wrong after a few users sent the opposite of what all others tell",
    "poison-adaptive": "the same, after they pushed where, and sent what, harms most in spite of the defence",
}
#: Explanation of their table's columns.
READING = (
    "Poison: success is the share of test texts that the model gets wrong, on the device, and baseline that of the "
    "model of the honest users' releases in the ledgers. The "
    "share of liars is in the note. They know the honest users' mean, and send any message that the wire allows."
)
#: Shares of liars.
SHARES = (0.01, 0.03, 0.1)
_ADAPTIVE = "poison-adaptive"


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of dishonest users: see `Target`."""
    why = _left_out(target)
    if why is not None:
        return [], [f"{name} on {target.arm.name}: {why}" for name in names]
    attack = _Attacked(target)
    return collect(names, attack.results, on=target.arm.name)


def _left_out(target: Target) -> str | None:
    if target.arm.reference:
        return "a reference is not private, and nobody would lie to it"
    if target.training.self_training:
        return "it would train the encoder again for every share of liars"
    if target.setup.protocol.releases_text and target.shadows is None:
        return "it would train the encoder again for every share of liars; give --shadows 4 to have it done"
    return None


@dataclass(frozen=True, eq=False)
class _Attacked:
    """Arm whose users are attacked by others among them."""

    target: Target

    @cached_property
    def ready(self) -> Prepared:
        return knowledge.prepared(self.target.run)

    @cached_property
    def honest(self) -> Model:
        """Return the model of honest users alone."""
        return self._trained(None, 0.0)[0]

    def results(self, name: str) -> Iterator[Result]:
        """Yield a result for each share of liars."""
        if name == _ADAPTIVE and self.target.arm.statistic is None:
            raise Skipped("only one vector a user has a mean to aim with; use poison-flip")
        baseline = float(self._wrong(self.honest).mean())
        for share in SHARES:
            model, users = self._trained(name, share)
            question, errors = users.question, self._wrong(model)
            mechanism, limit = question.mechanism, moved(question.mechanism, share, question.clip)
            notes = [liars := f"{100 * share:g} % liars"]
            notes += [] if limit is None else [f"theorem: moved by at most {limit:.3g}"]
            notes += [test.told for test in getattr(model, "tests", ()) if test.alarm]
            n, success = len(errors), float(errors.mean())
            yield Result(
                attack=name,
                arm=self.target.arm.name,
                attribute=liars,
                mechanism=mechanism.name,
                epsilon=mechanism.guarantee.epsilon,
                worst_case_epsilon=mechanism.guarantee.worst_case(),
                stage="train",
                texts=n,
                rate=Rate(success, float(np.sqrt(success * (1 - success) / n)), n),
                baseline=baseline,
                note="; ".join(notes),
            )

    def _wrong(self, model: Model) -> NDArray[np.bool_]:
        test = self.ready.held.test
        errors: NDArray[np.bool_] = model.classify(test.texts) != test.labels
        return errors

    def _trained(self, name: str | None, share: float) -> tuple[Model, _Users]:
        target, public = self.target, self.ready.public
        users = _Users(self, name, share)
        training = training_of(target.training, target.encoder, target.seed)
        folder = target.run / "models" / slug(target.arm.name)
        model = Driver(users).train(protocol_of(target.setup, training, public, folder=folder))
        if model is None:
            raise Skipped("the ledgers hold too little to train a model on")
        return model, users

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """Return the releases by channel and digest."""
        result: dict[tuple[str, str], list[Row]] = {}
        for row in releases.of_arm(self.target):
            result.setdefault((row.released.channel, row.released.digest), []).append(row)
        return result


class _Users:
    """Users of a run, with liars in place of some of them (`server.protocols.drive.Users`).

    Args:
        of: The attacked arm.
        name: Name of the attack; None for honest users alone.
        share: Share of liars.
    """

    def __init__(self, of: _Attacked, name: str | None, share: float) -> None:
        self.of, self.name, self.share = of, name, share
        self.question: Any = None

    def collect(self, request: Request) -> Collected:
        """Return the releases of the ledgers that answer a request, with those of liars in place of the first ones."""
        honest = self._honest(request)
        count = round(self.share * len(next(iter(honest.values()))))
        questions = [question for question in request.questions if question.reads_labels]
        self.question = (questions or list(request.questions))[-1]
        values = honest
        if count and self.name is not None:
            lies = _Lies(self.of, request, honest, count, self.name)
            values = {question: np.concatenate([lies.of(question), honest[question][count:]]) for question in honest}
        result = tuple(request.release(question, values[question]) for question in request.questions)
        return Collected(Batch(result, users=len(next(iter(values.values()))), duplicates=0))

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        raise Skipped("it would train the encoder again for every share of liars")

    def _honest(self, request: Request) -> dict[Question, NDArray[Any]]:
        """Return payloads of the users who answered every question of the request."""
        results = []
        for question in request.questions:
            rows = self.of.rows.get((question.channel, request.digest(question.channel)), [])
            results.append({row.key: row.released.payload for row in rows if row.released.stage == request.stage})
        keys = sorted(set.intersection(*map(set, results)))
        if len(keys) < 2:
            raise Skipped("its ledgers do not hold the releases that the run's server asked for")
        order = np.random.default_rng([self.of.target.seed, 12]).permutation(len(keys))
        values = {}
        for question, payloads in zip(request.questions, results, strict=True):
            _, kind, shape = question.payload_form
            payload = b"".join(payloads[keys[i]] for i in order)
            values[question] = np.frombuffer(payload, kind.newbyteorder("<")).astype(kind).reshape(len(keys), *shape)
        return values


@dataclass(frozen=True, eq=False)
class _Lies:
    """Messages of liars in answer to a request.

    Args:
        attacked: The attacked arm.
        request: The request.
        honest: Releases of all users, by question.
        count: Number of liars.
        name: Name of the attack.
    """

    attacked: _Attacked
    request: Request
    honest: dict[Question, NDArray[Any]]
    count: int
    name: str

    def of(self, question: Question) -> NDArray[Any]:
        """Return the liars' payload for a question."""
        if isinstance(question, VectorQuestion) and isinstance(question.mechanism, PrivUnit):
            return self._vectors(question, question.mechanism)
        if isinstance(question, LabelQuestion):
            return self._wrong.astype(question.payload_form[1])
        if isinstance(question, EmbeddingQuestion | TextQuestion):
            return self._texts(question)
        raise Skipped("its users release nothing that liars could choose")

    @property
    def _seed(self) -> int:
        return self.attacked.target.seed

    def _vectors(self, question: VectorQuestion, mechanism: PrivUnit) -> NDArray[Any]:
        honest, codes = self.honest[question][self.count :], question.codes
        mean = mechanism.decoded_mean(honest)
        if self.name != _ADAPTIVE:
            return poison.points(mechanism, -mean / np.linalg.norm(mean), self.count, self._seed)
        rare = codes[int(np.argmin(codes @ mean.reshape(codes.shape[1], -1)[:, -1]))]  # of the class that fewest have
        threshold = np.outer(rare, np.eye(question.projection.dim + 1)[-1]).ravel()
        return self._adaptive(question, mechanism, (honest, mean), threshold)

    def _adaptive(
        self,
        question: VectorQuestion,
        mechanism: PrivUnit,
        honest_users: tuple[NDArray[Any], NDArray[np.float64]],
        threshold: NDArray[np.float64],
    ) -> NDArray[Any]:
        """Return messages by which most public texts change their class, pushed against the mean, a class, or both.

        `honest_users` are the honest users' releases and their mean.
        """
        public, (peers, mean) = self.attacked.ready.public, honest_users
        assert public.embeddings is not None
        features, length = question.projection.apply(public.embeddings), question.codes.shape[1]
        public_stand_in = self.attacked.target.setup.records == 1 and not public.elsewhere
        honest = honest_moment(mechanism, features if public_stand_in else None, length)
        users, simplex = len(self.honest[question]), simplex_codes(len(question.codes))

        def classes(of: NDArray[np.float64]) -> IntArray:
            noise = question.clip**2 * mean_noise(mechanism, users=users)
            rows = users * self.attacked.target.training.records
            moment = of_users(question.clip * of, noise, users=rows, codes=question.codes)
            weight, bias = linear_head(features, simplex, users=moment)
            result: IntArray = (features @ weight + bias).argmax(axis=1)
            return result

        base_classes = classes(mean)

        def changed(of: NDArray[np.float64]) -> float:
            return float(np.mean(classes(of) != base_classes))

        def harm(lies: NDArray[Any]) -> float:
            return changed(robust_mean(mechanism, np.concatenate([lies, peers]), honest, length).mean)

        share = self.count / users
        reach = share * poison.unseen(share, users, mechanism.dim) / mechanism.scale
        flip = -mean / np.linalg.norm(mean)
        direction = poison.worst_direction(
            lambda shift: changed(mean + shift),
            (flip, threshold, -threshold, flip + threshold, flip - threshold),
            honest,
            reach,
        )
        return poison.strongest(mechanism, direction, self.count, self._seed, honest=honest, users=users, harm=harm)

    @cached_property
    def _chosen(self) -> IntArray:
        """Return rows of public text, one for each liar."""
        return np.arange(self.count) % len(self.attacked.ready.public.texts)

    @cached_property
    def _wrong(self) -> IntArray:
        """Return a wrong class for each liar's text, by the model of honest users."""
        public, classes = self.attacked.ready.public, len(self.attacked.ready.public.classes)
        rows = sorted(set(self._chosen.tolist()))
        guesses = self.attacked.honest.classify([public.texts[i] for i in rows])
        return (guesses[np.searchsorted(rows, self._chosen)] + 1) % classes

    def _texts(self, question: EmbeddingQuestion | TextQuestion) -> NDArray[Any]:
        """Return public texts: embeddings without noise; texts by the protocol."""
        public = self.attacked.ready.public
        if isinstance(question, TextQuestion):
            return self._drawn(question, [public.texts[i] for i in self._chosen])
        assert public.embeddings is not None
        embeddings = np.asarray(public.embeddings)[self._chosen]
        grid = question.mechanism.grid
        if grid is None:
            return self._drawn(question, embeddings)
        return grid.encode(question.projection.apply(embeddings))

    def _drawn(self, question: Question, values: Any) -> NDArray[Any]:
        liars = np.arange(self.count, dtype=np.int64)
        model = getattr(self.attacked.ready.public.rewriter, "masked_lm", None)
        return draw(
            question,
            values,
            liars,
            np.zeros_like(liars),
            stage="attack-poison",
            streams=SimulationStreams(self._seed),
            masked_lm=model,
        )
