"""CluSanT: draw of a cluster of words, then of one of its words, by two exponential mechanisms (Awon et al. 2025)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.facts import EPSILONS, WORD_CURVE, Facts, Pair, Slider
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words import tables
from mechanisms.words.diameter import diameter, largest_distance
from mechanisms.words.distances import distances

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_SCALE, MAX_CLUSTERS = 1000.0, 4096
#: Clusters narrower than this share of the vocabulary count as words at one place.
_NARROW = 2.0**-20
#: Differences of vectors held at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class CluSanT:
    """Draw of a cluster C, then of a word y of it, by two exponential mechanisms.

    C has probability proportional to exp(-ε·K·|c(x) - c_C|/2), and y probability proportional to exp(-ε·d(x,
    y)/(2·Δ_C)): c_C is the centre of C, Δ_C the largest distance of two of its words, c(x) the centre of x's own
    cluster.

    Awon, Lu, Potka and Thomo 2025, the metric form. Clusters are of equal size. Each is a word (here by a hash of the
    vocabulary and a seed) and those nearest to it among the words that are left. Words may be spans of several ("new
    york"): they are read as one, and released as one (`client.models.tokens`).

    **Theorem** ε·d'(x, x') with d'(x, x') = K·|c(x) - c(x')| + min(1, d(x, x')/Δ), Δ the least Δ_C above 0; nothing
    exposed. Proof: y reveals C, so Pr[y | x] = Pr[C | x]·Pr[y | C, x]. The first is an exponential mechanism of a
    pseudometric (the proof of `mechanisms.words.exponential`), and so is the second, of d/Δ_C. Its loss is at most ε,
    wherever x and x' lie, by ranges: by the triangle inequality the distances of x to two words of C differ by Δ_C at
    most. So the weights of all words of C are within a factor e^(ε/2) of each other, for x and for x'. (As a
    sensitivity Δ_C would not do: the distances of x and of x' to one word may differ by more.) d' is a pseudometric, a
    sum of two. With K = 1/(the largest distance of two centres) this is the published standard form, ordinary LDP at
    2ε. The unknown word's c(x) is the mean of all words, where it lies itself.

    **Repair.** A cluster of one word, or of words at one place, has Δ_C = 0, by which its program divides. Here its
    words are drawn uniformly, as are those of clusters narrower than 2^-20 of the vocabulary.

    **Rounding.** A distance from differences in float64 is off by a share of (m/2 + 4)·2^-53. Four times ε/2 of that,
    over Δ_C, is numeric_epsilon. numeric_delta is that of two draws of `mechanisms.categorical`.

    Attributes:
        epsilon: 0..1000.
        vocabulary: Words of the clusters.
        clusters: Number of clusters, 1..4096 and no more than words. None: the square root of the words, rounded down.
        scale: K, per unit of the vectors' length, 0..1000.
        seed: Public seed of the clusters.
    """

    epsilon: float
    vocabulary: Vocabulary
    clusters: int | None = None
    scale: float = 1.0
    seed: int = 0

    name: ClassVar[str] = "clusant"
    channel: ClassVar[str] = "text"
    reads: ClassVar[tuple[str, ...]] = ()
    facts: ClassVar[Facts] = Facts(
        label="CluSanT: a cluster, then a word",
        tried={"epsilon": EPSILONS, "clusters": (None, 5), "scale": (0.5,), "seed": (1,)},
        few_words={"clusters": (2,)},
        audits=({"clusters": 4},),
        pair=Pair.WORDS,
        slider=Slider(12.0, (0.0, *WORD_CURVE), slow=True),
    )

    def __post_init__(self) -> None:
        size = len(self.vocabulary)
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        if self.clusters is not None:
            object.__setattr__(self, "clusters", checks.integer(self.name, "clusters", self.clusters, 1, MAX_CLUSTERS))
            if self.clusters > size:
                raise ValueError(f"{self.name}: {self.clusters} clusters of {size} words; ask for no more than words")
        object.__setattr__(self, "scale", checks.real(self.name, "scale", self.scale, 0, MAX_SCALE))
        object.__setattr__(self, "seed", checks.integer(self.name, "seed", self.seed, 0, 2**31 - 1))

    @property
    def grid(self) -> None:
        """Return None: outputs are integers."""
        return None

    @property
    def members(self) -> IntArray:
        """Return (clusters, size of the largest) the words of each, NOTHING after its last."""
        return self._made.members

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        made, width = self._made, self.vocabulary.vectors.shape[1]
        reach = self.scale * made.reach + 1.0
        lengths = self.scale * made.reach + diameter(self.vocabulary) / made.narrowest
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=reach,
            protects="token",
            inputs="all; by the distances of the words, up to 1, and of their clusters together",
            numeric_epsilon=2 * self.epsilon * lengths * (width + 16) * 2.0**-53 + 2.0**-48,
            numeric_delta=sum(categorical.exact_delta(k) for k in made.members.shape),
        )

    def distances(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return d' of the guarantee, word ids (n,) and (k,) -> (n, k)."""
        made = self._made
        between = made.between[np.ix_(made.cluster[x], made.cluster[y])]
        within = np.minimum(1.0, distances(self.vocabulary, x, y) / made.narrowest)
        apart: FloatArray = self.scale * between + within
        return apart

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one word for each word id, (n,) or (n, L) -> same shape; two uniforms each."""
        return tables.drawn(self, x, 2, self._draw, rng=rng)

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V)."""
        x = checks.word_id_row(self.name, x, self.vocabulary)
        made, every = self._made, np.arange(len(self.vocabulary))
        first = categorical.log_normalize(self._cluster_weights)[made.cluster[x]]
        apart = distances(self.vocabulary, x, every)
        out = np.empty_like(apart)
        for i, members in enumerate(made.members):
            words = members[members != NOTHING]
            second = categorical.log_normalize(-self.epsilon / 2 * apart[:, words] * made.inverse[i])
            out[:, words] = first[:, i, None] + second
        return out

    def log_prob(self, y: NDArray[Any], x: NDArray[Any]) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,)."""
        return tables.picked(self, y, x)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two words at most `distance` apart by d' (None: any): pure LDP at ε·d'."""
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        return pure_loss(self.guarantee.loss(apart))

    @property
    def _made(self) -> _Clusters:
        many = min(MAX_CLUSTERS, math.isqrt(len(self.vocabulary))) if self.clusters is None else self.clusters
        return _clusters(self.vocabulary, many, self.seed)

    @property
    def _cluster_weights(self) -> FloatArray:
        """Return (clusters + 1, clusters) log-weights of the first step, by the input's cluster; unknown words last."""
        weights: FloatArray = -self.epsilon * self.scale / 2 * self._made.between[:, :-1]
        return weights

    def _draw(self, x: IntArray, u: Points) -> IntArray:
        clusters, out = self._clusters(x, u.columns(0, 1)), np.empty(len(x), dtype=np.int64)
        step = max(1, _CHUNK // (self.members.shape[1] * self.vocabulary.vectors.shape[1]))
        for at in range(0, len(x), step):
            part = slice(at, at + step)
            out[part] = self._word(x[part], clusters[part], u[part].columns(1, 2))
        return out

    def _clusters(self, x: IntArray, u: Points) -> IntArray:
        """Draw a cluster for each word (n,), by points (n, 1), for all inputs of one cluster together."""
        own, weights = self._made.cluster[x], self._cluster_weights
        drawn = np.empty(len(x), dtype=np.int64)
        for cluster in np.unique(own):
            same = own == cluster
            row = np.broadcast_to(weights[cluster], (int(same.sum()), weights.shape[1]))
            drawn[same] = categorical.sample(row, u[same])
        return drawn

    def _word(self, x: IntArray, clusters: IntArray, u: Points) -> IntArray:
        """Draw a word of each of the clusters (n,) for each of x (n,)."""
        chosen = self.members[clusters]
        apart = self.vocabulary.points[x].astype(np.float64)[:, None] - self.vocabulary.points[chosen]
        weights = -self.epsilon / 2 * np.sqrt(np.einsum("ijk,ijk->ij", apart, apart))
        weights *= self._made.inverse[clusters, None]
        weights[chosen == NOTHING] = -np.inf
        drawn: IntArray = chosen[np.arange(len(x)), categorical.sample(weights, u)]
        return drawn


@dataclass(frozen=True, eq=False)
class _Clusters:
    """`members` (C, k) and the `cluster` (V + 1,) of each word, the unknown one's last, with their distances.

    `between` (C + 1, C + 1) are distances of the centres, the last that of all words, and `reach` is the largest of
    them, from above. `inverse` (C,) is 1/Δ_C, or 0; `narrowest` is the least Δ_C above 0, or 1.
    """

    members: IntArray
    cluster: IntArray
    between: FloatArray
    reach: float
    inverse: FloatArray
    narrowest: float


@lru_cache(maxsize=8)
def _clusters(vocabulary: Vocabulary, clusters: int, seed: int) -> _Clusters:
    size, vectors = len(vocabulary), vocabulary.vectors
    least, more = divmod(size, clusters)
    members = np.full((clusters, least + (more > 0)), NOTHING, dtype=np.int64)
    cluster = np.full(size + 1, clusters, dtype=np.int64)
    left = np.arange(size)
    for i in range(clusters):
        drawn = hashlib.sha256(f"{vocabulary.identity} {seed} cluster {i}".encode()).digest()
        middle = vectors[left[int.from_bytes(drawn[:8], "little") % len(left)]].astype(np.float64)
        apart = vectors[left] - middle
        taken = np.argsort(np.einsum("ij,ij->i", apart, apart), kind="stable")[: least + (i < more)]
        words = np.sort(left[taken])
        members[i, : len(words)], cluster[words] = words, i
        left = np.delete(left, taken)
    groups = [vectors[row[row != NOTHING]] for row in members]
    centres = np.vstack([*(group.mean(axis=0, dtype=np.float64) for group in groups), vocabulary.points[-1]])
    between = np.stack([np.linalg.norm(centres - centre, axis=1) for centre in centres])
    widths = np.array([largest_distance(group) for group in groups])
    wide = widths > diameter(vocabulary) * _NARROW
    inverse = np.where(wide, 1 / np.where(wide, widths, 1.0), 0.0)
    for array in (members, cluster, between, inverse):
        array.flags.writeable = False
    reach, narrowest = float(between.max()) * (1 + 2.0**-40), float(widths[wide].min()) if wide.any() else 1.0
    return _Clusters(members, cluster, between, reach, inverse, narrowest)
