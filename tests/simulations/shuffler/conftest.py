"""A shuffler's store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.shuffler.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shuffler" / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path) as opened:
        yield opened
