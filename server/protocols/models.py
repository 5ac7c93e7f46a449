"""Trained models: of users who release embeddings, and of users who release texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism
from mechanisms.messages.batch import Batch
from mechanisms.messages.request import Request
from server.maps import Maps
from server.protocols.decoding import decoded
from server.protocols.protocol import Channels, Encoding, PublicRewriter, Text

if TYPE_CHECKING:
    from server.model import Pipeline

#: The stage in which users ask a trained model, and the split that they hold for it. Where a saved model keeps the maps
#: that training users were sent, the encoder that was trained for it alone, as users run it, and in what form it was
#: trained, where that is not the model itself.
QUESTION, ASKED, ENCODER, STUDENT = "test", "asked", "client", "student"


class _Classifier:
    """What models say of classes, by their scores."""

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        raise NotImplementedError

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        raise NotImplementedError

    def answer(self, batch: Batch) -> NDArray[np.int64] | None:
        scores = self.scores(batch)
        return None if scores is None else scores.argmax(axis=1).astype(np.int64)

    def classify(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        return self.rate(texts).argmax(axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class EmbeddingModel(_Classifier):
    """Maps and head on embeddings. mechanism: of those that users release, at the m' that was chosen; None where users
    release none.

    Where the arm's users ask by `Channels.answer`, their devices run all of it and release the class: what is released
    is the answer (`mechanisms.randomized_answer`).
    """

    channels: Channels
    encoder: Encoding
    mechanism: Mechanism | None
    maps: Maps
    asked: Maps | None = None

    @property
    def embedding(self) -> Mechanism | None:
        return self.mechanism if self.channels.embedded else None

    def question(self) -> Request | None:
        if self.channels.answer is not None:
            return self.channels.answers(self.encoder.identity, self.maps, stage=QUESTION, split=QUESTION)
        if self.mechanism is None or not self.channels.asking:
            return None
        return self.channels.embeddings(
            self.encoder.identity, self.maps, self.mechanism, stage=QUESTION, split=QUESTION
        )

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        if (given := batch.channel("answer")) is not None:
            return np.eye(self.channels.classes)[given.payload["c"].astype(np.int64)]
        release = batch.channel("embedding")
        if release is None or self.mechanism is None:
            return None
        return self.maps.logits(decoded(self.mechanism, release))

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        return self.maps.logits(self.maps.project(self.encoder.embed(texts)))

    def save(self, folder: Path) -> None:
        self.maps.save(folder)
        if self.asked is not None:
            self.asked.save(folder / ASKED)


@dataclass(frozen=True, eq=False)
class TextModel(_Classifier):
    """BERT, maps and head on released texts."""

    channels: Channels
    rewriter: PublicRewriter
    pipeline: Pipeline
    asked: Maps | None = None
    encoder: Encoding | None = None
    embedding: Mechanism | None = None

    @property
    def maps(self) -> Maps:
        return self.pipeline.maps()

    def question(self) -> Request | None:
        return self.channels.texts(self.rewriter, stage=QUESTION, split=QUESTION)

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        release = batch.channel("text")
        if release is None:
            return None
        assert self.channels.text is not None
        return self._logits(self.channels.text.texts(release.payload["w"]))

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        assert self.channels.text is not None
        return self._logits(self.rewriter.in_form(self.channels.text, texts))

    def save(self, folder: Path) -> None:
        self.pipeline.save_pretrained(folder, about={})

    def _logits(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        maps: Maps = self.maps
        return maps.logits(maps.project(self.pipeline.embed(texts)))
