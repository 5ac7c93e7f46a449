"""A page about a small world, and a client that asks it as a browser would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from simulations.explore.explorer import Explorer
from simulations.explore.serve import explorer
from simulations.explore.service import application
from simulations.explore.world import World
from tests.support.exploring import TEXT, TOKEN, small_world

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def shown(world: World) -> Iterator[Explorer]:
    """A page with a ledger of its own."""
    with explorer(make=lambda progress: world) as opened:
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
