"""Whole text, token by token: the mechanism of a text release, of its length, and its total cost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.guarantee import Guarantee, exposed
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance, unbounded_loss
from mechanisms.mechanism import Uniforms, WordMechanism
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING

MAX_TOKENS = 4096


@dataclass(frozen=True)
class Length:
    """A number of tokens y in 0..L with probability proportional to exp(-ε|x - y|/2): ε·|x - x'|-LDP.

    The exponential mechanism with the distance as its score, as SanText (Yue et al. 2021, Theorem 1) on the integers:
    exp(ε|x - x'|/2) bounds the ratio of the weights by the triangle inequality, and that of their sums again.

    Attributes:
        epsilon: ε for each token of difference, 0..1000.
        tokens: L, 1..4096.
    """

    epsilon: float
    tokens: int

    name: ClassVar[str] = "length"
    channel: ClassVar[str] = "text"
    grid: ClassVar[None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "tokens", checks.integer(self.name, "tokens", self.tokens, 1, MAX_TOKENS))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="euclidean",
            diameter=float(self.tokens),
            protects="sequence",
            numeric_delta=categorical.exact_delta(self.tokens + 1),
        )

    def _weights(self, x: IntArray) -> FloatArray:
        weights: FloatArray = -self.epsilon / 2 * np.abs(x[:, None] - np.arange(self.tokens + 1)[None])
        return weights

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each length, (n,) in 0..L -> (n,) int64; one uniform a row."""
        x = checks.labels(self.name, x, self.tokens + 1)
        return categorical.sample(self._weights(x), Points.drawn(rng, x.shape, 1))

    def log_prob(self, y: IntArray, x: IntArray) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,)."""
        table = categorical.log_normalize(self._weights(np.asarray(x)))
        chosen: FloatArray = table[np.arange(len(table)), np.asarray(y)]
        return chosen

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return a loss that dominates any two lengths at most `distance` apart (None: any): pure ε·distance-LDP."""
        apart = checked_distance(self.name, distance, float(self.tokens))
        return pure_loss(self.epsilon * apart)


KEPT = "kept"
#: Exposures of a word that filled positions do not have. An observer of them at every place sees the end of the text.
_SHOWS_THE_END = frozenset({"unknown-words", "group", "tag", "choice"})
#: Treatments of the words of a kind: sanitize them as any other, leave them out first, or pass them through.
TREATMENTS = ("substitute", "drop", "keep")


@dataclass(frozen=True)
class TextMechanism:
    """A text as at most L word ids, each drawn by `word` on its own; its length drawn by `Length`.

    Tokens outside the vocabulary are treated by a public parameter, and all that passes through is exposed by name in
    the guarantee. Texts longer than L tokens are cut. Words are looked up as written, else in lower case; the released
    spelling is the vocabulary's own.

    **Guarantee.** Inputs are padded to L positions, so texts differ in positions and in length. Positions are drawn
    independently, given the released length: for texts x, x' (Yue et al. 2021, Theorem 1 for L > 1)

        loss <= ε·Σ_i d(x_i, x'_i) + L·offset + ε_length·|len(x) - len(x')|,

    and at worst L times the word's worst case plus ε_length·L. A word mechanism that reads the whole text for each draw
    (it protects the "sequence") costs its ε at every position, however few words differ. The sides of a pair are drawn
    independently, so their losses add: for any two pairs at most twice that of any two texts.

    Attributes:
        word: Mechanism of one word.
        tokens: L of each side.
        length: ε for each token of difference, released through `Length`, or "kept". The text is cut to the drawn
            length, or filled up with the unknown word, sanitized like the others. If the word mechanism exposes a
            property that each token of the text has and filled positions do not have (its group or part of speech, for
            instance), the number of tokens is exposed with it, however it is drawn.
        unknown: Treatment of words outside the vocabulary: "substitute", by the input `vocabulary.unknown`, which lies
            at the mean of all words; or "drop". Neither shows the word.
        stop_words: "substitute" like any word, "drop" before anything else is done, or "keep".
        punctuation: As for stop_words.
        numbers: As for stop_words.
        sides: 1, or 2 for a pair of texts, which is released as two: each side has L positions and a length of its own,
            and neither is read while the other is drawn. The release then shows where the second begins.
    """

    word: WordMechanism
    tokens: int = 64
    length: float | str = 1.0
    unknown: str = "substitute"
    stop_words: str = "substitute"
    punctuation: str = "substitute"
    numbers: str = "substitute"
    sides: int = 1

    channel: ClassVar[str] = "text"
    grid: ClassVar[None] = None
    needs_prior: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sides", checks.integer("text", "sides", self.sides, 1, 2))
        object.__setattr__(self, "tokens", checks.integer("text", "tokens", self.tokens, 1, MAX_TOKENS // self.sides))
        if self.length != KEPT:
            if isinstance(self.length, str):
                raise ValueError(f'text: length must be an ε from 0 to 1000, or "{KEPT}", got {self.length!r}')
            object.__setattr__(self, "length", checks.epsilon("text", self.length, name="length"))
        for name in ("unknown", "stop_words", "punctuation", "numbers"):
            allowed = TREATMENTS[:2] if name == "unknown" else TREATMENTS
            if getattr(self, name) not in allowed:
                raise ValueError(f"text: {name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
            if getattr(self, name) == "keep" and getattr(self.word, "moves", False):
                raise ValueError(f"{self.word.name}: its words do not stand where the text's do, so none can be kept")

    @property
    def name(self) -> str:
        """Return the name of the word mechanism."""
        return self.word.name

    @property
    def vocabulary(self) -> Any:
        """Return the vocabulary of the word mechanism."""
        return self.word.vocabulary

    @property
    def positions(self) -> int:
        """Return the number of places of a release: L of each side, one side behind the other."""
        return self.sides * self.tokens

    @cached_property
    def side(self) -> TextMechanism:
        """Return the mechanism of one side, as of a text by itself."""
        return self if self.sides == 1 else replace(self, sides=1)

    @cached_property
    def lengths(self) -> Length | None:
        """Return the mechanism of the length, of each side; None if it is kept."""
        return None if isinstance(self.length, str) else Length(self.length, self.tokens)

    @cached_property
    def kept(self) -> BoolArray:
        """Return (V + 1,) a mask of the word ids that are passed through."""
        return self._treated("keep")

    @cached_property
    def dropped(self) -> BoolArray:
        """Return (V + 1,) a mask of the word ids that are left out of a text before anything else is done."""
        dropped = self._treated("drop")
        dropped[-1] = self.unknown == "drop"
        return dropped

    def _treated(self, treatment: str) -> BoolArray:
        kinds, none = self.vocabulary.kinds, np.zeros(len(self.vocabulary) + 1, dtype=bool)
        mask: BoolArray = np.any([none, *(kinds[name] for name in kinds if getattr(self, name) == treatment)], axis=0)
        return mask

    @cached_property
    def guarantee(self) -> Guarantee:
        """Return the theorem of the text."""
        token, n = self.word.guarantee, self.positions
        lengths = [] if self.lengths is None else [self.lengths.guarantee] * self.sides
        passes = [
            name.replace("_", "-") for name in ("stop_words", "punctuation", "numbers") if getattr(self, name) == "keep"
        ]
        drawn_in_vain = self.lengths is not None and not _SHOWS_THE_END.isdisjoint(token.exposes)
        passes += ["length"] if self.length == KEPT or drawn_in_vain else []
        shown = set(token.exposes) - ({"unknown-words"} if self.unknown == "drop" else set())
        together = token.protects == "sequence"
        return Guarantee(
            epsilon=token.epsilon * n if together else token.epsilon,
            metric=token.metric,
            diameter=token.diameter if together else token.diameter * n,
            protects="sequence",
            offset=token.offset * n + sum(length.worst_case() for length in lengths),
            inputs=token.inputs,
            numeric_epsilon=token.numeric_epsilon * n,
            numeric_delta=min(1.0, token.numeric_delta * n + sum(length.numeric_delta for length in lengths)),
            exposes=exposed([*shown, *passes]),
        )

    def parts(self) -> tuple[tuple[Any, int], ...]:
        """Return the mechanisms that draw a text, each with its number of draws: for composition."""
        length: tuple[tuple[Any, int], ...] = () if self.lengths is None else ((self.lengths, self.sides),)
        return ((self.word, self.positions), *length)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss of its parts, by their theorems alone, at `distance` (None: at worst).

        Exposures are declared public. Accounting composes `parts` instead, which is tighter. If words are drawn
        separately, the distance is theirs, place by place: texts at distance 0 may still differ in length.
        """
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        bound = self.guarantee.loss(apart)
        if self.lengths is not None and self.word.guarantee.protects == "token":
            bound = max(bound, self.sides * self.lengths.guarantee.worst_case())
        if bound == np.inf:
            return unbounded_loss()
        return pure_loss(bound)

    def sample(self, x: NDArray[Any], *, rng: Uniforms, **private: Any) -> NDArray[np.int32]:
        """Draw once for each text, (n, positions) word ids -> (n, positions) int32 word ids.

        Inputs include `vocabulary.unknown`, and NOTHING after the end. Outputs have NOTHING after the drawn end (and
        where `word` gives none). For pairs, one side is behind the other, each with an end of its own. Every row uses
        the same number of uniforms.

        Args:
            x: Word ids.
            rng: Source of uniforms.
            **private: Further properties of the text that the word mechanism reads (`word.reads`), (n, L, ...) each,
                or, for a pair, those of its sides, one after the other.

        Raises:
            ValueError: The word ids are invalid.
        """
        x = self._checked(x)
        drawn = np.empty(x.shape, dtype=np.int32)
        for number, side in enumerate(self.slices):
            read = private if self.sides == 1 else {name: values[number] for name, values in private.items()}
            drawn[:, side] = self._drawn(x[:, side], rng, read)
        return drawn

    @property
    def slices(self) -> tuple[slice, ...]:
        """Return the place of each side in a row of `sample`."""
        return tuple(slice(side * self.tokens, (side + 1) * self.tokens) for side in range(self.sides))

    def _drawn(self, x: IntArray, rng: Uniforms, private: dict[str, Any]) -> NDArray[np.int32]:
        if hasattr(self.word, "settled"):
            private = self.word.settled(x, **private)
        mask = x != NOTHING
        end = mask.sum(axis=1)
        drawn = end if self.lengths is None else self.lengths.sample(end, rng=rng)
        inside = np.arange(self.tokens)[None] < drawn[:, None]
        filled = np.where(inside, np.where(mask, x, self.vocabulary.unknown), NOTHING)
        substitutes = self.word.sample(filled, rng=rng, **private)
        return np.where(inside & self.kept[filled], filled, substitutes).astype(np.int32)

    def texts(self, word_ids: NDArray[Any]) -> list[Any]:
        """Return released word ids (n, positions) as texts, words with one space between; pairs as two texts each."""
        sides = [[self.vocabulary.text(row) for row in word_ids[:, side]] for side in self.slices]
        return sides[0] if self.sides == 1 else list(zip(*sides, strict=True))

    @cached_property
    def uniforms(self) -> int:
        """Return the number of uniforms of one text, whatever it holds."""
        counting = _Counting()
        nothing = np.full((1, self.tokens), NOTHING)
        private = {"importance": np.zeros((1, self.tokens)), "scores": None}  # no scores are requested without words
        self.side.sample(nothing, rng=counting, **{name: private[name] for name in self.word.reads})
        return self.sides * counting.count

    def _checked(self, x: NDArray[Any]) -> IntArray:
        values = checks.word_ids("text", x, self.vocabulary)
        if values.ndim != 2 or values.shape[1] != self.positions:
            raise ValueError(f"text: expected word ids (n, {self.positions}), got {values.shape}")
        mask = (values != NOTHING).reshape(-1, self.tokens)
        if (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError("text: a word stands after the end")
        return values


class _Counting:
    """Source of uniforms that counts them, each so small that the length drawn by it is 0: no word is drawn."""

    def __init__(self) -> None:
        self.count = 0

    def uniform(self, rows: int, k: int) -> FloatArray:
        self.count += rows * k
        return np.full((rows, k), 2.0**-53)

    def further(self, rows: IntArray, k: int) -> FloatArray:
        return np.full((len(rows), k), 0.5)


#: Parameters of a text that are not its word mechanism's, by the names in experiment files.
TEXT_FIELDS = tuple(f.name for f in fields(TextMechanism) if f.name != "word")
