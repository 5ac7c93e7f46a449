"""Public data around the page: an encoder, public sentences, words, and maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.device.bundle import Bundle
from client.models import encoder as encoders
from client.models import vocabulary as vocabularies
from client.models.tokens import joined
from client.policy import Policy
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import QUESTIONS, LabelQuestion, Projection, Question, TextQuestion, VectorQuestion
from mechanisms.messages.request import SPLITS, Request
from mechanisms.vocabulary import Vocabulary
from server.training.principal import pca_maps
from server.training.statistic_head import simplex_codes
from simulations.artifacts.cache import embed
from simulations.artifacts.encoder import encoder_folder
from simulations.artifacts.vocabulary import counted, vocabulary_folder
from simulations.corpora.builtin import builtin
from simulations.corpora.corpus import Corpus
from simulations.corpora.parts import load_split
from simulations.experiment import Encoder, load
from simulations.experiment.toml import document
from sottovoce.explore.settings import MECHANISMS, SLIDERS, Settings

#: Public sentences that the server knows, and those among which it searches for the user's sentence.
PUBLIC, POOL = 600, 100
#: Words of the page's vocabulary: those of the public sentences, then the checkpoint's most frequent ones.
WORDS = 2400
STAGE = "explore"
Matrices = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class World:
    """Public sentences with their labels, and the encoder and vocabulary of a device.

    Args:
        name: Name of the data.
        texts: n sentences, the first POOL of which stand beside the user's sentence.
        labels: Labels (n,) of 0..K-1.
        classes: K names.
        topics: Another property of each sentence, which no request contains; None if there is none.
        topic_names: Names of its values.
        encoder: Folder of the encoder, if there is one.
        embeddings: Embeddings (n, m), with an encoder.
        vocabulary: Vocabulary of texts, if there is one.
        asked: Request of a bundle, whose maps and codes replace those learned here; None if there is none.
        table: Document of a run's experiment.
    """

    name: str
    texts: Sequence[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    topics: NDArray[np.int64] | None
    topic_names: tuple[str, ...]
    encoder: Path | None
    embeddings: NDArray[np.float32] | None
    vocabulary: Vocabulary | None
    asked: Request | None = None
    table: Mapping[str, Any] = field(default_factory=dict)

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the channels that can be shown."""
        there = {LabelQuestion.channel: True, TextQuestion.channel: self.vocabulary is not None}
        return tuple(channel for channel in MECHANISMS if there.get(channel, self.embeddings is not None))

    @cached_property
    def _principal(self) -> Matrices:
        assert self.embeddings is not None
        most = min(64, self.embeddings.shape[1])
        maps = pca_maps(self.embeddings, dim=most, classes=2)
        return maps.mean, maps.m1

    def maps(self, dim: int) -> Matrices:
        """Return mean (m,) and M1 (m, m') of a request: a bundle's, or the principal components of public text.

        Raises:
            ValueError: The encoder has fewer coordinates than `dim`.
        """
        sent = None if self.asked is None else self.asked.projection
        if sent is not None and sent.dim == dim:
            return sent.mean, sent.m1
        mean, m1 = self._principal
        if dim > m1.shape[1]:
            raise ValueError(f"dim: the encoder has {m1.shape[1]} coordinates, and no more can be asked for; got {dim}")
        return mean, np.ascontiguousarray(m1[:, :dim])

    def _projection(self, dim: int) -> Projection:
        assert self.encoder is not None
        return Projection(encoders.load(self.encoder).identity, *self.maps(dim))

    def codes(self) -> NDArray[np.float32]:
        """Return the code of each class in a user vector, (K, c)."""
        simplex, sent = simplex_codes(len(self.classes)), None
        if self.asked is not None:
            sent = self.asked.find(VectorQuestion)
        return simplex if sent is None or sent.codes.shape != simplex.shape else sent.codes

    def embed(self, text: str) -> NDArray[np.float32]:
        """Return one sentence's embedding (1, m)."""
        assert self.encoder is not None
        return _embedding(self.encoder, text)

    def request(self, settings: Settings, policy: Policy, *, stage: str = STAGE) -> Request:
        """Return a server's request to a device.

        Args:
            settings: Settings of the page.
            policy: Policy of the device; a request that it lists is preferred.
            stage: Name of the stage.

        Raises:
            ValueError: There is no such request. The message is one line.
        """
        first, *beside = settings.mechanisms(len(self.classes), self.vocabulary)
        parts: dict[str, Callable[[], Any]] = {
            "classes": lambda: len(self.classes),
            "vocabulary": lambda: self.vocabulary,
            "codes": self.codes,
            "projection": lambda: self._projection(settings.dim),
        }
        kind: Any = kind_of(settings)
        given = {part.name: parts[part.name]() for part in fields(kind) if part.name in parts}
        labels = [LabelQuestion(parameters(label), classes=len(self.classes)) for label in beside]
        request = Request(
            arm="",
            stage=stage,
            split="train",
            minimum_users=settings.users,
            questions=(kind(parameters(first), **given), *labels),
        )
        both = [replace(request, split=split) for split in SPLITS]
        return next((one for one in both if policy.lists(one)), both[0])


def kind_of(settings: Settings) -> type[Question]:
    """Return the class of questions that the settings are of."""
    return QUESTIONS[settings.channel]


@lru_cache(maxsize=4)
def _embedding(encoder: Path, text: str) -> NDArray[np.float32]:
    """Return the embedding of a sentence, cached while sliders move."""
    return encoders.load(encoder).encode([text])


def builtin_world() -> World:
    """Return the built-in reviews, with the encoder and the words of the small model that comes with Sottovoce."""
    corpus = builtin(task="sentiment", public=PUBLIC, train=1, test=1, seed=1).public
    folder = encoder_folder(Encoder(), corpus, batch_size=1, seed=1)  # is not fine-tuned
    return _world("built-in reviews", corpus, folder)


def run_world(run: Path) -> World:
    """Return the public part of a finished run, with its encoder.

    Args:
        run: Folder of the run.

    Raises:
        UserError: Its data or encoder are missing.
    """
    place = str(run / "experiment.toml")
    experiment = load(place, [])
    corpus = load_split(experiment.data, experiment.population, experiment.seed)[0].public
    folder = encoder_folder(experiment.encoder, corpus, batch_size=experiment.training.batch_size, seed=experiment.seed)
    made = _world(experiment.name, corpus, folder)
    return replace(made, table=document(place))


def bundle_world(bundle: Bundle) -> World:
    """Return the built-in reviews with a bundle's encoder, words, maps and codes.

    Args:
        bundle: Bundle of a device.
    """
    request = bundle.request
    task = "genre" if request.classes == 12 else "sentiment"
    corpus = builtin(task=task, public=PUBLIC, train=1, test=1, seed=1).public
    names = corpus.classes if len(corpus.classes) == request.classes else _numbered(request.classes)
    labels = corpus.labels % request.classes
    embeddings = None
    if bundle.encoder is not None:
        embeddings = np.asarray(embed(encoders.load(bundle.encoder), corpus.texts))
    topics, topic_names = _topics(corpus)
    return World(
        str(bundle.manifest["name"]),
        list(corpus.texts),
        labels,
        names,
        topics,
        topic_names,
        bundle.encoder,
        embeddings,
        request.vocabulary,
        request,
    )


def settings_of(request: Request) -> Settings:
    """Return the page's first settings for a bundle: its own request, or the nearest one with sliders."""
    question = next((each for each in request.questions if each.channel in MECHANISMS), None)
    if question is None or question.mechanism.name not in MECHANISMS[question.channel]:
        return Settings()
    about, name = parameters(question.mechanism), question.mechanism.name
    given = {key: about[key] for key in ("epsilon", *SLIDERS[name].more, "tokens", "length") if key in about}
    labels = request.find(LabelQuestion)
    label = None if labels is None or labels is question else labels.spec.get("epsilon")
    if question.projection is not None:
        given["dim"] = question.projection.dim
    users = max(1, request.minimum_users or Settings.users)
    return Settings.of({"channel": question.channel, "mechanism": name, "label_epsilon": label, "users": users} | given)


def _world(name: str, corpus: Corpus, folder: Path) -> World:
    rows = np.arange(min(PUBLIC, len(corpus)))
    texts = [joined(corpus.texts[i]) for i in rows.tolist()]
    embeddings = np.asarray(embed(encoders.load(folder), texts))
    topics, topic_names = _topics(corpus)
    return World(
        name,
        texts,
        corpus.labels[rows],
        tuple(corpus.classes),
        None if topics is None else topics[rows],
        topic_names,
        folder,
        embeddings,
        _words(texts),
    )


def _topics(corpus: Corpus) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return a property beside the label, if the corpus has one with few values."""
    for values in (corpus.extra or {}).values():
        names = tuple(dict.fromkeys(values))
        if 2 <= len(names) <= 40 and set(names) != set(corpus.classes):
            order = {name: i for i, name in enumerate(names)}
            return np.array([order[value] for value in values], np.int64), names
    return None, ()


def _words(texts: Sequence[str]) -> Vocabulary:
    """Return the checkpoint's words in public sentences, and its most frequent ones."""
    folder = vocabulary_folder()
    whole = counted(vocabularies.load_cached(folder), texts)
    assert whole.counts is not None
    plain = np.array([word.isascii() and word.isalpha() and len(word) > 1 for word in whole.words])
    order = np.lexsort((np.arange(len(whole.words)), ~plain, -whole.counts))[:WORDS]
    order = np.sort(order)
    return Vocabulary(
        tuple(whole.words[i] for i in order), np.ascontiguousarray(whole.vectors[order]), counts=whole.counts[order]
    )


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(f"class {number}" for number in range(classes))
