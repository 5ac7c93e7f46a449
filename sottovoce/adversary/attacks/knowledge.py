"""Knowledge of the server beside an arm's released embeddings: public texts, the encoder, the maps, the mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, Projection
from mechanisms.pieces import Text
from server.maps import FILE, Maps
from server.protocols.models import ASKED, ENCODER, STUDENT
from server.training.noise import sanitize_public
from simulations.artifacts.public import CachedEncoder
from simulations.errors import UserError
from simulations.experiment import embedding_mechanism, load, slug
from simulations.run.prepare import Prepared, prepare
from sottovoce.adversary.attacks.releases import Row, written_by_another
from sottovoce.adversary.attacks.target import Target

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=1)
def prepared(run: Path) -> Prepared:
    """Return the run's data, and what its server learns from the public part, computed once for all attacks."""
    return prepare(load(run / "experiment.toml"))


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Knowledge of the server about an arm's releases.

    Args:
        texts: Texts of the public part.
        embeddings: Their embeddings (p, m).
        encoder: Encoder of the users.
        checkpoint: Checkpoint of the encoder, for its tokens and its lower layers.
        maps: Maps of the releases.
        mechanism: Mechanism of the releases.
        seed: Seed of simulated draws.
    """

    texts: list[Text]
    embeddings: FloatArray
    encoder: CachedEncoder
    checkpoint: str | Path
    maps: Maps
    mechanism: Any
    seed: int

    @cached_property
    def points(self) -> FloatArray:
        """Return the mechanism's inputs for the public texts, unit rows (p, m')."""
        return self.maps.project(self.embeddings)

    def encoded(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return full-width embeddings (n, m)."""
        return _encoded(self.encoder, tuple(texts))

    def drawn(self, count: int) -> FloatArray:
        """Return simulated releases of the public texts on the public quantizer, (count, p, m')."""
        rows = [sanitize_public(self.mechanism, self.points, seed=self.seed, stage=f"attack-{i}") for i in range(count)]
        drawn, grid = np.stack(rows), self.mechanism.grid
        return drawn if grid is None else grid.decode(grid.encode(drawn))


@lru_cache(maxsize=2)
def _encoded(encoder: CachedEncoder, texts: tuple[Text, ...]) -> NDArray[np.float32]:
    return encoder.embed(texts)


def knowledge(target: Target, row: Row) -> Knowledge:
    """Return the server's knowledge at the request behind a release: the maps whose digest is the release's.

    Args:
        target: Attacked arm.
        row: Release.

    Raises:
        UserError: There are no such maps.
    """
    public = prepared(target.run).public
    folder = target.run / "models" / slug(target.arm.name)
    checkpoint: str | Path
    if (folder / ENCODER).is_dir():  # the run has trained it for these releases
        encoder = CachedEncoder(folder / ENCODER)
        checkpoint = folder / STUDENT if (folder / STUDENT).is_dir() else folder
        embeddings = encoder.embed(public.texts)
    else:
        assert isinstance(public.encoder, CachedEncoder) and public.embeddings is not None
        encoder, checkpoint, embeddings = public.encoder, target.encoder.model, public.embeddings
        if target.encoder.fine_tune_on_public:
            checkpoint = encoder.folder / "checkpoint"
    mechanism = None
    for maps in maps_sent(folder):
        mechanism = _mechanism(target, maps.dim)
        if _digest(target, row, encoder, maps, mechanism) == row.released.digest:
            return Knowledge(
                list(public.texts), embeddings.astype(np.float64), encoder, checkpoint, maps, mechanism, target.seed
            )
    if mechanism is None:
        raise UserError(f"{folder}: holds no maps; this arm's model is gone")
    raise written_by_another(row, target.arm.name, mechanism.guarantee)


def maps_sent(model: Path) -> Iterator[Maps]:
    """Yield the maps that test users received, and those that training users received."""
    for folder in (model, model / ASKED):
        if (folder / FILE).is_file():
            yield Maps.load(folder)


def _mechanism(target: Target, dim: int) -> Any:
    assert target.arm.embedding is not None
    return embedding_mechanism(target.arm.embedding, dim)


def _digest(target: Target, row: Row, encoder: CachedEncoder, maps: Maps, mechanism: Any) -> str:
    projection = Projection(encoder.identity, maps.mean, maps.m1)
    asked = EmbeddingQuestion(parameters(mechanism), projection=projection, classes=maps.classes)
    return asked.digest(row.split)


def values(row: Row, mechanism: Any) -> FloatArray:
    """Return the released coordinates, (m',)."""
    grid = mechanism.grid
    kind = np.dtype(np.float32 if grid is None else grid.dtype).newbyteorder("<")
    codes = np.frombuffer(row.released.payload, dtype=kind)
    return codes.astype(np.float64) if grid is None else grid.decode(codes)
