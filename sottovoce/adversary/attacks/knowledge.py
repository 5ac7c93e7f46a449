"""Knowledge of the server beside an arm's releases, and the records of membership inference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import EMBEDDING, LABEL, TEXT
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, Projection
from mechanisms.pieces import Text
from server.maps import FILE, Maps
from server.protocols.models import ASKED, ENCODER, STUDENT
from server.training.noise import sanitize_public
from simulations.artifacts.public import CachedEncoder
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import embedding_mechanism, load, slug
from simulations.experiment.result import arms_of
from simulations.run.population import late
from simulations.run.prepare import Held, Prepared, prepare
from sottovoce.adversary.attacks import releases
from sottovoce.adversary.attacks.releases import Row, written_by_another
from sottovoce.adversary.attacks.target import Skipped, Target

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
        draws, grid = np.stack(rows), self.mechanism.grid
        return draws if grid is None else grid.decode(grid.encode(draws))


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
        assert target.arm.embedding is not None
        mechanism = embedding_mechanism(target.arm.embedding, maps.dim)
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


def _digest(target: Target, row: Row, encoder: CachedEncoder, maps: Maps, mechanism: Any) -> str:
    projection = Projection(encoder.identity, maps.mean, maps.m1)
    question = EmbeddingQuestion(parameters(mechanism), projection=projection, classes=maps.classes)
    return question.digest(row.split)


def values(row: Row, mechanism: Any) -> FloatArray:
    """Return the released coordinates, (m',)."""
    grid = mechanism.grid
    kind = np.dtype(np.float32 if grid is None else grid.dtype).newbyteorder("<")
    codes = np.frombuffer(row.released.payload, dtype=kind)
    return codes.astype(np.float64) if grid is None else grid.decode(codes)


# --- members and others


IntArray = NDArray[np.int64]

#: Least number of records of each kind: if half of them are scored, the standard error of a coin is .09.
LEAST = 30


@dataclass(frozen=True, eq=False)
class Delivered:
    """Releases of an arm's training users that the server has.

    Args:
        held: Text of each (user, record), for the truth alone.
        stage: Name of the stage.
        z: Released embeddings (n, m'); None without this channel.
        w: Released texts (n, L), as numbers of words; None without this channel.
        y: Released labels (n,); None without this channel.
    """

    held: dict[tuple[int, int], Text]
    stage: str
    z: NDArray[np.float64] | None = None
    w: IntArray | None = None
    y: IntArray | None = None

    def rows(self, held: Held) -> IntArray:
        """Return the rows of the run's training part that were delivered.

        Raises:
            Skipped: The nodes hold other texts than the experiment's data have now.
        """
        keys = zip(held.holders.users.tolist(), held.holders.records.tolist(), strict=True)
        results = []
        for row, (key, text) in enumerate(zip(keys, held.train.texts, strict=True)):
            if key in self.held:
                if self.held[key] != text:
                    break
                results.append(row)
        if len(results) < len(self.held):
            raise Skipped("the experiment's data are not those that the run was made with; who was a member is unknown")
        return np.array(results, dtype=np.int64)


def arrived(target: Target, channel: str) -> list[Row]:
    """Return the training users' releases on a channel that the server has.

    Raises:
        Skipped: There are none.
    """
    results = target.run / "results.json"
    if results.is_file():
        arms = {arm.name: arm for arm in arms_of(json.loads(results.read_text(encoding="utf-8")))}
        if target.arm.name in arms and not arms[target.arm.name].delivered:
            raise Skipped("no training user's release was delivered")
    training_rows = [row for row in releases.of_arm(target) if row.split == "train"]
    rows = _in_time(target, [row for row in training_rows if row.released.channel == channel])
    if not rows:
        if not training_rows:
            raise Skipped("no training user has released anything")
        channels = " and ".join(sorted({row.released.channel for row in training_rows}))
        raise Skipped(f"what its training users released ({channels}) is not what this attack reads ({channel})")
    return rows


def delivered(target: Target) -> Delivered | None:
    """Return the training users' releases that reached the server; None if the protocol has none.

    Raises:
        Skipped: The users released nothing that membership attacks read. The message names what they released.
    """
    arm = target.arm
    if not target.setup.protocol.private:
        return None
    rows = arrived(target, (EMBEDDING if arm.text is None else TEXT).name)
    w = z = y = None
    if arm.text is not None:
        w = np.stack([np.frombuffer(row.released.payload, dtype="<i4") for row in rows]).astype(np.int64)
    else:
        assert arm.embedding is not None
        mechanism = embedding_mechanism(arm.embedding, 2)  # the encoding of numbers does not depend on m'
        z = np.stack([values(row, mechanism) for row in rows])
    labels = {(row.key, row.released.stage): row.released.payload for row in releases.of_arm(target, LABEL.name)}
    if all((row.key, row.released.stage) in labels for row in rows):
        text = b"".join(labels[row.key, row.released.stage] for row in rows)
        y = np.frombuffer(text, dtype="<i2").astype(np.int64)
    texts = dict(zip((row.key for row in rows), releases.texts_of(target, rows), strict=True))
    return Delivered(texts, ", ".join(sorted({row.released.stage for row in rows})), z, w, y)


def _in_time(target: Target, rows: list[Row]) -> list[Row]:
    """Return the rows without users who were late at their stage."""
    result = []
    for stage in sorted({row.released.stage for row in rows}):
        stage_rows = [row for row in rows if row.released.stage == stage]
        users = np.array([row.key[0] for row in stage_rows], dtype=np.int64)
        people, person = np.unique(users, return_inverse=True)
        absent = late(people, probability=target.population.late, stage=stage, seed=target.seed)[person]
        result += [row for row, absence in zip(stage_rows, absent, strict=True) if not absence]
    return result


def members_and_others(target: Target, held: Held, inside: IntArray) -> tuple[Corpus, Corpus, np.random.Generator]:
    """Return as many members as other records, and the generator that picked them.

    Args:
        target: Attacked arm; its limit applies to each kind.
        held: Data of the run.
        inside: Rows of the members in the training part.

    Raises:
        Skipped: There are too few records.
    """
    nonmembers = others(target, held)
    n = min(target.limit, len(inside), len(nonmembers))
    if n < LEAST:
        raise Skipped(
            f"needs {LEAST} training records and as many others; there are {len(inside)} and {len(nonmembers)}, and "
            f"--limit is {target.limit}"
        )
    rng = np.random.default_rng([target.seed, 7])
    return held.train.take(rng.permutation(inside)[:n]), nonmembers.take(rng.permutation(len(nonmembers))[:n]), rng


def others(target: Target, held: Held) -> Corpus:
    """Return texts that nobody released: private texts without a user if there are enough, otherwise test texts."""
    texts = set(held.train.texts)
    for corpus in (target.split().train, held.test):
        first: dict[Any, int] = {}
        for row, text in enumerate(corpus.texts):
            if text not in texts:
                first.setdefault(text, row)
        if len(first) >= min(target.limit, len(texts)):
            break
    return corpus.take(np.array(list(first.values()), dtype=np.int64))
