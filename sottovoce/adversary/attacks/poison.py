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

from mechanisms.accounting.liars import moved
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import VectorQuestion
from mechanisms.messages.request import Request
from mechanisms.privunit import PrivUnit
from server.protocols.drive import Collected, Driver
from server.protocols.models import Model
from server.protocols.protocol import Encoding
from server.training.robust_mean import honest_moment, robust_mean
from server.training.statistic_head import linear_head, mean_noise, of_users, simplex_codes
from simulations.artifacts.encoder import training_of
from simulations.artifacts.ways import protocol_of
from sottovoce.adversary.attacks.scores import Rate
from sottovoce.adversary.attacks.target import Result, Row, Skipped, Target, collect, payloads, result_of, rows_of
from sottovoce.adversary.estimators import poison

#: Description of each attack, by its name on the command line.
ATTACKS = {
    "poison-flip": "how many test texts a model gets wrong after a few users sent the opposite of what all others tell",
    "poison-adaptive": "how many test texts a model gets wrong after a few users sent what harms most",
}
#: Explanation of their table's columns.
READING = (
    "Poison: success is the share of test texts that the model gets wrong, on the device, and baseline that of the "
    "model of the honest users' releases in the ledgers. The "
    "share of liars is in the note. They know the honest users' mean, and send any message that the wire allows."
)
#: Shares of liars.
SHARES = (0.01, 0.03, 0.1)


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of dishonest users: see `Target`."""
    return collect(names, _Attacked(target).results, on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _Attacked:
    """Arm whose users are attacked by others among them."""

    target: Target

    def results(self, name: str) -> Iterator[Result]:
        """Yield a result for each share of liars."""
        if self.target.arm.reference:
            raise Skipped("a reference is not private, and nobody would lie to it")
        if self.target.experiment.training.self_training:
            raise Skipped("it would train the encoder again for every share of liars")
        baseline = float(self._wrong(self._trained(None, 0.0)[0]).mean())
        for share in SHARES:
            model, users = self._trained(name, share)
            question, errors = users.question, self._wrong(model)
            mechanism, limit = question.mechanism, moved(question.mechanism, share, question.clip)
            notes = [liars := f"{100 * share:g} % liars"]
            notes += [] if limit is None else [f"theorem: moved by at most {limit:.3g}"]
            notes += [test.finding for test in getattr(model, "tests", ()) if test.alarm]
            n, success = len(errors), float(errors.mean())
            yield result_of(self.target, mechanism, "train")(
                attack=name,
                attribute=liars,
                texts=n,
                rate=Rate(success, float(np.sqrt(success * (1 - success) / n)), n),
                baseline=baseline,
                note="; ".join(notes),
            )

    def _wrong(self, model: Model) -> BoolArray:
        test = self.target.prepared.held.test
        return model.classify(test.texts) != test.labels

    def _trained(self, name: str | None, share: float) -> tuple[Model, _Users]:
        target, users = self.target, _Users(self.target, self.rows, name, share)
        training = training_of(target.experiment)
        protocol = protocol_of(target.setup, training, target.prepared.public, folder=target.model)
        model = Driver(users).train(protocol)
        if model is None:
            raise Skipped("the ledgers hold too little to train a model on")
        return model, users

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """Return the released user vectors by digest."""
        result: dict[str, list[Row]] = {}
        for row in rows_of(self.target, VectorQuestion.channel):
            result.setdefault(row.released.digest, []).append(row)
        return result


@dataclass(eq=False)
class _Users:
    """Users of a run, with liars in place of a share of them (`server.protocols.drive.Users`).

    `rows` are released user vectors by digest. Without the name of an attack, all users are honest.
    """

    target: Target
    rows: dict[str, list[Row]]
    name: str | None
    share: float
    question: Any = None

    def collect(self, request: Request) -> Collected:
        """Return the releases of the ledgers that answer a request, with those of liars in place of the first ones."""
        self.question = question = request.question(VectorQuestion)
        rows = self.rows.get(request.digest(question.channel), [])
        rows = sorted((row for row in rows if row.released.stage == request.stage), key=lambda row: row.key)
        if len(rows) < 2:
            raise Skipped("its ledgers do not hold the releases that the run's server asked for")
        order = np.random.default_rng([self.target.seed, 12]).permutation(len(rows))
        values = payloads([rows[i] for i in order], question.payload_form[1])
        count = round(self.share * len(rows))
        if count:
            values = np.concatenate([self._lies(question, values, count), values[count:]])
        return Collected(Batch((request.release(question, values),), users=len(rows), duplicates=0))

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        raise Skipped("it would train the encoder again for every share of liars")

    def _lies(self, question: VectorQuestion, released: NDArray[Any], count: int) -> NDArray[Any]:
        """Return the messages of `count` liars among users who released (n, D)."""
        mechanism = question.mechanism
        assert isinstance(mechanism, PrivUnit)
        mean = mechanism.decoded_mean(released[count:])
        if self.name == "poison-flip":
            return poison.points(mechanism, -mean / np.linalg.norm(mean), count, self.target.seed)
        return self._adaptive(question, mechanism, released, mean, count)

    def _adaptive(
        self, question: VectorQuestion, mechanism: PrivUnit, released: NDArray[Any], mean: FloatArray, count: int
    ) -> NDArray[Any]:
        """Return messages by which most public texts change their class, pushed against the mean, a class, or both.

        `mean` (D,) is that of the honest users.
        """
        public, peers, codes = self.target.prepared.public, released[count:], question.codes
        assert public.embeddings is not None
        rare = codes[int(np.argmin(codes @ mean.reshape(codes.shape[1], -1)[:, -1]))]  # of the class that fewest have
        threshold = np.outer(rare, np.eye(question.projection.dim + 1)[-1]).ravel()
        features, length = question.projection.apply(public.embeddings), codes.shape[1]
        public_stand_in = self.target.setup.records == 1 and not public.elsewhere
        honest = honest_moment(mechanism, features if public_stand_in else None, length)
        users, simplex = len(released), simplex_codes(len(codes))

        def classes(of: FloatArray) -> IntArray:
            noise = question.clip**2 * mean_noise(mechanism, users=users)
            records = users * self.target.experiment.training.records
            moment = of_users(question.clip * of, noise, users=records, codes=codes)
            weight, bias = linear_head(features, simplex, users=moment)
            return (features @ weight + bias).argmax(axis=1)

        base_classes = classes(mean)

        def changed(of: FloatArray) -> float:
            return float(np.mean(classes(of) != base_classes))

        def harm(lies: NDArray[Any]) -> float:
            return changed(robust_mean(mechanism, np.concatenate([lies, peers]), honest, length).mean)

        share = count / users
        reach = share * poison.unseen(share, users, mechanism.dim) / mechanism.scale
        flip = -mean / np.linalg.norm(mean)
        direction = poison.worst_direction(
            lambda shift: changed(mean + shift),
            (flip, threshold, -threshold, flip + threshold, flip - threshold),
            honest,
            reach,
        )
        seed = self.target.seed
        return poison.strongest(mechanism, direction, count, seed, honest=honest, users=users, harm=harm)
