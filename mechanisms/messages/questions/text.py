"""Questions for texts, which a random mechanism rewrites word by word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, IntArray
from mechanisms.channels import TEXT
from mechanisms.checks import is_hex
from mechanisms.messages.questions.question import Lent, Question, Received, Records, require
from mechanisms.pieces import Text
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import TextMechanism


@dataclass(frozen=True, eq=False)
class TextQuestion(Question):
    """Sanitized text of each record.

    classes: of the task.
    vocabulary: words of the text, the very ones that the mechanism names under "vocabulary".
    masked_lm: SHA-256 (hex) of the language model that the mechanism reads from; "" where it reads none.
    """

    classes: int = field(kw_only=True)
    vocabulary: Vocabulary = field(kw_only=True)
    masked_lm: str = field(default="", kw_only=True)

    about = TEXT
    channel: ClassVar[str] = TEXT.name
    array: ClassVar[str] = "w"

    def __post_init__(self) -> None:
        require(isinstance(self.masked_lm, str), "masked_lm is no SHA-256")
        require(isinstance(self.spec, dict), f"{self.channel} is not a mechanism")
        require(isinstance(self.vocabulary, Vocabulary), "a text needs a vocabulary")
        named = self.spec.get("vocabulary")
        require(is_hex(named), "the text's vocabulary is no SHA-256")
        require(named == self.vocabulary.identity, "the text names another vocabulary than the one here")
        super().__post_init__()
        if self.text.word.reads:
            require(is_hex(self.masked_lm), "masked_lm is no SHA-256, and the text's mechanism reads one")
        else:
            require(not self.masked_lm, "a language model goes with a mechanism that reads one")

    @property
    def text(self) -> TextMechanism:
        """Return the mechanism, of its own class."""
        mechanism: Any = self.mechanism
        assert isinstance(mechanism, TextMechanism)
        return mechanism

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the vocabulary."""
        return {"vocabulary": self.vocabulary}

    def public(self, split: str) -> dict[str, Any]:
        """Return the language model; the mechanism names the vocabulary."""
        return {"masked_lm": self.masked_lm}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> TextQuestion:
        """Return the question of a request's wire."""
        identity = spec.get("vocabulary")
        require(wire.vocabulary is not None, "a text needs a vocabulary")
        if wire.vocabulary is None or not is_hex(identity):
            raise ValueError("request: the text's vocabulary is no SHA-256")
        return cls(spec, classes=wire.classes, vocabulary=wire.vocabulary(identity), masked_lm=wire.masked_lm)

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> list[Text]:
        """Return texts or pairs."""
        return records.texts(rows)

    def draw(self, values: list[Text], lent: Lent) -> NDArray[np.int32]:
        """Draw word ids (n, L)."""
        return lent.texts(self.text, values)

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Return the form of word ids (L,), of a pair (2L,)."""
        return self.array, np.dtype(np.int32), (self.text.positions,)

    def checks(self, payload: NDArray[Any]) -> dict[str, BoolArray]:
        """Check that rows are words of the vocabulary."""
        outside = (payload < NOTHING) | (payload >= len(self.vocabulary))
        return {"text: no word of the vocabulary": np.asarray(~outside.any(axis=1))}

    def decode(self, payload: NDArray[Any]) -> list[Text]:
        """Return words with spaces between."""
        return self.text.texts(payload)

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        return "the text, word by word"
