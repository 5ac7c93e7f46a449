"""Types of protocols: public data, the channels of users' releases, and the form of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.messages.questions import (
    AnswerQuestion,
    EmbeddingQuestion,
    LabelQuestion,
    Prior,
    Projection,
    Question,
    TextQuestion,
    VectorQuestion,
)
from mechanisms.messages.request import SPLITS, Request
from mechanisms.pieces import Text
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from server.maps import Maps

if TYPE_CHECKING:
    from server.protocols.models import Model
    from server.training.descent import DPSGD
    from server.training.public_maps import PublicMaps


class Encoding(Protocol):
    """Encoder as users run it: it has an identity, and embeds texts as users would."""

    @property
    def identity(self) -> str:
        """Return the identity of the encoder."""
        ...

    @property
    def folder(self) -> Path:
        """Return the folder of its exported files."""
        ...

    @property
    def precision(self) -> str:
        """Return its precision, as in `server.export`."""
        ...

    def embed(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return sentence embeddings (n, m)."""
        ...


class PublicRewriter(Protocol):
    """Rewriter of public text by the users' procedure, with their vocabulary and masked language model."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary."""
        ...

    def identity(self, text: TextMechanism) -> str:
        """Return the identity of the masked language model in requests; "" if the mechanism reads none."""
        ...

    def in_form(self, text: TextMechanism, texts: Sequence[Text]) -> list[Text]:
        """Return each text or pair of texts as users sanitize it: as one text, or as two."""
        ...

    def sanitize(self, text: TextMechanism, texts: Sequence[Text], *, seed: int, stage: str) -> list[Text]:
        """Return one simulated draw for each *public* text or pair, as words with spaces between.

        Nobody is charged for it.
        """
        ...

    def checkpoint(self, text: TextMechanism, texts: Sequence[Text]) -> str | Path:
        """Return the checkpoint that an end-to-end training starts from.

        It may have been trained on the sanitized texts.
        """
        ...


@dataclass(frozen=True, eq=False)
class Public:
    """Data that a training server may hold before anybody releases anything.

    Args:
        texts: n texts or pairs.
        labels: Classes 0..K-1, (n,). None if no label is public. -1 marks an unknown label, in protocols that accept
            some.
        classes: K names.
        encoder: Encoder of the users, if they have one.
        embeddings: Embeddings (n, m), if users have an encoder.
        maps: Maps from these embeddings, if users have an encoder.
        checkpoint: Checkpoint of the encoder, if its training continues.
        rewriter: Rewriter, if users release texts.
        elsewhere: Whether the texts are of another domain than users' texts.
        names: Prototypes (K, m) of the classes, from their names under this encoder; None if names say nothing.
    """

    texts: Sequence[Text]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    encoder: Encoding | None = None
    embeddings: NDArray[np.float32] | None = None
    maps: PublicMaps | None = None
    checkpoint: str | Path = ""
    rewriter: PublicRewriter | None = None
    elsewhere: bool = False
    names: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Channels:
    """Releases of an arm's users.

    Its methods make requests, of users of a `split` with the numbers k modulo n for `part` = (k, n). `encoder` is the
    identity of the encoder, `maps` are those that users apply, and `stage` names the request.

    Args:
        arm: Name of the arm in requests.
        classes: K.
        label: Mechanism of training users' labels; `Identity` if labels are sent in clear.
        embedding: Mechanism at each m' that may be chosen on public data; () if no embedding is released.
        text: Mechanism of texts; None if none is released.
        taught: Mechanism of training users' texts, if it differs from that of inference.
        statistic: Mechanism of a user vector by its number D of coordinates; None if none is released.
        answer: Mechanism of the class that a user's own device finds, if users query the trained model so.
        features: d; None to choose it before any request.
        users: Number of users expected to answer together.
        curator: Noise on the sum of user vectors in clear, or a method of training a head on them. It is for studies of
            users who trust the server with their vectors.
        teaching: Whether training users receive requests at all.
        asking: Whether users may query the trained model by a sanitized embedding or text.
        minimum_users: Smallest batch that a shuffler may hand on.
        one_record: Whether every training user is known to hold one record.
    """

    arm: str
    classes: int
    label: Mechanism
    embedding: tuple[Mechanism, ...] = ()
    text: TextMechanism | None = None
    taught: TextMechanism | None = None
    statistic: Callable[[int], Mechanism] | None = None
    answer: Mechanism | None = None
    features: int | None = None
    users: int = 0
    curator: Gaussian | DPSGD | None = None
    teaching: bool = True
    asking: bool = True
    minimum_users: int = 0
    one_record: bool = False

    @property
    def embedded(self) -> bool:
        """Return True if anybody releases an embedding, in training or in inference."""
        return bool(self.embedding) and (self.asking or (self.teaching and self.statistic is None))

    def embeddings(
        self,
        encoder: str,
        maps: Maps,
        mechanism: Mechanism,
        *,
        stage: str,
        split: str,
        label: bool = False,
        part: tuple[int, int] = (0, 1),
        prior: Any = None,
    ) -> Request:
        """Return a request for embeddings under the maps, with labels if asked.

        prior: (weights, bias), if the label's mechanism needs one.
        """
        projection = Projection(encoder, maps.mean, maps.m1)
        embedding = EmbeddingQuestion(parameters(mechanism), projection=projection, classes=self.classes)
        label_prior = None if prior is None else Prior(prior, embedding)
        labels = (self._labels(label_prior),) if label else ()
        return self._request(embedding, *labels, stage=stage, split=split, part=part)

    def texts(
        self, rewriter: PublicRewriter, *, stage: str, split: str, label: bool = False, part: tuple[int, int] = (0, 1)
    ) -> Request:
        """Return a request for sanitized texts by the rewriter's vocabulary and model, with labels if asked."""
        text = self.text_of(split)
        words, model = rewriter.vocabulary, rewriter.identity(text)
        texts = TextQuestion(parameters(text), classes=self.classes, vocabulary=words, masked_lm=model)
        labels = (self._labels(),) if label else ()
        return self._request(texts, *labels, stage=stage, split=split, part=part)

    def text_of(self, split: str) -> TextMechanism:
        """Return the text mechanism of the users of a split."""
        text = self.taught if split == "train" and self.taught is not None else self.text
        assert text is not None
        return text

    def statistics(
        self,
        encoder: str,
        maps: Maps,
        codes: NDArray[np.float32],
        *,
        clip: float = 1.0,
        stage: str,
        part: tuple[int, int] = (0, 1),
    ) -> Request:
        """Return a request for training users' vectors, of codes of labels (K, c) and means clipped at `clip`."""
        assert self.statistic is not None
        mechanism = self.statistic(codes.shape[1] * (maps.dim + 1))
        projection = Projection(encoder, maps.mean, maps.m1)
        vector = VectorQuestion(parameters(mechanism), projection=projection, codes=codes, clip=clip)
        return self._request(vector, stage=stage, split="train", part=part)

    def answers(self, encoder: str, maps: Maps, *, stage: str, split: str) -> Request:
        """Return a request for the class alone, which each user's device finds by the maps and their head."""
        assert self.answer is not None
        projection = Projection(encoder, maps.mean, maps.m1)
        answer = AnswerQuestion(parameters(self.answer), projection=projection, head=maps.folded())
        return self._request(answer, stage=stage, split=split)

    def _labels(self, prior: Prior | None = None) -> LabelQuestion:
        return LabelQuestion(parameters(self.label), classes=self.classes, prior=prior)

    def _request(self, *questions: Question, **given: Any) -> Request:
        return Request(arm=self.arm, minimum_users=self.minimum_users, questions=questions, **given)


@dataclass(frozen=True)
class Training:
    """Settings of a server's training.

    Args:
        seed: Seed of all random choices.
        epochs: Epochs of an end-to-end training on texts.
        batch_size: Texts of its batches.
        pooling: Pooling of the encoder that is trained.
        max_length: Tokens of its texts, at most.
        descent: Its lr, warm_up, schedule and weight_decay, if they differ from the defaults of
            `server.training.end_to_end`.
        export: Arguments of `server.export.export_encoder` for an encoder that was trained so.
        student: Checkpoint that self-training fine-tunes; "" for that of `Public`.
        options: Values of the protocol's own options; an option that is missing has its default.
    """

    seed: int
    epochs: int = 5
    batch_size: int = 32
    pooling: str = "mean"
    max_length: int = 128
    descent: Mapping[str, Any] = field(default_factory=dict)
    export: Mapping[str, Any] = field(default_factory=dict)
    student: str | Path = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Publish:
    """Exported encoder that users receive before the next request; the driver sends back its `Encoding`.

    Args:
        folder: Folder of the exported encoder.
        splits: Splits of the users who will answer under it.
    """

    folder: Path
    splits: tuple[str, ...] = SPLITS


#: Conversation with users, from the server's side. It yields a Request and receives its Batch, or yields a Publish and
#: receives an Encoding. It returns a Model, or None if nothing arrived to train one on.
Conversation = Generator[Request | Publish, Any, "Model | None"]
