"""SanText, SanText+ and TEM: draws of nearby words by the exponential mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.decimals import precise
from mechanisms.facts import EPSILONS, AboutWords, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.streams import FINE, LATTICE, Points
from mechanisms.vocabulary import Vocabulary
from mechanisms.words import exponential
from mechanisms.words.distances import Geometry, diameter, distances
from mechanisms.words.exponential import Exponential
from mechanisms.words.tables import Tabled


@dataclass(frozen=True)
class SanText(Tabled):
    """Pr[y | x] proportional to exp(-ε·d(x, y)/2), d the Euclidean distance of the words' vectors: ε·d-metric-LDP.

    **Theorem** (Yue et al. 2021, Theorem 1, here for V words and the unknown one as inputs). By the triangle inequality
    exp(-ε·d(x, y)/2) <= exp(ε·d(x, x')/2)·exp(-ε·d(x', y)/2) for every y, hence also for the sum over y, and the ratio
    of two probabilities is at most exp(ε·d(x, x')). Two words at one place are the same input to it.

    Attributes:
        epsilon: ε per unit of the vectors' length, 0..1000. Its scale is the vectors': the same number means another
            protection under another vocabulary, and the worst case is ε times the vocabulary's diameter.
        vocabulary: Words and vectors.
    """

    epsilon: float
    vocabulary: Vocabulary

    name: ClassVar[str] = "santext"
    facts: ClassVar[Facts] = Facts(tried={"epsilon": EPSILONS})

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=diameter(self.vocabulary),
            protects="token",
            numeric_epsilon=self._draws.numeric_epsilon,
            numeric_delta=self._draws.numeric_delta,
        )

    @property
    def _draws(self) -> Exponential:
        return exponential.exponential(self.vocabulary, self.epsilon)

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one word for each word id, (n,) or (n, L) -> same shape; one uniform each."""
        return self._drawn(x, 1, self._draws.sample, rng=rng)

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V)."""
        return self._draws.log_probs(checks.word_id_row(self.name, x, self.vocabulary))

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two words at most `distance` apart (None: any): pure LDP at the bound.

        The true loss is smaller (on GloVe 0.5 to 0.7 of it).
        """
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return pure_loss(self.guarantee.loss(apart))


@dataclass(frozen=True)
class SanTextPlus(Tabled):
    """SanText+: sensitive words by SanText among themselves; frequent ones kept with probability 1 - p, else so too.

    Sensitive (V_S) are the share w of the words that is least frequent in a *public* corpus, by `vocabulary.counts`
    (ceil(w·V) of them; of equal counts the later number is taken first), and the unknown word. An output is always a
    sensitive word, or the frequent input itself.

    **Theorem** (Yue et al. 2021, Definition 3 and Theorem 2: (V_S, V_S, ε, ln 1/p)-UMLDP). For all x, x' and every
    *sensitive* output y, Pr[y | x] <= exp(ε·d(x, x') + ln(1/p))·Pr[y | x']. Two sensitive words, or two frequent ones,
    need no ln(1/p): it is the advantage of a sensitive x over a frequent x', whose coin must fall first.

    **Limits of the theorem.** A frequent word that is kept, probability 1 - p, is an output that no other input can
    give. It reveals itself, and that the token was not sensitive; the loss there is infinite. So the theorem protects
    which sensitive word was written, and hides a frequent word only if it was replaced. That is the exposure
    "frequent-words": inputs that agree in them (both sensitive, or the same frequent word) lose at most ε·d. With
    p = 1, or w = 1, nothing is ever kept: then it is SanText onto the sensitive words, ε·d, and exposes nothing.

    Attributes:
        epsilon: ε per unit of the vectors' length, 0..1000.
        vocabulary: Words with counts.
        w: Share of sensitive words, above 0, up to 1.
        p: Probability of a replacement, above 0 (1e-9), up to 1.
    """

    epsilon: float
    vocabulary: Vocabulary
    w: float = 0.9
    p: float = 0.3

    name: ClassVar[str] = "santext+"
    facts: ClassVar[Facts] = Facts(
        needs=frozenset({AboutWords.COUNTS}), tried={"epsilon": EPSILONS, "w": (0.5,), "p": (0.3, 1.0)}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "w", checks.real(self.name, "w", self.w, 0, 1))
        object.__setattr__(self, "p", checks.real(self.name, "p", self.p, 1e-9, 1))
        if self.w == 0:
            raise ValueError(f"{self.name}: w must be above 0: a word that is replaced needs another to become")
        if self.vocabulary.counts is None:
            raise ValueError(
                f"{self.name}: the vocabulary has no counts; count its words in a public corpus, never in private text"
            )

    @property
    def sensitive(self) -> BoolArray:
        """Return (V + 1,) whether inputs are sensitive, the unknown word among them."""
        return _sensitive(self.vocabulary, self.w)

    @property
    def keeps(self) -> bool:
        """Return True if any word may be kept."""
        return self.p < 1 and not bool(self.sensitive.all())

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=diameter(self.vocabulary),
            protects="token",
            offset=-math.log(self.p) if self.keeps else 0.0,
            numeric_epsilon=self._draws.numeric_epsilon,
            numeric_delta=self._draws.numeric_delta + FINE,
            exposes=("frequent-words",) if self.keeps else (),
        )

    @property
    def _draws(self) -> Exponential:
        return exponential.exponential(self.vocabulary, self.epsilon, _outputs(self.vocabulary, self.w))

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one word for each word id, (n,) or (n, L) -> same shape; two uniforms each."""
        return self._drawn(x, 2, self._substitutes, rng=rng)

    def _substitutes(self, x: IntArray, points: Points) -> IntArray:
        """Draw for sensitive words and for those whose coin falls, (k,) and (k, 2) -> (k,); keep the others."""
        drawn = self.sensitive[x] | self._replaced(points)
        out = x.copy()
        out[drawn] = self._draws.sample(x[drawn], points[drawn].columns(1, 2))
        return out

    def _replaced(self, points: Points) -> BoolArray:
        """Throw the coin of each word, by the first of its uniforms."""
        coins = points.u[:, 0]
        replaced: BoolArray = coins < self.p
        with precise():
            for row in np.flatnonzero(np.abs(coins - self.p) <= LATTICE):
                replaced[row] = points.fine(int(row)) < Decimal(self.p)
        return replaced

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V); -inf for a frequent word that is not x."""
        x = checks.word_id_row(self.name, x, self.vocabulary)
        out = np.full((len(x), len(self.vocabulary)), -np.inf)
        out[:, self.sensitive[:-1]] = self._draws.log_probs(x)
        frequent = np.flatnonzero(~self.sensitive[x])
        out[frequent] += math.log(self.p)
        if self.p < 1:
            out[frequent, x[frequent]] = math.log1p(-self.p)
        return out

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two words at most `distance` apart: pure LDP at ε·distance + ln(1/p).

        It holds given that no word is kept: kept words are exposed, and must be declared public.
        """
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return pure_loss(self.guarantee.loss(apart))


@lru_cache(maxsize=8)
def _sensitive(vocabulary: Vocabulary, w: float) -> BoolArray:
    counts = vocabulary.counts
    assert counts is not None
    size = len(vocabulary)
    rarest = np.lexsort((-np.arange(size), counts))[: math.ceil(w * size - 1e-9)]
    sensitive = np.zeros(size + 1, dtype=bool)
    sensitive[rarest] = True
    sensitive[-1] = True
    sensitive.flags.writeable = False
    return sensitive


@lru_cache(maxsize=8)
def _outputs(vocabulary: Vocabulary, w: float) -> bytes:
    return np.flatnonzero(_sensitive(vocabulary, w)[:-1]).astype(np.int64).tobytes()


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
