"""Trained models: for users who release embeddings, and for users who release texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import AnswerQuestion, EmbeddingQuestion, TextQuestion, decoded
from mechanisms.messages.request import Request
from mechanisms.pieces import Text
from server.maps import Maps
from server.protocols.protocol import Channels, Encoding, PublicRewriter
from server.training.robust_mean import BatchTest

if TYPE_CHECKING:
    from server.model import Pipeline

#: Names in requests and saved models. QUESTION is the stage in which users query a trained model, and their split.
#: ASKED is the folder of the maps that training users received. ENCODER is the folder of an encoder that was trained
#: for this model alone, in the form that users run. STUDENT is that encoder in the form it was trained in, where the
#: model does not hold it.
QUESTION, ASKED, ENCODER, STUDENT = "test", "asked", "client", "student"


class _Classifier:
    """Base of models that classify by scores."""

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        """Return a logit for each class of a batch's rows, (n, K), in its order; None if the batch has none."""
        raise NotImplementedError

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return a logit for each class of clear texts, (n, K).

        A user's own device can compute this, so that nothing leaves it.
        """
        raise NotImplementedError

    def answer(self, batch: Batch) -> NDArray[np.int64] | None:
        """Return the classes of a batch's rows, (n,): those of largest score."""
        scores = self.scores(batch)
        return None if scores is None else scores.argmax(axis=1).astype(np.int64)

    def classify(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        """Return the classes of clear texts, (n,)."""
        return self.rate(texts).argmax(axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class EmbeddingModel(_Classifier):
    """Model of maps and head on embeddings.

    With `Channels.answer`, users' devices run the whole model and release the class (`mechanisms.randomized_response`).

    Args:
        channels: Releases of the arm's users.
        encoder: Encoder before the maps.
        mechanism: Mechanism of the released embeddings at the chosen m'; None if users release none.
        maps: Maps and head.
        asked: Maps that training users received; None if they received none.
        tests: Tests of the training users' batches for dishonest users.
        doubts: What public labels or users say against the class names, a sentence without a full stop each.
    """

    channels: Channels
    encoder: Encoding
    mechanism: Mechanism | None
    maps: Maps
    asked: Maps | None = None
    tests: tuple[BatchTest, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def embedding(self) -> Mechanism | None:
        """Return the mechanism of its users' embeddings; None if they release none."""
        return self.mechanism if self.channels.embedded else None

    def question(self) -> Request | None:
        """Return the request to users who want a sentence classified (stage "test"); None if they cannot query."""
        if self.channels.answer is not None:
            return self.channels.answers(self.encoder.identity, self.maps, stage=QUESTION, split=QUESTION)
        if self.mechanism is None or not self.channels.asking:
            return None
        return self.channels.embeddings(
            self.encoder.identity, self.maps, self.mechanism, stage=QUESTION, split=QUESTION
        )

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        """Return a logit for each class of a batch's rows, (n, K); for released answers, 1 for the released class."""
        if (answers := batch.of(AnswerQuestion)) is not None:
            return np.eye(self.channels.classes)[answers.values.astype(np.int64)]
        release = batch.of(EmbeddingQuestion)
        if release is None or self.mechanism is None:
            return None
        return self.maps.logits(decoded(self.mechanism, release.values))

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return a logit for each class of clear texts, (n, K)."""
        return self.maps.logits(self.maps.project(self.encoder.embed(texts)))

    def save(self, folder: Path) -> None:
        """Write the maps, and the maps of training users, into the folder."""
        self.maps.save(folder)
        if self.asked is not None:
            self.asked.save(folder / ASKED)


@dataclass(frozen=True, eq=False)
class TextModel(_Classifier):
    """Model of encoder, maps and head on released texts.

    Args:
        channels: Releases of the arm's users.
        rewriter: Text form of the users' releases.
        pipeline: Trained encoder, maps and head.
        asked: None: training users receive no maps.
        encoder: None: users release texts.
        embedding: None: users release no embeddings.
    """

    channels: Channels
    rewriter: PublicRewriter
    pipeline: Pipeline
    asked: Maps | None = None
    encoder: Encoding | None = None
    embedding: Mechanism | None = None

    @property
    def maps(self) -> Maps:
        """Return the maps and the head."""
        maps: Maps = self.pipeline.maps()
        return maps

    def question(self) -> Request | None:
        """Return the request to users who query the model."""
        return self.channels.texts(self.rewriter, stage=QUESTION, split=QUESTION)

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        """Return a logit for each class of a batch's rows, (n, K); None if there are none."""
        release = batch.of(TextQuestion)
        if release is None:
            return None
        assert self.channels.text is not None
        return self._logits(self.channels.text.texts(release.values))

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return a logit for each class of clear texts, (n, K)."""
        assert self.channels.text is not None
        return self._logits(self.rewriter.in_form(self.channels.text, texts))

    def save(self, folder: Path) -> None:
        """Write the pipeline into the folder."""
        self.pipeline.save_pretrained(folder)

    def _logits(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        maps = self.maps
        return maps.logits(maps.project(self.pipeline.embed(texts)))


#: Trained model, as seen by code that scores, saves or deploys it.
Model = EmbeddingModel | TextModel
