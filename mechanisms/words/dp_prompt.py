"""DP-Prompt and DP-Paraphrase: a model that reads the original generates the text anew, token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import IntArray
from mechanisms.facts import Facts
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words import language_model
from mechanisms.words.language_model import FromLogits, Scores


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
            (`client.models.generator`).
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
        for block in language_model.blocks(mask):
            for position in range(word_ids.shape[1]):
                rows = block[mask[block, position] & open_[block]]
                if len(rows):
                    at = np.full(len(rows), position, dtype=np.int64)
                    drawn = self._draw(scores, at, out, rows, points[rows * length + position])
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
