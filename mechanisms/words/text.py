"""A whole text, token by token: what a text release is drawn by, and what all of it costs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.guarantee import Guarantee, exposed
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance, unbounded_loss
from mechanisms.mechanism import Uniforms, WordMechanism
from mechanisms.vocabulary import NOTHING
from mechanisms.words.length import MAX_TOKENS, Length

KEPT = "kept"
#: Log of a blanket's weight below which nobody is hidden by all the people there are, and cells of a text's blanket.
_LEAST_LOG_GAMMA, _CELLS = -30.0, 20_000
#: What may be done with the words of a kind: sanitize them as any other, leave them out first, or pass them through.
TREATMENTS = ("substitute", "drop", "keep")


@dataclass(frozen=True)
class TextMechanism:
    """A text as at most L word ids, each drawn by `word` on its own; its length drawn by `Length`.

    The treatment of everything that is not a word of the vocabulary is a public parameter, and what is passed through
    is exposed by name in the guarantee:
    - Texts longer than L tokens are cut. length: ε for each token of difference, released through `Length` (the text
      is then cut to the drawn length, or filled up with the unknown word, sanitized like the others), or "kept".
    - unknown: words outside the vocabulary: "substitute", by the input `vocabulary.unknown`, which lies at the mean of
      all words; or "drop". Neither shows the word.
    - stop_words, punctuation, numbers: "substitute" like any word, "drop" before anything else is done, or "keep".
    - Casing: words are looked up as written, else in lower case; what is released is the vocabulary's own spelling.

    **Guarantee.** Inputs are padded to L positions, so texts differ in positions and in length; positions are drawn
    independently, given the released length: for texts x, x' (Yue et al. 2021, Theorem 1 for L > 1)
        loss <= ε·Σ_i d(x_i, x'_i) + L·offset + ε_length·|len(x) - len(x')|,
    and at worst L times the word's worst case plus ε_length·L. A word mechanism that reads the whole text for each
    draw (it protects the "sequence") costs its ε at every position, however few words differ.
    """

    word: WordMechanism
    tokens: int = 64
    length: float | str = 1.0
    unknown: str = "substitute"
    stop_words: str = "substitute"
    punctuation: str = "substitute"
    numbers: str = "substitute"

    channel: ClassVar[str] = "text"
    needs_prior: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", checks.integer("text", "tokens", self.tokens, 1, MAX_TOKENS))
        if self.length != KEPT:
            if isinstance(self.length, str):
                raise ValueError(f'text: length must be an ε from 0 to 1000, or "{KEPT}", got {self.length!r}')
            object.__setattr__(self, "length", checks.real("text", "length", self.length, 0, 1000))
        for name in ("unknown", "stop_words", "punctuation", "numbers"):
            allowed = TREATMENTS[:2] if name == "unknown" else TREATMENTS
            if getattr(self, name) not in allowed:
                raise ValueError(f"text: {name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
            if getattr(self, name) == "keep" and getattr(self.word, "moves", False):
                raise ValueError(f"{self.word.name}: its words do not stand where the text's do, so none can be kept")

    @property
    def name(self) -> str:
        return self.word.name

    @property
    def grid(self) -> None:
        return None

    @property
    def vocabulary(self) -> Any:
        return self.word.vocabulary

    @cached_property
    def lengths(self) -> Length | None:
        """The mechanism of the length; None where it is kept."""
        return None if isinstance(self.length, str) else Length(self.length, self.tokens)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """(V + 1,): the word ids that are passed through."""
        kinds = self.vocabulary.kinds
        named = [name for name in kinds if getattr(self, name) == "keep"]
        masks = [kinds[name] for name in named] or [np.zeros(len(self.vocabulary) + 1, dtype=bool)]
        kept: NDArray[np.bool_] = np.any(masks, axis=0)
        return kept

    @cached_property
    def dropped(self) -> NDArray[np.bool_]:
        """(V + 1,): the word ids that are left out of a text before anything else is done."""
        kinds = self.vocabulary.kinds
        masks = [kinds[name] for name in kinds if getattr(self, name) == "drop"]
        unknown = np.zeros(len(self.vocabulary) + 1, dtype=bool)
        unknown[-1] = self.unknown == "drop"
        dropped: NDArray[np.bool_] = np.any([*masks, unknown], axis=0)
        return dropped

    @cached_property
    def guarantee(self) -> Guarantee:
        token, n = self.word.guarantee, self.tokens
        passes = [name.replace("_", "-") for name in ("stop_words", "punctuation", "numbers") if self._keeps(name)]
        passes += ["length"] if self.lengths is None else []
        together = token.protects == "sequence"
        return Guarantee(
            epsilon=token.epsilon * n if together else token.epsilon,
            metric=token.metric,
            diameter=token.diameter if together else token.diameter * n,
            protects="sequence",
            offset=token.offset * n + (0.0 if self.lengths is None else self.lengths.guarantee.worst_case()),
            inputs=token.inputs,
            numeric_epsilon=token.numeric_epsilon * n,
            numeric_delta=min(
                1.0, token.numeric_delta * n + (self.lengths.guarantee.numeric_delta if self.lengths else 0.0)
            ),
            exposes=exposed([*token.exposes, *passes]),
        )

    def _keeps(self, name: str) -> bool:
        return bool(getattr(self, name) == "keep")

    def parts(self) -> tuple[tuple[Any, int], ...]:
        """The mechanisms that a text is drawn by, and how often each: for composition."""
        length: tuple[tuple[Any, int], ...] = () if self.lengths is None else ((self.lengths, 1),)
        return ((self.word, self.tokens), *length)

    @cached_property
    def _blanket(self) -> BlanketCells | None:
        word: BlanketCells | None = self.word.blanket() if hasattr(self.word, "blanket") else None
        length = None if self.lengths is None else self.lengths.blanket()
        if word is None or (self.lengths is not None and length is None):
            return None
        if self.tokens * word.log_gamma < _LEAST_LOG_GAMMA:
            return None
        positions = word.power(self.tokens)
        return positions if length is None else positions.product(length.merged()).merged(_CELLS)

    def blanket(self) -> BlanketCells | None:
        """Cells above every two texts that agree in what is exposed: its words' at each position, and its length's.

        What is released is a function of a length and of draws at all L positions, those behind the end of the
        unknown word. None where the word mechanism has none, or no number of users would do.
        """
        return self._blanket

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """The loss of its parts, by their theorems alone, at `distance` (None: at worst), exposures declared public.

        Accounting composes `parts` instead, which is tighter.
        """
        apart = checked_distance(self.name, distance, self.guarantee.diameter)
        bound = self.guarantee.loss(apart)
        if bound == np.inf:
            return unbounded_loss()
        return pure_loss(bound)

    def sample(self, x: NDArray[Any], *, rng: Uniforms, **private: Any) -> NDArray[np.int32]:
        """One draw for each text: (n, L) word ids, `vocabulary.unknown` included, NOTHING after the end ->
        (n, L) int32 word ids, NOTHING after the drawn end (and where `word` gives none).

        private: what else of the text the word mechanism reads (`word.reads`), (n, L, ...) each. Every row uses the
        same number of uniforms. ValueError on anything else.
        """
        x = self._checked(x)
        there = x != NOTHING
        end = there.sum(axis=1)
        drawn = end if self.lengths is None else self.lengths.sample(end, rng=rng)
        inside = np.arange(self.tokens)[None] < drawn[:, None]
        filled = np.where(inside, np.where(there, x, self.vocabulary.unknown), NOTHING)
        substitutes = self.word.sample(filled, rng=rng, **private)
        return np.where(inside & self.kept[filled], filled, substitutes).astype(np.int32)

    @cached_property
    def uniforms(self) -> int:
        """How many uniforms one text takes, whatever it holds."""
        counting = _Counting()
        nothing = np.full((1, self.tokens), NOTHING)
        private = {"importance": np.zeros((1, self.tokens)), "scores": None}  # nobody asks for scores of no words
        self.sample(nothing, rng=counting, **{name: private[name] for name in self.word.reads})
        return counting.count

    def _checked(self, x: NDArray[Any]) -> NDArray[np.int64]:
        values = np.asarray(x)
        if values.ndim != 2 or values.shape[1] != self.tokens or (values.size and values.dtype.kind not in "iu"):
            raise ValueError(f"text: expected word ids (n, {self.tokens}), got {values.dtype} {values.shape}")
        if values.size and (values.min() < NOTHING or values.max() > self.vocabulary.unknown):
            raise ValueError(f"text: a word id is outside {NOTHING}..{self.vocabulary.unknown}")
        there = values != NOTHING
        if (there[:, 1:] & ~there[:, :-1]).any():
            raise ValueError("text: a word stands after the end")
        return values.astype(np.int64)


class _Counting:
    """A source of uniforms that counts them."""

    def __init__(self) -> None:
        self.count = 0

    def uniform(self, rows: int, k: int) -> NDArray[np.float64]:
        self.count += rows * k
        return np.full((rows, k), 0.5)

    def further(self, rows: NDArray[np.int64], k: int) -> NDArray[np.float64]:
        return np.full((len(rows), k), 0.5)


#: The parameters of a text that are not its word mechanism's, by the names that experiment files use.
TEXT_FIELDS = tuple(f.name for f in fields(TextMechanism) if f.name != "word")
