"""What every mechanism is: a frozen object whose fields are its public parameters."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.loss import LossCells
from mechanisms.grid import Grid
from mechanisms.guarantee import Guarantee


class Uniforms(Protocol):
    """A source of randomness: a fixed number of uniforms for each row, and rows never share a stream."""

    def uniform(self, rows: int, k: int) -> NDArray[np.float64]:
        """Shape (rows, k), float64 in the open interval (0, 1)."""
        ...


class Mechanism(Protocol):
    """A randomizer with its theorem.

    name: its catalogue name. channel: what it sanitizes, "embedding" or "label" (or "text").
    grid: what its outputs are rounded to on the wire; None where they are integers already.
    """

    name: ClassVar[str]
    channel: ClassVar[str]

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def grid(self) -> Grid | None: ...

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
        """One independent draw for each row of x. Same shape as x."""
        ...

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Loss of a pair that dominates all pairs within `distance` (None: of the whole domain)."""
        ...


def parameters(mechanism: Any) -> dict[str, Any]:
    """The public parameters of a mechanism, JSON-ready, its catalogue name under "mechanism"."""
    values = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    return {"mechanism": mechanism.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
