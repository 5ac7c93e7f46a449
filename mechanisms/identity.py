"""Identity mechanism, which passes values through; ledgers show its infinite guarantee like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray
from mechanisms.channels import CHANNELS, Domain
from mechanisms.facts import Facts
from mechanisms.guarantee import Guarantee, unprotected
from mechanisms.losses.loss import LossCells, checked_distance, no_loss, unbounded_loss
from mechanisms.mechanism import Uniforms
from mechanisms.metrics import SPHERE_DIAMETER
from mechanisms.quantizer import SPHERE, Quantizer


@dataclass(frozen=True)
class Identity:
    """Mechanism without protection.

    Attributes:
        channel: Channel whose inputs are vectors or classes.
        size: Number of coordinates of a vector, or number of classes.
    """

    channel: str
    size: int

    name: ClassVar[str] = "identity"
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(
        usual={"channel": "embedding", "size": 16}, tried={"channel": ("embedding", "answer", "label"), "size": (5,)}
    )

    def __post_init__(self) -> None:
        channels = [c.name for c in CHANNELS.values() if c.domain is not Domain.TEXT]
        checks.one_of(self.name, "channel", self.channel, tuple(channels))
        object.__setattr__(self, "size", checks.integer(self.name, "size", self.size, 2, 100_000))

    @property
    def grid(self) -> Quantizer | None:
        """Return the quantizer of vectors; None for classes."""
        return SPHERE if self._domain.vectors else None

    @property
    def _domain(self) -> Domain:
        return CHANNELS[self.channel].domain

    @property
    def guarantee(self) -> Guarantee:
        """Return a guarantee of ε = ∞ between any two inputs."""
        protects = CHANNELS[self.channel].protects[0]
        if self._domain is Domain.SPHERE:
            return unprotected("angular", protects, SPHERE_DIAMETER["angular"])
        return unprotected("discrete", protects, 1.0)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return an unbounded loss, for any two inputs that differ."""
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return unbounded_loss() if apart > 0 else no_loss()

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
        """Return the input: vectors of unit length, normalized exactly, or classes. No uniform is drawn.

        Raises:
            ValueError: The input is invalid.
        """
        if self._domain is Domain.CLASSES:
            return checks.labels(self.name, x, self.size)
        if self._domain is Domain.BALL:
            return checks.ball_rows(self.name, x, self.size)
        rows, length = checks.unit_rows(self.name, x, self.size)
        unit: FloatArray = rows / length
        return unit
