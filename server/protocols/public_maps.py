"""Maps and dimension that a server learns from public data alone, before any request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism, parameters
from server.maps import Maps
from server.training.head import train_head
from server.training.noise import sanitize_public
from server.training.principal import pca_maps
from server.training.rescale import rescaled

#: Share of the public rows that choose among candidates for m'.
HELD_OUT = 0.25
#: Draws for each held-out row: noise must not decide the choice.
DRAWS = 10


class PublicMaps:
    """Maps from public embeddings. Arms of the same mechanism share them, and each is computed once.

    Args:
        embeddings: Public embeddings (n, m).
        labels: Labels (n,); None if they are not public.
        classes: K.
        learned: True if M1 is learned from labels, False for principal components.
        seed: Seed of all random choices.
    """

    def __init__(
        self,
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64] | None,
        *,
        classes: int,
        learned: bool,
        seed: int,
    ) -> None:
        self.embeddings = embeddings
        self.labels = labels
        self.classes = classes
        self.learned = learned
        self.seed = seed
        self._maps: dict[Mechanism, Maps] = {}
        self._accuracy: dict[Mechanism, float] = {}

    def best(self, candidates: Sequence[Mechanism]) -> Mechanism:
        """Return the candidate of highest sanitized accuracy on held-out public rows.

        A single candidate needs no labels.
        """
        return candidates[0] if len(candidates) == 1 else max(candidates, key=self._held_out_accuracy)

    def of(self, mechanism: Mechanism) -> Maps:
        """Return maps for releases of the mechanism. Without public labels the head is 0."""
        if mechanism not in self._maps:
            self._maps[mechanism] = self._fit(mechanism)
        return self._maps[mechanism]

    def _fit(self, mechanism: Mechanism) -> Maps:
        if self.learned:
            return self._learned_on(self.embeddings, self.labels, mechanism)
        maps = pca_maps(self.embeddings, dim=dim_of(mechanism), classes=self.classes)
        if self.labels is None:
            return maps
        noisy = sanitize_public(mechanism, maps.project(self.embeddings), seed=self.seed, stage="public-head")
        return train_head(maps, noisy, self.labels, seed=self.seed)

    def _held_out_accuracy(self, mechanism: Mechanism) -> float:
        """Return the sanitized accuracy on held-out public rows."""
        if mechanism not in self._accuracy:
            assert self.labels is not None
            order = np.random.default_rng([self.seed, 1]).permutation(len(self.embeddings))
            cut = int(len(order) * HELD_OUT)
            validation, rest = order[:cut], order[cut:]
            learned = self._learned_on(self.embeddings[rest], self.labels[rest], mechanism)
            maps = rescaled(learned, public=self.embeddings[rest])
            z = np.tile(maps.project(self.embeddings[validation]), (DRAWS, 1))
            guesses = maps.predict(sanitize_public(mechanism, z, seed=self.seed, stage="choose-dim"))
            self._accuracy[mechanism] = float(np.mean(guesses == np.tile(self.labels[validation], DRAWS)))
        return self._accuracy[mechanism]

    def _learned_on(self, embeddings: NDArray[np.float32], labels: Any, mechanism: Mechanism) -> Maps:
        from server.training.public_maps import learn_maps  # torch, which other parties of a deployment do without

        return learn_maps(
            embeddings, labels, classes=self.classes, mechanism=mechanism, dim=dim_of(mechanism), seed=self.seed
        )


def dim_of(mechanism: Any) -> int:
    """Return m' of an embedding mechanism; identity stores it as its size."""
    about = parameters(mechanism)
    return int(about.get("dim") or about["size"])
