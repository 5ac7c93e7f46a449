"""Questions for labels, perhaps by a prior from the embedding that the same request releases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import IntArray
from mechanisms.channels import LABEL
from mechanisms.messages.questions.embedding import EmbeddingQuestion
from mechanisms.messages.questions.question import ClassRelease, Lent, Received, Records, require
from mechanisms.projection import softmax


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of a label: softmax(ẑ @ W + b), ẑ the *released* embedding of the same request.

    weights: (W (m', K) float32, b (K,) float32).
    """

    weights: tuple[NDArray[np.float32], NDArray[np.float32]]
    embedding: EmbeddingQuestion

    def __post_init__(self) -> None:
        require(isinstance(self.embedding, EmbeddingQuestion), "a prior needs an embedding in the same request")
        self.embedding.projection.linear(self.weights, "prior")


@dataclass(frozen=True, eq=False)
class LabelQuestion(ClassRelease):
    """Label of each record. classes: of the label. prior: goes with a mechanism that needs one."""

    classes: int = field(kw_only=True)
    prior: Prior | None = field(default=None, kw_only=True)

    about = LABEL
    channel: ClassVar[str] = LABEL.name
    array: ClassVar[str] = "y"
    reads_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        needs = bool(getattr(self.mechanism, "needs_prior", False))
        require(needs == (self.prior is not None), "a prior goes with a mechanism that needs one")
        if self.prior is not None:
            require(len(self.prior.weights[1]) == self.classes, "prior does not fit classes")

    @property
    def given(self) -> EmbeddingQuestion | None:
        """Return the embedding that the prior reads."""
        return None if self.prior is None else self.prior.embedding

    def public(self, split: str) -> dict[str, Any]:
        """Return classes, and the prior with the embedding that it reads."""
        public: dict[str, Any] = {"classes": self.classes}
        if self.prior is not None:
            public |= {"prior": list(self.prior.weights), "embedding": self.prior.embedding.digest(split)}
        return public

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the prior."""
        if self.prior is None:
            return {}
        return {"prior_w": self.prior.weights[0], "prior_b": self.prior.weights[1]}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> LabelQuestion:
        """Return the question of a request's wire."""
        weights, prior = wire.pair("prior"), None
        if weights is not None:
            embeddings = [each for each in wire.before if isinstance(each, EmbeddingQuestion)]
            require(embeddings, "a prior needs an embedding in the same request")
            prior = Prior(weights, embeddings[0])
        return cls(spec, classes=wire.classes, prior=prior)

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> IntArray:
        """Return labels (n,)."""
        return records.labels(rows)

    def draw(self, values: IntArray, lent: Lent) -> NDArray[Any]:
        """Draw classes (n,). An invalid label counts as class 0."""
        given = {}
        if self.prior is not None:
            assert lent.released is not None
            given["prior"] = softmax(self.prior.embedding.decode(lent.released), *self.prior.weights)
        return self.sampled(values, lent.rng(), **given)

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        return "its label"
