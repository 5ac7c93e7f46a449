"""Questions for answers: the class that a user's own device finds by the model that the request carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import ANSWER
from mechanisms.messages.questions.question import (
    ALL_RECORDS,
    MAX_CLASSES,
    ClassRelease,
    Lent,
    MappedQuestion,
    Projection,
    Received,
    Records,
    require,
)
from mechanisms.projection import linear_classes, user_means

#: Array that says that a user answers once.
_ONCE = "once"


@dataclass(frozen=True, eq=False)
class AnswerQuestion(ClassRelease, MappedQuestion):
    """Class of each record's text by a model, or of one of a user's records, drawn at random.

    head: (W (m', K) float32, b (K,) float32): the class of an embedding is the first of the largest of x @ W + b, x the
        mapped, normalized one.
    of_user: Whether each user releases one class, of a record that the device draws. The mechanism's ε is then for all
        that a user has. It is charged to ALL_RECORDS, and counts towards the limit of each of them.
    """

    head: tuple[NDArray[np.float32], NDArray[np.float32]] = field(kw_only=True)
    of_user: bool = field(default=False, kw_only=True)  # type: ignore[misc]  # of other channels the class says it

    about = ANSWER
    channel: ClassVar[str] = ANSWER.name
    array: ClassVar[str] = "c"
    alone: ClassVar[bool] = True
    has_model: ClassVar[bool] = True
    user_record: ClassVar[int] = ALL_RECORDS

    def __post_init__(self) -> None:
        require(isinstance(self.projection, Projection), "no encoder is named")
        self.projection.linear(self.head, "head")
        super().__post_init__()

    @property
    def classes(self) -> int:
        """Return K, the number of the model's classes."""
        return len(self.head[1])

    def public(self, split: str) -> dict[str, Any]:
        """Return encoder, maps and model, and whether a user answers once."""
        once = {"of_user": True} if self.of_user else {}
        return super().public(split) | {"head": self.head, "classes": self.classes} | once

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model; with a flag beside it if a user answers once."""
        once = {_ONCE: np.ones(1, np.float32)} if self.of_user else {}
        return {"head_w": self.head[0], "head_b": self.head[1]} | once

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> AnswerQuestion:
        """Return the question of a request's wire."""
        projection, head = wire.projection(), wire.pair("head")
        if head is None:
            raise ValueError("request: a head goes with an answer")
        return cls(spec, projection=projection, head=head, of_user=_ONCE in wire.arrays)

    @property
    def outputs(self) -> int:
        """Return the number of values that a release may have: K, or more where it stands for a set of classes."""
        return int(getattr(self.mechanism, "outputs", self.classes))

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Return the form of an output."""
        return self.array, np.dtype(np.int16 if self.outputs <= MAX_CLASSES else np.int32), ()

    def checks(self, payload: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
        """Check that rows are outputs."""
        return {f"{self.channel}: out of range": (payload >= 0) & (payload < self.outputs)}

    def values(self, records: Records, rows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[Any]:
        """Return embeddings (n, m), or each user's shares of classes (u, K)."""
        embeddings = super().values(records, rows, starts)
        if not self.of_user:
            return embeddings
        return user_means(np.eye(self.classes)[self._classes(embeddings)], starts)

    def draw(self, values: NDArray[Any], lent: Lent) -> NDArray[Any]:
        """Draw outputs (n,). Of shares of classes a class is drawn first, which is that of a random record."""
        rng = lent.rng()
        if not self.of_user:
            return self.sampled(self._classes(values), rng)
        below = rng.uniform(len(values), 1) >= values.cumsum(axis=1)[:, :-1]
        return self.sampled(below.sum(axis=1), rng)

    def _classes(self, embeddings: NDArray[Any]) -> NDArray[np.int64]:
        return linear_classes(self.projection.apply(embeddings), *self.head)

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        where = "one of them, drawn at random" if self.of_user else "it"
        return f"which of {self.classes} classes a model finds in {where}"
