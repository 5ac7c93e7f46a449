"""A page about a small world, a client that asks it as a browser would, and a person in front of a browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from client.models.encoder import Encoder
from mechanisms.vocabulary import Vocabulary
from sottovoce.explore.explorer import Explorer
from sottovoce.explore.service import application, explorer, serving
from sottovoce.explore.world import World
from tests.support.browser import Browser, browser
from tests.support.devices import encoder_folder
from tests.support.tiny_models import reviews

__all__ = ["browser"]  # a fixture

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


Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def shown(world: World) -> Iterator[Explorer]:
    """A page with a ledger of its own."""
    with explorer(make=lambda: world) as opened:
        opened.loading.world()
        yield opened


@pytest.fixture
def client(shown: Explorer) -> TestClient:
    return TestClient(application(shown, TOKEN), base_url="http://127.0.0.1:8000")


@pytest.fixture
def ask(client: TestClient) -> Ask:
    """ask(NAME, SETTINGS, more keys of the question): the answer; AssertionError where it is an error."""

    def asked(name: str, settings: dict[str, Any] | None = None, **more: Any) -> Any:
        question = {"settings": settings or {}, "text": TEXT, "label": 1} | more
        answer = client.post(f"/{TOKEN}/api/{name}", json=question)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return asked


class Person:
    """One page, and what a person does with it."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address

    def opens(self) -> None:
        self.browser.open(self.address)
        self.browser.wait("performance.getEntriesByName('ready').length > 0")

    def does(self, script: str) -> Any:
        return self.browser.evaluate(f"(() => {{ {script} }})()")

    def changes(self, place: str, value: str) -> None:
        self.does(
            f"const e = document.getElementById('{place}'); e.value = {value}; e.dispatchEvent(new Event('input'))"
        )

    def types(self, text: str) -> None:
        self.changes("sentence", json.dumps(text))

    def slides(self, name: str, place: float) -> None:
        """Moves a slider, and waits for the answer."""
        slid = "performance.getEntriesByName('slide').length"
        before = self.browser.evaluate(slid)
        self.changes(f"s-{name}", str(place))
        self.browser.wait(f"{slid} > {before}")

    def chooses(self, channel: str) -> None:
        self.does(f"document.querySelector('input[value={channel}]').click()")

    def clicks(self, button: str, then: str) -> None:
        self.browser.wait(f"!document.getElementById('{button}').disabled")
        self.does(f"document.getElementById('{button}').click()")
        self.browser.wait(f"document.body.innerText.includes({json.dumps(then)})")

    def reads(self, place: str) -> str:
        return str(self.browser.evaluate(f"document.getElementById('{place}').innerText"))


@pytest.fixture
def person(browser: Browser, world: World) -> Iterator[Person]:
    browser.complaints.clear()
    browser.requested.clear()
    browser.width(1280)
    browser.theme("light")
    with explorer(make=lambda: world) as shown, serving(shown) as address:
        somebody = Person(browser, address)
        somebody.opens()
        yield somebody
        asked, complaints = list(browser.requested), list(browser.complaints)
        browser.open("about:blank")  # or what it still asks would be the next one's
    assert all(where.startswith(address) for where in asked), asked
    assert not complaints
