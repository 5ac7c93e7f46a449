"""What a study learns before any user is asked: each arm's m' and maps, from public data alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from mechanisms.mechanism import Mechanism, parameters
from server.maps import Maps
from server.training.noise import sanitize_public
from server.training.public_maps import learn_maps, pca_maps
from server.training.release_once import train_head
from server.training.sharpen import sharpened
from simulations.experiment import Arm, Experiment, embedding_mechanism
from simulations.prepare import Prepared

#: m' of an arm that names none: the paper's choice for all its main results (Du et al. 2023, section 4.2).
DEFAULT_DIM = 16
#: Share of the public rows that choose among candidates for m'.
HELD_OUT = 0.25
#: Draws for each held-out row, so that the choice is not the noise's.
DRAWS = 10


class PublicPart:
    """Maps and mechanisms from public data. Arms of the same mechanism share them, and each is computed once."""

    def __init__(self, experiment: Experiment, prepared: Prepared) -> None:
        self.experiment = experiment
        self.embeddings = prepared.public_embeddings
        self.labels = prepared.split.public.labels
        self.classes = len(prepared.split.public.classes)
        self._maps: dict[Mechanism, Maps] = {}
        self._scores: dict[Mechanism, float] = {}

    def candidates(self, arm: Arm) -> list[Mechanism]:
        """The mechanism of an arm's embeddings at each m' that the arm names. ValueError for one above the encoder's
        width."""
        width = self.embeddings.shape[1]
        dims = arm.dims or (min(DEFAULT_DIM, width),)
        if max(dims) > width:
            raise ValueError(
                f'arm "{arm.name}": embedding.dim: {max(dims)} is above the encoder\'s width {width}; '
                f"choose at most {width}"
            )
        return [embedding_mechanism(arm.embedding or {"mechanism": "identity"}, dim) for dim in dims]

    def best(self, candidates: list[Mechanism]) -> Mechanism:
        """The one of highest sanitized accuracy on held-out public rows; a single one needs no labels to choose."""
        return candidates[0] if len(candidates) == 1 else max(candidates, key=self._held_out_accuracy)

    def maps(self, mechanism: Mechanism) -> Maps:
        """Maps for releases of the mechanism: learned from public labels, or principal components.

        Without public labels the head knows nothing yet.
        """
        if mechanism not in self._maps:
            self._maps[mechanism] = self._fit(mechanism)
        return self._maps[mechanism]

    def _fit(self, mechanism: Mechanism) -> Maps:
        seed, dim = self.experiment.seed, dim_of(mechanism)
        if self.experiment.training.maps == "learned":
            return learn_maps(
                self.embeddings, self.labels, classes=self.classes, mechanism=mechanism, dim=dim, seed=seed
            )
        maps = pca_maps(self.embeddings, dim=dim, classes=self.classes)
        if not self.experiment.data.public.labels:
            return maps
        noisy = sanitize_public(mechanism, maps.project(self.embeddings), seed=seed, stage="public-head")
        return train_head(maps, noisy, self.labels, seed=seed)

    def _held_out_accuracy(self, mechanism: Mechanism) -> float:
        """Sanitized accuracy on held-out public rows: what may be looked at to choose m'."""
        if mechanism not in self._scores:
            seed = self.experiment.seed
            order = np.random.default_rng([seed, 1]).permutation(len(self.embeddings))
            cut = int(len(order) * HELD_OUT)
            held, rest = order[:cut], order[cut:]
            learned = learn_maps(
                self.embeddings[rest], self.labels[rest], classes=self.classes, mechanism=mechanism,
                dim=dim_of(mechanism), seed=seed,
            )  # fmt: skip
            maps = sharpened(learned, public=self.embeddings[rest])
            z = np.tile(maps.project(self.embeddings[held]), (DRAWS, 1))
            guesses = maps.predict(sanitize_public(mechanism, z, seed=seed, stage="choose-dim"))
            self._scores[mechanism] = float(np.mean(guesses == np.tile(self.labels[held], DRAWS)))
        return self._scores[mechanism]


def dim_of(mechanism: Any) -> int:
    """m' of an embedding mechanism; identity calls it its size."""
    about = parameters(mechanism)
    return int(about.get("dim") or about["size"])
