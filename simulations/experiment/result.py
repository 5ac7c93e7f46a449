"""Results of one arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from server.protocols.drive import Driver
from server.protocols.protocol import Channels, Model
from server.protocols.public_maps import dim_of
from simulations.experiment.arm import DEFAULT_DIM
from simulations.experiment.guarantees import Promise, Released, promise, released
from simulations.experiment.setup import ArmSetup

Rungs = list[dict[str, Any]] | None


@dataclass(frozen=True)
class Score:
    """Accuracy and its standard error, over the distinct texts that were predicted."""

    accuracy: float
    error: float


@dataclass(frozen=True)
class ArmResult:
    """One line of the result table, with its details.

    Args:
        name: Name of the arm.
        mechanism: Name of its mechanism.
        label_mechanism: Name of its label mechanism.
        epsilon: ε that the arm names.
        label_epsilon: ε that the arm names for labels.
        dim: m'.
        accuracy: Accuracy on sanitized test sentences; None if none could be scored.
        accuracy_se: Standard error of accuracy.
        accuracy_clean_test: Accuracy on the device.
        accuracy_clean_test_se: Standard error of accuracy_clean_test.
        users: Number of training users.
        delivered: Number of training users of whom something reached the server.
        dropped: Lost rows, by reason.
        errors: Nodes without a result, by reason.
        bytes_per_user: Size of releases; None if nothing is released.
        seconds: Duration.
        reference: True for a reference arm.
        way: Training protocol.
        budget: Guarantee of one user's release.
        ladder: Privacy loss of a training user, rung by rung; None if they released nothing.
        test_ladder: The same for a test user.
        model: Folder of the trained model, inside the run's.
        parameters: All entries of its mechanism tables, by "table.key".
        measures: Measures that the experiment requests beside accuracy, "sanitized" and "on_device", each with a value
            and its error.
        perturbed: Counts for released texts, by split: "words" that users wrote, and how many are "perturbed".
        guessed: Number of predictions of each class, in the order of the run's classes, "sanitized" and "on_device".
    """

    name: str
    mechanism: str | None
    label_mechanism: str | None
    epsilon: float | None
    label_epsilon: float | None
    dim: int
    accuracy: float | None
    accuracy_se: float | None
    accuracy_clean_test: float | None
    accuracy_clean_test_se: float | None
    users: int
    delivered: int
    dropped: Mapping[str, int]
    errors: Mapping[str, int]
    bytes_per_user: float | None
    seconds: float
    reference: bool
    way: str
    budget: Promise
    ladder: Rungs = None
    test_ladder: Rungs = None
    model: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)
    perturbed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    guessed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def scored(self, sanitized: Score | None, clean: Score | None) -> ArmResult:
        """Return a copy with accuracies; None if there is nothing to score."""
        return replace(
            self,
            accuracy=None if sanitized is None else sanitized.accuracy,
            accuracy_se=None if sanitized is None else sanitized.error,
            accuracy_clean_test=None if clean is None else clean.accuracy,
            accuracy_clean_test_se=None if clean is None else clean.error,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of results.json, except that infinity stays a float."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ArmResult:
        """Return the inverse of `to_dict`.

        Raises:
            TypeError: A field is missing or unknown.
        """
        return cls(**{**values, "budget": Promise(**values["budget"])})


def arm_result(
    setup: ArmSetup, channels: Channels, model: Model | None, driver: Driver, *, seconds: float
) -> ArmResult:
    """Return the result of an arm before scoring: without accuracies and ladders."""
    arm, what = setup.arm, released(setup, channels, model, driver)
    teaching, asking = driver.teaching, driver.asking
    spec = arm.statistic or arm.embedding or arm.text or arm.answer or {}
    return ArmResult(
        name=arm.name,
        mechanism=what.name,
        label_mechanism=(arm.label or {}).get("mechanism"),
        epsilon=spec.get("epsilon"),
        label_epsilon=(arm.label or {}).get("epsilon"),
        dim=_dim(what, channels, model),
        accuracy=None,
        accuracy_se=None,
        accuracy_clean_test=None,
        accuracy_clean_test_se=None,
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
    )


def _dim(what: Released, channels: Channels, model: Model | None) -> int:
    """Return m', even if nothing of it leaves a device; for user vectors, the number of features."""
    if channels.statistic is not None:
        return channels.features or (DEFAULT_DIM if model is None or model.asked is None else model.asked.dim)
    if what.embedding is not None:
        return dim_of(what.embedding)
    return DEFAULT_DIM if model is None or channels.text is not None else model.maps.dim
