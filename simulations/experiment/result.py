"""Results of one arm, and the metrics in them that tables show."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any, NamedTuple

from mechanisms.accounting import liars
from mechanisms.identity import Identity
from mechanisms.messages.questions import LabelQuestion
from server.card import PAYERS
from server.protocols.drive import Driver
from server.protocols.models import Model
from server.protocols.protocol import Channels
from server.training.public_maps import dim_of
from server.training.robust_mean import BatchTest
from simulations.experiment.arm import DEFAULT_DIM, ArmSetup
from simulations.experiment.guarantees import Promise, promise, releases
from simulations.experiment.ladder import Releases, of_run

log = logging.getLogger(__name__)

Rungs = Sequence[Mapping[str, Any]] | None

#: Test texts that a model is scored on: sanitized ones as they arrived, and clear ones on the device.
SPLITS = ("sanitized", "on_device")
#: Measures that tables for people show, with their headings: results.md, the terminal, tables of sweeps,
#: the report, the model card. Groups of a measure, named "measure: group", have a table of their own.
SHOWN: dict[str, str] = {name: name for name in ("matthews", "macro-f1", "auroc", "auprc", "pearson", "spearman")} | {
    "by-class": "accuracy by class",
    "by-group": "accuracy by group",
    "by-user": "accuracy over users",
    "own-labels": "accuracy with own labels",
}
#: Keys under which "inf" is a number, not a name.
_NUMBERS = ("epsilon", "worst_case", "claimed", "exact", "measured")


@dataclass(frozen=True)
class Score:
    """Accuracy and its standard error, over the distinct texts that were predicted."""

    accuracy: float
    error: float | None


class Estimate(NamedTuple):
    """Value of a metric of one arm: a row of the results table.

    Args:
        metric: Name of the metric; "measure: group" for a group of texts or users.
        split: One of SPLITS; None if the metric does not depend on test texts.
        value: Value, finite.
        standard_error: Standard error over distinct test texts; None if there is none.
        n: Number of predictions; None if it is unknown or does not apply.
    """

    metric: str
    split: str | None
    value: float
    standard_error: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class ArmResult:
    """One line of the result table, with its details.

    Args:
        name: Name of the arm.
        mechanism: Name of its mechanism.
        label_mechanism: Name of its label mechanism.
        epsilon: ε that the arm names.
        label_epsilon: ε that the arm names for labels.
        dim: m'; None before a run.
        accuracy: Accuracy on sanitized test sentences; None if none could be scored.
        accuracy_se: Standard error of accuracy.
        accuracy_clean_test: Accuracy on the device.
        accuracy_clean_test_se: Standard error of accuracy_clean_test.
        users: Number of training users.
        delivered: Number of training users of whom something reached the server; None before a run.
        dropped: Lost rows, by reason.
        errors: Nodes without a result, by reason.
        bytes_per_user: Size of releases; None if nothing is released.
        seconds: Duration; None before a run.
        reference: True for a reference arm.
        way: Training protocol.
        budget: Guarantee of one user's release.
        ladder: Privacy loss of a training user, rung by rung; None if they released nothing.
        test_ladder: The same for a test user.
        model: Folder of the trained model, inside the run's.
        parameters: All entries of its mechanism tables, by "table.key".
        measures: Measures beside accuracy, by split: of each a value and its error, and of a group n.
        perturbed: Counts for released texts, by split: "words" that users wrote, and how many are "perturbed".
        guessed: Number of predictions of each class, in the order of the run's classes, by split.
        liars: How far dishonest training users move the estimate, in a sentence; "" if no bound is known. None is of a
            model that is trained on texts.
        batch_tests: Tests of batches for dishonest users.
        queried: False if the protocol chose to query no training user, because users would add next to nothing to
            class names that are right.
        doubts: What public labels or users say against the class names.
    """

    name: str
    mechanism: str | None = None
    label_mechanism: str | None = None
    epsilon: float | None = None
    label_epsilon: float | None = None
    dim: int | None = None
    accuracy: float | None = None
    accuracy_se: float | None = None
    accuracy_clean_test: float | None = None
    accuracy_clean_test_se: float | None = None
    users: int = 0
    delivered: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    bytes_per_user: float | None = None
    seconds: float | None = None
    reference: bool = False
    way: str = ""
    budget: Promise = field(default_factory=Promise)
    ladder: Rungs = None
    test_ladder: Rungs = None
    model: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)
    perturbed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    guessed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    liars: str = ""
    batch_tests: Sequence[BatchTest] = ()
    queried: bool = True
    doubts: Sequence[str] = ()

    def scored(self, sanitized: Score | None, clean: Score | None) -> ArmResult:
        """Return a copy with accuracies; None if there is nothing to score."""
        return replace(
            self,
            accuracy=None if sanitized is None else sanitized.accuracy,
            accuracy_se=None if sanitized is None else sanitized.error,
            accuracy_clean_test=None if clean is None else clean.accuracy,
            accuracy_clean_test_se=None if clean is None else clean.error,
        )

    @property
    def ladders(self) -> dict[str, Rungs]:
        """Return the ladders of a training user and of a test user, by whose they are."""
        return {PAYERS["ladder"]: self.ladder, PAYERS["test_ladder"]: self.test_ladder}

    def score(self, split: str) -> Score | None:
        """Return the accuracy on a split; None if nothing could be scored."""
        value, error = {
            "sanitized": (self.accuracy, self.accuracy_se),
            "on_device": (self.accuracy_clean_test, self.accuracy_clean_test_se),
        }[split]
        return None if value is None or not _is_finite(value) else Score(value, error if _is_finite(error) else None)

    def estimates(self) -> Iterator[Estimate]:
        """Yield accuracies, measures and numbers; a metric without a finite value is left out."""
        predicted = {split: sum(self.guessed.get(split) or ()) or None for split in SPLITS}
        for split in SPLITS:
            if (score := self.score(split)) is not None:
                yield Estimate("accuracy", split, score.accuracy, score.error, predicted[split])
        for split, measures in self.measures.items():
            for name, measure in measures.items():
                if measure and _is_finite(measure["value"]):
                    error = measure["error"] if _is_finite(measure["error"]) else None
                    yield Estimate(name, split, measure["value"], error, measure.get("n", predicted[split]))
        for name in ("users", "delivered", "bytes_per_user", "dim", "seconds"):
            if (value := getattr(self, name)) is not None:
                yield Estimate(name, None, float(value))

    def estimate(self, metric: str, split: str | None) -> Estimate | None:
        """Return one metric; None if it has no finite value."""
        return next((estimate for estimate in self.estimates() if estimate[:2] == (metric, split)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of results.json, except that infinity stays a float."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ArmResult:
        """Return the inverse of `to_dict`, also of JSON, where infinity is "inf".

        A field that the entry lacks, as of an older version, has its default. Unknown fields are left out.

        Raises:
            TypeError: The entry has no name.
        """
        return cls(**_known(cls, values))


def arms_of(results: Mapping[str, Any]) -> tuple[ArmResult, ...]:
    """Return the arms of a run, as results.json has them."""
    return tuple(map(ArmResult.from_dict, results["arms"]))


def with_infinity(value: Any) -> Any:
    """Return JSON content with "inf" as a number under keys of numbers."""
    if isinstance(value, Mapping):
        return {
            key: math.inf
            if entry == "inf" and key.removesuffix("_at_delta").endswith(_NUMBERS)
            else with_infinity(entry)
            for key, entry in value.items()
        }
    return [with_infinity(entry) for entry in value] if isinstance(value, list | tuple) else value


def _known(of: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {attribute.name for attribute in fields(of)}
    entries = {key: value for key, value in with_infinity(values).items() if key in names and value is not None}
    if "budget" in entries:
        entries["budget"] = Promise(**_known(Promise, entries["budget"]))
    if "batch_tests" in entries:
        entries["batch_tests"] = tuple(BatchTest(**_known(BatchTest, test)) for test in entries["batch_tests"])
    return entries


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def arm_result(
    setup: ArmSetup,
    channels: Channels,
    model: Model | None,
    driver: Driver,
    *,
    seconds: float,
    records: int | None,
    test_records: int | None,
) -> ArmResult:
    """Return the result of an arm before scoring, without accuracies. For `records`, see `of_run`."""
    log.info(f"{setup.arm.name}: accounting: what one user's releases cost, rung by rung")
    arm, what = setup.arm, releases(setup, channels, model, driver)
    teaching, asking = driver.teaching, driver.asking
    spec = arm.statistic or arm.embedding or arm.text or arm.answer or {}
    return ArmResult(
        name=arm.name,
        mechanism=what.name,
        label_mechanism=(arm.label or {}).get("mechanism"),
        epsilon=spec.get("epsilon"),
        label_epsilon=(arm.label or {}).get("epsilon"),
        dim=_dim(what, channels, model),
        users=0 if arm.public_only else setup.users,
        delivered=teaching.users,
        dropped=dict(teaching.dropped) | {f"test: {reason}": n for reason, n in asking.dropped.items()},
        errors=dict(teaching.errors + asking.errors),
        bytes_per_user=teaching.bytes / teaching.users if teaching.users else 0,
        seconds=seconds,
        reference=arm.reference,
        way=setup.way,
        budget=promise(setup.policy, what),
        parameters=arm.parameters,
        liars="" if setup.protocol.releases_text else _liars(driver),
        batch_tests=getattr(model, "tests", ()),
        queried=bool(teaching.requests) or not channels.teaching,
        doubts=list(getattr(model, "doubts", ())),
        **of_run(setup, what, records=records, test_records=test_records),
    )


def _liars(driver: Driver) -> str:
    """Return how far dishonest training users move what is estimated from the last stage's vectors or labels.

    "" for labels in clear: the bound of a mechanism without noise is about vectors.
    """
    questions = [question for request in driver.teaching.requests.values() for question in request.questions]
    questions = [
        question
        for question in questions
        if not (isinstance(question, LabelQuestion) and isinstance(question.mechanism, Identity))
    ]
    bounds = [liars.told(question.mechanism, question.clip) for question in questions if question.reads_labels]
    return bounds[-1] if bounds else ""


def _dim(what: Releases, channels: Channels, model: Model | None) -> int:
    """Return m', even if nothing of it leaves a device; for user vectors, the number of features."""
    if channels.statistic is not None:
        return channels.features or (DEFAULT_DIM if model is None or model.asked is None else model.asked.dim)
    if what.embedding is not None:
        return dim_of(what.embedding)
    return DEFAULT_DIM if model is None or channels.text is not None else model.maps.dim
