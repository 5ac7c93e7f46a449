"""Public data around the page: an encoder, public sentences, words, and maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import encoder as encoders
from client.models import vocabulary as vocabularies
from client.models.tokens import joined
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.messages.questions import QUESTIONS, LabelQuestion, Projection
from mechanisms.messages.request import Request
from mechanisms.vocabulary import Vocabulary
from server.maps import pca_maps
from server.training.statistic_head import simplex_codes
from simulations.artifacts.cache import embed
from simulations.artifacts.encoder import encoder_folder
from simulations.artifacts.vocabulary import counted, vocabulary_folder
from simulations.corpora.builtin import builtin
from simulations.corpora.corpus import Corpus
from simulations.corpora.parts import load_split
from simulations.experiment import EncoderConfig, load
from sottovoce.explore.settings import Settings

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
        encoder: Folder of the encoder.
        embeddings: Embeddings (n, m).
        vocabulary: Vocabulary of texts.
    """

    name: str
    texts: Sequence[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    encoder: Path
    embeddings: NDArray[np.float32]
    vocabulary: Vocabulary

    @cached_property
    def _principal(self) -> Matrices:
        maps = pca_maps(self.embeddings, dim=min(64, self.embeddings.shape[1]), classes=2)
        return maps.mean, maps.m1

    def _projection(self, dim: int) -> Projection:
        """Return the maps of a request: the first `dim` principal components of public text.

        Raises:
            ValueError: The encoder has fewer coordinates.
        """
        mean, m1 = self._principal
        if dim > m1.shape[1]:
            raise ValueError(f"dim: the encoder has {m1.shape[1]} coordinates, and no more can be asked for; got {dim}")
        return Projection(encoders.load(self.encoder).identity, mean, np.ascontiguousarray(m1[:, :dim]))

    def embed(self, text: str) -> NDArray[np.float32]:
        """Return one sentence's embedding (1, m)."""
        return _embedding(self.encoder, text)

    def mechanisms(self, settings: Settings) -> list[Mechanism]:
        """Return the mechanisms of the settings, the label's last."""
        return settings.mechanisms(len(self.classes), self.vocabulary)

    def request(self, settings: Settings) -> Request:
        """Return a server's request to a device.

        Args:
            settings: Settings of the page.

        Raises:
            ValueError: There is no such request. The message is one line.
        """
        first, *label_mechanisms = self.mechanisms(settings)
        parts: dict[str, Callable[[], Any]] = {
            "classes": lambda: len(self.classes),
            "vocabulary": lambda: self.vocabulary,
            "codes": lambda: simplex_codes(len(self.classes)),
            "projection": lambda: self._projection(settings.dim),
        }
        kind: Any = QUESTIONS[settings.channel]
        arguments = {part.name: parts[part.name]() for part in fields(kind) if part.name in parts}
        labels = [LabelQuestion(parameters(label), classes=len(self.classes)) for label in label_mechanisms]
        questions = (kind(parameters(first), **arguments), *labels)
        return Request(arm="", stage=STAGE, split="train", minimum_users=0, questions=questions)


@lru_cache(maxsize=4)
def _embedding(encoder: Path, text: str) -> NDArray[np.float32]:
    """Return the embedding of a sentence, cached while sliders move."""
    return encoders.load(encoder).encode([text])


def builtin_world() -> World:
    """Return the built-in reviews, with the encoder and the words of the small model that comes with Sottovoce."""
    corpus = builtin(task="sentiment", public=PUBLIC, train=1, test=1, seed=1).public
    folder = encoder_folder(EncoderConfig(), corpus, batch_size=1, seed=1)  # is not fine-tuned
    return _world("built-in reviews", corpus, folder)


def run_world(run: Path) -> World:
    """Return the public part of a finished run, with its encoder.

    Args:
        run: Folder of the run.

    Raises:
        UserError: Its data or encoder are missing.
    """
    experiment = load(str(run / "experiment.toml"), [])
    corpus = load_split(experiment.data, experiment.population, experiment.seed)[0].public
    folder = encoder_folder(experiment.encoder, corpus, batch_size=experiment.training.batch_size, seed=experiment.seed)
    return _world(experiment.name, corpus, folder)


def _world(name: str, corpus: Corpus, folder: Path) -> World:
    rows = np.arange(min(PUBLIC, len(corpus)))
    texts = [joined(corpus.texts[i]) for i in rows.tolist()]
    embeddings = np.asarray(embed(encoders.load(folder), texts))
    return World(name, texts, corpus.labels[rows], tuple(corpus.classes), folder, embeddings, _words(texts))


def _words(texts: Sequence[str]) -> Vocabulary:
    """Return the checkpoint's words in public sentences, and its most frequent ones."""
    folder = vocabulary_folder()
    vocabulary = counted(vocabularies.load_cached(folder), texts)
    assert vocabulary.counts is not None
    mask = np.array([word.isascii() and word.isalpha() and len(word) > 1 for word in vocabulary.words])
    order = np.lexsort((np.arange(len(vocabulary.words)), ~mask, -vocabulary.counts))[:WORDS]
    order = np.sort(order)
    return Vocabulary(
        tuple(vocabulary.words[i] for i in order),
        np.ascontiguousarray(vocabulary.vectors[order]),
        counts=vocabulary.counts[order],
    )
