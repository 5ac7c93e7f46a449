"""Angle between an input and its Purkayastha draw: density sin^(m-2)(θ)·e^(-κθ) on [0, π], normalized.

Everything is in u = log tan(θ/2), where sin θ = sech u, cos θ = -tanh u, dθ = sin θ du. The density of u is exp(f(u))
with f(u) = (m-1) log sech u - κθ(u), smooth on the whole line. No power of a sine can underflow.

**Sampling.** The linear interpolant L of f between knots of one precomputed table replaces f. Within a cell the inverse
distribution function is closed-form, t = log1p(w·expm1(s))/s for a slope s across the cell. Up to about the middle a
knot is known by the mass before it, from there on by the mass after it. So tails keep their digits.

**Error of the approximation (proved).** f''(u) = -(m-1) sech²u + κ sech u tanh u, so on a cell of width h
|L - f| <= η = h²/8·((m-1)·max sech² + κ·max sech·max |tanh|). Each maximum is attained at a known end of the cell. Two
inputs' densities at one output are exp(L) at two angles under the same normalizer, so their log ratio differs from the
exact one by at most 2·max η. Knots are spread with density proportional to the square root of the bound on |f''| (plus
a uniform share for the far tails), which nearly equalizes η over cells. Sums of masses are rounded: a cell's mass, the
difference of two, is then off by a known share of it, which two inputs pay twice.

**Tails (proved).** sin^(m-2)(θ)·e^(-κθ) = e^g with g concave, so the mass beyond a point b is at most e^g(b)/|g'(b)|.
The table ends where this is 2^-61 of the whole on either side. The mass beyond, up to where it is 2^-104 of the whole,
has a table of its own on either side, made in the same way. A draw reaches it by its further digits
(`mechanisms.certified`):

- Let M be the integral of e^L over the table and T that over a tail's. A uniform of 104 bits is (k + s)·2^-52, k whole,
  0 < s < 1. In the K lowest lattice cells, k < K = SHARED, the lowest σ = T/(M·K·2^-52) of each cell goes to the tail:
  s < σ draws at the place (k + s/σ)/K of the tail's table, any other s at (k + (s - σ)/(1 - σ))·2^-52 of the table, in
  the same cell. Both places are uniform. So the density is e^L/M in the tail (K·2^-52·σ/T = 1/M), 1 - σ times that
  where these cells meet the table, and e^L/M elsewhere. The upper end is its mirror image. So L, η and the normalizer
  are one along all three tables. Two inputs' log ratio pays -log(1 - σ) more, with σ at most about
  2^-61/(K·2^-52) = 2^-35. The mass that is cut off is 2^-103.
- The lattice (`mechanisms.spherical`): on the cells' parts that go to a tail the angle grows with the uniform, and
  on all others too. The three tables are disjoint arcs of one half circle, so their crossings are those of the half
  circle. Only the 2K points of 2^-104 in which s passes σ belong to neither: 2K·2^-104.
- A draw from outside these cells is the table's. Within them, except for what goes to a tail, it is the table's at a
  uniform at most σ·2^-52, about 2^-87, away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import gammaln

from mechanisms.arrays import FloatArray
from mechanisms.certified import UNIT
from mechanisms.decimals import PI, sine_cosine
from mechanisms.streams import FINE, LATTICE

#: Cells of a table: 2^15 leave a numeric ε below 1e-6 for every accepted (m, κ), and stay in a core's cache.
CELLS = 2**15
#: Cells of the table of a tail, enough for an error below that of the table.
TAIL_CELLS = 2**13
#: Log of the largest share of the mass beyond the table on each side, and beyond the table of its tail.
_LOG_TAIL, _LOG_CUT = -61 * math.log(2), math.log(FINE)
#: Lattice cells of the uniform, at each end, of which a share goes to the tail. One draw in 2^25 comes from them and
#: takes milliseconds. Fewer of them would give a larger share, which is paid in ε.
SHARED = 2**26
_SHARED, _CELL = Decimal(SHARED), Decimal(LATTICE)
_HALF = Decimal("0.5")
#: Largest error of log densities from float64 in f (its terms reach 4,000) and in the cell masses.
ROUNDOFF = 1e-11
#: A cell whose mass is off by more than this share counts as lost.
_WRONG = 1e-8
# Cell columns are gathered together: one cache line for each draw instead of five.
_START, _INVERSE_MASS, _GROWTH, _SCALE, _KNOT = range(5)


def log_angle_integral(n: int, kappa: float) -> float:
    """Return log F_n, F_n = integral of sin^n(θ) e^(-κθ) over [0, π], in closed form for n >= 0, κ >= 0.

    F_0 = (1 - e^(-κπ))/κ, F_1 = (1 + e^(-κπ))/(1 + κ²), F_n = n(n-1)/(n² + κ²)·F_(n-2) (twice by parts).
    """
    if n % 2:
        total = math.log1p(math.exp(-kappa * math.pi)) - math.log1p(kappa * kappa)
    elif kappa == 0:
        total = math.log(math.pi)
    else:
        total = math.log(-math.expm1(-kappa * math.pi)) - math.log(kappa)
    for j in range(3 if n % 2 else 2, n + 1, 2):
        total += math.log(j * (j - 1)) - math.log(j * j + kappa * kappa)
    return total


@lru_cache(maxsize=256)
def log_normalizer(dim: int, kappa: float) -> float:
    """Return log C(m, κ) of the Purkayastha density C·e^(-κ·angle) on S^(m-1), m >= 2.

    Source: Du et al. 2023, Definition 4.
    """
    half = (dim - 1) / 2
    log_surface = math.log(2) + half * math.log(math.pi) - float(gammaln(half))  # of S^(m-2)
    return -log_surface - log_angle_integral(dim - 2, kappa)


@dataclass(frozen=True, eq=False)
class AngleTable:
    """Inverse distribution function of the angle for m >= 3, with the error of its approximation.

    Attributes:
        cells: (cells, 5), see the column constants.
        middle: First cell that starts beyond the middle.
        masses: (cells,), of the draws.
        numeric_epsilon: Numeric ε of the approximation, in nats.
        numeric_delta: Numeric δ of the approximation.
        total: Sum of the unnormalized masses.
        tails: Tables before and after this one. A tail's table has none.
    """

    cells: FloatArray
    middle: int
    masses: FloatArray
    numeric_epsilon: float
    numeric_delta: float
    total: float
    tails: tuple[AngleTable, AngleTable] | None = None

    @property
    def split(self) -> float:
        """Return the mass before the cells beyond the middle. These start at minus the mass after their first knot."""
        return 1.0 + float(self.cells[self.middle, _START])

    def sine_cosine(self, uniforms: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Draw (sin θ, cos θ) from uniforms (n,) in (0, 1), with bounds on the error of θ, (n,) each."""
        place = np.where(uniforms < self.split, uniforms, uniforms - 1.0)  # exact: uniforms are lattice points
        index = np.searchsorted(self._starts, place, side="right") - 1 + self.middle
        cell = self.cells[np.where(index < len(self.cells), index, index - len(self.cells))]
        growth = (place - cell[:, _START]) * cell[:, _INVERSE_MASS] * cell[:, _GROWTH]
        u = cell[:, _KNOT] + np.log1p(growth) * cell[:, _SCALE]
        tangent = np.exp(u)  # tan(θ/2)
        square = tangent * tangent
        sine = 2.0 * tangent / (1.0 + square)
        moved = np.abs(cell[:, _GROWTH]) * cell[:, _INVERSE_MASS] * (4 * UNIT) / (1.0 + growth)
        turned = _turned(moved, np.abs(cell[:, _SCALE]) * sine)
        shared = np.minimum(uniforms, 1.0 - uniforms) < SHARED * LATTICE  # further digits decide whether it is a tail's
        return sine, (1.0 - square) / (1.0 + square), np.where(shared, np.inf, turned)

    @cached_property
    def _starts(self) -> FloatArray:
        """Return the starts of the cells beyond the middle, then of the others: increasing."""
        return np.roll(self.cells[:, _START], -self.middle)

    def share(self, tail: int) -> float:
        """Return σ, the share of each shared cell that goes to a tail (0: the lower, 1: the upper)."""
        assert self.tails is not None
        return self.tails[tail].total / (self.total * SHARED * LATTICE)

    def exact_sine_cosine(self, uniform: Decimal) -> tuple[Decimal, Decimal]:
        """Return (sin θ, cos θ) of one uniform of 104 bits, tails included; within `decimals.precise`."""
        upper = uniform > _HALF
        cells = (1 - uniform if upper else uniform) / _CELL
        if self.tails is None or cells >= _SHARED:
            return self.inverse(uniform)
        cell = cells.to_integral_value(ROUND_FLOOR)
        within, share = cells - cell, Decimal(self.share(upper))
        if within < share:
            table, place = self.tails[upper], (cell + within / share) / _SHARED
        else:
            table, place = self, (cell + (within - share) / (1 - share)) * _CELL
        return table.inverse(1 - place if upper else place)

    def inverse(self, uniform: Decimal) -> tuple[Decimal, Decimal]:
        """Return (sin θ, cos θ) at a place of this table alone, its numbers taken as exact (`decimals.precise`)."""
        place = uniform if uniform < Decimal(self.split) else uniform - 1
        starts, many = self._starts, len(self.cells)
        at = max(0, int(np.searchsorted(starts, float(place), side="right")) - 1)
        while at > 0 and place < Decimal(float(starts[at])):
            at -= 1
        while at + 1 < many and place >= Decimal(float(starts[at + 1])):
            at += 1
        end = float(starts[at + 1]) if at + 1 < many else self.split
        at = (at + self.middle) % many
        cell = [Decimal(float(value)) for value in self.cells[at]]
        within = (place - cell[_START]) / (Decimal(end) - cell[_START])
        slope = (1 + cell[_GROWTH]).ln()
        # a cell ends where the next begins; the table holds the float64 nearest to this scale
        scale = cell[_SCALE] if at + 1 == many else (Decimal(float(self.cells[at + 1, _KNOT])) - cell[_KNOT]) / slope
        tangent = (cell[_KNOT] + (1 + within * cell[_GROWTH]).ln() * scale).exp()
        square = tangent * tangent
        return 2 * tangent / (1 + square), (1 - square) / (1 + square)


class ArcTable:
    """Angle for m = 2, a truncated exponential. It is exact and needs no table."""

    numeric_epsilon = ROUNDOFF
    numeric_delta = 0.0

    def __init__(self, kappa: float) -> None:
        self._kappa = kappa

    def sine_cosine(self, uniforms: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Draw (sin θ, cos θ) from uniforms (n,) in (0, 1), with bounds on the error of θ, (n,) each."""
        if self._kappa == 0:
            angle = math.pi * uniforms
            return np.sin(angle), np.cos(angle), np.full(len(angle), 8 * UNIT)
        minus_total = math.expm1(-math.pi * self._kappa)
        angle = -np.log1p(uniforms * minus_total) / self._kappa
        # except at a small κ, relative roundings of e^(-πκ) are negligible beside the effect of the cell
        moved = -minus_total * (4 * UNIT) / (1.0 + uniforms * minus_total)
        return np.sin(angle), np.cos(angle), _turned(moved, 1.0 / self._kappa) + 8 * UNIT

    def exact_sine_cosine(self, uniform: Decimal) -> tuple[Decimal, Decimal]:
        """Return (sin θ, cos θ) of one uniform; within `decimals.precise`."""
        kappa = Decimal(self._kappa)
        if kappa == 0:
            return sine_cosine(PI * uniform)
        return sine_cosine(-(1 + uniform * ((-PI * kappa).exp() - 1)).ln() / kappa)


def _turned(moved: FloatArray, rate: FloatArray | float) -> FloatArray:
    """Bound the change of rate·log(v) if v changes by a share `moved` of itself; inf if that share is not small."""
    return np.where(moved < 0.125, 1.25 * moved * rate, np.inf)


@lru_cache(maxsize=64)
def angle_table(dim: int, kappa: float) -> AngleTable | ArcTable:
    """Return the table of (m, κ), m >= 2, κ >= 0. It takes milliseconds and is cached."""
    if dim == 2:
        return ArcTable(kappa)
    log_total = log_angle_integral(dim - 2, kappa)
    low, high = _cut_points(dim, kappa, log_total, _LOG_TAIL)
    lowest, highest = _cut_points(dim, kappa, log_total, _LOG_CUT)
    table = _stretch(dim, kappa, log_total, _knots(dim, kappa, low, high, CELLS))
    lower, upper = (
        _stretch(dim, kappa, log_total, _knots(dim, kappa, *ends, TAIL_CELLS))
        for ends in ((lowest, low), (high, highest))
    )
    full_table = replace(table, tails=(lower, upper))
    shares = full_table.share(0), full_table.share(1)
    beyond = SHARED * LATTICE * (shares[0] * lower.numeric_delta + shares[1] * upper.numeric_delta)
    cells = max(part.numeric_epsilon for part in (table, lower, upper))
    return replace(
        full_table,
        numeric_epsilon=cells - math.log1p(-max(shares)) + ROUNDOFF,
        numeric_delta=table.numeric_delta + beyond + (2 + 2 * SHARED) * FINE,
    )


def _stretch(dim: int, kappa: float, log_total: float, knots: FloatArray) -> AngleTable:
    """Return the table between the first and the last knot.

    Its numeric ε and δ are the errors of its cells, without the mass cut off and the rounding of f.
    """
    widths = np.diff(knots)

    # max over a cell: sech is largest at the point nearest 0, |tanh| at the end farthest from it
    nearest = np.clip(0.0, knots[:-1], knots[1:])
    farthest = np.maximum(np.abs(knots[:-1]), np.abs(knots[1:]))
    sech = 1.0 / np.cosh(nearest)
    error = widths**2 / 8 * ((dim - 1) * sech**2 + kappa * sech * np.tanh(farthest))

    heights = (dim - 1) * _log_sech(knots) - kappa * _angle(knots) - log_total
    slopes = np.diff(heights)
    slopes[slopes == 0] = 1e-30  # log1p(w·expm1(s))/s is w there, to the last bit
    growth = np.expm1(slopes)
    masses = np.exp(heights[:-1]) * widths * growth / slopes
    total = masses.sum()
    masses /= total
    edges, middle = _edges(masses)
    drawn = np.diff(edges)
    drawn[middle - 1] = 1.0 + edges[middle] - edges[middle - 1]
    # A cell so deep in the tail that sums lose it is never chosen: any number will do.
    seen = drawn > 0
    inverse_mass = np.where(seen, 1.0 / np.where(seen, drawn, 1.0), 0.0)
    off = np.where(seen, np.abs(drawn / np.where(seen, masses, 1.0) - 1.0) + 4 * UNIT, 0.0)
    reliable = off < _WRONG
    return AngleTable(
        cells=np.stack([edges[:-1], inverse_mass, growth, widths / slopes, knots[:-1]], axis=1),
        middle=middle,
        masses=drawn,
        numeric_epsilon=2.0 * float(error.max()) + 2.0 * float(off[reliable].max()),
        # cells whose mass the sums lose
        numeric_delta=float(np.maximum(masses, drawn)[~reliable | ~seen].sum()),
        total=float(total),
    )


def _edges(masses: FloatArray) -> tuple[FloatArray, int]:
    """Return the starts of the cells, (cells + 1,), and the index of the first beyond the middle.

    A start is the mass before a knot, and from the middle on minus the mass after it.
    """
    before = np.concatenate([[0.0], np.cumsum(masses)])
    after = np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])
    middle = int(np.argmax(before >= 0.5))
    # exact, so that both sides meet at one point
    return np.concatenate([before[:middle], [before[middle] - 1.0], -after[middle + 1 :]]), middle


def _angle(u: FloatArray) -> FloatArray:
    return 2.0 * np.arctan(np.exp(u))


def _log_sech(u: FloatArray) -> FloatArray:
    return math.log(2.0) - np.abs(u) - np.log1p(np.exp(-2.0 * np.abs(u)))


def _cut_points(dim: int, kappa: float, log_total: float, log_tail: float) -> tuple[float, float]:
    """Return the u at which the tail bound is e^log_tail, by bisection: it is monotone on each side of the mode."""

    def beyond(u: float) -> float:  # log of the bound on the share of the mass beyond u, away from the mode
        slope = (dim - 2) * -math.sinh(u) - kappa  # g'(θ) = (m-2) cot θ - κ, and cot θ = -sinh u
        log_sech = math.log(2.0) - abs(u) - math.log1p(math.exp(-2.0 * abs(u)))
        return (dim - 2) * log_sech - kappa * 2.0 * math.atan(math.exp(u)) - math.log(abs(slope)) - log_total

    mode = -math.asinh(kappa / (dim - 2))
    ends = []
    for far in (-300.0, 300.0):
        inside, outside = mode, far
        for _ in range(100):
            middle = (inside + outside) / 2
            if middle in (inside, outside):
                break
            if beyond(middle) > log_tail:
                inside = middle
            else:
                outside = middle
        ends.append(outside)
    return ends[0], ends[1]


def _knots(dim: int, kappa: float, low: float, high: float, cells: int) -> FloatArray:
    """Return `cells` + 1 increasing points from low to high, close together where f bends most."""
    fine = np.linspace(low, high, 4 * cells + 1)
    sech = 1.0 / np.cosh(fine)
    density = np.sqrt((dim - 1) * sech**2 + kappa * sech * np.abs(np.tanh(fine)))
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    share = 0.8 * share / share[-1] + 0.2 * np.linspace(0.0, 1.0, len(fine))
    knots: FloatArray = np.interp(np.linspace(0.0, 1.0, cells + 1), share, fine)
    return knots
