"""One arm of two halves: sanitized texts of the first train the encoder that the second releases embeddings under."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from client.embeddings import write_embeddings
from client.encoder import Encoder
from client.shard import Shard
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.request import Request
from server.export import export_encoder
from server.maps import Maps
from server.training.release_once import train_head
from server.training.sharpen import sharpened
from simulations.arm import decoded
from simulations.arm_base import Outcome
from simulations.cache import embed
from simulations.evaluation import clean_score
from simulations.experiment import Arm, Experiment, embedding_mechanism
from simulations.gather import Users
from simulations.prepare import Prepared, Progress, export_settings
from simulations.public_part import DEFAULT_DIM, dim_of
from simulations.resume import Journal
from simulations.text_arm import TextArmRun

#: Users of even numbers release texts, the others embeddings: nobody both, so each pays once.
FIRST, SECOND = (0, 2), (1, 2)


class TextThenEmbeddings(TextArmRun):
    """nodes: the folder of the nodes' folders, where the new encoder's embeddings of users' texts are cached: what
    each node would compute by itself, in one pass for all."""

    def __init__(
        self, experiment: Experiment, arm: Arm, prepared: Prepared, *, models: Path, nodes: Path,
        journal: Journal | None = None,
    ) -> None:  # fmt: skip
        super().__init__(experiment, arm, prepared, models=models, journal=journal)
        self.nodes = nodes
        assert arm.embedding is not None
        self.mechanism: Mechanism = embedding_mechanism(arm.embedding, arm.dims[0] if arm.dims else DEFAULT_DIM)

    def run(self, users: Users, *, progress: Progress) -> Outcome:
        """Runs the arm. Raises ValueError where its parameters do not fit the data or the encoder."""
        start = time.perf_counter()
        dim, split = dim_of(self.mechanism), self.prepared.split
        pipeline = self.trained(
            users, progress, stage="train-text", part=FIRST, dim=dim, mechanism=self.mechanism
        )
        maps = asked = sanitized = clean = None
        if pipeline is not None:
            folder = self.models / self.slug
            maps = pipeline.maps()
            pipeline.save_pretrained(folder, about={"name": self.arm.name})
            encoder = self._hand_out(folder, progress)
            asked, maps = maps, self._second(users, encoder, maps, progress)
            if len(split.public):
                maps = sharpened(maps, public=np.asarray(embed(encoder, split.public.texts, progress=progress)))
            request = self._embedding_request(encoder, maps, None, stage="test", split="test")
            batch, origin = self.collect_tests(users, request, progress)
            release = batch.channel("embedding")
            if release is not None:
                sanitized = self.score(maps.predict(decoded(self.mechanism, release)), origin)
            h = np.asarray(embed(encoder, split.test.texts, progress=progress))
            clean = clean_score(maps, h, split.test.labels)
        line = self._line(sanitized, clean, dim, time.perf_counter() - start)
        return Outcome(maps, line, self.spent(embedding=self.mechanism, text=self.text), asked)

    def _hand_out(self, folder: Path, progress: Progress) -> Encoder:
        """The trained encoder as clients run it, and its embeddings of what they hold."""
        export_encoder(folder, folder / "client", **export_settings(self.experiment.encoder))
        encoder = Encoder(folder / "client")
        places = [place for place in sorted(self.nodes.iterdir()) if place.is_dir()]
        shards = [(place, split, Shard.load(place, split)) for place in places for split in ("train", "test")]
        texts = [text for _, _, shard in shards for text in shard.texts]
        table = embed(encoder, texts, progress=progress)
        at = 0
        for place, split, shard in shards:
            write_embeddings(place, split, encoder.identity, table[at : at + len(shard)])
            at += len(shard)
        return encoder

    def _second(self, users: Users, encoder: Encoder, maps: Maps, progress: Progress) -> Maps:
        """M2 and the head, from the embeddings and labels of the second half."""
        label = self.label_mechanism()
        request = self._embedding_request(
            encoder, maps, label, stage="train-embedding", split="train", part=SECOND
        )
        batch, _ = self.collect(users, request, progress)
        embedding, labels = batch.channel("embedding"), batch.channel("label")
        if embedding is None or labels is None:
            return maps
        z, y = decoded(self.mechanism, embedding), labels.payload["y"].astype(np.int64)
        transition = None if isinstance(label, Identity) else np.exp(self.log_transition(label, y, z, None))
        return train_head(maps, z, y, label_transition=transition, seed=self.experiment.seed)

    def _embedding_request(
        self, encoder: Encoder, maps: Maps, label: Mechanism | None, *, stage: str, split: str,
        part: tuple[int, int] = (0, 1),
    ) -> Request:  # fmt: skip
        return self.request(
            stage=stage, split=split, part=part, encoder=encoder.identity, mean=maps.mean, m1=maps.m1,
            embedding=parameters(self.mechanism), label=None if label is None else parameters(label),
        )  # fmt: skip

    def _line(self, sanitized: Any, clean: Any, dim: int, seconds: float) -> dict[str, Any]:
        """The line of the embeddings, with what the texts cost beside it; the worst case is the dearer half's."""
        same = {"dim": dim, "sanitized": sanitized, "clean": clean, "seconds": seconds}
        line = self.line(self.mechanism, self.arm.embedding, **same)
        texts = self.line(self.text, self.arm.text, **same)
        budget, other = line["budget"], texts["budget"]
        line["mechanism"] = f"{texts['mechanism']}, then {line['mechanism']}"
        budget["statement"] = f"one half: {other['statement']}; the other: {budget['statement']}"
        budget["worst_case_epsilon"] = max(budget["worst_case_epsilon"], other["worst_case_epsilon"])
        return line
