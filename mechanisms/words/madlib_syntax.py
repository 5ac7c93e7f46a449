"""Syntax-guided MADLIB: substitutes with the word's own part of speech (Arnold et al. 2023), and their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.facts import EPSILONS, AboutWords, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.losses.planar_laplace import laplace_loss
from mechanisms.mechanism import Uniforms
from mechanisms.streams import LATTICE
from mechanisms.vocabulary import TAGS, Vocabulary
from mechanisms.words.distances import Geometry, diameter, distances
from mechanisms.words.exponential import Exponential
from mechanisms.words.madlib import check_dimensions, perturbed
from mechanisms.words.nearest import nearest_alike
from mechanisms.words.tables import Tabled

MAX_PENALTY = 1000.0
#: Part of speech of the unknown word, which no word has.
_NO_TAG = len(TAGS)


@dataclass(frozen=True)
class MadlibSyntax(Tabled):
    """A substitute near x that probably has the part of speech tag(x). The two modes are two mechanisms.

    **mode = "paper"** (Arnold et al. 2023, section 3). Planar Laplace noise on φ(x) as in MADLIB; of the k words
    nearest to the noisy vector the first with x's own tag, or the nearest word if none has it. The choice looks at the
    private word again, so it is no post-processing, and the published ε·d does not hold. Words of two tags may be
    distinguished by one output, at any ε (if k is the whole vocabulary, for certain). Among inputs of *one* tag that
    tag is a constant, the choice is a function of the noisy vector and of public data, and ε·|φ(x) - φ(x')| follows by
    post-processing. So the guarantee exposes the tag. An unknown word, whatever its part of speech, gets the nearest
    word: that it is unknown is exposed too.

    **mode = "repaired"** (the way that the paper leaves open). The exponential mechanism with both aims in the score:
    Pr[y | x] proportional to exp(-ε·d'(x, y)/2), d'(x, y) = |φ(x) - φ(y)| + penalty·[tag(x) is not tag(y)]. Theorem:
    ε·d'(x, x') for all inputs, nothing exposed. Proof: [tag(x) is not tag(y)] is the discrete metric of the tags, a
    pseudometric of words, so the sum d' is one (for words at different places a metric). The triangle inequality bounds
    the ratio of two weights by exp(ε·d'(x, x')/2), and that of their sums again (as for SanText, Yue et al. 2021,
    Theorem 1). Words of one tag keep their Euclidean distance, words of two tags are `penalty` farther apart. So
    guidance costs ε·penalty in the worst case. The guarantee's distances are those d', its diameter the Euclidean one
    and the penalty.

    **numeric_delta in paper mode (proved).** The argument of mechanisms.words.madlib, with three kinds of breaks along
    the path of one uniform. The nearest word: at most 2V. The nearest of the tag: likewise. That word enters or leaves
    the first k: it then exchanges the ranks k and k + 1 with another, where k - 1 others are nearer. There are at most
    2e·k·V such points on a half circle. Proof: keep each word with probability 1/k. The point is a break of the lower
    envelope of the kept words with probability at least 1/k²·(1 - 1/k)^(k - 1) >= 1/(e·k²), and that envelope has at
    most 2V/k breaks in expectation (Clarkson and Shor 1989).

    Attributes:
        epsilon: ε for each unit of distance, 1e-6..1000.
        vocabulary: Words with tags.
        k: Pool of paper mode, 1..V.
        penalty: Penalty of repaired mode, in units of distance, 0..1000; 0 is SanText.
        mode: "repaired" or "paper".
    """

    epsilon: float
    vocabulary: Vocabulary
    k: int = 20
    penalty: float = 1.0
    mode: str = "repaired"

    name: ClassVar[str] = "madlib-syntax"
    facts: ClassVar[Facts] = Facts(
        needs=frozenset({AboutWords.TAGS}),
        tried={"epsilon": EPSILONS, "k": (3,), "penalty": (1.0,), "mode": ("repaired", "paper")},
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon, low=checks.MIN_EPSILON))
        object.__setattr__(self, "k", checks.integer(self.name, "k", self.k, 1, 2**31))
        object.__setattr__(self, "penalty", checks.real(self.name, "penalty", self.penalty, 0, MAX_PENALTY))
        checks.one_of(self.name, "mode", self.mode, checks.MODES)
        if self.vocabulary.tags is None:
            raise ValueError(f"{self.name}: the vocabulary has no tags; give it parts of speech first")
        if self.mode == "paper":
            check_dimensions(self.name, self.vocabulary)

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        size, width = self.vocabulary.vectors.shape
        if self.mode == "repaired":
            sampler = self._sampler
            return Guarantee(
                epsilon=self.epsilon,
                metric="euclidean",
                diameter=diameter(self.vocabulary) + self.penalty,
                protects="token",
                inputs=f"all; the distance of words of two parts of speech is {self.penalty:g} more",
                numeric_epsilon=sampler.numeric_epsilon,
                numeric_delta=sampler.numeric_delta,
            )
        breaks = (width + 1) * (4 + 2 * np.e * min(self.k, size)) * size
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=diameter(self.vocabulary),
            protects="token",
            numeric_delta=min(1.0, breaks * LATTICE),
            exposes=("unknown-words", "tag"),
        )

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the raw noise's loss for words of one tag (paper), or the loss of ε·d' (repaired). None: at worst."""
        guarantee = self.guarantee
        apart = checked_distance(self.name, distance, guarantee.diameter)
        if self.mode == "paper":
            return laplace_loss(self.vocabulary.vectors.shape[1], self.epsilon, apart)
        return pure_loss(guarantee.loss(apart))

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each word id, (n,) or (n, L) -> the same shape, int64; NOTHING stays.

        One uniform a token, in paper mode m + 1.
        """
        if self.mode == "repaired":
            return self._drawn(x, 1, self._sampler.sample, rng=rng)
        x, tags = checks.word_ids(self.name, x, self.vocabulary), _tags(self.vocabulary)
        return perturbed(
            x,
            self.epsilon,
            self.vocabulary,
            rng,
            lambda z, word_ids: nearest_alike(z, tags[word_ids], self.k, self.vocabulary),
        )

    def distances(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return the distances of the guarantee, d' in repaired mode: word ids (n,) and (k,) -> (n, k)."""
        apart = distances(self.vocabulary, x, y)
        if self.mode == "paper":
            return apart
        tags = _tags(self.vocabulary)
        further: FloatArray = apart + self.penalty * (tags[x][:, None] != tags[y][None])
        return further

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return log probabilities of all words, (n,) -> (n, V).

        Raises:
            NotImplementedError: Paper mode has none in closed form.
        """
        if self.mode == "paper":
            raise NotImplementedError("madlib-syntax: paper mode has no closed probabilities")
        return self._sampler.log_probs(checks.word_ids(self.name, x, self.vocabulary))

    @property
    def _sampler(self) -> Exponential:
        return _sampler(self.vocabulary, self.epsilon, self.penalty)


def _tags(vocabulary: Vocabulary) -> IntArray:
    """Return (V + 1,) the tags, the unknown word's last."""
    return np.append(np.asarray(vocabulary.tags, dtype=np.int64), _NO_TAG)


@dataclass(frozen=True, eq=False)
class _Guided(Geometry):
    """Distances d': the Euclidean ones, and `penalty` more where the tags (N,) of the rows differ."""

    tags: IntArray
    penalty: float

    def bend(self, apart: FloatArray, x: np.int64, y: IntArray) -> None:
        apart += self.penalty * (self.tags[x] != self.tags[y])

    @property
    def error(self) -> float:
        """Bound the error of d', with roundings for the sum with the penalty and for its product."""
        return super().error + 8 * 2.0**-53 * (self.penalty + 2 * math.sqrt(self.largest))


@lru_cache(maxsize=4)
def _sampler(vocabulary: Vocabulary, epsilon: float, penalty: float) -> Exponential:
    return Exponential(_Guided(vocabulary.points, np.arange(len(vocabulary)), _tags(vocabulary), penalty), epsilon)
