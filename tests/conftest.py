"""Order of the tests: fast ones by file, which share what its fixtures make; then the slow groups, which wait more than
they work; then other slow ones, those of whole commands first."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.progress import lines_to

#: The same results on every machine: what is about a GPU says so itself.
os.environ.setdefault("SOTTOVOCE_DEVICE", "cpu")
#: Some tests load ONNX Runtime by themselves.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


@pytest.fixture()
def lines() -> Iterator[list[str]]:
    """Progress lines, as they come."""
    progress: list[str] = []
    with lines_to(progress.append):
        yield progress


def pytest_configure(config: pytest.Config) -> None:
    """While all is imported and collected nothing becomes garbage: looking for it is a sixth of that time.

    pytest 9.1 finds a folder's fixtures only where its files are named one after another (pytest issue 14635).
    """
    gc.disable()
    config.args.sort()


@pytest.hookimpl(tryfirst=True)  # before xdist puts the group into a test's name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(Path(__file__).parent).as_posix()))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if not item.get_closest_marker("slow"):
        return 0
    if item.get_closest_marker("xdist_group"):
        return 1
    return 2 if item.path.is_relative_to(Path(__file__).parent / "system") else 3


def pytest_collection_finish() -> None:
    """What has been imported is never garbage: looking for cycles in it is a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
