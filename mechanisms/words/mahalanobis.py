"""MADLIB with noise of the words' own shape: the regularized Mahalanobis metric (Xu et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.facts import EPSILONS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.distances import Geometry, largest_distance
from mechanisms.words.madlib import Madlib

#: Largest λ. Above it, noise along directions in which words hardly differ would vanish.
MAX_LAM = 0.99
#: Loss by rounding whitened vectors to float32, as a share of their largest distance: two points', each off by 2^-24 of
#: its length, which no mean-centred point's exceeds; twice that.
_ROUNDED = 2.0**-22


@dataclass(frozen=True)
class Mahalanobis(Madlib):
    """The word nearest to φ(x) + r·A·ξ: ξ uniform on the sphere of R^m, r ~ Gamma(m, 1/ε), A·Aᵀ = λ·Σ + (1 - λ)·I.

    Xu, Aggarwal, Feyisetan and Teissier 2020, their algorithm. Σ is the covariance of the words' vectors, times a
    number that makes its trace m, as I has it; λ = 0 is MADLIB. "Nearest" is by Euclidean distance, as published.

    **Theorem** (the paper's) ε·d(x, x') with d(x, x') = |A⁻¹(φ(x) - φ(x'))|, the regularized Mahalanobis distance,
    nothing exposed. Proof: A⁻¹ times the noisy vector is A⁻¹φ(x) with planar Laplace noise, whose theorem it is
    (`mechanisms.spherical`). A is public and invertible, and the rest is post-processing. So is the loss: that of
    planar Laplace noise in m dimensions at d.

    **Which root.** The noise depends on A·Aᵀ alone: A = A'·Q with Q orthogonal, and Qξ has ξ's law. A is the Cholesky
    factor in float64, and the distances are that A's. That of another machine may differ in its last bits, which makes
    it another mechanism by as much. No noise is rounded or cut on the way.

    **numeric_epsilon** covers the errors of A⁻¹φ. A triangular system is solved exactly for a matrix within m·2^-53 of
    |A| in each entry (Higham, Accuracy and Stability, Theorem 8.5), by which a whitened vector moves by at most
    m^1.5·κ·2^-53 of its length, κ the condition of A. **numeric_delta** is that of `mechanisms.words.madlib`: along the
    path of one uniform the squared distances to two words still differ by a·cos θ + b·sin θ + c, |z|² being common to
    them.

    Attributes:
        epsilon: ε for each unit of d, 1e-6..1000.
        vocabulary: Words with vectors of 2..1024 dimensions, not all equal.
        lam: λ, 0..0.99.
    """

    lam: float = 0.2

    name: ClassVar[str] = "mahalanobis"
    facts: ClassVar[Facts] = Facts(tried={"epsilon": EPSILONS, "lam": (0.0, 0.4)})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lam", checks.real(self.name, "lam", self.lam, 0, MAX_LAM))
        if not (self.vocabulary.vectors != self.vocabulary.vectors[0]).any():
            raise ValueError(f"{self.name}: the vocabulary's vectors are all equal, and have no covariance")

    @property
    def root(self) -> FloatArray:
        """Return (m, m) A, lower triangular."""
        return _shape(self.vocabulary, self.lam).root

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        shape = _shape(self.vocabulary, self.lam)
        return replace(
            super().guarantee,
            diameter=shape.diameter,
            inputs="all; by the regularized Mahalanobis distance of the vectors",
            numeric_epsilon=self.epsilon * shape.error,
        )

    def distances(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return d of the guarantee, never below it: word ids (n,) and (k,) -> (n, k)."""
        shape = _shape(self.vocabulary, self.lam)
        apart = (
            Geometry(shape.whitened, np.asarray(y, dtype=np.int64)).distances(np.asarray(x)) + _ROUNDED * shape.diameter
        )
        same = np.asarray(x)[:, None] == np.asarray(y)[None]
        return np.where(same, 0.0, np.minimum(apart, shape.diameter))


@dataclass(frozen=True, eq=False)
class _Shape:
    """Root A (m, m), `whitened` A⁻¹(φ - mean) (V + 1, m) float32 and their `diameter`, from above.

    `error` bounds the numeric errors of any distance, in the guarantee's unit.
    """

    root: FloatArray
    whitened: NDArray[np.float32]
    diameter: float
    error: float


@lru_cache(maxsize=4)
def _shape(vocabulary: Vocabulary, lam: float) -> _Shape:
    width = vocabulary.vectors.shape[1]
    vectors = vocabulary.vectors.astype(np.float64)
    vectors -= vectors.mean(axis=0)
    covariance: FloatArray = vectors.T @ vectors
    covariance *= width / float(np.trace(covariance))
    root: FloatArray = np.asarray(np.linalg.cholesky(lam * covariance + (1 - lam) * np.eye(width)), dtype=np.float64)
    points = vocabulary.points - vocabulary.vectors.mean(axis=0, dtype=np.float64)
    whitened = solve_triangular(root, points.T, lower=True).T
    # the eigenvalues of A·Aᵀ lie between 1 - λ and λ·m + 1 - λ, the trace of Σ being m
    condition = math.sqrt((lam * width + 1 - lam) / (1 - lam))
    longest = math.sqrt(float(np.einsum("ij,ij->i", whitened, whitened).max()))
    single = np.ascontiguousarray(whitened, dtype=np.float32)
    return _Shape(
        root=root,
        whitened=single,
        diameter=largest_distance(single) * (1 + _ROUNDED),
        error=2 * width**1.5 * condition * 2.0**-52 * longest,
    )
