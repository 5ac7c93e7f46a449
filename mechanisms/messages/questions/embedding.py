"""Questions for embeddings, which public maps turn into short unit vectors before noise is added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mechanisms.channels import EMBEDDING
from mechanisms.messages.questions import question as base
from mechanisms.messages.questions.question import Lent, MappedQuestion, Received, Records


@dataclass(frozen=True, eq=False)
class EmbeddingQuestion(MappedQuestion):
    """Mapped embedding of each record. classes: of the task."""

    classes: int = field(kw_only=True)

    about = EMBEDDING
    channel: ClassVar[str] = EMBEDDING.name
    array: ClassVar[str] = "z"

    @property
    def sizes(self) -> dict[str, Any]:
        """M'."""
        return {"dim": self.projection.dim}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> EmbeddingQuestion:
        """Question of a request's wire."""
        return cls(spec, projection=wire.projection(), classes=wire.classes)

    def values(self, records: Records, rows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings (n, m) of the encoder's full width."""
        return records.embeddings(rows, self.projection)

    def draw(self, values: NDArray[np.float32], lent: Lent) -> NDArray[Any]:
        """Grid integers (n, m'). An embedding that cannot be normalized becomes the first basis vector."""
        return base.encoded(self.mechanism, self.projection.apply(values), lent.rng())

    @property
    def uniforms_of_dummy(self) -> int:
        """One for each coordinate of an embedding."""
        return self.projection.width

    def dummy(self, uniforms: NDArray[np.float64]) -> NDArray[np.float32]:
        """Embeddings in uniform directions."""
        return base.random_directions(ndtri(uniforms)).astype(np.float32)

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Coordinates (m',)."""
        return base.vector_form(self, self.projection.dim)

    def checks(self, payload: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
        """On the grid and on the sphere."""
        return base.vector_checks(self, payload, inside=False)

    def decode(self, payload: NDArray[Any]) -> NDArray[np.float64]:
        """Coordinates (n, m')."""
        return base.decoded(self.mechanism, payload)

    @property
    def content(self) -> str:
        """What a release tells of a record, in words."""
        return f"what the text says, in {self.projection.dim} coordinates"
