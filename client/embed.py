"""Sanitized embeddings of texts for your own programs: drawn like the releases of a device.

    from sottovoce import Purkayastha, SanitizedEncoder
    vectors = SanitizedEncoder(encoder, Purkayastha(dim=384, epsilon=300.0)).encode("a fine film")

Each call draws anew, and has a new privacy cost: these draws are charged on no ledger. `client.sanitizer` charges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import EMBEDDING
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, Uniforms, parameters
from mechanisms.projection import project
from mechanisms.streams import SecureStreams


class Encodes(Protocol):
    """Encoder of texts to embeddings (n, m): `client.models.encoder.Encoder`, or a model of sentence-transformers."""

    def encode(self, texts: Sequence[str], /) -> Any:
        """Return the embeddings (n, m) of n texts."""
        ...


class SanitizedEncoder:
    """Encoder that passes each embedding through a mechanism and returns the draw.

    Args:
        encoder: Encoder. The embedding of a text must not depend on other texts.
        mechanism: Mechanism of embeddings.
        mean: Public mean (m,) that is subtracted from an embedding; None subtracts nothing.
        m1: Public map (m, m') to the mechanism's m' dimensions. The input of the mechanism is (e - mean)·m1,
            normalized. Without m1 the embedding keeps its full width.

    Raises:
        ValueError: The arguments do not fit together. The message is one line.
    """

    def __init__(
        self,
        encoder: Encodes,
        mechanism: Mechanism,
        *,
        mean: NDArray[Any] | None = None,
        m1: NDArray[Any] | None = None,
    ) -> None:
        if mechanism.channel != EMBEDDING.name:
            raise ValueError(f"sanitized encoder: {mechanism.name} is a mechanism of {mechanism.channel}s")
        self._encoder, self.mechanism = encoder, mechanism
        self.dim = int(parameters(mechanism)["size" if isinstance(mechanism, Identity) else "dim"])
        if m1 is not None and np.shape(m1)[1:] != (self.dim,):
            raise ValueError(
                f"sanitized encoder: m1 gives {np.shape(m1)[-1]} dimensions, the mechanism takes {self.dim}"
            )
        if mean is not None and m1 is not None and np.shape(mean) != (np.shape(m1)[0],):
            raise ValueError("sanitized encoder: mean and m1 are of embeddings of different widths")
        self._mean, self._m1 = mean, m1

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee of one vector; k vectors of one text, or of k texts of a user, cost k times as much."""
        return self.mechanism.guarantee

    def encode(self, texts: str | Sequence[str], *, rng: Uniforms | None = None) -> NDArray[np.float64]:
        """Return one draw for each text, (n, m'), in their order, on the mechanism's public quantizer.

        Args:
            texts: A sequence of texts; or one text, which returns one vector (m',).
            rng: Uniforms, one row a text, for reproducible, non-private results. None takes the operating
                system's secure generator.

        Raises:
            TypeError: Something is no text.
            ValueError: The encoder's embeddings have another width.
        """
        if isinstance(texts, str):
            vector: NDArray[np.float64] = self.encode([texts], rng=rng)[0]
            return vector
        if isinstance(texts, bytes) or not all(isinstance(text, str) for text in texts):
            raise TypeError("sanitized encoder: texts must be a text or a sequence of texts")
        width = self.dim if self._m1 is None else len(self._m1)
        embeddings = np.asarray(self._encoder.encode(list(texts)) if len(texts) else np.empty((0, width)), np.float32)
        if embeddings.shape != (len(texts), width):
            raise ValueError(f"sanitized encoder: embeddings of {embeddings.shape[-1]} dimensions, {width} expected")
        mean = np.zeros(width, np.float32) if self._mean is None else np.asarray(self._mean, np.float32)
        m1 = np.eye(width, dtype=np.float32) if self._m1 is None else np.asarray(self._m1, np.float32)
        x = project(embeddings, mean, m1)
        drawn = self.mechanism.sample(x, rng=SecureStreams() if rng is None else rng)
        grid = self.mechanism.grid
        return np.asarray(drawn if grid is None else grid.decode(grid.encode(drawn)), dtype=np.float64)
