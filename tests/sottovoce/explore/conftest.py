"""A page about a small world, and a client that asks as a browser would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from client.models.encoder import Encoder
from mechanisms.vocabulary import Vocabulary
from sottovoce.explore.explorer import Explorer
from sottovoce.explore.service import application, explorer
from sottovoce.explore.world import World
from tests.support.browser import browser
from tests.support.devices import encoder_folder
from tests.support.tiny_models import reviews

__all__ = ["browser"]  # a fixture

TOKEN = "a-token-of-the-tests"
TEXT = "the film was good and the book was not very bad ."


Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An encoder, and what is public around it."""
    texts, labels = reviews(120, seed=3)
    folder = encoder_folder(tmp_path_factory.mktemp("world"))
    words = ("good", "bad", "fine", "awful", "film", "book", "the", "a", "was", "and", "not", "very", "plot", ".")
    vectors = np.random.default_rng(4).normal(size=(len(words), 5)).astype(np.float32)
    vocabulary = Vocabulary(words, vectors, counts=np.arange(1, len(words) + 1))
    names, embeddings = ("negative", "positive"), Encoder(folder).encode(texts)
    return World("small", texts, labels.astype(np.int64), names, folder, embeddings, vocabulary)


@pytest.fixture
def shown(world: World) -> Iterator[Explorer]:
    """A page with a ledger of its own."""
    with explorer(world) as page:
        yield page


@pytest.fixture
def client(shown: Explorer) -> TestClient:
    return TestClient(application(shown, TOKEN), base_url="http://127.0.0.1:8000")


@pytest.fixture
def ask(client: TestClient) -> Ask:
    """ask(NAME, SETTINGS, more keys of the question): the answer; AssertionError where it is an error."""

    def answer(name: str, settings: dict[str, Any] | None = None, **more: Any) -> Any:
        question = {"settings": settings or {}, "text": TEXT, "label": 1} | more
        reply = client.post(f"/{TOKEN}/api/{name}", json=question)
        assert reply.status_code == 200, reply.text
        return reply.json()

    return answer
