"""Words of a text that pass through unchanged: the identity of the text channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import IntArray
from mechanisms.guarantee import Guarantee, unprotected
from mechanisms.losses.loss import LossCells, no_loss, unbounded_loss
from mechanisms.mechanism import Uniforms
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.tables import OfWords


@dataclass(frozen=True)
class Verbatim(OfWords):
    """Mechanism without protection: `identity` on the channel of texts. Unknown words have no id and are left out."""

    vocabulary: Vocabulary

    name: ClassVar[str] = "identity"

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee of no protection."""
        return unprotected("discrete", "token", 1.0)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss: unbounded for any two words that differ."""
        return unbounded_loss() if checks.differs(self.name, distance) else no_loss()

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Return the word ids themselves, NOTHING for the unknown word; no uniform is drawn."""
        x = checks.word_ids(self.name, x, self.vocabulary)
        return np.where(x == self.vocabulary.unknown, NOTHING, x)
