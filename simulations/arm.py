"""One arm of a study, end to end: public maps, releases by stages, training on them, sanitized inference."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.policy import REFUSALS
from mechanisms import catalogue
from mechanisms.composition import metric_statement
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.projection import softmax
from mechanisms.release import Release
from mechanisms.request import Request
from server.app import ask
from server.maps import Maps
from server.training.release_once import train_head
from server.training.sharpen import sharpened
from server.validation import validate
from simulations.arm_ladder import Spent
from simulations.evaluation import Score, Truth, clean_score, score
from simulations.experiment import PUBLIC_ONLY, Arm, Experiment, slug
from simulations.prepare import Prepared, Progress
from simulations.public_part import PublicPart, dim_of
from simulations.shuffler import Batch, Origin, shuffle

#: Flower's own codes, for nodes that could not answer at all.
_FLOWER = (
    (0, "a worker died, or no reason was given"),
    (1, "the client app could not be loaded"),
    (2, "the client app raised"),
    (5, "the node is not there"),
    (8, "the client app crashed"),
)
#: What a node's error code stands for: the texts are constants of ours, not what came over the wire.
_ERRORS = {f"code {code}": text for code, text in (*_FLOWER, *REFUSALS.values())}


@dataclass
class Delivery:
    """What reached the server over all stages of an arm, and what did not. stages: users, by the stage's name."""

    delivered: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outcome:
    """What an arm gives to the report: the trained maps, one JSON-ready line, and what its users released."""

    maps: Maps
    line: dict[str, Any]
    spent: Spent


class ArmRun:
    """One arm on a running Flower grid. The server's part sees releases and public data; only `Truth` knows more.

    Raises ValueError where m' does not fit the encoder: before Flower is started for it.
    """

    def __init__(
        self, experiment: Experiment, arm: Arm, prepared: Prepared, public: PublicPart, *, timeout: float
    ) -> None:
        self.experiment = experiment
        self.arm = arm
        self.prepared = prepared
        self.public = public
        self.timeout = timeout
        self.slug = slug(arm.name)
        self.classes = len(prepared.split.train.classes)
        self.delivery = Delivery()
        users = experiment.population.users
        self.enrolled = {"train": range(users), "test": range(users, users + len(prepared.test_rows))}
        self.candidates = public.candidates(arm)  # an m' that cannot be is refused before Flower starts

    def run(self, grid: Any, *, progress: Progress) -> Outcome:
        """Runs the arm. Raises ValueError where its parameters do not fit the data."""
        start = time.perf_counter()
        progress(f"{self.arm.name}: learning maps on {len(self.prepared.split.public):,} public texts")
        mechanism = self.public.best(self.candidates)
        maps = self.public.maps(mechanism)
        if self.arm.way != PUBLIC_ONLY:
            maps = self._train(grid, maps, mechanism, progress)
        # Training users are asked for all m' directions, since the best ones are not known yet; test users for what
        # decides.
        maps = sharpened(maps, public=self.prepared.public_embeddings)
        sanitized = self._sanitized_inference(grid, maps, mechanism, progress) if self.arm.embedding else None
        clean = clean_score(maps, self.prepared.test_embeddings, self.prepared.split.test.labels)
        seconds = time.perf_counter() - start
        return Outcome(maps, self._line(maps, mechanism, sanitized, clean, seconds), self._spent(mechanism))

    # -- what users release -------------------------------------------------------------------------------------

    def _label_mechanism(self) -> Mechanism:
        spec = self.arm.label or {"mechanism": "identity"}
        return catalogue.build(spec, channel="label", classes=self.classes)

    def _train(self, grid: Any, maps: Maps, mechanism: Mechanism, progress: Progress) -> Maps:
        """Asks disjoint users stage by stage; after each stage, trains M2 and the head on all that has come."""
        label = self._label_mechanism()
        stages = self.experiment.training.label_stages
        z, y, transitions = [], [], []
        for index in range(stages):
            prior = maps.folded() if getattr(label, "needs_prior", False) else None
            stage = "train" if stages == 1 else f"train-{index + 1}"
            request = self._request(
                maps, mechanism, label, stage=stage, split="train", part=(index, stages), prior=prior
            )
            batch, _ = self._collect(grid, request, progress)
            embedding, labels = batch.channel("embedding"), batch.channel("label")
            if embedding is None or labels is None:
                continue
            z.append(_decode(mechanism, embedding))
            y.append(labels.payload["y"].astype(np.int64))
            transitions.append(self._log_transition(label, y[-1], z[-1], prior))
            maps = train_head(
                maps, np.concatenate(z), np.concatenate(y),
                label_transition=None if isinstance(label, Identity) else np.exp(np.concatenate(transitions)),
                seed=self.experiment.seed,
            )  # fmt: skip
        return maps

    def _log_transition(
        self, label: Mechanism, y: NDArray[np.int64], z: NDArray[np.float64], prior: Any
    ) -> NDArray[np.float64]:
        """log P[released label | true class c] for each row and class, (n, K): public, since y and z were released."""
        log_prob: Any = getattr(label, "log_prob", None)
        columns = []
        for c in range(self.classes):
            truth = np.full(len(y), c, np.int64)
            extra = {} if prior is None else {"prior": softmax(z, *prior)}
            columns.append(np.zeros(len(y)) if isinstance(label, Identity) else log_prob(y, truth, **extra))
        return np.stack(columns, axis=1)

    def _sanitized_inference(self, grid: Any, maps: Maps, mechanism: Mechanism, progress: Progress) -> Score | None:
        """Test users release embeddings like any other; the server guesses, and the truth's owner scores."""
        request = self._request(maps, mechanism, None, stage="test", split="test")
        keep = self.delivery
        # the table counts what the training users delivered
        self.delivery = Delivery(stages=keep.stages, errors=keep.errors)
        batch, origin = self._collect(grid, request, progress)
        keep.dropped.update({f"test: {reason}": n for reason, n in self.delivery.dropped.items()})
        self.delivery = keep
        release = batch.channel("embedding")
        if release is None:
            return None
        held, test = self.prepared.test_held, self.prepared.split.test
        truth = Truth(held.users, held.records, test.labels[self.prepared.test_rows]).of(origin)
        known = truth >= 0
        if not known.all():
            self.delivery.dropped["test: unknown record"] += int((~known).sum())
        if not known.any():
            return None
        return score(maps.predict(_decode(mechanism, release))[known], truth[known], sentences=len(test))

    def _request(
        self, maps: Maps, mechanism: Mechanism, label: Mechanism | None, *,
        stage: str, split: str, part: tuple[int, int] = (0, 1), prior: Any = None,
    ) -> Request:  # fmt: skip
        return Request(
            arm=self.slug,
            stage=stage,
            split=split,
            encoder=self.prepared.encoder.identity,
            mean=maps.mean,
            m1=maps.m1,
            embedding=parameters(mechanism),
            label=None if label is None else parameters(label),
            classes=self.classes,
            minimum_users=self.experiment.shuffle.minimum_users if self.experiment.shuffle.enabled else 0,
            part=part,
            prior=prior,
        )

    def _collect(self, grid: Any, request: Request, progress: Progress) -> tuple[Batch, Origin]:
        """One stage: ask every node, drop what is not a valid release, shuffle what is."""
        replies = []
        for answer in ask(grid, request, timeout=self.timeout):
            if answer.reply is None:
                self.delivery.errors[_ERRORS.get(str(answer.error), str(answer.error))] += 1
                continue
            valid, dropped = validate(answer.reply, request, enrolled=self.enrolled[request.split])
            self.delivery.dropped.update(dropped)
            replies.append(valid)
        rng = np.random.default_rng([self.experiment.seed, 2, *request.stage.encode()])
        batch, origin = shuffle(replies, minimum_users=request.minimum_users, rng=rng)
        if batch.duplicates:
            self.delivery.dropped["duplicate"] += batch.duplicates
        if batch.discarded:
            self.delivery.dropped[f"batch discarded: {batch.discarded}"] += 1
        self.delivery.delivered += batch.users
        self.delivery.stages[request.stage] = batch.users
        if batch.releases:
            self.delivery.rows += len(batch.releases[0])
            self.delivery.bytes += sum(r.bytes_per_row * len(r) for r in batch.releases)
        said = f"{self.arm.name}: stage {request.stage}: {batch.users:,} users delivered"
        progress(said + (f"; {batch.discarded}" if batch.discarded else ""))
        return batch, origin

    def _spent(self, mechanism: Mechanism) -> Spent:
        """What the accounting needs to know: mechanisms, and the users that the shuffler delivered, stage by stage."""
        asked = self.arm.way != PUBLIC_ONLY
        return Spent(
            embedding=mechanism if self.arm.embedding else None,
            label=self._label_mechanism() if asked else None,
            train=tuple(n for stage, n in self.delivery.stages.items() if stage != "test") if asked else None,
            test=self.delivery.stages.get("test"),
        )

    # -- the line of the table ----------------------------------------------------------------------------------

    def _line(
        self, maps: Maps, mechanism: Mechanism, sanitized: Score | None, clean: Score, seconds: float
    ) -> dict[str, Any]:
        arm, delivery = self.arm, self.delivery
        embedding = mechanism.guarantee if arm.embedding else None
        asked = arm.way != PUBLIC_ONLY
        declared = asked and arm.label is None and self.experiment.policy.accepts_unprotected("label")
        label = self._label_mechanism().guarantee if asked and not declared else None
        spent = [g for g in (embedding, label) if g is not None]
        statement = _in_words(spent)
        return {
            "name": arm.name,
            "mechanism": mechanism.name if arm.embedding else None,
            "label_mechanism": (arm.label or {}).get("mechanism"),
            "epsilon": (arm.embedding or {}).get("epsilon"),
            "label_epsilon": (arm.label or {}).get("epsilon"),
            "dim": dim_of(mechanism),
            "accuracy": None if sanitized is None else sanitized.accuracy,
            "accuracy_se": None if sanitized is None else sanitized.error,
            "accuracy_clean_test": clean.accuracy,
            "accuracy_clean_test_se": clean.error,
            "users": 0 if arm.way == PUBLIC_ONLY else self.experiment.population.users,
            "delivered": delivery.delivered,
            "dropped": dict(delivery.dropped),
            "errors": dict(delivery.errors),
            "bytes_per_user": delivery.bytes / delivery.delivered if delivery.delivered else 0,
            "seconds": seconds,
            "reference": arm.reference,
            "way": arm.way or self.experiment.training.way,
            "budget": {
                "metric_epsilon": None if embedding is None else embedding.epsilon,
                "metric": None if embedding is None else embedding.metric,
                "statement": statement + ("; labels in clear, declared public" if declared else ""),
                "worst_case_epsilon": (
                    None if embedding is None else embedding.worst_case(self.experiment.policy.delta)
                ),
                "label_epsilon": None if label is None else label.worst_case(),
            },
        }


def _in_words(spent: list[Guarantee]) -> str:
    """The bound on the loss of what leaves, for people: no "inf" where a word says it."""
    if any(math.isinf(g.epsilon) for g in spent):
        unprotected = any(math.isinf(g.epsilon) and g.sigma is None for g in spent)
        return "no protection" if unprotected else "no bound at δ = 0, as of all Gaussian noise"
    return metric_statement(spent) if spent else "nothing leaves"


def _decode(mechanism: Mechanism, release: Release) -> NDArray[np.float64]:
    codes = release.payload["z"]
    return codes.astype(np.float64) if mechanism.grid is None else mechanism.grid.decode(codes)
