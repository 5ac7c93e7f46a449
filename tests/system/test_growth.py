"""A run of many arms holds no more files open than one of few."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from simulations.run.journal import Journal, started
from simulations.run.run import run
from tests.support.studies import PRIOR, PURKAYASTHA, RANDOMIZED, experiment, in_process, without_work

FILES = Path("/proc/self/fd")
LABELS = (None, RANDOMIZED, PRIOR)

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason="needs Linux's /proc")


def open_files(arms: int, place: Path, patch: pytest.MonkeyPatch) -> list[int]:
    """Open files when each of so many arms is finished."""
    named: list[dict[str, Any]] = [{"name": f"arm {i}", "embedding": PURKAYASTHA} for i in range(arms)]
    for i, arm in enumerate(named):
        arm |= {"label": LABELS[i % 3]} if i % 3 else {}
    study, counts = experiment(*named, population={"users": 20, "users-per-node": 10}), []
    finish = Journal.finish

    def finished(journal: Journal, arm: str, line: Any) -> dict[str, Any]:
        result = finish(journal, arm, line)
        gc.collect()
        counts.append(len(os.listdir(FILES)))
        return result

    patch.setattr(Journal, "finish", finished)
    without_work(patch)
    with started(place / "run") as part:
        run(study, part, engine=in_process)
    return counts


def test_no_file_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_files(4, tmp_path, monkeypatch)
    assert files[3] == files[2]
