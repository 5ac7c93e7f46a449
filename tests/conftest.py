"""In which order the tests run, and which of them share a process.

One session runs them all, a file of fast tests in one process (they share what its fixtures make), the slow ones after
them: first the groups, which are long and wait more than they work, and then the others one by one, those of whole
commands before those that take a second or two: no process shall work long after the others have ended.
"""

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
    found: list[str] = []
    with lines_to(found.append):
        yield found


def pytest_configure() -> None:
    """While all is imported and collected nothing becomes garbage: looking for it is a sixth of that time."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)  # before xdist puts the group into a test's name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(Path(__file__).parent).as_posix()))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """pytest-xdist gives a process its next group, or test, while the last two of a group run: the longest of all comes
    first in its group, or what was given with it would wait for it when all others have ended."""
    if not item.get_closest_marker("slow"):
        return 0, False
    if item.get_closest_marker("xdist_group"):
        return 1, item.name != "test_a_rough_day"
    return 2 if item.path.is_relative_to(Path(__file__).parent / "system") else 3, False


def pytest_collection_finish() -> None:
    """What has been imported and collected is never garbage: looking for cycles in it again and again is a twentieth
    of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
