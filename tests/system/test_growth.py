"""A run of many arms holds no more files open and hardly more memory than one of few: what an arm needed is given back
when it is finished."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.experiment import to_toml
from simulations.run.journal import Journal, started
from simulations.run.run import run
from tests.support.studies import PRIOR, PURKAYASTHA, RANDOMIZED, LocalGrid, experiment, in_process, without_work

PROCESS = Path("/proc/self")
LABELS = (None, RANDOMIZED, PRIOR)

pytestmark = pytest.mark.skipif(not (PROCESS / "fd").is_dir(), reason="needs Linux's /proc")


class Forgetting(LocalGrid):
    """Keeps no answer."""

    def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
        answers = super().send_and_receive(messages, timeout=timeout)
        self.sent.clear()
        return answers


def held(arms: int, place: Path, patch: pytest.MonkeyPatch) -> np.ndarray:
    """Open files and kilobytes of memory when each of so many arms is finished, (arms, 2)."""
    named: list[dict[str, Any]] = [{"name": f"arm {i}", "embedding": PURKAYASTHA} for i in range(arms)]
    for i, arm in enumerate(named):
        arm |= {"label": LABELS[i % 3]} if i % 3 else {}
    study, found = experiment(*named, population={"users": 20, "users-per-node": 10}), []
    finish = Journal.finish

    def finished(journal: Journal, arm: str, line: Any) -> dict[str, Any]:
        known = finish(journal, arm, line)
        gc.collect()
        pages = int((PROCESS / "statm").read_text().split()[1])
        found.append((len(os.listdir(PROCESS / "fd")), pages * os.sysconf("SC_PAGE_SIZE") / 1024))
        return known

    patch.setattr(Journal, "finish", finished)
    without_work(patch)
    with started(place / "run", to_toml(study)) as part:
        run(study, part, engine=partial(in_process, grid=Forgetting))
    return np.array(found)


def test_no_file_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = held(4, tmp_path, monkeypatch)[:, 0]
    assert (files[2:] == files[2]).all()


@pytest.mark.slow
@pytest.mark.soak
def test_two_hundred_arms_take_no_more_than_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file more, and over the last 150 arms less than 40 kB each, of which an arm's line of results is some."""
    files, memory = held(200, tmp_path, monkeypatch).T
    assert (files[2:] == files[2]).all()
    assert np.polyfit(np.arange(150), memory[50:], 1)[0] < 40
