"""Texts redrawn by language models: word by word (DP-MLM), or anew (DP-Prompt and DP-Paraphrase)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.facts import Facts
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words import language_model
from mechanisms.words.language_model import FromLogits, Scores


@dataclass(frozen=True)
class DpMlm(FromLogits):
    """Word w at a masked position with probability proportional to exp(clip(u_w, low, high)/T), T = 2(high - low)/ε.

    u are the logits of a masked language model (Meisenbacher et al. 2024, Algorithms 1 and 2).

    **Guarantee.** One draw is ε-LDP about everything that its logits come from (their Theorem 1; see
    `language_model.log_weights`). That is the whole text: the original stands beside the masked one at every draw
    (Algorithm 1). So two texts that differ in a single word may differ in every draw, and the bound of a token *is* the
    bound of a text. The draws of one text, each given those before, compose to (number of draws)·ε, whether one word
    differs or all. Hence `protects="sequence"`.

    Stop words are drawn like any other word (the paper keeps them: `TextMechanism.stop_words`). The similarity of the
    candidate sentence that the paper's program adds to the logits (its appendix A) is left out.

    Attributes:
        epsilon: ε of one draw, 0..1000.
        low: Lower bound of the logits, a public number; the paper takes the mean, here over *public* text
            (`client.models.language_models` carries the bounds).
        high: Upper bound of the logits, a public number; the paper takes the mean + 4 standard deviations.
        vocabulary: Words that are drawn.
        antonyms: Pairs of words that must never replace each other. In `paper` mode such a word cannot be drawn, which
            shows that its antonym was not the input (the guarantee exposes "filter"). `repaired` gives it the weight of
            the least likely word, which costs nothing, because any score is allowed.
        mode: "repaired" or "paper".
    """

    epsilon: float
    low: float
    high: float
    vocabulary: Vocabulary
    antonyms: tuple[tuple[str, str], ...] = ()
    mode: str = "repaired"

    name: ClassVar[str] = "dp-mlm"
    facts: ClassVar[Facts] = replace(
        FromLogits.facts,
        tried={**FromLogits.facts.tried, "antonyms": ((("word0", "word1"),),), "mode": ("repaired", "paper")},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self.name, "mode", self.mode, checks.MODES)
        pairs = tuple(tuple(pair) for pair in self.antonyms)
        if not all(len(pair) == 2 and all(isinstance(w, str) for w in pair) and len(set(pair)) == 2 for pair in pairs):
            raise ValueError(f"{self.name}: antonyms must be pairs of two different words")
        object.__setattr__(self, "antonyms", pairs)

    @property
    def exposes(self) -> tuple[str, ...]:
        """Return the exposures: in paper mode, the filter of a word's antonyms."""
        return ("filter",) if self.mode == "paper" and len(self._pairs) else ()

    def log_probs(self, scores: NDArray[Any], x: IntArray | None = None) -> FloatArray:
        """Return log probabilities of all words, raw logits (k, V) -> (k, V).

        `x` (k,) are the words that stand there, for the antonyms.
        """
        weights = self._log_weights(scores)
        return categorical.log_normalize(weights if x is None else self._filtered(weights, x))

    def sample(self, x: NDArray[Any], *, rng: Uniforms, scores: Scores) -> IntArray:
        """Redraw a text by Algorithm 2, position by position, (n, L) or (n,) word ids -> the same shape.

        Each draw is given the original (which `scores` holds), the words drawn before it and the original words after
        it. NOTHING stays NOTHING and requires no scores. One uniform for each position.

        Raises:
            ValueError: Scores have another shape.
        """
        current, mask = language_model.rows_of(self.name, x, self.vocabulary)
        points, length = Points.drawn(rng, current.shape, 1), current.shape[1]
        for position, rows in language_model.steps(mask):
            own, lift = points[rows * length + position], partial(self._filtered, x=current[rows, position])
            current[rows, position] = self._draw(scores, position, current, rows, own, lift=lift)
        return current.reshape(np.shape(x))

    @cached_property
    def _pairs(self) -> IntArray:
        """Return (p, 2) word ids of the antonyms that the vocabulary knows, both ways round."""
        id_pairs = [(self.vocabulary.exact_word_id(a), self.vocabulary.exact_word_id(b)) for a, b in self.antonyms]
        pairs = [pair for a, b in id_pairs if a is not None and b is not None for pair in ((a, b), (b, a))]
        return np.array(sorted(set(pairs)), dtype=np.int64).reshape(-1, 2)

    def _filtered(self, weights: FloatArray, x: IntArray) -> FloatArray:
        if len(self._pairs):
            row, pair = np.nonzero(np.asarray(x)[:, None] == self._pairs[None, :, 0])
            weights[row, self._pairs[pair, 1]] = -np.inf if self.mode == "paper" else 0.0
        return weights


@dataclass(frozen=True)
class DpMlmResized(FromLogits):
    """DP-MLM with additions and deletions (Meisenbacher et al. 2024, Algorithm 3), by coins that do not read the text.

    At each position the word is left out with probability `deletion`, else drawn anew as in `DpMlm`. Then, with
    probability `addition`, one more word is drawn behind it, at a mask that replaces none.

    **Guarantee.** Coins are thrown without looking at the text, so the bound may be shown with the coins published.
    Every draw is then ε-LDP about the whole text, and each draw is one word of the output. A text of at most L tokens
    gives at most L words here (the rest is neither drawn nor released), so L·ε bounds it: ε for a position, as for
    `DpMlm`, where the paper's unlimited output costs up to 2Lε. A deletion draws nothing and costs nothing. The paper's
    claim of (A - D)nε "on average" is no bound: an average over coins protects nobody.

    Attributes:
        epsilon: As for `DpMlm`.
        low: As for `DpMlm`.
        high: As for `DpMlm`.
        vocabulary: As for `DpMlm`.
        addition: Probability of an addition; the paper's .1 or .25.
        deletion: Probability of a deletion; the paper's .05.
    """

    epsilon: float
    low: float
    high: float
    vocabulary: Vocabulary
    addition: float = 0.1
    deletion: float = 0.05

    name: ClassVar[str] = "dp-mlm-resized"
    moves: ClassVar[bool] = True
    facts: ClassVar[Facts] = replace(
        FromLogits.facts, tried={**FromLogits.facts.tried, "addition": (0.1,), "deletion": (0.05,)}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("addition", "deletion"):
            object.__setattr__(self, name, checks.real(self.name, name, getattr(self, name), 0, 1))

    def sample(self, x: NDArray[Any], *, rng: Uniforms, scores: Scores) -> IntArray:
        """Redraw a text by Algorithm 3, cut to L words, (n, L) word ids -> (n, L), NOTHING after the last word.

        Each position takes four uniforms (two coins, two draws). `word_ids`, as `scores` sees them, are up to 2L wide.
        """
        word_ids, mask = language_model.rows_of(self.name, x, self.vocabulary)
        n, length = word_ids.shape
        points = Points.drawn(rng, word_ids.shape, 4)
        u = points.u.reshape(n, length, 4)
        out = np.full((n, length), NOTHING, dtype=np.int64)
        count = np.zeros(n, dtype=np.int64)
        for position, here in language_model.steps(mask):
            for coin, chance, uniform in ((0, 1 - self.deletion, 2), (1, self.addition, 3)):
                # a word stays if its coin is below 1 - D, one is added if its coin is below A
                rows = here[(u[here, position, coin] < chance) & (count[here] < length)]
                if len(rows):
                    at = count[rows]
                    contexts = np.full((n, 2 * length), NOTHING, dtype=np.int64)
                    contexts[rows] = _current(out[rows], at, word_ids[rows], position)
                    own = points[rows * length + position].columns(uniform, uniform + 1)
                    out[rows, at] = self._draw(scores, at, contexts, rows, own)
                    count[rows] += 1
        return out.reshape(np.shape(x))


def _current(out: IntArray, count: IntArray, word_ids: IntArray, position: int) -> IntArray:
    """Return (k, 2L): the words drawn, one place to be masked, and the original words behind `position`."""
    length = word_ids.shape[1]
    padded = np.concatenate([out, np.full_like(out, NOTHING)], axis=1)
    column = np.arange(2 * length)[None]
    source = column - count[:, None] + position
    rest = np.take_along_axis(word_ids, np.clip(source, 0, length - 1), axis=1)
    current: IntArray = np.where(column < count[:, None], padded, np.where(source < length, rest, NOTHING))
    return current


@dataclass(frozen=True)
class DpPrompt(FromLogits):
    """Next token v with probability proportional to exp(clip(u_v, low, high)/T), T = 2(high - low)/ε.

    u are the logits of a language model after a prompt that holds the original text and the tokens drawn so far (Utpala
    et al. 2023).

    **Guarantee.** One draw is ε-LDP about the whole original (see `language_model.log_weights`); m draws compose to
    m·ε. A text has as many draws as it has positions, and `Text` draws that number before (the paper, too, generates as
    many tokens as the input has). Tokens after the end token are dropped, not left undrawn: their draws are charged,
    and forgetting them is post-processing.

    Attributes:
        epsilon: ε of one draw, 0..1000.
        low: Lower bound of the logits, a public number.
        high: Upper bound of the logits, a public number.
        vocabulary: The model's tokens, as published, or words: one that is no single token of the model counts as `low`
            (`client.models.language_models`).
        end: Token that ends a text, or "".
    """

    epsilon: float
    low: float
    high: float
    vocabulary: Vocabulary
    end: str = ""

    name: ClassVar[str] = "dp-prompt"
    model: ClassVar[str] = "generator"
    moves: ClassVar[bool] = True
    facts: ClassVar[Facts] = replace(FromLogits.facts, tried={**FromLogits.facts.tried, "end": ("",)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.end, str) or (self.end and self.vocabulary.exact_word_id(self.end) is None):
            raise ValueError(f"{self.name}: the end token {self.end!r} is not in the vocabulary")

    def sample(self, x: NDArray[Any], *, rng: Uniforms, scores: Scores) -> IntArray:
        """Draw (n, L) or (n,) tokens, one wherever x has one; nothing else of x is read. One uniform for each position.

        The `word_ids` that `scores` sees are those drawn so far, NOTHING behind. A text that has ended requests no more
        scores, which does not change the release.
        """
        word_ids, mask = language_model.rows_of(self.name, x, self.vocabulary)
        points, length = Points.drawn(rng, word_ids.shape, 1), word_ids.shape[1]
        out = np.full(word_ids.shape, NOTHING, dtype=np.int64)
        end = self.vocabulary.exact_word_id(self.end) if self.end else None
        open_ = np.ones(len(word_ids), dtype=np.bool_)
        for position, here in language_model.steps(mask):
            rows = here[open_[here]]
            if len(rows):
                drawn = self._draw(scores, position, out, rows, points[rows * length + position])
                ended = drawn == end
                out[rows, position] = np.where(ended, NOTHING, drawn)
                open_[rows[ended]] = False
        return out.reshape(np.shape(x))


@dataclass(frozen=True)
class DpParaphrase(DpPrompt):
    """DP-Paraphrase (Mattern et al. 2022): `DpPrompt` with a model that was trained to paraphrase what precedes.

    Its authors scale the logits by their smallest and largest value, which depend on the private text. As in
    Meisenbacher et al. 2024 (appendix B), they are clipped to public bounds here.
    """

    name: ClassVar[str] = "dp-paraphrase"
    model: ClassVar[str] = "paraphraser"
