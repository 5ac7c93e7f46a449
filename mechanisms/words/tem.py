"""TEM, the truncated exponential mechanism: words farther than γ are one option (Carvalho et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.facts import EPSILONS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.distances import Geometry, diameter, distances
from mechanisms.words.exponential import Exponential
from mechanisms.words.santext import SanText

MAX_GAMMA = 1e9


@dataclass(frozen=True)
class Tem(SanText):
    r"""A word within γ of x by the exponential mechanism, or ⊥: then one of all words beyond γ, uniformly.

    Carvalho, Vasiloglou, Wang and Flury 2021, their algorithm. Scores are -d(x, y) of the words L_x with d <= γ, and
    -γ + 2·ln|W \ L_x|/ε of ⊥, each with Gumbel noise of scale 2/ε; the largest wins.

    **Law.** The largest of scores with Gumbel noise is y with probability proportional to exp(ε·score/2): e^(-ε·d/2) in
    L_x, and |W \ L_x|·e^(-ε·γ/2) for ⊥, that is e^(-ε·γ/2) for each word beyond γ. So Pr[y | x] is proportional to
    exp(-ε·d_γ(x, y)/2), d_γ = min(d, γ): SanText under another metric, drawn in the same way, without Gumbel noise.

    **Theorem** ε·d_γ(x, x'), for all inputs and outputs, nothing exposed. Proof: d_γ is a pseudometric, as d is (the
    smaller of a distance and a constant keeps the triangle inequality). So the weights of y differ by at most
    exp(ε·d_γ(x, x')/2), and so do their sums. The published theorem is ε·d. This one is never weaker, and its worst
    case is ε·γ if γ is below the vocabulary's diameter: the gain of truncation. (A program of it in use weighs ⊥ by
    |W|/|L_x|, by which neither holds: a test finds it.)

    **γ.** By default it is (2/ε)·ln((1 - β)·(V - 1)/β), at least 0, the paper's choice. A word of the vocabulary is
    then replaced by one beyond γ with probability at most β, because ⊥ weighs (V - 1)·e^(-ε·γ/2) at most beside the 1
    of the word itself. The unknown word, which has no such 1, is not covered by that. The worst case of this choice,
    2·ln((1 - β)·(V - 1)/β), does not depend on ε.

    Attributes:
        epsilon: ε per unit of the vectors' length, 1e-6..1000.
        vocabulary: Words and vectors.
        gamma: γ in that unit, 0..1e9; 0 is uniform, None the choice by beta.
        beta: β, 1e-9..0.5.
    """

    gamma: float | None = None
    beta: float = 0.001

    name: ClassVar[str] = "tem"
    facts: ClassVar[Facts] = Facts(tried={"epsilon": EPSILONS, "gamma": (None, 1.5), "beta": (0.001,)})

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon, low=checks.MIN_EPSILON))
        object.__setattr__(self, "beta", checks.real(self.name, "beta", self.beta, 1e-9, 0.5))
        if self.gamma is not None:
            object.__setattr__(self, "gamma", checks.real(self.name, "gamma", self.gamma, 0, MAX_GAMMA))

    @property
    def radius(self) -> float:
        """Return γ, given or chosen."""
        if self.gamma is not None:
            return self.gamma
        odds = (1 - self.beta) * (len(self.vocabulary) - 1) / self.beta
        return max(0.0, 2 / self.epsilon * math.log(odds))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return replace(super().guarantee, diameter=min(diameter(self.vocabulary), self.radius))

    @property
    def _draws(self) -> Exponential:
        return _sampler(self.vocabulary, self.epsilon, self.radius)

    def distances(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return d_γ of the guarantee, word ids (n,) and (k,) -> (n, k)."""
        apart: FloatArray = np.minimum(distances(self.vocabulary, x, y), self.radius)
        return apart

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two words at most `distance` apart (None: any): pure LDP at ε·d_γ.

        `distance` is Euclidean.
        """
        apart = checked_distance(self.name, distance, diameter(self.vocabulary))
        return pure_loss(self.guarantee.loss(min(apart, self.radius)))


@dataclass(frozen=True, eq=False)
class _Truncated(Geometry):
    """Distances of at most γ: cutting two at one number moves them no farther apart."""

    gamma: float

    def bend(self, apart: FloatArray, x: np.int64, y: IntArray) -> None:
        np.minimum(apart, self.gamma, out=apart)


@lru_cache(maxsize=4)
def _sampler(vocabulary: Vocabulary, epsilon: float, gamma: float) -> Exponential:
    return Exponential(_Truncated(vocabulary.points, np.arange(len(vocabulary)), gamma), epsilon)
