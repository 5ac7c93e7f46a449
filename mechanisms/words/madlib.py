"""MADLIB: planar Laplace noise on a word's vector, then the nearest word (Feyisetan et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.facts import EPSILONS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.losses.planar_laplace import laplace_loss
from mechanisms.mechanism import Uniforms
from mechanisms.spherical import MAX_DIM, PlanarLaplace
from mechanisms.streams import LATTICE, drawn
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.distances import diameter
from mechanisms.words.nearest import nearest
from mechanisms.words.tables import OfWords

#: Tokens whose uniforms are in memory at once (10 MB at 300 dimensions), but at least one for each row.
_TOKENS = 4096


@dataclass(frozen=True)
class Madlib(OfWords):
    """The word nearest to φ(x) + r·ξ, ξ uniform on the sphere of R^m, r ~ Gamma(m, 1/ε): ε·|φ(x) - φ(x')|-LDP.

    **Theorem** (Feyisetan et al. 2020, Theorem 1). The noisy vector has density proportional to exp(-ε|z - φ(x)|), and
    by the triangle inequality those of x and x' differ by at most a factor exp(ε|φ(x) - φ(x')|) at every z. The nearest
    word depends on z and on public vectors alone: post-processing. So the loss distribution of the raw planar Laplace
    noise, which is much smaller than its worst case at a small δ, dominates that of the words. There is no closed log
    probability: it is the mass of a Voronoi cell in m dimensions.

    The nearest word is the exact one (mechanisms.words.nearest), as in the definition. Published code takes an
    approximate one, which is post-processing too. An unknown word is an input at the mean of all vectors.

    **numeric_delta (proved).** As in mechanisms.spherical: replace the uniforms of a token by midpoints one at a time,
    the others held fixed. One normal moves z along at most half a circle, on which the squared distances to the V words
    are V functions a·cos θ + b·sin θ + c. Any two of these agree at most twice, so their lower envelope has at most 2V
    - 1 pieces (Davenport and Schinzel 1965, order 2). The radius moves z along a ray, where two agree at most once: V
    pieces. Midpoint and real uniform give different words only in lattice cells with a break: at most 2^-52·(2m +
    1)·(V - 1) for a token.

    Attributes:
        epsilon: ε for each unit of Euclidean distance, 1e-6..1000.
        vocabulary: Words with vectors of 2..1024 dimensions.
    """

    epsilon: float
    vocabulary: Vocabulary

    name: ClassVar[str] = "madlib"
    facts: ClassVar[Facts] = Facts(tried={"epsilon": EPSILONS})

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon, low=checks.MIN_EPSILON))
        check_dimensions(self.name, self.vocabulary)

    @property
    def root(self) -> FloatArray | None:
        """Return the (m, m) matrix that multiplies the noise; None for the identity."""
        return None

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        normals = self.vocabulary.vectors.shape[1]
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=diameter(self.vocabulary),
            protects="token",
            numeric_delta=min(1.0, (2 * normals + 1) * (len(self.vocabulary) - 1) * LATTICE),
        )

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the raw noise's loss at `distance` (None: the diameter), of which the words are post-processing."""
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return laplace_loss(self.vocabulary.vectors.shape[1], self.epsilon, apart)

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each word id, (n,) or (n, L) -> the same shape, int64. m + 1 uniforms a token."""
        x = checks.word_ids(self.name, x, self.vocabulary)
        return perturbed(
            x, self.epsilon, self.vocabulary, rng, lambda z, _: nearest(z, self.vocabulary), root=self.root
        )


def check_dimensions(owner: str, vocabulary: Vocabulary) -> None:
    """Check that the vectors have as many coordinates as planar Laplace noise allows.

    Raises:
        ValueError: They have too few or too many.
    """
    width = vocabulary.vectors.shape[1]
    if not 2 <= width <= MAX_DIM:
        raise ValueError(f"{owner}: the vocabulary's vectors must have 2 to {MAX_DIM} coordinates, these have {width}")


def perturbed(
    x: IntArray,
    epsilon: float,
    vocabulary: Vocabulary,
    rng: Uniforms,
    choose: Callable[[FloatArray, IntArray], IntArray],
    *,
    root: FloatArray | None = None,
) -> IntArray:
    """Return a word for each word id of x, chosen by a noisy vector, (n,) or (n, L); NOTHING stays.

    Uniforms are drawn a few columns at a time, m + 1 for each entry of x. Noise is computed only for entries with a
    word, in blocks of bounded memory.

    Args:
        x: Word ids.
        epsilon: ε per unit of distance.
        vocabulary: Words and vectors.
        rng: Source of uniforms; its rows are those of x.
        choose: Function from noisy vectors (k, m) and their words (k,) to words (k,).
        root: (m, m) matrix that multiplies the noise, or None.
    """
    width = vocabulary.vectors.shape[1]
    per_token = width + 1
    noise = PlanarLaplace(width, epsilon, normalize=False)
    grid = x if x.ndim == 2 else x[:, None]
    out = np.full(grid.shape, NOTHING, dtype=np.int64)
    together = max(1, _TOKENS // max(1, len(grid)))
    for at in range(0, grid.shape[1], together):
        word_ids = grid[:, at : at + together]
        uniforms = drawn(rng, len(grid), word_ids.shape[1] * per_token).reshape(*word_ids.shape, per_token)
        places = np.argwhere(word_ids != NOTHING)
        for start in range(0, len(places), _TOKENS):
            row, column = places[start : start + _TOKENS].T
            present_ids, u = word_ids[row, column], uniforms[row, column]
            points = vocabulary.points[present_ids]
            if root is None:
                z = noise.sample(points, rng=_Drawn(u))
            else:
                # row by row: a product of one shape gives a row the same bits in any batch
                z = noise.sample(np.zeros(points.shape), rng=_Drawn(u))
                z = np.matmul(z[:, None, :], root.T)[:, 0] + points
            out[row, at + column] = choose(z, present_ids)
    return out.reshape(x.shape)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Uniforms that were drawn already."""

    values: FloatArray

    def uniform(self, rows: int, k: int) -> FloatArray:
        return self.values.reshape(rows, k)

    def further(self, rows: IntArray, k: int) -> FloatArray:
        raise NotImplementedError("a noisy vector becomes a word, and is never rounded to a grid")
