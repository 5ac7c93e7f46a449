"""Questions for embeddings, which public maps turn into short unit vectors before noise is added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import EMBEDDING
from mechanisms.messages.questions.question import Lent, MappedQuestion, Received, VectorRelease


@dataclass(frozen=True, eq=False)
class EmbeddingQuestion(VectorRelease, MappedQuestion):
    """Mapped embedding of each record. classes: of the task."""

    classes: int = field(kw_only=True)

    about = EMBEDDING
    channel: ClassVar[str] = EMBEDDING.name
    array: ClassVar[str] = "z"

    @property
    def dim(self) -> int:
        """Return the number m' of coordinates."""
        return self.projection.dim

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> EmbeddingQuestion:
        """Return the question of a request's wire."""
        return cls(spec, projection=wire.projection(), classes=wire.classes)

    def draw(self, values: NDArray[np.float32], lent: Lent) -> NDArray[Any]:
        """Draw vectors (n, m'). An embedding that cannot be normalized becomes the first basis vector."""
        return self.sampled(self.projection.apply(values), lent.rng())

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        return f"what the text says, in {self.dim} coordinates"
