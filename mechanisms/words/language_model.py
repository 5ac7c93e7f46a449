"""Exponential mechanism over a language model's logits, from which DP-MLM and DP-Prompt draw each token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.facts import EPSILONS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.tables import OfWords

#: scores(positions, word_ids, rows) -> (k, V): for each of the rows (k,) of `word_ids` (n, W), the current words (drawn
#: so far, then what is still to come), a raw logit for each word to stand at its position (k,). It may know more of the
#: private texts.
Scores = Callable[[IntArray, IntArray, IntArray], NDArray[Any]]

MAX_LOGIT = 1e6
#: Texts that are drawn together. Memory holds only their logits, (rows, V) in double precision.
BLOCK = 128


def log_weights(scores: NDArray[Any], epsilon: float, low: float, high: float) -> FloatArray:
    """Return clip(u, low, high)/T, minus a constant, with T = 2(high - low)/ε: (k, V) raw logits -> (k, V) in [0, ε/2].

    **Guarantee.** Log-weights a, a' in [0, ε/2] of any two contexts give, at every word v,

        log p(v) - log p'(v) = a(v) - a'(v) + log Σ_w e^a'(w) - log Σ_w e^a(w) <= ε/2 + ε/2 = ε

    (McSherry and Talwar 2007; Meisenbacher et al. 2024, Theorem 1): the logits may be anything. Rounding keeps the
    bounds too, because it is monotone: (u - low)/(high - low) cannot round to above 1. NaN counts as `low`, so a model
    that overflows on one private text neither breaks the bound nor reveals itself by an error.
    """
    logits = np.asarray(scores, dtype=np.float64)
    clipped = np.where(logits > low, np.minimum(logits, high), low)
    weights: FloatArray = (clipped - low) / (high - low) * (epsilon / 2)
    return weights


class FromLogits(OfWords):
    """Base of the mechanisms that draw from a language model's logits: their parameters, and the cost of one draw.

    Attributes:
        epsilon: ε of one draw, 0..1000.
        low: Lower bound of the logits, a public number.
        high: Upper bound of the logits, a public number.
        vocabulary: Words that are drawn.
    """

    epsilon: float
    low: float
    high: float

    reads: ClassVar[tuple[str, ...]] = ("scores",)
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(
        usual={"low": -1.0, "high": 1.0}, tried={"epsilon": EPSILONS, "low": (-2.0,), "high": (3.0,)}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "low", checks.real(self.name, "low", self.low, -MAX_LOGIT, MAX_LOGIT))
        object.__setattr__(self, "high", checks.real(self.name, "high", self.high, -MAX_LOGIT, MAX_LOGIT))
        if not self.low < self.high:
            raise ValueError(f"{self.name}: low must be below high, got {self.low:g} and {self.high:g}")

    @property
    def exposes(self) -> tuple[str, ...]:
        """Return the exposures of one draw beside its guarantee: none."""
        return ()

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem of one draw, about everything from which its logits were computed."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="discrete",
            diameter=1.0,
            protects="sequence",
            numeric_delta=categorical.exact_delta(len(self.vocabulary)),
            exposes=self.exposes,
        )

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates one draw of any two contexts (exposures declared public).

        It is that of pure LDP at the exact worst loss,

            ε/2 + log(1 + (V - 1)e^(ε/2)) - log(V - 1 + e^(ε/2)) <= ε.

        log p(v) - log p'(v) rises in a(v) and in every other a'(w), and falls in a'(v) and in every other a(w). So it
        is largest if the former are ε/2, the rest 0. It is near ε if e^(ε/2) is far below V, else near ε/2 + log V:
        60 for ε = 100 and 24,000 words. (a, a' the log-weights of two contexts, as in `log_weights`.)
        """
        if not checks.differs(self.name, distance):
            return no_loss()
        others, half = math.log(len(self.vocabulary) - 1), self.epsilon / 2
        exact = half + float(np.logaddexp(0.0, others + half) - np.logaddexp(others, half))
        return pure_loss(min(self.epsilon, exact * (1 + 1e-14)))  # rounding goes to the safe side

    def log_probs(self, scores: NDArray[Any]) -> FloatArray:
        """Return log probabilities of the whole vocabulary for one draw, raw logits (k, V) -> (k, V)."""
        return categorical.log_normalize(self._log_weights(scores))

    def _log_weights(self, scores: NDArray[Any]) -> FloatArray:
        return log_weights(scores, self.epsilon, self.low, self.high)

    def _draw(
        self,
        scores: Scores,
        position: int | IntArray,
        word_ids: IntArray,
        rows: IntArray,
        points: Points,
        *,
        lift: Callable[[FloatArray], FloatArray] | None = None,
    ) -> IntArray:
        """Draw one word for each of the rows, at its position: (k,) int64. `lift` changes the log-weights."""
        positions = np.full(len(rows), position, dtype=np.int64)
        logits, expected = np.asarray(scores(positions, word_ids, rows)), (len(rows), len(self.vocabulary))
        if logits.shape != expected:
            raise ValueError(f"{self.name}: expected scores {expected}, got {logits.shape}")
        weights = self._log_weights(logits)
        return categorical.sample(weights if lift is None else lift(weights), points)


@dataclass(frozen=True)
class OfAnyVocabulary:
    """Price of a mechanism that draws from a model's logits, at worst over all vocabularies.

    Use it while the model, and so its number of tokens, is unknown. It draws nothing.

    **Theorem.** The exact worst loss of one draw (`FromLogits.privacy_loss`) rises with V: its derivative by V - 1 is
    (e^ε - 1)/((1 + (V - 1)e^(ε/2))(V - 1 + e^(ε/2))) >= 0. It ends at ε, at which every one of them is pure LDP. The
    distance of a sampler from its mechanism has no bound over all V, so none is claimed: no δ of a crowd holds it, and
    shuffling reduces no ε.

    Attributes:
        word: Mechanism of one draw.
    """

    word: FromLogits
    name: str = field(init=False)
    reads: tuple[str, ...] = field(init=False)
    vocabulary: Vocabulary = field(init=False)

    channel: ClassVar[str] = "text"
    grid: ClassVar[None] = None
    needs_prior: ClassVar[bool] = False
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("name", "reads", "vocabulary"):
            object.__setattr__(self, name, getattr(self.word, name))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem, without a bound on the sampler's error."""
        return replace(self.word.guarantee, numeric_delta=1.0)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss of pure LDP at ε, for any two contexts."""
        if not checks.differs(self.name, distance):
            return no_loss()
        return pure_loss(self.word.epsilon)

    def sample(self, x: NDArray[Any], *, rng: Any) -> IntArray:
        """Raise NotImplementedError: only the price is known."""
        raise NotImplementedError(f"{self.name}: its price alone is known; name its model to draw")


def steps(mask: BoolArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each position and the rows of (n, L) that have a token there, in blocks of texts of similar length.

    No row's draws depend on the others in its block.
    """
    order = np.argsort(mask.sum(axis=1), kind="stable").astype(np.int64)
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        for position in range(mask.shape[1]):
            rows = block[mask[block, position]]
            if len(rows):
                yield position, rows


def rows_of(name: str, x: NDArray[Any], vocabulary: Vocabulary) -> tuple[IntArray, BoolArray]:
    """Return x as int64 (n, L), L = 1 for single tokens, and a mask of the tokens.

    Raises:
        ValueError: As for `checks.word_ids`.
    """
    word_ids = checks.word_ids(name, x, vocabulary)
    word_ids = word_ids[:, None] if word_ids.ndim == 1 else word_ids
    return word_ids, word_ids != NOTHING
