"""What ways of training work with: the public part, what users release, and the form of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.messages.batch import Batch
from mechanisms.messages.request import SPLITS, Request
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from server.maps import Maps

if TYPE_CHECKING:
    from server.protocols.public_maps import PublicMaps
    from server.training.descent import Descent

Text = str | tuple[str, str]
Progress = Callable[[str], None]


class Encoding(Protocol):
    """An encoder as users run it: known by its identity, and able to embed texts as they would."""

    @property
    def identity(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def precision(self) -> str: ...

    def embed(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Sentence embeddings (n, m)."""
        ...


class PublicRewriter(Protocol):
    """What makes of public text what users make of theirs: the vocabulary and the masked language model."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def identity(self, text: TextMechanism) -> str:
        """What a request calls the masked language model: "" where the mechanism reads none."""
        ...

    def in_form(self, text: TextMechanism, texts: Sequence[Text]) -> list[Text]:
        """Each text, or pair of texts, as users sanitize it: as one text, or as two."""
        ...

    def sanitize(self, text: TextMechanism, texts: Sequence[Text], *, seed: int, stage: str) -> list[Text]:
        """One simulated draw for each *public* text or pair, words with spaces between; nobody is charged for it."""
        ...

    def checkpoint(self, text: TextMechanism, texts: Sequence[Text], *, progress: Progress) -> str | Path:
        """What a training end to end starts from: a checkpoint, which may have learnt from the sanitized texts."""
        ...


@dataclass(frozen=True, eq=False)
class Public:
    """What a training server may hold before anybody has released anything.

    texts: n of them, or pairs. labels: (n,) classes of 0..K-1; None where none is public, and -1 where one is not, in a
    way that can do with some. classes: K names.
    encoder, embeddings (n, m), maps: where users have an encoder. checkpoint: the one that the encoder was made from,
    where training it goes on. rewriter: where users release texts. elsewhere: whether the texts are of another domain
    than users' are.
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


@dataclass(frozen=True)
class Channels:
    """What an arm's users release.

    arm: what requests call it. label: of training users; `Identity` where labels are sent as they are. embedding: the
    mechanism at each m' that may be chosen on public data; () where none is released. text: None where none is
    released; taught: of training users' texts, where that is another than of those who ask. statistic: the mechanism of
    a user's statistic by its number D of coordinates, None where none is released; answer: of the class that a user's
    own device finds, where that is how users ask the trained model;
    features: d, None to choose it before anyone is asked; users: how many are expected to answer together;
    curator: the noise on the sum of statistics in clear, or how a head is trained on them, in a study of users who
    trust the server with them. teaching: whether training users are asked at all. asking: whether users may ask the
    trained model by a sanitized embedding or text. minimum_users: the smallest batch that a shuffler may hand on.
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
    curator: Gaussian | Descent | None = None
    teaching: bool = True
    asking: bool = True
    minimum_users: int = 0

    @property
    def embedded(self) -> bool:
        """Whether anybody releases an embedding: who asks, or who teaches."""
        return bool(self.embedding) and (self.asking or (self.teaching and self.statistic is None))

    def embeddings(
        self, encoder: str, maps: Maps, mechanism: Mechanism, *, stage: str, split: str, label: bool = False,
        part: tuple[int, int] = (0, 1), prior: Any = None,
    ) -> Request:  # fmt: skip
        """A request for embeddings under the maps, and for labels beside them where `label` says so.

        encoder: its identity. part: (k, n), users of numbers k modulo n. prior: (weights, bias), where the label's
        mechanism needs one.
        """
        return self._request(
            stage=stage, split=split, part=part, label=label, encoder=encoder, mean=maps.mean, m1=maps.m1,
            embedding=parameters(mechanism), prior=prior,
        )  # fmt: skip

    def texts(
        self, rewriter: PublicRewriter, *, stage: str, split: str, label: bool = False, part: tuple[int, int] = (0, 1)
    ) -> Request:
        """A request for sanitized texts, and for labels beside them where `label` says so."""
        text = self.text_of(split)
        return self._request(
            stage=stage, split=split, part=part, label=label, text=parameters(text),
            vocabulary=rewriter.vocabulary, masked_lm=rewriter.identity(text),
        )  # fmt: skip

    def text_of(self, split: str) -> TextMechanism:
        """What the users of a split release texts by."""
        text = self.taught if split == "train" and self.taught is not None else self.text
        assert text is not None
        return text

    def statistics(
        self, encoder: str, maps: Maps, codes: NDArray[np.float32], *, stage: str, part: tuple[int, int] = (0, 1)
    ) -> Request:
        """A request for training users' statistics: of features under the maps, and labels by their codes (K, c)."""
        assert self.statistic is not None
        mechanism = self.statistic(codes.shape[1] * (maps.dim + 1))
        return self._request(
            stage=stage, split="train", part=part, label=False, encoder=encoder, mean=maps.mean, m1=maps.m1,
            statistic=parameters(mechanism), codes=codes,
        )  # fmt: skip

    def answers(self, encoder: str, maps: Maps, *, stage: str, split: str) -> Request:
        """A request for the class alone that each user's device finds by the maps and their head."""
        assert self.answer is not None
        return self._request(
            stage=stage, split=split, label=False, encoder=encoder, mean=maps.mean, m1=maps.m1,
            answer=parameters(self.answer), head=maps.folded(),
        )  # fmt: skip

    def _request(self, *, label: bool, **fields: Any) -> Request:
        none: dict[str, Any] = {"encoder": "", "mean": None, "m1": None, "embedding": None}
        return Request(**none | fields | {
            "arm": self.arm, "classes": self.classes, "minimum_users": self.minimum_users,
            "label": parameters(self.label) if label else None,
        })  # fmt: skip


@dataclass(frozen=True)
class Training:
    """How a server trains. label_stages: in how many stages, of disjoint users, labels are released. rounds: in how
    many groups users release statistics. self_training: whether what a group has taught labels public text, on which
    the encoder is trained under which the next group answers, or, after the last, the model's.

    epochs, batch_size, pooling, max_length: of a training end to end, on texts; bottleneck: m' of a pipeline whose
    users release texts, None for the encoder's whole width; descent: its lr, warm_up, schedule and weight_decay,
    those that are not as `server.training.end_to_end` has them. export: how an encoder that was trained so becomes one
    that users run, as `server.export.export_encoder` takes it.
    """

    seed: int
    label_stages: int = 1
    rounds: int = 1
    self_training: bool = False
    epochs: int = 5
    batch_size: int = 32
    bottleneck: int | None = 16
    pooling: str = "mean"
    max_length: int = 128
    descent: Mapping[str, Any] = field(default_factory=dict)
    export: Mapping[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """A trained model, as whoever scores, saves or deploys it sees it.

    maps: the linear maps and the head that it was left with. asked: the maps that training users were sent; None where
    none released an embedding. encoder: what stands before the maps on a user's device; None where users release texts.
    embedding: the mechanism of its users' embeddings; None where they release none.
    """

    @property
    def maps(self) -> Maps: ...

    @property
    def asked(self) -> Maps | None: ...

    @property
    def encoder(self) -> Encoding | None: ...

    @property
    def embedding(self) -> Mechanism | None: ...

    def question(self) -> Request | None:
        """What users release who want a sentence classified (stage "test"); None where the arm asks for nothing."""
        ...

    def scores(self, batch: Batch) -> NDArray[np.float64] | None:
        """A logit for each class of a batch's rows, (n, K), in its order; of released answers, 1 for the class that was
        released. None where nothing came."""
        ...

    def rate(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """A logit for each class of texts as they are, (n, K): what a user's own device can do, so that nothing
        leaves."""
        ...

    def answer(self, batch: Batch) -> NDArray[np.int64] | None:
        """The classes of a batch's rows, (n,): those of largest score."""
        ...

    def classify(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        """The classes of texts as they are, (n,)."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what `classify` and `answer` need, but for an encoder that all arms share."""
        ...


@dataclass(frozen=True)
class Publish:
    """Users get this exported encoder before they are asked again; whoever drives sends back its `Encoding`.

    splits: of the users who will be asked under it.
    """

    folder: Path
    splits: tuple[str, ...] = SPLITS


#: A conversation with users, seen from the server: yields a Request and is sent its Batch, yields a Publish and is sent
#: an Encoding, returns a Model, or None where nothing came to train one on.
Conversation = Generator[Request | Publish, Any, Model | None]
