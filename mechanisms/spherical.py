"""Mechanisms for sentence embeddings on the unit sphere: Purkayastha and generalized planar Laplace.

Both are inverse-CDF samplers. A row consumes dim + 1 uniforms, the first for its angle or radius, the others for dim
normals whose normalization is a uniform direction.

**Cost of a lattice of uniforms (proved).** Uniforms are midpoints of 2^52 equal cells. Replace the k real uniforms of a
row by midpoints one at a time, the others held fixed. As a function of one of them, an output coordinate is piecewise
monotone (at most p pieces), and the output moves along a curve of length at most ℓ. The coordinates together then vary
by at most √m·ℓ, so they cross at most √m·ℓ/step + p·m boundaries of the public grid. Only a cell with a crossing inside
can give another gridded output for its midpoint than for the real uniform: with probability at most
2^-52·(√m·ℓ/step + p·m). Sum over the k uniforms. This is `numeric_delta`. It is about exact arithmetic on the lattice.
Draws on the sphere's grid are certified to equal exact arithmetic on a lattice of 2^-104 (`mechanisms.certified`),
which replaces 2^-52 there. Raw planar Laplace is not certified. Its float64 rounding, near 2^-50, is 2^-35 of a grid
step and not in its δ.

- A normal z_j, the others fixed, moves the direction along at most half a great circle (ℓ <= π); a coordinate
  (a + b·z)/sqrt(quadratic in z) has one critical point, so p = 2.
- Purkayastha's angle moves y along half a great circle: ℓ = π, and a coordinate is a sinusoid: p = 2. (Its tails come
  from the same cells of the uniform as their neighbourhood: see `mechanisms.losses.angle_table`.)
- PrivUnit's angle (`mechanisms.privunit`) does the same.
- Planar Laplace, normalized: the ray x + r·ξ is seen from the origin under at most π, p = 2 (as for z_j). A direction
  on an arc makes x + r·ξ a circle's arc, on the sphere a convex curve of length at most 2π. A coordinate's derivative
  is a trigonometric polynomial of degree 2, so p = 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, ndtri

from mechanisms import checks
from mechanisms.arrays import FloatArray
from mechanisms.certified import NORMAL, UNIT, certify, exact_tangent_normal, further, normal_doubt, tangent_normal
from mechanisms.decimals import gamma_quantile, normal_quantile
from mechanisms.facts import DIMS, EPSILONS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.angle_table import angle_table, log_normalizer
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance, tighter
from mechanisms.losses.planar_laplace import laplace_loss
from mechanisms.losses.sphere import (
    normalized_laplace_blanket,
    normalized_laplace_loss,
    purkayastha_blanket,
    purkayastha_loss,
)
from mechanisms.mechanism import Uniforms
from mechanisms.metrics import SPHERE_DIAMETER, angular, euclidean
from mechanisms.quantizer import SPACE, SPHERE, Quantizer
from mechanisms.streams import FINE, LATTICE, drawn

MAX_DIM = 1024
#: Rows processed at once: a few arrays of this many rows of 16 coordinates stay in a core's cache.
_CHUNK = 4096


@dataclass(frozen=True)
class Purkayastha:
    """Density proportional to exp(-ε·angle(x, y)) on S^(m-1) (Du et al. 2023, Definition 4, Theorem 1).

    It satisfies ε·d with d the angle in radians, for all pairs of unit vectors: worst case ε·π. Inputs are rows of
    length 1 to 1e-6, then normalized exactly; ValueError otherwise.

    Attributes:
        dim: m, 2..1024.
        epsilon: ε per radian, 0..1000; 0 is uniform.
    """

    dim: int
    epsilon: float

    name: ClassVar[str] = "purkayastha"
    channel: ClassVar[str] = "embedding"
    grid: ClassVar[Quantizer] = SPHERE
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(tried={"dim": DIMS, "epsilon": EPSILONS})

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.integer(self.name, "dim", self.dim, 2, MAX_DIM))
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        table = angle_table(self.dim, self.epsilon)
        lattice = (self.dim + 1) * _crossings(self.dim, math.pi, 2)
        return Guarantee(
            epsilon=self.epsilon,
            metric="angular",
            diameter=SPHERE_DIAMETER["angular"],
            protects="sequence",
            numeric_epsilon=table.numeric_epsilon,
            numeric_delta=table.numeric_delta + lattice * FINE,
        )

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> FloatArray:
        """Draw once for each row: (n, dim) unit rows -> (n, dim) float64 unit rows; dim + 1 uniforms a row."""
        x, length = checks.unit_rows(self.name, x, self.dim)
        uniforms = drawn(rng, len(x), self.dim + 1)
        table = angle_table(self.dim, self.epsilon)
        out = np.empty(x.shape)
        for at in range(0, len(x), _CHUNK):
            row = slice(at, at + _CHUNK)
            sine, cosine, turned = table.sine_cosine(uniforms[row, 0])
            doubt = tangent_normal(x[row], length[row], sine, cosine, uniforms[row, 1:], out[row])

            def exact(at: int, fine: Sequence[Decimal], x: FloatArray = x[row]) -> list[Decimal]:
                return exact_tangent_normal(x[at], *table.exact_sine_cosine(fine[0]), fine[1:])

            certify(out[row], doubt + turned, self.grid, uniforms[row], further(rng, at, self.dim + 1), exact)
        return out

    def blanket(self) -> BlanketCells:
        """Return the blanket and the antipodal pair, in cells: see mechanisms.losses.sphere."""
        return purkayastha_blanket(self.dim, self.epsilon)

    def log_prob(self, y: FloatArray, x: FloatArray) -> FloatArray:
        """Return the log density at y given x, rows (n, dim) -> (n,), by the surface measure of the sphere."""
        return log_normalizer(self.dim, self.epsilon) - self.epsilon * angular(x, y)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss that dominates all pairs within the angle `distance` (None: all pairs, the antipodal one).

        At a distance it is that of pure LDP at ε·distance, unless the antipodal one is smaller even so.
        """
        angle = checked_distance(self.name, distance, SPHERE_DIAMETER["angular"])
        worst = purkayastha_loss(self.dim, self.epsilon)
        return worst if angle == SPHERE_DIAMETER["angular"] else tighter(pure_loss(self.epsilon * angle), worst)


@dataclass(frozen=True)
class PlanarLaplace:
    """x + r·ξ, ξ uniform on the sphere, r ~ Gamma(m, 1/ε): density proportional to exp(-ε·|y - x|) in R^m.

    Chatzikokolakis et al. 2013 for the plane, Wu et al. 2017 for R^m; Du et al. 2023, Theorem 2, for the normalized
    form, which is post-processing of the raw one. It satisfies ε·d with d the Euclidean distance: worst case 2ε on the
    unit sphere. The radius takes scipy's inverse incomplete gamma function as exact (tests check it to 1e-11 against an
    independent evaluation).

    Attributes:
        dim: m, 2..1024.
        epsilon: ε per unit length, 0..1000.
        normalize: True divides the result by its length; its inputs must be unit rows, and ε = 0 is uniform. False
            takes any finite rows, and the loss is ε·d for them all, but the guarantee's diameter of 2 is that of unit
            vectors; ε = 0 has no distribution and is refused.
    """

    dim: int
    epsilon: float
    normalize: bool = True

    name: ClassVar[str] = "planar-laplace"
    channel: ClassVar[str] = "embedding"
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(tried={"dim": DIMS, "epsilon": EPSILONS, "normalize": (True, False)})

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.integer(self.name, "dim", self.dim, 2, MAX_DIM))
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        if not isinstance(self.normalize, bool):
            raise ValueError(f"{self.name}: normalize must be true or false, got {self.normalize!r}")
        if not self.normalize and self.epsilon == 0:
            raise ValueError(f"{self.name}: epsilon must be above 0 where normalize is false, got 0")

    @property
    def grid(self) -> Quantizer:
        """Return the wire grid."""
        return SPHERE if self.normalize else SPACE

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=SPHERE_DIAMETER["euclidean"],
            protects="sequence",
            inputs="all" if self.normalize else "unit vectors; others by their distance",
            numeric_epsilon=0.0,
            numeric_delta=self._lattice_crossings() * (FINE if self.normalize else LATTICE),
        )

    def _lattice_crossings(self) -> float:
        m = self.dim
        if self.normalize:
            return m * _crossings(m, 2 * math.pi, 5) + _crossings(m, math.pi, 2)
        # Raw: a direction moves y along half a circle of radius r, E[r] = m/ε. A radius moves it along a ray, up to the
        # last cell's radius; that cell may hold any number of crossings and counts once.
        last = float(gammaincinv(m, 1.0 - LATTICE)) / self.epsilon
        direction = math.sqrt(m) * math.pi * (m / self.epsilon) / SPACE.step + 2 * m
        return min(m * direction + math.sqrt(m) * last / SPACE.step + m + 1, 1.0 / LATTICE)

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> FloatArray:
        """Draw once for each row: (n, dim) -> (n, dim) float64, unit rows if `normalize`; dim + 1 uniforms each."""
        if self.normalize:
            x, length = checks.unit_rows(self.name, x, self.dim)
        else:
            x = checks.rows(self.name, x, self.dim)
        uniforms = drawn(rng, len(x), self.dim + 1)
        out = np.empty(x.shape)
        for at in range(0, len(x), _CHUNK):
            row = slice(at, at + _CHUNK)
            radius = gammaincinv(self.dim, uniforms[row, 0])  # in units of 1/ε
            draw = ndtri(uniforms[row, 1:], out=out[row])
            size = np.maximum(np.sqrt(np.einsum("ij,ij->i", draw, draw)), _TINY)
            scale = radius / size
            if self.normalize:  # (x + rξ/ε)/|x + rξ/ε| is (εx + rξ)/|εx + rξ|, which also serves ε = 0
                draw *= scale[:, None]
                draw += self.epsilon / length[row] * x[row]
                reach = np.maximum(np.sqrt(np.einsum("ij,ij->i", draw, draw)), _TINY)
                draw /= reach[:, None]
                doubt = self._doubt(uniforms[row], radius, size, reach)
                exact = partial(self._exact, x[row])
                certify(draw, doubt, self.grid, uniforms[row], further(rng, at, self.dim + 1), exact)
            else:
                draw *= (scale / self.epsilon)[:, None]
                draw += x[row]
        return out

    def _doubt(self, uniforms: FloatArray, radius: FloatArray, size: FloatArray, reach: FloatArray) -> FloatArray:
        """Bound the distance of a normalized coordinate from the exact one, (n,): `mechanisms.certified`.

        radius r, size |z| of the normals, reach |v| of v = εx + rξ: an error e of v turns v/|v| by at most 2·e/|v|. e
        is the error of ξ = z/|z| times r, the error of r (half a cell over its density, and scipy's relative error),
        and the roundings.
        """
        m = self.dim
        off = 2 * (math.sqrt(m) * normal_doubt(uniforms[:, 1:]) / size + NORMAL + (m + 8) * UNIT) * radius
        with np.errstate(divide="ignore"):
            log_density = (m - 1) * np.log(radius) - radius - float(gammaln(m))
        tail = np.minimum(uniforms[:, 0], 1.0 - uniforms[:, 0])
        moved = np.where(tail > 2.0**-40, 2 * UNIT * np.exp(-log_density), np.inf)
        off += moved + RADIUS * radius + 4 * UNIT * (self.epsilon + radius)
        doubt: FloatArray = 2.0 * off / reach + (2 * m + 16) * UNIT
        return doubt

    def _exact(self, x: FloatArray, at: int, fine: Sequence[Decimal]) -> list[Decimal]:
        """Return the normalized draw of row `at` of x by its uniforms, within `decimals.precise`."""
        row = [Decimal(float(value)) for value in x[at]]
        normals = [normal_quantile(u) for u in fine[1:]]
        length, size = (sum((v * v for v in values), Decimal(0)).sqrt() for values in (row, normals))
        near, far = Decimal(self.epsilon) / length, gamma_quantile(self.dim, fine[0]) / size
        drawn = [near * e + far * z for e, z in zip(row, normals, strict=True)]
        reach = sum((v * v for v in drawn), Decimal(0)).sqrt()
        return [v / reach for v in drawn]

    def blanket(self) -> BlanketCells | None:
        """Return the blanket and the antipodal pair, in cells (mechanisms.losses.sphere); None in raw form."""
        return normalized_laplace_blanket(self.dim, self.epsilon) if self.normalize else None

    def log_prob(self, y: FloatArray, x: FloatArray) -> FloatArray:
        """Return the log density of the raw form at y given x, rows (n, dim) -> (n,). The normalized form has none."""
        if self.normalize:
            raise NotImplementedError("planar-laplace: the normalized form has no closed-form density")
        m = self.dim
        log_sphere = math.log(2) + m / 2 * math.log(math.pi) - float(gammaln(m / 2))  # surface of S^(m-1)
        constant = m * math.log(self.epsilon) - log_sphere - float(gammaln(m))
        return constant - self.epsilon * euclidean(y, x)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss that dominates all pairs within `distance` of each other (None: all pairs of unit vectors).

        Normalized: the antipodal pair's, which dominates all. At a distance it is the raw form's, of which the
        normalized form is a post-processing, unless the antipodal one is smaller even so.
        """
        diameter = SPHERE_DIAMETER["euclidean"]
        if not self.normalize:
            apart = checked_distance(self.name, distance, math.inf) if distance is not None else diameter
            return laplace_loss(self.dim, self.epsilon, apart)
        apart = checked_distance(self.name, distance, diameter)
        worst = normalized_laplace_loss(self.dim, self.epsilon)
        return worst if apart == diameter else tighter(laplace_loss(self.dim, self.epsilon, apart), worst)


#: Largest relative error of SciPy's inverse incomplete gamma function (tests check it).
RADIUS = 1e-11
#: Keeps a vector of normals that vanishes in float64 (probability below 2^-50) from becoming NaN.
_TINY = 1e-300


def _crossings(dim: int, length: float, pieces: int) -> float:
    """Return the most grid boundaries that one uniform's curve on the sphere crosses, over all coordinates."""
    return math.sqrt(dim) * length / SPHERE.step + pieces * dim
