"""PrivUnit: release of one unit vector under pure local differential privacy, optimal for means.

Bhowmick, Duchi, Freudiger, Kapoor and Rogers 2018 (arXiv 1812.00984), section 4.1. Asi, Feldman and Talwar 2022 (arXiv
2205.02466) show that with the best cap no ε-LDP mechanism of unit vectors has a smaller error of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, betaln, expit

from mechanisms import checks
from mechanisms.arrays import FloatArray
from mechanisms.certified import UNIT, certify, exact_tangent_normal, further, tangent_normal
from mechanisms.decimals import symmetric_beta_quantile
from mechanisms.facts import DIMS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.categorical import cap_blanket, cap_loss
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.mechanism import Uniforms
from mechanisms.quantizer import SPHERE, Quantizer
from mechanisms.streams import FINE, drawn

MAX_DIM = 8192
MAX_EPSILON = 100.0
#: Decimals of a cap probability that is chosen here.
_DECIMALS = 6
#: Least cap probability, and the least of its complement: no mean is served by a rarer cap, and next to 0 and to 1
#: float64 holds few digits of the other.
LEAST_CAP = 10.0**-_DECIMALS
#: Coordinates processed at once stay in a core's cache.
_AT_ONCE = 2**16


@dataclass(frozen=True)
class PrivUnit:
    """Draw from the cap around x with probability p, else from outside it, uniform in either: ε-LDP on S^(D-1).

    The cap {y: <x, y> >= γ} has mass c under the uniform law, log((1 - c)/c) = ε + log((1 - p)/p), so that its density
    is e^ε times the other's, and γ >= 0. For any two unit vectors, whatever their distance, the loss is at most ε: the
    metric is discrete. E[y] = x·`scale`, so y/`scale` is unbiased, and its squared error is 1/scale² - 1. Inputs are
    rows of length 1 to 1e-6, then normalized exactly; ValueError otherwise.

    Attributes:
        dim: D, 2..8192.
        epsilon: 0..100.
        cap_probability: p, 1e-6..1 - 1e-6 and at most e^ε/(1 + e^ε) (c <= 1/2). None: the p of least error, to six
            decimals.
    """

    dim: int
    epsilon: float
    cap_probability: float | None = None

    name: ClassVar[str] = "privunit"
    channel: ClassVar[str] = "statistic"
    grid: ClassVar[Quantizer] = SPHERE
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(
        tried={"dim": DIMS, "epsilon": (0.5, 10.0, MAX_EPSILON), "cap_probability": (None, 0.5)}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.integer(self.name, "dim", self.dim, 2, MAX_DIM))
        checks.real(self.name, "epsilon", self.epsilon, 0, MAX_EPSILON)
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        most = float(expit(self.epsilon))
        chosen = best_cap_probability(self.dim, self.epsilon) if self.cap_probability is None else self.cap_probability
        value = checks.real(self.name, "cap_probability", chosen, LEAST_CAP, 1 - LEAST_CAP)
        if value > most:
            raise ValueError(f"{self.name}: cap_probability must be at most e^ε/(1 + e^ε) = {most:.4g}, got {value:g}")
        object.__setattr__(self, "cap_probability", value)

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        crossings = math.sqrt(self.dim) * math.pi / SPHERE.step + 2 * self.dim  # of each uniform: see spherical
        return Guarantee(
            epsilon=self.epsilon,
            metric="discrete",
            diameter=1.0,
            protects="record",
            numeric_epsilon=_ROUNDOFF,
            numeric_delta=(self.dim + 1) * crossings * FINE,
        )

    @property
    def log_mass(self) -> float:
        """Return log c, of the cap's mass under the uniform law."""
        return _log_mass(self.epsilon, self._p)

    @property
    def scale(self) -> float:
        """Return E<x, y>, the divisor of a mean of draws."""
        return _expected_cosine(self.dim, self.epsilon, self._p)

    @property
    def squared_cosine(self) -> float:
        """Return E<x, y>²: with it, E[y y'] = (1 - E<x, y>²)/(D - 1)·(I - x x') + E<x, y>²·x x'."""
        half, c = (self.dim - 1) / 2, math.exp(self.log_mass)
        quantile = float(betaincinv(half, half, c))  # (1 - γ)/2
        # 1 - <x, y>² of a uniform y is Beta((D-1)/2, 1/2), and half of what lies below 1 - γ² lies in the cap
        sine = half / self.dim * float(betainc(half + 1, 0.5, 4 * quantile * (1 - quantile)))  # ∫ 1 - t² over the cap
        inside = 1 - sine / c
        return self._p * inside + (1 - self._p) / (1 - c) * (1 / self.dim - c * inside)

    @property
    def _p(self) -> float:
        assert self.cap_probability is not None
        return self.cap_probability

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> FloatArray:
        """Draw once for each row: (n, D) unit rows -> (n, D) float64 unit rows; D + 1 uniforms a row."""
        x, length = checks.unit_rows(self.name, x, self.dim)
        out = np.empty(x.shape)
        uniforms = drawn(rng, len(x), self.dim + 1)
        step = max(1, _AT_ONCE // self.dim)
        for at in range(0, len(x), step):
            row = slice(at, at + step)
            sine, cosine, turned = self._sine_cosine(uniforms[row, 0])
            doubt = tangent_normal(x[row], length[row], sine, cosine, uniforms[row, 1:], out[row])

            def exact(at: int, fine: Sequence[Decimal], x: FloatArray = x[row]) -> list[Decimal]:
                return exact_tangent_normal(x[at], *self._exact_sine_cosine(fine[0]), fine[1:])

            certify(out[row], doubt + turned, self.grid, uniforms[row], further(rng, at, self.dim + 1), exact)
        return out

    def _sine_cosine(self, uniforms: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return sine and cosine of the angle to x, and bounds on the angle's error, (n,) each.

        The inverse distribution function of the angle falls. (1 - cos θ)/2 of a uniform vector is Beta((D-1)/2,
        (D-1)/2): the first p of the uniforms lie in the cap, of mass c, the others outside it. The quantile is taken in
        the nearer tail, where it keeps its relative precision.
        """
        half, c = (self.dim - 1) / 2, math.exp(self.log_mass)
        inside = uniforms < self._p
        # mass of the uniform law that lies nearer to x than the draw, and mass that lies farther
        near = np.where(inside, uniforms / self._p * c, 0.0)
        far = np.where(inside, 1.0 - near, (1.0 - uniforms) / (1.0 - self._p) * (1.0 - c))
        near = np.where(inside, near, 1.0 - far)
        nearer = near < far
        tail = np.where(nearer, near, far)
        quantile = betaincinv(half, half, tail)  # of (1 - |cos θ|)/2
        cosine = np.where(nearer, 1.0, -1.0) * (1.0 - 2.0 * quantile)
        sine = 2.0 * np.sqrt(quantile * (1.0 - quantile))
        # half a cell, and the rounding of the mass, over the density of q; dθ = 2·dq/sin θ
        share = np.where(inside, c / self._p, (1.0 - c) / (1.0 - self._p))
        moved = 2 * UNIT * share + 8 * UNIT * np.where(inside, tail, 1.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_density = (half - 1.0) * (np.log(quantile) + np.log1p(-quantile)) - float(betaln(half, half))
            turned = 2.0 * (moved * np.exp(-log_density) + QUANTILE * quantile) / sine
        split = np.abs(uniforms - self._p) < 2 * UNIT  # either side of the cap's edge
        return sine, cosine, np.where((tail > 4.0 * moved) & ~split, 2.0 * turned, np.inf)

    def _exact_sine_cosine(self, uniform: Decimal) -> tuple[Decimal, Decimal]:
        """Return sine and cosine for one uniform; within `decimals.precise`."""
        p, c = Decimal(self._p), Decimal(math.exp(self.log_mass))
        far = (1 - uniform) / (1 - p) * (1 - c) if uniform >= p else 1 - uniform / p * c
        nearer = far > Decimal("0.5")
        quantile = symmetric_beta_quantile(self.dim, 1 - far if nearer else far)
        cosine = 1 - 2 * quantile
        return 2 * (quantile * (1 - quantile)).sqrt(), cosine if nearer else -cosine

    def decoded_mean(self, codes: NDArray[Any]) -> FloatArray:
        """Return the unbiased estimate of the mean of x, (D,), from grid integers (n, D) of n >= 1 draws.

        Its squared error is (1/scale² - E|x|²)/n around the mean, without the rounding to the grid (at most 3e-5 a
        coordinate).
        """
        total: FloatArray = codes.sum(axis=0, dtype=np.int64).astype(np.float64)
        return total * (SPHERE.step / self.scale / len(codes))

    def blanket(self) -> BlanketCells:
        """Return the blanket and the antipodal pair, in three cells: see mechanisms.losses.categorical."""
        return cap_blanket(self.epsilon, self.log_mass)

    def log_prob(self, y: FloatArray, x: FloatArray) -> FloatArray:
        """Return the log density at y given x, rows (n, D) -> (n,), relative to the uniform law on the sphere."""
        c = math.exp(self.log_mass)
        inside = np.einsum("ij,ij->i", x, y) >= self.threshold
        return np.where(inside, math.log(self._p) - self.log_mass, math.log1p(-self._p) - math.log1p(-c))

    @property
    def threshold(self) -> float:
        """Return γ, the cosine at which the cap ends."""
        half = (self.dim - 1) / 2
        return 1.0 - 2.0 * float(betaincinv(half, half, math.exp(self.log_mass)))

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the exact loss of two disjoint caps, which dominates all pairs; `distance` is 0, 1 or None."""
        return cap_loss(self.epsilon, self.log_mass) if checks.differs(self.name, distance) else no_loss()


#: Largest addition to a loss by the inverse beta function (relative, tests check it) and by masses.
_ROUNDOFF = 1e-11
#: Largest relative error of SciPy's inverse beta function (tests check it).
QUANTILE = 1e-11


@lru_cache(maxsize=256)
def best_cap_probability(dim: int, epsilon: float) -> float:
    """Return the p of least error for PrivUnit of D = dim at ε, to six decimals; 1/2 at an ε where no cap helps."""
    most = float(expit(epsilon))
    step = LEAST_CAP
    low, high = step, min(1.0 - step, math.floor(most / step) * step)
    if epsilon == 0 or high <= 0.5:
        return 0.5
    from scipy.optimize import minimize_scalar  # takes a quarter of a second, which a device need not spend

    best = minimize_scalar(
        lambda p: -_expected_cosine(dim, epsilon, p), bounds=(low, high), method="bounded", options={"xatol": step}
    )
    return float(min(max(round(float(best.x), _DECIMALS), low), high))


def _expected_cosine(dim: int, epsilon: float, p: float) -> float:
    """Return E<x, y> = I(γ)·(p/c - (1 - p)/(1 - c)).

    I(γ) = ∫_γ^1 t dF(t) = (1 - γ²)^((D-1)/2)/((D - 1)·B(1/2, (D-1)/2)).
    """
    if epsilon == 0:
        return 0.0
    half = (dim - 1) / 2
    log_mass = _log_mass(epsilon, p)
    c = math.exp(log_mass)
    quantile = float(betaincinv(half, half, c))  # (1 - γ)/2
    log_first = half * (math.log(4.0 * quantile) + math.log1p(-quantile)) - math.log(dim - 1) - float(betaln(0.5, half))
    return math.exp(log_first + math.log(p) - log_mass) - math.exp(log_first + math.log1p(-p) - math.log1p(-c))


def _log_mass(epsilon: float, p: float) -> float:
    """Return log c of a cap of probability p, of mass c under the uniform law: log((1 - c)/c) = ε + log((1 - p)/p)."""
    rest = 1.0 - p  # exact from 1/2 on
    log_odds = math.log(rest) - math.log1p(-rest) if p >= 0.5 else math.log1p(-p) - math.log(p)
    return -float(np.logaddexp(0.0, epsilon + log_odds))
