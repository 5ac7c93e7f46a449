"""What every arm that asks users does: ask, count what came, and write a line of the table."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms import catalogue
from mechanisms.accounting.ladder import text_statement
from mechanisms.composition import metric_statement
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.projection import softmax
from mechanisms.request import Request
from mechanisms.text import Text
from server.maps import Maps
from simulations.arm_ladder import Spent
from simulations.evaluation import Score, Truth, score
from simulations.experiment import PUBLIC_ONLY, Arm, Experiment, slug
from simulations.gather import Users
from simulations.prepare import Prepared, Progress
from simulations.resume import Journal
from simulations.shuffler import Batch, Origin

#: Where an arm's saved model keeps the maps that training users were sent.
ASKED = "asked"


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
    """What an arm gives to the report: the trained maps (None where nothing came to train them on), one JSON-ready
    line, and what its users released. asked: the maps that training users were sent, where they released embeddings."""

    maps: Maps | None
    line: dict[str, Any]
    spent: Spent
    asked: Maps | None = None


class ArmBase:
    """One arm and whoever answers it. The server's part sees releases and public data; only `Truth` knows more.

    journal: of a run that may be resumed; it is told of every request before users are.
    """

    def __init__(
        self, experiment: Experiment, arm: Arm, prepared: Prepared, *, journal: Journal | None = None
    ) -> None:
        self.experiment = experiment
        self.arm = arm
        self.prepared = prepared
        self.journal = journal
        self.slug = slug(arm.name)
        self.classes = len(prepared.split.train.classes)
        self.delivery = Delivery()
        users = experiment.population.users
        self.enrolled = {"train": range(users), "test": range(users, users + len(prepared.test_rows))}

    # -- what users release -------------------------------------------------------------------------------------

    def label_mechanism(self) -> Mechanism:
        spec = self.arm.label or {"mechanism": "identity"}
        return catalogue.build(spec, channel="label", classes=self.classes)

    def log_transition(
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

    def request(self, *, stage: str, split: str, **asked: Any) -> Request:
        """A request of this arm; `asked` says which channels, and by which parameters."""
        none: dict[str, Any] = {"encoder": "", "mean": None, "m1": None, "embedding": None, "label": None}
        return Request(**none | {
            "arm": self.slug,
            "stage": stage,
            "split": split,
            "classes": self.classes,
            "minimum_users": self.experiment.shuffle.minimum_users if self.experiment.shuffle.enabled else 0,
        } | asked)  # fmt: skip

    def collect_tests(self, users: Users, request: Request, progress: Progress) -> tuple[Batch, Origin]:
        """As `collect`, of test users: the table counts what the training users delivered."""
        keep = self.delivery
        self.delivery = Delivery(stages=keep.stages, errors=keep.errors)
        batch, origin = self.collect(users, request, progress)
        keep.dropped.update({f"test: {reason}": n for reason, n in self.delivery.dropped.items()})
        self.delivery = keep
        return batch, origin

    def score(self, guesses: NDArray[np.int64], origin: Origin) -> Score | None:
        """The guesses (n,) of a shuffled batch of test users against the truth; None where none can be compared."""
        held, test = self.prepared.test_held, self.prepared.split.test
        truth = Truth(held.users, held.records, test.labels[self.prepared.test_rows]).of(origin)
        known = truth >= 0
        if not known.all():
            self.delivery.dropped["test: unknown record"] += int((~known).sum())
        if not known.any():
            return None
        return score(guesses[known], truth[known], sentences=len(test))

    def collect(self, users: Users, request: Request, progress: Progress) -> tuple[Batch, Origin]:
        """One stage: ask, and count what came and what did not.

        Raises UserError where the request is not the one that users of this stage have answered before.
        """
        if self.journal is not None:
            self.journal.ask(request)
        gathered = users.gather(request, enrolled=self.enrolled[request.split])
        batch = gathered.batch
        self.delivery.dropped.update(gathered.dropped)
        self.delivery.errors.update(gathered.errors)
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
        return batch, gathered.origin

    def spent(self, *, embedding: Mechanism | None = None, text: Text | None = None) -> Spent:
        """What the accounting needs to know: mechanisms, and the users that the shuffler delivered, stage by stage."""
        asked = self.arm.way != PUBLIC_ONLY
        return Spent(
            embedding=embedding,
            label=self.label_mechanism() if asked else None,
            train=tuple(n for stage, n in self.delivery.stages.items() if stage != "test") if asked else None,
            test=self.delivery.stages.get("test"),
            text=text,
        )

    # -- the line of the table ----------------------------------------------------------------------------------

    def line(
        self, released: Mechanism | None, spec: dict[str, Any] | None, *, dim: int, sanitized: Score | None,
        clean: Score | None, seconds: float,
    ) -> dict[str, Any]:  # fmt: skip
        """The arm in the table. released: the mechanism of its texts or embeddings, as `spec` of the arm names it;
        None where none is released."""
        arm, delivery, policy = self.arm, self.delivery, self.experiment.policy
        asked = arm.way != PUBLIC_ONLY
        public_label = asked and arm.label is None and policy.accepts_unprotected("label")
        label = self.label_mechanism().guarantee if asked and not public_label else None
        return {
            "name": arm.name,
            "mechanism": None if released is None else released.name,
            "label_mechanism": (arm.label or {}).get("mechanism"),
            "epsilon": (spec or {}).get("epsilon"),
            "label_epsilon": (arm.label or {}).get("epsilon"),
            "dim": dim,
            "accuracy": None if sanitized is None else sanitized.accuracy,
            "accuracy_se": None if sanitized is None else sanitized.error,
            "accuracy_clean_test": None if clean is None else clean.accuracy,
            "accuracy_clean_test_se": None if clean is None else clean.error,
            "users": 0 if arm.way == PUBLIC_ONLY else self.experiment.population.users,
            "delivered": delivery.delivered,
            "dropped": dict(delivery.dropped),
            "errors": dict(delivery.errors),
            "bytes_per_user": delivery.bytes / delivery.delivered if delivery.delivered else 0,
            "seconds": seconds,
            "reference": arm.reference,
            "way": arm.way or self.experiment.training.way,
            "budget": self._budget(released, label, public_label),
        }

    def _budget(self, released: Mechanism | None, label: Guarantee | None, public_label: bool) -> dict[str, Any]:
        policy = self.experiment.policy
        statement = _in_words(released, label) + ("; labels in clear, declared public" if public_label else "")
        one = released.guarantee if released is not None else None
        if isinstance(released, Text):
            word = released.word.guarantee
            for name in released.guarantee.exposes if math.isfinite(word.epsilon) else ():
                statement += f"; {EXPOSURES[name]}: in clear" + (", declared public" if name in policy.declared else "")
            one = word
        return {
            "metric_epsilon": None if one is None else one.epsilon,
            "metric": None if one is None else f"words, {one.metric}" if isinstance(released, Text) else one.metric,
            "statement": statement,
            "worst_case_epsilon": (
                None if released is None else released.guarantee.worst_case(policy.delta, declared=policy.declared)
            ),
            "label_epsilon": None if label is None else label.worst_case(),
        }


def _in_words(released: Mechanism | None, label: Guarantee | None) -> str:
    """The bound on the loss of what leaves, for people: no "inf" where a word says it."""
    spent = [g for g in (None if released is None else released.guarantee, label) if g is not None]
    if any(math.isinf(g.epsilon) for g in spent):
        unprotected = any(math.isinf(g.epsilon) and g.sigma is None for g in spent)
        return "no protection" if unprotected else "no bound at δ = 0, as of all Gaussian noise"
    if isinstance(released, Text):
        return " + ".join([text_statement(released), *([] if label is None else [metric_statement([label])])])
    return metric_statement(spent) if spent else "nothing leaves"
