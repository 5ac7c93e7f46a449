"""How often a served device asks for messages: soon after one has come, seldom once it is idle."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from client.device import serve


class Quiet:
    """A SuperLink of which message `comes` has one, by the number of the question, and then is told to end."""

    node_id = 7

    def __init__(self, comes: set[int], questions: int) -> None:
        self.asked, self.waits = 0, []
        self._comes, self._questions = comes, questions

    def activate(self, before: int | None) -> None: ...
    def beat(self) -> bool:
        return True

    def close(self) -> None: ...

    def receive(self) -> Any:
        self.asked += 1
        return ("about", "tree") if self.asked in self._comes else None

    # what waits in the device's place
    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > self._questions

    def is_set(self) -> bool:
        return False


def waits(monkeypatch: pytest.MonkeyPatch, comes: set[int], questions: int) -> list[float]:
    """The waits before each question, at the longest that chance allows."""
    monkeypatch.setattr(serve.secrets, "randbelow", lambda n: n)
    monkeypatch.setattr(serve._Server, "_answer", lambda self, about, tree: None)
    quiet: Any = Quiet(comes, questions)
    serve._Server(Path("node"), quiet, "here:1", quiet).run(io.StringIO())
    return list(quiet.waits[:questions])


def test_an_idle_device_asks_ever_more_seldom_up_to_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = waits(monkeypatch, set(), 60)
    assert found[0] == 0.5 and found[-1] == 10.0
    assert all(before <= after <= 1.1 * before + 1e-12 for before, after in pairwise(found))
    assert 60 < sum(wait for wait in found if wait < 10) < 120


def test_once_a_message_has_come_it_asks_again_at_once_and_then_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = waits(monkeypatch, {41}, 60)
    assert found[40] == 10.0 and found[41] == 0.5  # question 42 was asked without a wait


def test_devices_that_answered_together_do_not_ask_together(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet: Any = Quiet(set(), 50)
    serve._Server(Path("node"), quiet, "here:1", quiet).run(io.StringIO())
    shares = [wait / min(0.5 * 1.1**i, 10.0) for i, wait in enumerate(quiet.waits[:50])]
    assert len(set(shares)) == 50 and min(shares) >= 0.5 and max(shares) <= 1
