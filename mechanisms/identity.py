"""Passing values through unchanged: a mechanism like any other, whose infinite guarantee ledgers show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.facts import Absent, Facts, Pair
from mechanisms.guarantee import Guarantee, unprotected
from mechanisms.losses.loss import LossCells, checked_distance, no_loss, unbounded_loss
from mechanisms.mechanism import Uniforms
from mechanisms.metrics import SPHERE_DIAMETER
from mechanisms.quantizer import SPHERE, Quantizer


@dataclass(frozen=True)
class Identity:
    """No protection. channel: "embedding" (unit rows of `size` coordinates), "statistic" (rows of length 1 at most),
    "answer" or "label" (`size` classes)."""

    channel: str
    size: int

    name: ClassVar[str] = "identity"
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(
        usual={"channel": "embedding", "size": 16}, tried={"channel": ("embedding", "answer", "label"), "size": (5,)},
        pair=Pair.ANTIPODAL, slider=Absent("which hides nothing"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.channel not in ("embedding", "statistic", "answer", "label"):
            raise ValueError(
                f"{self.name}: channel must be embedding, statistic, answer or label, got {self.channel!r}"
            )
        object.__setattr__(self, "size", checks.integer(self.name, "size", self.size, 2, 100_000))

    @property
    def grid(self) -> Quantizer | None:
        return None if self.channel in ("answer", "label") else SPHERE

    @property
    def guarantee(self) -> Guarantee:
        if self.channel == "embedding":
            return unprotected("angular", "sequence", SPHERE_DIAMETER["angular"])
        if self.channel == "statistic":
            return unprotected("discrete", "record", 1.0)
        return unprotected("discrete", "sequence" if self.channel == "answer" else "label", 1.0)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Unbounded for any two inputs that differ."""
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return unbounded_loss() if apart > 0 else no_loss()

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
        """The rows, unit ones normalized exactly, or the classes; no uniform is drawn. ValueError on invalid input."""
        if self.channel in ("answer", "label"):
            return checks.labels(self.name, x, self.size)
        if self.channel == "statistic":
            return checks.ball_rows(self.name, x, self.size)
        rows, length = checks.unit_rows(self.name, x, self.size)
        unit: NDArray[np.float64] = rows / length
        return unit
