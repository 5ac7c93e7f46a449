"""Questions for answers: the class that a user's own device finds by the model that the request carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mechanisms.channels import ANSWER
from mechanisms.messages.questions import question as base
from mechanisms.messages.questions.question import Lent, MappedQuestion, Received, Records, require
from mechanisms.projection import linear_classes


@dataclass(frozen=True, eq=False)
class AnswerQuestion(MappedQuestion):
    """Class of each record's text by a model.

    head: (W (m', K) float32, b (K,) float32): the class of an embedding is the first of the largest of x @ W + b, x the
        mapped, normalized one.
    """

    head: tuple[NDArray[np.float32], NDArray[np.float32]] = field(kw_only=True)

    about = ANSWER
    channel: ClassVar[str] = ANSWER.name
    array: ClassVar[str] = "c"
    alone: ClassVar[bool] = True
    has_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(isinstance(self.projection, base.Projection), "no encoder is named")
        self.projection.linear(self.head, "head")
        super().__post_init__()

    @property
    def classes(self) -> int:
        """K, the number of the model's classes."""
        return len(self.head[1])

    @property
    def sizes(self) -> dict[str, Any]:
        """K."""
        return {"classes": self.classes}

    def public(self, split: str) -> dict[str, Any]:
        """Encoder, maps and model."""
        return super().public(split) | {"head": self.head, "classes": self.classes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The model."""
        return {"head_w": self.head[0], "head_b": self.head[1]}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> AnswerQuestion:
        """Question of a request's wire."""
        projection, head = wire.projection(), wire.pair("head")
        if head is None:
            raise ValueError("request: a head goes with an answer")
        return cls(spec, projection=projection, head=head)

    def values(self, records: Records, rows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings (n, m) of the encoder's full width."""
        return records.embeddings(rows, self.projection)

    def draw(self, values: NDArray[np.float32], lent: Lent) -> NDArray[Any]:
        """Classes (n,)."""
        found = linear_classes(self.projection.apply(values), *self.head)
        return self.mechanism.sample(base.inside_classes(found, self.classes), rng=lent.rng())

    @property
    def uniforms_of_dummy(self) -> int:
        """One for each coordinate of an embedding."""
        return self.projection.width

    def dummy(self, uniforms: NDArray[np.float64]) -> NDArray[np.float32]:
        """Embeddings in uniform directions."""
        return base.random_directions(ndtri(uniforms)).astype(np.float32)

    @property
    def bytes_in_draw(self) -> int:
        """A number for each class."""
        return 8 * self.classes

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """A class."""
        return self.array, np.dtype(np.int16), ()

    def checks(self, payload: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
        """One of the classes."""
        return base.class_checks(self, payload)

    def decode(self, payload: NDArray[Any]) -> NDArray[np.int64]:
        """Classes (n,)."""
        return payload.astype(np.int64)

    @property
    def content(self) -> str:
        """What a release tells of a record, in words."""
        return f"which of {self.classes} classes a model finds in it"
