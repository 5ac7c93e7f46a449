"""What the server knows beside an arm's released embeddings: public texts, the encoder, the maps, the mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.encoder import Encoder
from mechanisms.mechanism import parameters
from mechanisms.request import Request
from server.maps import FILE, Maps
from server.training.noise import sanitize_public
from simulations.arm_base import ASKED
from simulations.attack_releases import Row, written_by_another
from simulations.attack_target import Progress, Target
from simulations.cache import embed
from simulations.experiment import HALVES, embedding_mechanism, load, slug
from simulations.prepare import Prepared, encoder_folder, prepare
from simulations.public_part import PublicPart
from simulations.text_channel import as_lines

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=1)
def prepared(run: Path, progress: Progress) -> Prepared:
    """The run's data again."""
    return prepare(load(run / "experiment.toml"), progress=progress)


@lru_cache(maxsize=1)
def public_part(run: Path, progress: Progress) -> PublicPart:
    """What the run's server learnt from public data, which takes seconds for each mechanism: once for all attacks."""
    return PublicPart(load(run / "experiment.toml"), prepared(run, progress))


@dataclass(frozen=True, eq=False)
class Knowledge:
    """texts: the public part's, as lines. embeddings: (p, m). checkpoint: the encoder's, for its tokens and its
    lower layers. maps, mechanism: under which the releases were drawn."""

    texts: list[str]
    embeddings: FloatArray
    encoder: Encoder
    checkpoint: str | Path
    maps: Maps
    mechanism: Any
    seed: int

    @cached_property
    def points(self) -> FloatArray:
        """What the mechanism would be given for the public texts, unit rows (p, m')."""
        return self.maps.project(self.embeddings)

    def read(self, texts: Sequence[str]) -> FloatArray:
        """The same of any texts, (n, m')."""
        return self.maps.project(self.encoded(texts))

    def encoded(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Full-width embeddings (n, m)."""
        return _encoded(self.encoder, tuple(texts))

    def drawn(self, count: int) -> FloatArray:
        """What users would have released for the public texts, (count, p, m')."""
        return np.stack([self.released(self.points, f"attack-{i}") for i in range(count)])

    def released(self, points: FloatArray, stage: str) -> FloatArray:
        """Releases of unit rows, on the public grid."""
        drawn = sanitize_public(self.mechanism, points, seed=self.seed, stage=stage)
        grid = self.mechanism.grid
        return drawn if grid is None else grid.decode(grid.encode(drawn))


@lru_cache(maxsize=2)
def _encoded(encoder: Encoder, texts: tuple[str, ...]) -> NDArray[np.float32]:
    return encoder.encode(texts)


def knowledge(target: Target, row: Row, *, progress: Progress) -> Knowledge:
    """What the server knew when it asked for the release `row`: that of the maps it may have sent whose digest is the
    release's. UserError where there are none."""
    ready = prepared(target.run, progress)
    folder = target.run / "models" / slug(target.arm.name)
    if target.study.training.way == HALVES:
        encoder, checkpoint = Encoder(folder / "client"), folder
        embeddings = np.asarray(embed(encoder, ready.split.public.texts, progress=progress), dtype=np.float64)
    else:
        assert ready.encoder is not None
        encoder, checkpoint = ready.encoder, target.study.encoder.model
        if target.study.encoder.fine_tune_on_public:
            checkpoint = encoder_folder(target.study, ready.split.public, progress=progress) / "checkpoint"
        embeddings = np.asarray(ready.public_embeddings, dtype=np.float64)
    for maps in _maps(folder):
        mechanism = _mechanism(target, maps.dim)
        if _digest(target, row, encoder, maps, mechanism) == row.released.digest:
            return Knowledge(
                as_lines(ready.split.public), embeddings, encoder, checkpoint, maps, mechanism, target.study.seed
            )
    raise written_by_another(row, target.arm.name)


def _maps(model: Path) -> Iterator[Maps]:
    """Those that test users were sent, and those that training users were."""
    for folder in (model, model / ASKED):
        if (folder / FILE).is_file():
            yield Maps.load(folder)


def _mechanism(target: Target, dim: int) -> Any:
    assert target.arm.embedding is not None
    return embedding_mechanism(target.arm.embedding, dim)


def _digest(target: Target, row: Row, encoder: Encoder, maps: Maps, mechanism: Any) -> str:
    asked = Request(
        slug(target.arm.name), row.released.stage, row.split, encoder.identity, maps.mean, maps.m1,
        parameters(mechanism), None, maps.classes, 0,
    )  # fmt: skip
    return asked.digest("embedding")


def values(row: Row, mechanism: Any) -> FloatArray:
    """The released coordinates, (m',)."""
    grid = mechanism.grid
    kind = np.dtype(np.float32 if grid is None else grid.dtype).newbyteorder("<")
    codes = np.frombuffer(row.released.payload, dtype=kind)
    return codes.astype(np.float64) if grid is None else grid.decode(codes)
