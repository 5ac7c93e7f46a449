"""Questions for answers: the class that a user's own device finds by the model that the request carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import ANSWER
from mechanisms.messages.questions.question import (
    ClassRelease,
    Lent,
    MappedQuestion,
    Projection,
    Received,
    require,
)
from mechanisms.projection import linear_classes


@dataclass(frozen=True, eq=False)
class AnswerQuestion(ClassRelease, MappedQuestion):
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
        require(isinstance(self.projection, Projection), "no encoder is named")
        self.projection.linear(self.head, "head")
        super().__post_init__()

    @property
    def classes(self) -> int:
        """Return K, the number of the model's classes."""
        return len(self.head[1])

    def public(self, split: str) -> dict[str, Any]:
        """Return encoder, maps and model."""
        return super().public(split) | {"head": self.head, "classes": self.classes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model."""
        return {"head_w": self.head[0], "head_b": self.head[1]}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> AnswerQuestion:
        """Return the question of a request's wire."""
        projection, head = wire.projection(), wire.pair("head")
        if head is None:
            raise ValueError("request: a head goes with an answer")
        return cls(spec, projection=projection, head=head)

    def draw(self, values: NDArray[Any], lent: Lent) -> NDArray[Any]:
        """Draw classes (n,)."""
        return self.sampled(linear_classes(self.projection.apply(values), *self.head), lent.rng())

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        return f"which of {self.classes} classes a model finds in it"
