"""1-Diffractor: geometric noise on the place of a word in a list (Meisenbacher et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from mechanisms import checks
from mechanisms.facts import EPSILONS, Facts, Pair, Slider, spaced
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points
from mechanisms.vocabulary import Vocabulary
from mechanisms.words import tables
from mechanisms.words.word_lists import word_lists

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_LISTS = 64
#: Rows of probabilities held at once.
_ROWS = 64


@dataclass(frozen=True)
class Diffractor:
    """Draw of the word at x's place in a list, moved by two-sided geometric noise, and cut at the ends.

    Pr[k] = (1 - α)/(1 + α)·α^|k| with α = e^-ε. Each of several lists has all words, each followed by the nearest that
    is not yet there. Meisenbacher, Chevli and Matthes 2024 (their geometric form). The list is drawn for each token,
    uniformly.

    **Theorem** (Ghosh, Roughgarden and Sundararajan 2009, for each list; the paper's εd-privacy) ε·d(x, x'), d the
    largest difference of the places of x and x' in any of the lists. Proof: two neighbouring places change the mass of
    each place by a factor of e^ε at most, and so that of the places beyond an end. The choice of the list does not
    depend on x, so the probability of a word is a mean of probabilities that are each within e^(ε·d). Nothing is
    exposed. d is a metric (the largest of metrics), of the lists and not of the vectors: words that are close may lie
    far apart in a list, and its diameter is V - 1.

    **Differences from the published program.** It lets every list draw, and takes one of the words: the same law, at
    the lists' number times the work. It passes over words that a list does not have, by which the choice shows which
    lists know the private word (they come from several embeddings); here every list has all words. It passes on words
    outside the vocabulary and stop words in clear; here `TextMechanism` treats them. The unknown word stands at the
    place of the word nearest to the mean of all vectors.

    **numeric_delta (proved).** A list is met on an interval of one uniform, a place on one of another, each with two
    ends that are off by one lattice point, 2^-52. Rounding the logarithm moves the end at mass e^(-ε·j) by at most
    e^(-ε·j)·ε·j·2^-51, which is below 2^-52.

    Attributes:
        epsilon: ε for each place, 1e-6..1000.
        vocabulary: Words of the lists.
        lists: Number of lists, 1..64.
        seed: Public seed of their starts, 0..2^31 - 1.
    """

    epsilon: float
    vocabulary: Vocabulary
    lists: int = 3
    seed: int = 0

    name: ClassVar[str] = "diffractor"
    channel: ClassVar[str] = "text"
    reads: ClassVar[tuple[str, ...]] = ()
    facts: ClassVar[Facts] = Facts(
        label="1-Diffractor: neighbours in a list",
        tried={"epsilon": EPSILONS, "lists": (2,), "seed": (1,)},
        audits=({"epsilon": 0.3, "lists": 2},),
        pair=Pair.WORDS,
        # its ε is for each place in a list of all words
        slider=Slider(0.1, (0.02, *spaced(0.1, 0.5, 5)), slow=True),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon, low=checks.MIN_EPSILON))
        object.__setattr__(self, "lists", checks.integer(self.name, "lists", self.lists, 1, MAX_LISTS))
        object.__setattr__(self, "seed", checks.integer(self.name, "seed", self.seed, 0, 2**31 - 1))

    @property
    def grid(self) -> None:
        """Return None: outputs are integers."""
        return None

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=float(len(self.vocabulary) - 1),
            protects="token",
            inputs="all; by the largest difference of their places in a list",
            numeric_delta=(2 * len(self.vocabulary) + self.lists) * 2.0**-50,
        )

    @property
    def order(self) -> IntArray:
        """Return (lists, V) the words of each list, in their order."""
        return word_lists(self.vocabulary, self.lists, self.seed)[0]

    @property
    def place(self) -> IntArray:
        """Return (lists, V + 1) the place of each word, the unknown one included."""
        return word_lists(self.vocabulary, self.lists, self.seed)[1]

    def distances(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return d of the guarantee, word ids (n,) and (k,) -> (n, k)."""
        apart = np.zeros((len(x), len(y)))
        for place in self.place:
            np.maximum(apart, np.abs(place[x][:, None] - place[y][None]), out=apart)
        return apart

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one word for each word id, (n,) or (n, L) -> same shape; two uniforms each."""
        return tables.drawn(self, x, 2, self._draw, rng=rng)

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V)."""
        x = checks.word_id_row(self.name, x, self.vocabulary)
        out = np.empty((len(x), len(self.vocabulary)))
        every = np.arange(len(self.vocabulary))
        for at in range(0, len(x), _ROWS):
            out[at : at + _ROWS] = self._law(every[None], x[at : at + _ROWS, None])
        return out

    def log_prob(self, y: NDArray[Any], x: NDArray[Any]) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,)."""
        return self._law(np.asarray(y), checks.word_id_row(self.name, x, self.vocabulary))

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two words at most `distance` apart in every list (None: any): pure LDP."""
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return pure_loss(self.guarantee.loss(apart))

    def _draw(self, x: IntArray, points: Points) -> IntArray:
        u = points.u
        chosen = (u[:, 0] * self.lists).astype(np.int64)  # a lattice point below 1 times 64 stays below 64
        moved = self.place[chosen, x] + _geometric(u[:, 1], self.epsilon)
        out: IntArray = self.order[chosen, np.clip(moved, 0, len(self.vocabulary) - 1).astype(np.int64)]
        return out

    def _law(self, y: IntArray, x: IntArray) -> FloatArray:
        alpha, last = math.exp(-self.epsilon), len(self.vocabulary) - 1
        inside = math.log(-math.expm1(-self.epsilon))
        shape = (self.lists, *np.broadcast_shapes(y.shape, x.shape))
        each = np.empty(shape)
        for i, place in enumerate(self.place):
            to = place[y]
            each[i] = -self.epsilon * np.abs(to - place[x]) + np.where((to == 0) | (to == last), 0.0, inside)
        law: FloatArray = logsumexp(each, axis=0) - math.log1p(alpha) - math.log(self.lists)
        return law


def _geometric(u: FloatArray, epsilon: float) -> FloatArray:
    """Return two-sided geometric noise by its inverse distribution function: integers, (n,), of uniforms (n,).

    Pr[<= k] is α^-k/(1 + α) below 0 and 1 - α^(k+1)/(1 + α) from 0 on.
    """
    alpha = math.exp(-epsilon)
    below = u * (1 + alpha) <= alpha
    tail = np.where(below, u, 1 - u) * (1 + alpha)  # at most 1, except for rounding
    steps = np.log(tail) / epsilon
    noise: FloatArray = np.where(below, np.ceil(steps), np.ceil(-steps) - 1)
    return np.where(below, np.minimum(noise, -1.0), np.maximum(noise, 0.0))
