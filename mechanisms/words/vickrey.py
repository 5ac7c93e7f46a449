"""Vickrey: one of the two words nearest to a noisy vector (Xu et al. 2021), without a second look at the input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.facts import EPSILONS, WORD_CURVE, Facts, Pair, Slider
from mechanisms.guarantee import Guarantee
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.streams import LATTICE
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.madlib import perturbed
from mechanisms.words.mahalanobis import MAX_LAM, Mahalanobis, check_shape
from mechanisms.words.nearest import nearest_two, squared_distances

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Vickrey:
    """The first or the second of the words nearest to a noisy vector z, by a coin.

    The first has probability (1 - t)·d₂/(t·d₁ + (1 - t)·d₂), d₁ <= d₂ their Euclidean distances from z. Xu, Aggarwal,
    Feyisetan and Teissier 2021, the mechanism of two neighbours. t = 0 is the first, MADLIB; t = 1 always the second. z
    is that of `mechanisms.words.mahalanobis`, with λ = 0 that of MADLIB: the paper has both.

    **Theorem** ε·d(x, x'), d the (Mahalanobis) distance of the noise, nothing exposed: both words, their distances from
    z and the coin are functions of z and of public data, hence post-processing (the paper's proof).

    **Not offered.** A program of it in use leaves the private word itself out if it is the nearest. That looks at the
    input again. An output y is then impossible for the input y and for no other, the loss is infinite at any ε, and no
    exposure would make it finite.

    **numeric_delta (proved).** The argument of `mechanisms.words.madlib`, of the path of one uniform. The nearest word
    changes at most 2V times, the second at most 4e·V times (`mechanisms.words.madlib_syntax`, k = 2). Between, the
    coin's bound meets one uniform where u·t·d₁ = (1 - u)·(1 - t)·d₂, squared a trigonometric polynomial of degree 2 at
    most: four times. The coin's own uniform makes one break.

    Attributes:
        epsilon: ε of the noise, as for `Mahalanobis`.
        vocabulary: Words with vectors of 2..1024 dimensions.
        t: 0..1.
        lam: λ of the noise, as for `Mahalanobis`.
    """

    epsilon: float
    vocabulary: Vocabulary
    t: float = 0.5
    lam: float = 0.0

    name: ClassVar[str] = "vickrey"
    channel: ClassVar[str] = "text"
    reads: ClassVar[tuple[str, ...]] = ()
    facts: ClassVar[Facts] = Facts(
        label="Vickrey: the nearest or the second nearest",
        tried={"epsilon": EPSILONS, "t": (0.5,), "lam": (0.0, 0.4)},
        pair=Pair.WORDS,
        slider=Slider(12.0, (0.5, *WORD_CURVE), slow=True),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon, low=checks.MIN_EPSILON))
        object.__setattr__(self, "t", checks.real(self.name, "t", self.t, 0, 1))
        object.__setattr__(self, "lam", checks.real(self.name, "lam", self.lam, 0, MAX_LAM))
        check_shape(self.name, self.vocabulary)

    @property
    def grid(self) -> None:
        """Return None: outputs are integers."""
        return None

    @cached_property
    def noise(self) -> Mahalanobis:
        """Return the mechanism that draws z."""
        return Mahalanobis(self.epsilon, self.vocabulary, self.lam)

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        size, width = self.vocabulary.vectors.shape
        breaks = (width + 1) * 5 * (2 + 4 * math.e) * size + 1
        return replace(self.noise.guarantee, numeric_delta=min(1.0, breaks * LATTICE))

    def distances(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return d of the guarantee, never below it: word ids (n,) and (k,) -> (n, k)."""
        return self.noise.distances(x, y)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the raw noise's loss at `distance` (None: the diameter), of which the words are post-processing."""
        return self.noise.privacy_loss(checked_distance(self.name, distance, self.noise.guarantee.diameter))

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each word id, (n,) or (n, L) -> the same shape, int64. m + 2 uniforms a token."""
        x = checks.word_ids(self.name, x, self.vocabulary)
        root = self.noise.root if self.lam else None
        return perturbed(x, self.epsilon, self.vocabulary, rng, self._choose, root=root, more=1)

    def _choose(self, z: FloatArray, _: IntArray, u: FloatArray) -> IntArray:
        first, second = nearest_two(z, self.vocabulary)
        near, far = (np.sqrt(squared_distances(z, word_ids, self.vocabulary)) for word_ids in (first, second))
        by_far = (1 - self.t) * far
        return np.where(u[:, 0] * (self.t * near + by_far) < by_far, first, second)
