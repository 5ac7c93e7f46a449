"""A shuffler's store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.shuffler.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened
