"""Draws whose place on the public grid is certain: exact arithmetic settles the cases that float64 leaves open.

A sampler is a function of real uniforms. In float64 it sees the midpoint of each one's cell (2^-52 wide) and rounds on
the way. So a draw close to a boundary of the grid may end on the wrong side: for one release in 10^9, which a million
users make a hundredth (measured: rounding alone 1.3e-11 a release).

**Theorem.** Let every row have a bound on the distance of its float64 draw from the exact one, at any point of its
uniforms' cells. If no coordinate of a row lies that close to a boundary, the row rounds as the exact draw does. For the
others the uniforms are refined to 2^-104 (`further`), and the draw is evaluated in decimals. So the released integers
have the law of exact arithmetic on uniforms of 104 bits, whatever the input: the argument of mechanisms.spherical holds
with 2^-104 for 2^-52.

A row is settled once in millions, in milliseconds. The uniforms, and all draws that were certain, stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
from scipy.special import ndtri

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.decimals import normal_quantile, precise
from mechanisms.quantizer import Quantizer
from mechanisms.streams import LATTICE, source

#: Half a unit in the last place of 1.
UNIT = 2.0**-53
#: Largest relative error of SciPy's inverse normal distribution (tests check it).
NORMAL = 2.0**-50


_CELL = Decimal(LATTICE)  # exact, as a power in the default context would not be
_HALF = Decimal("0.5")


def certify(
    draws: FloatArray,
    doubt: FloatArray,
    grid: Quantizer,
    uniforms: FloatArray,
    further: Callable[[IntArray], FloatArray],
    exact: Callable[[int, Sequence[Decimal]], Sequence[Decimal]],
) -> None:
    """Change draws (n, m) in place, so that the grid rounds each as it would round the exact one.

    Args:
        draws: (n, m) float64 draws.
        doubt: (n,) largest distance of a coordinate from the exact one; inf or NaN if unknown.
        grid: Grid of the released integers.
        uniforms: (n, k) midpoints of which the draws were made.
        further: Function from rows to their uniforms' places in the cells, (rows, k).
        exact: Function from a row and its k uniforms to its m exact coordinates.
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


def further(rng: Any, first: int, k: int) -> Callable[[IntArray], FloatArray]:
    """Return `certify`'s argument for rows counted from row `first` of a source that just gave k uniforms a row."""
    return lambda rows: source(rng).further(rows + first, k)


def normal_doubt(uniforms: FloatArray) -> FloatArray:
    """Bound the distance of each row's normals from any in their cells, (n, k) uniforms -> (n,).

    With t the smaller tail of u, φ(z) >= 0.797·t (the hazard rate is least at 0, where it is sqrt(2/π)). So half a cell
    moves z by at most 2^-53/(0.797·t), and the tail changes by less than a thousandth of itself.
    """
    tail = np.minimum(uniforms.min(axis=1, initial=0.5), 1.0 - uniforms.max(axis=1, initial=0.5))
    return np.where(tail > 2.0**-40, 1.26 * UNIT / tail, np.inf)


#: Keeps a vector of normals that vanishes in float64 (probability below 2^-50) from becoming NaN.
_TINY = 1e-300


def tangent_normal(
    x: FloatArray, length: FloatArray, sine: FloatArray, cosine: FloatArray, uniforms: FloatArray, out: FloatArray
) -> FloatArray:
    """Compute y = cos θ·x + sin θ·ξ for each row, ξ a uniform unit tangent at x (the tangent-normal decomposition).

    An error e of the vector z turns ξ by at most 2·e/|t|. Normals are off by `normal_doubt` each and by a relative
    `NORMAL`; x/|x| and sums of m products by (m + 4) units in the last place of |z|, at each of two sums.

    Args:
        x: (n, m) rows.
        length: (n, 1) length of each.
        sine: (n,) of the angle.
        cosine: (n,) of the angle.
        uniforms: (n, m), each a normal of a vector z whose part t orthogonal to x, normalized, is ξ.
        out: (n, m), filled with y.

    Returns:
        (n,) bounds on the distance of a coordinate from the exact one, without the error of the angle
        (`mechanisms.certified`).
    """
    m = x.shape[1]
    tangent = ndtri(uniforms, out=out)
    unit = x / length
    along = np.einsum("ij,ij->i", tangent, unit)
    tangent -= along[:, None] * unit
    scale = np.maximum(np.sqrt(np.einsum("ij,ij->i", tangent, tangent)), _TINY)
    tangent *= (sine / scale)[:, None]
    unit *= cosine[:, None]
    tangent += unit
    size = scale + np.abs(along)  # at least |z|
    off = math.sqrt(m) * normal_doubt(uniforms) + (NORMAL + (2 * m + 16) * UNIT) * size
    doubt: FloatArray = 2.0 * sine * off / scale + (4 * m + 64) * UNIT
    return doubt


def exact_tangent_normal(x: FloatArray, sine: Decimal, cosine: Decimal, uniforms: Sequence[Decimal]) -> list[Decimal]:
    """Return the same for one row x (m,), normalized exactly, within `decimals.precise`: m coordinates."""
    row = [Decimal(float(value)) for value in x]
    length = sum((value * value for value in row), Decimal(0)).sqrt()
    unit = [value / length for value in row]
    normals = [normal_quantile(u) for u in uniforms]
    along = sum((z * e for z, e in zip(normals, unit, strict=True)), Decimal(0))
    tangent = [z - along * e for z, e in zip(normals, unit, strict=True)]
    scale = sum((t * t for t in tangent), Decimal(0)).sqrt()
    return [cosine * e + sine * t / scale for e, t in zip(unit, tangent, strict=True)]
