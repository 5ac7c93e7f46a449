"""A small world for the page: sixty sentences of few words, an encoder of two layers, and words of five dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from client.models.encoder import Encoder
from mechanisms.vocabulary import Vocabulary
from sottovoce.explore.world import World
from tests.support.devices import encoder_folder
from tests.support.tiny_models import reviews

TOKEN = "a-token-of-the-tests"
TEXT = "the film was good and the book was not very bad ."


def small_world(place: Path) -> World:
    """An encoder under `place`, and what is public around it."""
    texts, labels = reviews(120, seed=3)
    folder = encoder_folder(place)
    words = ("good", "bad", "fine", "awful", "film", "book", "the", "a", "was", "and", "not", "very", "plot", ".")
    vectors = np.random.default_rng(4).normal(size=(len(words), 5)).astype(np.float32)
    counts = np.arange(1, len(words) + 1)
    return World(
        "small",
        texts,
        labels.astype(np.int64),
        ("negative", "positive"),
        folder,
        Encoder(folder).encode(texts),
        Vocabulary(words, vectors, counts=counts),
    )
