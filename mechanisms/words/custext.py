"""CusText, with and without stop words, and by importance: words of one group replace each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.facts import EPSILONS, Facts
from mechanisms.guarantee import Guarantee, exposed
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.tables import OfWords

SIMILARITIES = ("euclidean", "cosine")
MAX_K = 256


@dataclass(frozen=True, eq=False)
class Mapping:
    """Groups of words; the output set of every word of a group is the group.

    Attributes:
        group: (V + 1,) int64, the group of each input.
        members: (groups, K) int64, rising, NOTHING where a group is smaller.
        scores: (V + 1, K) closeness of each member to the input, 1 the nearest and 0 the farthest of the group (all 1
            if all are equally close), -inf where there is none.
    """

    group: IntArray
    members: IntArray
    scores: FloatArray


@lru_cache(maxsize=4)
def mapping(vocabulary: Vocabulary, k: int, similarity: str) -> Mapping:
    """Return the greedy mapping of Chen et al. 2022, Algorithm 1 (Fu 2024, Algorithm 1). Cached.

    While at least K words are left, the first of them (public: the lowest number) and its K - 1 nearest, ties to the
    lower number, become a group and leave. The rest is a group of fewer. A last group of one word is that word: it is
    always kept. The unknown word, which is no output, joins the group whose centre is nearest to its point. It takes
    V²·m/K operations.

    Args:
        vocabulary: Words to be grouped.
        k: K.
        similarity: "euclidean" distance, or the "cosine" (0 with a vector of length 0).
    """
    points = vocabulary.points.astype(np.float64)
    if similarity == "cosine":
        lengths = np.sqrt(np.einsum("ij,ij->i", points, points))[:, None]
        points /= np.where(lengths > 0, lengths, 1.0)
    members = _greedy(points[:-1], k, similarity)
    group = np.empty(len(points), dtype=np.int64)
    for number, row in enumerate(members):
        group[row[row != NOTHING]] = number
    centres = np.stack([points[row[row != NOTHING]].mean(axis=0) for row in members])
    group[-1] = np.argmin(((centres - points[-1]) ** 2).sum(axis=1))

    scores = np.full((len(points), members.shape[1]), -np.inf)
    for x, point in enumerate(points):
        row = members[group[x]]
        row = row[row != NOTHING]
        if similarity == "cosine":
            near = np.einsum("ij,j->i", points[row], point)
        else:
            difference = points[row] - point
            near = -np.sqrt(np.einsum("ij,ij->i", difference, difference))
        span = near.max() - near.min()
        scores[x, : len(row)] = (near - near.min()) / span if span > 0 else 1.0
    for array in (group, members, scores):
        array.flags.writeable = False
    return Mapping(group, members, scores)


def _greedy(points: FloatArray, k: int, similarity: str) -> IntArray:
    """Return the members of each group, (groups, min(K, V)), rising, from points (V, m).

    For cosines, points have length 1 or 0.
    """
    left_ids = np.arange(len(points))
    squares = np.zeros(len(points)) if similarity == "cosine" else np.einsum("ij,ij->i", points, points)
    gone = np.zeros(len(points), dtype=bool)
    groups: list[IntArray] = []
    count = len(points)
    first = 0
    while count >= k:
        while gone[first]:
            first += 1
        far = squares - 2 * (points @ points[first])
        far[gone] = np.inf
        far[first] = -np.inf
        limit = np.partition(far, k - 1)[k - 1]
        near = np.flatnonzero(far <= limit)
        chosen = near[np.argsort(far[near], kind="stable")[:k]]
        groups.append(np.sort(left_ids[chosen]))
        gone[chosen] = True
        count -= k
        if count < 0.75 * len(gone):  # words that left need no further measuring
            points, squares, left_ids = points[~gone], squares[~gone], left_ids[~gone]
            gone, first = np.zeros(count, dtype=bool), 0
    if count:
        groups.append(left_ids[~gone])
    members = np.full((len(groups), min(k, max(map(len, groups)))), NOTHING)
    for row, word_ids in zip(members, groups, strict=True):
        row[: len(word_ids)] = word_ids
    return members


#: Draws processed at once.
_CHUNK = 16384


class _Grouped(OfWords):
    """Base of the mechanisms over one mapping: its parameters, and draws with an ε for each token."""

    epsilon: float
    k: int
    similarity: str

    def _check(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "k", checks.integer(self.name, "k", self.k, 2, MAX_K))
        checks.one_of(self.name, "similarity", self.similarity, SIMILARITIES)

    @property
    def mapping(self) -> Mapping:
        """Return the groups, and the scores in them."""
        return mapping(self.vocabulary, self.k, self.similarity)

    def _guarantee(
        self, epsilon: float, protects: str, exposes: tuple[str, ...] = (), inputs: str = "all"
    ) -> Guarantee:
        groups = ("group",) if len(self.mapping.members) > 1 else ()
        return Guarantee(
            epsilon=epsilon,
            metric="discrete",
            diameter=1.0,
            protects=protects,
            inputs=inputs,
            numeric_delta=categorical.exact_delta(self.mapping.members.shape[1]),
            exposes=exposed([*exposes, *groups]),
        )

    def _draw(self, x: IntArray, epsilon: FloatArray, u: Points) -> IntArray:
        """Draw a word for each of (n,) inputs, with ε (n,) and points (n, 1)."""
        drawn = np.empty(len(x), dtype=np.int64)
        for part, weights, members in self._weights(x, epsilon):
            drawn[part] = members[np.arange(len(members)), categorical.sample(weights, u[part])]
        return drawn

    def _log_prob(self, y: IntArray, x: IntArray, epsilon: FloatArray) -> FloatArray:
        """Return the log probability of (n,) words given (n,) inputs and ε (n,); -inf out of the group."""
        out = np.full(len(x), -np.inf)
        for part, weights, members in self._weights(x, epsilon):
            row, column = np.nonzero((members == y[part, None]) & (members != NOTHING))
            out[part.start + row] = categorical.log_normalize(weights)[row, column]
        return out

    def _weights(self, x: IntArray, epsilon: FloatArray) -> Iterator[tuple[slice, FloatArray, IntArray]]:
        """Yield stretches of the inputs, with the log-weights and the words of their groups, (k, K) each."""
        for at in range(0, len(x), _CHUNK):
            part = slice(at, at + _CHUNK)
            weights = self.mapping.scores[x[part]] * (np.maximum(epsilon[part], 1e-300) / 2)[:, None]
            yield part, weights, self.mapping.members[self.mapping.group[x[part]]]


@dataclass(frozen=True)
class CusText(_Grouped):
    """Pr[y | x] proportional to exp(ε·u(x, y)/2), y in the K words of x's group: ε-LDP inside one group.

    Chen et al. 2022: see `mechanisms.words.custext.mapping` for the groups. u is the similarity, for each input
    brought to [0, 1] over its output set (1 minus the distance so normalized for "euclidean"), so that its sensitivity
    is at most 1.

    **Theorem** (the exponential mechanism, McSherry and Talwar 2007, inside a group). exp(ε·u/2) lies in [1, e^(ε/2)],
    so each of K probabilities lies within e^(±ε/2) of 1/K, whichever word of the group is x. Two of them differ by at
    most e^ε. **Across groups there is no bound**: output sets of different groups are disjoint, one draw reveals the
    group, and the loss is infinite. That is the exposure "group"; the published claim of ε-LDP holds with it alone. If
    K is at least V there is one group, and nothing is exposed.

    Attributes:
        epsilon: 0..1000, not scaled by any distance.
        vocabulary: Words of the groups.
        k: K, 2..256.
        similarity: "euclidean" or "cosine".
    """

    epsilon: float
    vocabulary: Vocabulary
    k: int = 20
    similarity: str = "euclidean"

    name: ClassVar[str] = "custext"
    facts: ClassVar[Facts] = Facts(tried={"epsilon": EPSILONS, "k": (3,), "similarity": ("euclidean", "cosine")})

    def __post_init__(self) -> None:
        self._check()

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return self._guarantee(self.epsilon, "token")

    def kept(self, x: IntArray) -> BoolArray:
        """Return a mask of the inputs that pass unchanged: none."""
        return np.zeros(x.shape, dtype=bool)

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one word for each word id, (n,) or (n, L) -> same shape; one uniform each."""
        return self._drawn(x, 1, self._substitutes, rng=rng)

    def _substitutes(self, x: IntArray, points: Points) -> IntArray:
        out, drawn = x.copy(), ~self.kept(x)
        out[drawn] = self._draw(x[drawn], np.full(int(drawn.sum()), self.epsilon), points[drawn])
        return out

    def log_prob(self, y: NDArray[Any], x: NDArray[Any]) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,); -inf out of the group."""
        y, x = np.asarray(y), checks.word_id_row(self.name, x, self.vocabulary)
        drawn = self._log_prob(y, x, np.full(len(x), self.epsilon))
        return np.where(self.kept(x), np.where(y == x, 0.0, -np.inf), drawn)

    def log_probs(self, x: NDArray[Any]) -> FloatArray:
        """Return the log probability of every word, (n,) -> (n, V)."""
        x = checks.word_id_row(self.name, x, self.vocabulary)
        out = np.full((len(x), len(self.vocabulary)), -np.inf)
        members = self.mapping.members[self.mapping.group[x]]
        row, column = np.nonzero(members != NOTHING)
        out[row, members[row, column]] = self.log_prob(members[row, column], x[row])
        return out

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two words of one group: that of binary randomized response.

        The group, and all that is exposed, must be declared public.
        """
        return pure_loss(self.epsilon) if checks.differs(self.name, distance) else no_loss()


@dataclass(frozen=True)
class CusTextPlus(CusText):
    """CusText+: stop words are kept, all others go through `CusText` (Chen et al. 2022).

    A stop word's loss is infinite to any other word: the exposure "stop-words". Groups are those of CusText, so a
    released stop word may also replace another word of its group.
    """

    name: ClassVar[str] = "custext+"

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return self._guarantee(self.epsilon, "token", ("stop-words",))

    def kept(self, x: IntArray) -> BoolArray:
        """Return a mask of the inputs that pass unchanged: stop words."""
        kept: BoolArray = self.vocabulary.kinds["stop_words"][x]
        return kept


@dataclass(frozen=True)
class CusTextImportance(_Grouped):
    """CusText with a smaller ε on the share of a text's tokens that matters most (or least) in it (Fu 2024).

    `importance`, a weight for each token (the masked LM's attention, see `client.draw`), is read from the
    private text. ceil(share·n) of a text's n tokens, of highest importance ("top") or lowest ("bottom"), ties to the
    earlier, are chosen.

    **repaired** (the default): chosen tokens are drawn with `epsilon`, all others with `rest`; nothing passes
    unchanged. **Theorem.** With scores in [0, 1], exp(a·u/2) lies in [1, e^(a/2)] for parameter a, so a probability of
    the K words of a group lies within e^(±a/2) of 1/K. Hence two probabilities of one output, under any two words of
    the group and any two parameters a, b, differ by at most e^((a+b)/2) <= e^max(a, b). For the same word it is
    e^(|a-b|/2). Other words of a text can change the choice at every position, and with it a token that is itself
    unchanged. So the *sequence* is protected, max(epsilon, rest) for each of its tokens, whatever the importance reads
    and however few tokens differ. Inside groups: "group" is exposed.

    **paper**: tokens that are not chosen are kept (except the unknown word, which cannot be shown and is drawn with
    `epsilon`; `rest` is not used). The choice, and all the rest of the text, is exposed ("choice"): epsilon for each
    token holds only between texts that agree in it. The choice is made in the original text, before it is cut or filled
    up to a drawn length: the choice in a part is no function of the choice in the whole.

    strategy: "aggressive", a fresh draw for each token; or "conservative", one draw for each distinct word of a text. A
    word is then chosen as soon as one of its tokens is. Equal words stay equal, and texts that differ in which of their
    tokens are the same word are distinguished: the exposure "repetition". Between texts that agree in it, the bound
    above holds for each distinct word. A token outside the vocabulary repeats no other: nothing shows which of them are
    the same word, and the tokens that fill a text up would reveal its length if they were drawn as one.

    Attributes:
        epsilon: ε of chosen tokens, 0..1000.
        rest: ε of all others, 0..1000.
        vocabulary: Words of the groups.
        share: Share of the chosen tokens, 0..1.
        which: "top" or "bottom".
        strategy: "aggressive" or "conservative".
        k: As for `CusText`.
        similarity: As for `CusText`.
        mode: "repaired" or "paper".
    """

    epsilon: float
    rest: float
    vocabulary: Vocabulary
    share: float = 0.3
    which: str = "top"
    strategy: str = "aggressive"
    k: int = 20
    similarity: str = "euclidean"
    mode: str = "repaired"

    name: ClassVar[str] = "custext-importance"
    reads: ClassVar[tuple[str, ...]] = ("importance",)
    facts: ClassVar[Facts] = Facts(
        usual={"rest": 2.0},
        tried={
            "epsilon": EPSILONS,
            "rest": (8.0,),
            "share": (0.4,),
            "which": ("top", "bottom"),
            "strategy": ("aggressive", "conservative"),
            "k": (3,),
            "similarity": ("euclidean", "cosine"),
            "mode": ("repaired", "paper"),
        },
    )

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "rest", checks.epsilon(self.name, self.rest, name="rest"))
        object.__setattr__(self, "share", checks.real(self.name, "share", self.share, 0, 1))
        checks.one_of(self.name, "which", self.which, ("top", "bottom"))
        checks.one_of(self.name, "strategy", self.strategy, ("aggressive", "conservative"))
        checks.one_of(self.name, "mode", self.mode, checks.MODES)

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        conservative = self.strategy == "conservative"
        inputs = "all; a word outside the vocabulary repeats no other" if conservative else "all"
        exposes = ("repetition",) * conservative
        if self.mode == "paper":
            return self._guarantee(self.epsilon, "token", ("choice", *exposes), inputs)
        return self._guarantee(max(self.epsilon, self.rest), "sequence", exposes, inputs)

    def settled(self, x: IntArray, *, importance: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the reading of texts (n, L) that are to be cut or filled up.

        In paper mode it is their choice, made now; filled positions count as chosen.
        """
        if self.mode == "paper":
            return {"importance": self.chosen(x, importance) | (x == NOTHING)}
        return {"importance": importance}

    def chosen(self, x: NDArray[Any], importance: NDArray[Any]) -> BoolArray:
        """Return a mask of the tokens protected with `epsilon`, (n, L) word ids and weights -> (n, L).

        Boolean weights are a choice that was already made (`settled`).

        Raises:
            ValueError: The weight of a token is missing or not finite.
        """
        x = checks.word_ids(self.name, x, self.vocabulary)
        weights = np.asarray(importance)
        if weights.shape == x.shape and weights.dtype == np.bool_:
            choice: BoolArray = weights & (x != NOTHING)
            return choice
        if weights.shape != x.shape or weights.dtype.kind not in "iuf":
            raise ValueError(f"{self.name}: importance must be a number for each token, {x.shape}, got {weights.shape}")
        mask = x != NOTHING
        if not np.isfinite(weights[mask]).all():
            raise ValueError(f"{self.name}: an importance is not finite")
        mask, weights = np.atleast_2d(mask.T).T, np.atleast_2d(weights.T).T  # (n,) are n texts of one token
        key = np.where(mask, -weights if self.which == "top" else weights, np.inf)
        order = np.argsort(key, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
        count = np.ceil(self.share * mask.sum(axis=1) - 1e-9)
        chosen: BoolArray = (mask & (rank < count[:, None])).reshape(x.shape)
        if self.strategy == "conservative":
            _, same = self._distinct(x)
            chosen = (np.bincount(same, weights=chosen.ravel())[same] > 0).reshape(x.shape)
        protected: BoolArray = chosen & (x != NOTHING)
        return protected

    def _distinct(self, x: IntArray) -> tuple[IntArray, IntArray]:
        """Return, for all tokens (flat), the first place of the word in its text, and its number in that text.

        An unknown word is a word of its own wherever it stands.
        """
        flat, positions = x.ravel(), np.arange(x.size)
        texts = positions // max(1, x[:1].size)
        words = np.where(flat == self.vocabulary.unknown, -1 - positions, texts * (len(self.vocabulary) + 1) + flat + 1)
        _, first, same = np.unique(words, return_index=True, return_inverse=True)
        return first[same], same

    def _parameters(self, x: IntArray, importance: NDArray[Any]) -> tuple[BoolArray, FloatArray]:
        """Return, for all tokens (flat), whether it is kept as it is, and its ε."""
        chosen = self.chosen(x, importance).ravel()
        if self.mode == "paper":
            kept = ~chosen & (x.ravel() != self.vocabulary.unknown)
            return kept, np.full(x.size, self.epsilon)
        return np.zeros(x.size, dtype=bool), np.where(chosen, self.epsilon, self.rest)

    def sample(self, x: NDArray[Any], *, rng: Uniforms, importance: NDArray[Any]) -> IntArray:
        """Draw one word for each word id, (n, L) -> same shape; one uniform each. (n,) are n texts of one token.

        `importance` has the shape of x; it is not read where there is no token.
        """
        x = checks.word_ids(self.name, x, self.vocabulary)
        u = Points.drawn(rng, x.shape, 1)
        kept, epsilon = self._parameters(x, importance)
        if self.strategy == "conservative":
            u = u[self._distinct(x)[0]]
        out = x.ravel().copy()
        drawn = (out != NOTHING) & ~kept
        out[drawn] = self._draw(out[drawn], epsilon[drawn], u[drawn])
        return out.reshape(x.shape)

    def log_prob(self, y: NDArray[Any], x: NDArray[Any], *, importance: NDArray[Any]) -> FloatArray:
        """Return the log probability of whole texts y given x, (n, L) -> (n,); (n,) are n texts of one token."""
        x = checks.word_ids(self.name, x, self.vocabulary)
        y = np.asarray(y)
        kept, epsilon = self._parameters(x, importance)
        flat, out = x.ravel(), y.ravel()
        drawn = (flat != NOTHING) & ~kept
        terms = np.where(out == flat, 0.0, -np.inf)
        terms[drawn] = self._log_prob(out[drawn], flat[drawn], epsilon[drawn])
        if self.strategy == "conservative":
            first = self._distinct(x)[0]
            repeated = first != np.arange(x.size)
            terms = np.where(repeated, np.where(out == out[first], 0.0, -np.inf), terms)
        total: FloatArray = terms.reshape(len(x), -1).sum(axis=1)
        return total

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates one token's, at any parameter, inside its group; exposures declared public."""
        return pure_loss(self.guarantee.epsilon) if checks.differs(self.name, distance) else no_loss()
