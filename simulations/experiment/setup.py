"""Setup of one arm: what its users, its server and its accounting need of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from client.policy import Policy
from mechanisms.mechanism import Mechanism
from server.protocols.declaration import TrainingProtocol
from simulations.experiment.arm import Arm, statistic_of
from simulations.experiment.sections import Shuffle


@dataclass(frozen=True)
class ArmSetup:
    """Arm with what its experiment settles for it.

    Args:
        arm: The arm.
        protocol: Training protocol of its users.
        policy: Policy of its clients.
        declared: Channels and exposures that the experiment declares public, each with its reason.
        shuffle: Settings of the shuffler.
        users: Number of training users.
        answering: Number of users who are expected to answer together: all, or those of one stage.
        stages: Number of stages in which users release, each user in one of them.
        epochs: Epochs of a training end to end.
        classes: Number of classes that the file names.
        shared_codes: True if user vectors also encode where the users' texts lie, beside public text of another domain.
        records: Number of records of a training user; None if the data tell.
        test_records: Number of records of a test user; None if the data tell.
    """

    arm: Arm
    protocol: TrainingProtocol
    policy: Policy
    declared: Mapping[str, str]
    shuffle: Shuffle
    users: int
    answering: int
    stages: int
    epochs: int
    classes: int
    shared_codes: bool
    records: int | None
    test_records: int | None

    @property
    def way(self) -> str:
        """Return the name of the arm's protocol; "public-only" and "centralised" arms have their own."""
        return self.arm.way or self.protocol.name

    @property
    def shuffled(self) -> bool:
        """Return True if the releases of the arm's users are shuffled."""
        return self.shuffle.enabled and self.protocol.private

    @property
    def statistic(self) -> Callable[[int], Mechanism] | None:
        """Return a function from the number D of coordinates to the mechanism of the arm's user vectors, or None."""
        users = self.answering if self.shuffle.enabled else None
        return statistic_of(self.arm, users=users, delta=self.shuffle.delta)
