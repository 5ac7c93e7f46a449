"""Public grid to which float outputs are rounded before they leave a client.

The low bits of a float can reveal its input (Mironov 2012); an integer of a fixed, public grid cannot. Rounding and
clipping are post-processing and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray


@dataclass(frozen=True)
class Quantizer:
    """Multiples of `step` that fit a signed integer of `bits` (16 or 32). Values beyond are clipped."""

    bits: int
    step: float

    def __post_init__(self) -> None:
        if self.bits not in (16, 32):
            raise ValueError(f"grid: bits must be 16 or 32, got {self.bits}")
        if not 0 < self.step < np.inf:
            raise ValueError(f"grid: step must be positive and finite, got {self.step}")

    @property
    def dtype(self) -> np.dtype[np.signedinteger]:
        """Return the integer type of the grid."""
        return np.dtype(np.int16 if self.bits == 16 else np.int32)

    @property
    def limit(self) -> int:
        """Return the largest magnitude on the grid. The most negative integer is never used."""
        return int(2 ** (self.bits - 1)) - 1

    def encode(self, values: FloatArray) -> NDArray[np.signedinteger]:
        """Return the nearest grid point of each value, as integers of the same shape.

        Raises:
            ValueError: A value is NaN.
        """
        if np.isnan(values).any():
            raise ValueError("grid: a value is not a number")
        return np.rint(np.clip(values / self.step, -self.limit, self.limit)).astype(self.dtype)

    def decode(self, codes: NDArray[np.signedinteger]) -> FloatArray:
        """Return the float64 values of grid integers."""
        return codes.astype(np.float64) * self.step


#: Coordinates of unit vectors: 2 bytes each.
SPHERE = Quantizer(bits=16, step=1.0 / 32767)
#: Unbounded coordinates: 4 bytes each, up to ±32,768.
SPACE = Quantizer(bits=32, step=2.0**-16)
