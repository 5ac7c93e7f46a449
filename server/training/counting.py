"""Linear models whose classes are counted on users' devices: from labelled public text, or from sentences of topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.questions import Projection
from mechanisms.projection import linear_classes
from server.maps import Maps
from server.training.class_names import refined

#: Largest number of coordinates in which a model works: a device receives m times as many numbers.
_WIDTH = 256
#: Inverse strength of the ridge on weights of features of length 1.
_INVERSE_RIDGE = 10.0


@dataclass(frozen=True, eq=False)
class CountModel:
    """Model that a request carries: public maps, and a head on mapped, normalized embeddings.

    Attributes:
        projection: Encoder and maps.
        head: (W (m', K), b (K,)), float32.
    """

    projection: Projection
    head: tuple[NDArray[np.float32], NDArray[np.float32]]

    @classmethod
    def of_maps(cls, encoder: str, maps: Maps) -> CountModel:
        """Return the model of trained maps, for the encoder of that identity."""
        return cls(Projection(encoder, maps.mean, maps.m1), maps.folded())

    @classmethod
    def of_labels(
        cls, encoder: str, embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int
    ) -> CountModel:
        """Return a logistic head on labelled public embeddings (n, m).

        Raises:
            ValueError: A class has no text.
        """
        from sklearn.linear_model import LogisticRegression

        if len(missing := np.setdiff1d(np.arange(classes), labels)):
            raise ValueError(f"counts: no public text of class {int(missing[0])} to train on; give some of each class")
        projection = _principal(encoder, np.asarray(embeddings, np.float64).mean(axis=0), embeddings)
        fitted = LogisticRegression(C=_INVERSE_RIDGE, max_iter=1000).fit(projection.apply(embeddings), labels)
        weight, bias = fitted.coef_.T, fitted.intercept_
        if classes == 2:
            weight, bias = np.hstack([0 * weight, weight]), np.append(0 * bias, bias)
        return cls(projection, (weight.astype(np.float32), bias.astype(np.float32)))

    @classmethod
    def of_topics(
        cls, encoder: str, prototypes: Sequence[NDArray[np.float64]], embeddings: NDArray[np.float32]
    ) -> tuple[CountModel, ...]:
        """Return a model for each question, with the same maps: the nearest of its prototypes (K, m).

        Public embeddings (n, m) without labels refine the prototypes.
        """
        h = np.asarray(embeddings, np.float64)
        means, centres = zip(*(refined(each, embeddings) for each in prototypes), strict=True)
        mean = means[0] * np.linalg.norm(h, axis=1).mean()  # the prototypes do not change it
        there = [mean + each for each in centres]
        projection = _principal(encoder, mean, np.concatenate([embeddings, *there]).astype(np.float32))
        made = []
        for each in centres:
            weight = projection.m1.T.astype(np.float64) @ each.T
            made.append(cls(projection, (weight.astype(np.float32), np.zeros(len(each), np.float32))))
        return tuple(made)

    @classmethod
    def together(cls, models: Sequence[CountModel]) -> CountModel:
        """Return the model whose classes are all combinations of classes of models with the same maps.

        The sum of two logits is largest where each of them is. The last model's class runs fastest.
        """
        weight, bias = (np.asarray(part, np.float64) for part in models[0].head)
        for other in models[1:]:
            weight = (weight[:, :, None] + other.head[0][:, None, :]).reshape(len(weight), -1)
            bias = (bias[:, None] + other.head[1]).ravel()
        return cls(models[0].projection, (weight.astype(np.float32), bias.astype(np.float32)))

    @property
    def classes(self) -> int:
        """Return K."""
        return len(self.head[1])

    def classify(self, embeddings: NDArray[Any]) -> NDArray[np.int64]:
        """Return classes (n,) of embeddings (n, m), as a device finds them."""
        return linear_classes(self.projection.apply(embeddings), *self.head)


def _principal(encoder: str, mean: NDArray[np.float64], embeddings: NDArray[np.float32]) -> Projection:
    """Return the map to the first principal components of embeddings around a mean."""
    centred = np.asarray(embeddings, np.float64) - mean
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return Projection(encoder, mean.astype(np.float32), np.ascontiguousarray(vectors[:, ::-1][:, :_WIDTH], np.float32))
