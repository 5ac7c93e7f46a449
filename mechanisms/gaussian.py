"""Gaussian noise on unit vectors, calibrated analytically, for comparison with DP-SGD's mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.certified import NORMAL, UNIT, certify, normal_doubt
from mechanisms.decimals import normal_quantile
from mechanisms.facts import DIMS, Facts
from mechanisms.guarantee import Guarantee, gaussian_delta, gaussian_delta_bound
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.gaussian import gaussian_loss, line
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.metrics import SPHERE_DIAMETER
from mechanisms.quantizer import SPACE, Quantizer
from mechanisms.streams import FINE, drawn, source

MAX_DIM = 2**17
#: Coordinates up to which a row is settled as a whole (`mechanisms.certified`), which costs least. With d more, each is
#: settled separately: the doubt of each grows as d, so at d = 15,000 one row in hundreds has a coordinate to settle,
#: and a whole row of that length in decimals takes seconds.
_TOGETHER = 1024
#: Coordinates processed at once stay in a core's cache.
_AT_ONCE = 2**16


@dataclass(frozen=True)
class Gaussian:
    """x + N(0, σ²) in each coordinate, for unit vectors, at most 2 apart.

    Its ε is finite only at δ > 0. The profile δ(ε) is exact: Balle and Wang 2018, Theorem 8. Inputs are rows of length
    1 to 1e-6, then normalized exactly, so the sensitivity is 2 and no more; ValueError otherwise.

    Attributes:
        dim: Dimension, 1..131072.
        sigma: Standard deviation of each coordinate, 1e-6..1e6.
    """

    dim: int
    sigma: float

    name: ClassVar[str] = "gaussian"
    channel: ClassVar[str] = "embedding"
    grid: ClassVar[Quantizer] = SPACE
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(usual={"sigma": 1.0}, tried={"dim": DIMS, "sigma": (0.7,)})

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.integer(self.name, "dim", self.dim, 1, MAX_DIM))
        object.__setattr__(self, "sigma", checks.real(self.name, "sigma", self.sigma, 1e-6, 1e6))

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, dim: int) -> Gaussian:
        """Return the noise of least σ, to a part in 10^7, that makes unit vectors (epsilon, delta)-indistinguishable.

        delta must be above 0.
        """
        epsilon = checks.epsilon(cls.name, epsilon)
        delta = checks.real(cls.name, "delta", delta, 1e-300, 1 - 1e-12)
        from scipy.optimize import brentq  # takes a quarter of a second, which a device need not spend

        diameter = SPHERE_DIAMETER["euclidean"]

        def excess(log_sigma: float) -> float:
            return gaussian_delta(diameter / math.exp(log_sigma), epsilon) - delta

        low, high = math.log(1e-6), math.log(1e6)
        if excess(high) > 0:
            raise ValueError(f"{cls.name}: no sigma up to 1e6 gives epsilon {epsilon:g} at delta {delta:g}")
        sigma, step = 1e-6, 1e-12
        if excess(low) > 0:  # the root finder's tolerance goes to the safe side
            sigma = math.exp(float(brentq(excess, low, high, xtol=1e-13, rtol=1e-14))) * (1 + 1e-12)
        while gaussian_delta_bound(diameter / sigma, epsilon) > delta:  # so does its rounding
            sigma, step = sigma * (1 + step), 2 * step
        return cls(dim, sigma)

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=math.inf,
            metric="euclidean",
            diameter=SPHERE_DIAMETER["euclidean"],
            protects="sequence",
            numeric_delta=self._numeric_delta(),
            sigma=self.sigma,
        )

    def _numeric_delta(self) -> float:
        """Return the δ of lattice uniforms against real ones, on the grid (see mechanisms.spherical).

        Draws are certified, so the lattice is 2^-104. A coordinate is monotone in its one uniform and crosses a
        boundary each grid step within ±11.9σ. Its two outermost cells may hold any number.
        """
        span = min(2 * 11.9 * self.sigma / SPACE.step, 2.0**SPACE.bits)
        return min(self.dim * (span + 3) * FINE, 1.0)

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> FloatArray:
        """Draw once for each row: (n, dim) unit rows -> (n, dim) float64; dim uniforms a row."""
        x, length = checks.unit_rows(self.name, x, self.dim)
        uniforms = drawn(rng, len(x), self.dim)
        out = np.empty(x.shape)
        step = max(1, _AT_ONCE // self.dim)
        for at in range(0, len(x), step):
            row = slice(at, at + step)
            draw = ndtri(uniforms[row], out=out[row])
            draw *= self.sigma
            draw += x[row] / length[row]
            self._settle(draw, x[row], uniforms[row], partial(source(rng).further, k=self.dim), at)
        return out

    def _settle(
        self, draw: FloatArray, x: FloatArray, uniforms: FloatArray, refine: Callable[[IntArray], FloatArray], at: int
    ) -> None:
        """Certify the draws (n, dim) of rows at.. of the source as `certified.certify` does.

        It takes whole rows, or each coordinate. The argument is the same: a coordinate is a function of x and of its
        own uniform alone.
        """
        k = self.dim if self.dim <= _TOGETHER else 1
        draw, uniforms = draw.reshape(-1, k), uniforms.reshape(-1, k)  # views: settled values are written into `out`
        # a normal is off by its cell, and by its own and its product's rounding, of at most |y| + 1; x/|x| by dim
        size = np.maximum(draw.max(axis=1), -draw.min(axis=1)) + 1.0
        doubt = self.sigma * normal_doubt(uniforms) + (NORMAL + 8 * UNIT) * size + (self.dim + 8) * UNIT

        def further(places: IntArray) -> FloatArray:
            rows, first = np.divmod(places * k, self.dim)
            unique_rows, which = np.unique(rows, return_inverse=True)
            return refine(unique_rows + at)[which[:, None], first[:, None] + np.arange(k)]

        certify(draw, doubt, self.grid, uniforms, further, partial(self._exact, x))

    def _exact(self, x: FloatArray, at: int, fine: Sequence[Decimal]) -> list[Decimal]:
        """Return the `at`-th stretch of the draws of x, read row by row, by its uniforms; within `decimals.precise`."""
        row, first = divmod(at * len(fine), self.dim)
        values = [Decimal(float(value)) for value in x[row]]
        size, sigma = sum((value * value for value in values), Decimal(0)).sqrt(), Decimal(self.sigma)
        here = values[first : first + len(fine)]
        return [value / size + sigma * normal_quantile(u) for value, u in zip(here, fine, strict=True)]

    def blanket(self) -> BlanketCells:
        """Return a blanket and the antipodal pair, in cells: see mechanisms.losses.gaussian."""
        return line(1 / self.sigma)

    def log_prob(self, y: FloatArray, x: FloatArray) -> FloatArray:
        """Return the log density at y given x, rows (n, dim) -> (n,)."""
        square = np.sum(np.square((y - x) / self.sigma), axis=1)
        density: FloatArray = -0.5 * square - self.dim * math.log(self.sigma * math.sqrt(2 * math.pi))
        return density

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss that dominates all pairs within Euclidean `distance` (None: all pairs of unit vectors, 2)."""
        return gaussian_loss(checked_distance(self.name, distance, SPHERE_DIAMETER["euclidean"]) / self.sigma)
