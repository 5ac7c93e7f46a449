"""Devices, and what they talk to: a model that they ask, Flower's SuperLink, and one that makes things up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.deployment import certificates, superlink
from sottovoce.deployment.predict import serving
from tests.support.asking import World, make_world
from tests.support.deployments import Link, superlink_in
from tests.support.fake_superlink import Fake


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """With an honest model that is served."""
    made = make_world(tmp_path_factory.mktemp("ask"))
    with serving(made.model(), **made.pair) as address:
        yield replace(made, address=address)


@pytest.fixture
def node(world: World, tmp_path: Path) -> Path:
    return world.device(tmp_path / "node")


@pytest.fixture(scope="session")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    """Flower's own SuperLink."""
    with superlink_in(tmp_path_factory.mktemp("link")) as started:
        yield started


@pytest.fixture(scope="session")
def fab() -> bytes:
    """The app that a run ships."""
    return superlink.app_bundle()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, the certificate of the SuperLink that makes things up, and a node's keys."""
    folder = tmp_path_factory.mktemp("keys")
    certificates.make_authority(folder / "ca")
    certificates.issue(folder / "ca", folder, "superlink")
    certificates.node_keys(folder)
    return folder


@pytest.fixture
def fake(keys: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A SuperLink that makes things up."""
    monkeypatch.setattr("client.device.serve._POLL", 0.01)
    monkeypatch.setattr("client.device.serve._AGAIN", (0.01, 0.02))
    monkeypatch.setattr("client.device.fleet._AGAIN", 0.01)
    made = Fake(keys)
    yield made
    made.close()
