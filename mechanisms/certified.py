"""Draws whose place on the public grid is certain: what float64 and 52 bits of a uniform leave open is settled exactly.

A sampler is a function of real uniforms. In float64 it sees the midpoint of each one's cell (2^-52 wide) and rounds on
the way, so that a draw next to a boundary of the grid may come out on the wrong side: for one release in 10^9, which a
million users make a hundredth (measured: rounding alone 1.3e-11 a release).

**Theorem.** Let every row come with a bound on how far its float64 draw is from the exact one, at any point of its
uniforms' cells. A row none of whose coordinates lies that near to a boundary rounds to what the exact draw rounds to.
For the others the uniforms are drawn on, to 2^-104 (`further`), and the draw is evaluated in decimals. So the released
integers have the law of exact arithmetic on uniforms of 104 bits, whatever the input: the argument of
mechanisms.spherical holds with 2^-104 for 2^-52.

Nothing of this shows: a row is settled once in millions, in milliseconds. The uniforms, and all draws that were certain
before, are what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.decimals import precise
from mechanisms.quantizer import Quantizer
from mechanisms.streams import LATTICE

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Half a unit in the last place of 1.
UNIT = 2.0**-53
#: SciPy's inverse normal distribution: its largest relative error (tests hold it to this).
NORMAL = 2.0**-50
class Source(Protocol):
    """Of uniforms that can be drawn on: `mechanism.Uniforms`."""

    def further(self, rows: IntArray, k: int) -> FloatArray: ...


_CELL = Decimal(LATTICE)  # exact, as a power in the default context would not be
_HALF = Decimal("0.5")


def certify(
    draws: FloatArray, doubt: FloatArray, grid: Quantizer, uniforms: FloatArray,
    further: Callable[[IntArray], FloatArray],
    exact: Callable[[int, Sequence[Decimal]], Sequence[Decimal]],
) -> None:  # fmt: skip
    """Changes draws (n, m), so that the grid rounds each as it would the exact one.

    doubt: (n,), how far a coordinate may be from the exact one; inf or not-a-number where nobody knows. uniforms:
    (n, k), midpoints that the draws were made of. further: for some rows, where in their cells these lie, (rows, k).
    exact: (row, its k uniforms) -> its m exact coordinates.
    """
    steps = draws / grid.step
    steps -= np.rint(steps)  # ±1/2 at a boundary
    away = np.maximum(steps.max(axis=1, initial=0.0), -steps.min(axis=1, initial=0.0))
    rows = np.flatnonzero(~(0.5 - away > doubt / grid.step))
    if not len(rows):
        return
    shares = further(rows)
    with precise():
        step = Decimal(grid.step)
        for row, share in zip(rows, shares, strict=True):
            fine = [Decimal(u) + (Decimal(v) - _HALF) * _CELL for u, v in zip(uniforms[row], share, strict=True)]
            for at, value in enumerate(exact(int(row), fine)):
                near = float(value)
                code = int((value / step).to_integral_value(ROUND_HALF_EVEN))
                draws[row, at] = near if np.rint(near / grid.step) == code else code * grid.step


def further(rng: Source, first: int, k: int) -> Callable[[IntArray], FloatArray]:
    """`certify`'s: of rows that are counted from row `first` of the source, which has just given k uniforms a row."""
    return lambda rows: rng.further(rows + first, k)


def normal_doubt(uniforms: FloatArray) -> FloatArray:
    """Of rows (n, k) that become normals: how far each of a row's normals may be from any in its cell, (n,).

    With t the smaller tail of u, φ(z) >= 0.797·t (the hazard rate is least at 0, where it is sqrt(2/π)), so half a cell
    moves z by at most 2^-53/(0.797·t), and the tail changes by less than a thousandth of itself.
    """
    tail = np.minimum(uniforms.min(axis=1, initial=0.5), 1.0 - uniforms.max(axis=1, initial=0.5))
    return np.where(tail > 2.0**-40, 1.26 * UNIT / tail, np.inf)
