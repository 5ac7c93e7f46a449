"""A study whose runs are processes, as they are at work, but that ask nodes within the process and encode nothing.

    python -m tests.support.study_runs study FILE OUT      # the study's own process
    python -m tests.support.study_runs run FILE OUT ACTORS PARENT # one of its runs, as `simulations.sweep.worker`

Both may be killed at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from simulations.progress import lines_to
from simulations.sweep import run as running
from simulations.sweep import worker
from simulations.sweep.definition import load_study
from tests.support.studies import LocalGrid, prepared, run_in_process, without_accounts


def main(what: str, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        if what == "run":
            run_in_process(patch)
            patch.setattr(LocalGrid, "send_and_receive", _slowly)
            patch.setattr("simulations.run.run.prepare", lambda study, **_: prepared(study))
            without_accounts(patch)
            return worker.main(list(arguments))
        patch.setattr(running, "_started", _started)
        file, out = arguments
        with lines_to(partial(print, flush=True)):
            running.run_study(load_study(file), Path(out), jobs=2)
    return 0


_send = LocalGrid.send_and_receive


def _slowly(grid: LocalGrid, messages: Iterable[Any], *, timeout: float) -> list[Message]:
    """So that a kill meets a run in its middle."""
    answers = _send(grid, messages, timeout=timeout)
    time.sleep(0.4)
    return answers


def _started(job: running.Job, actors: int, environment: object) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", __spec__.name, "run", str(job.file), str(job.out), str(actors)]
    program.append(str(os.getpid()))
    with open(running._log(job), "wb") as log:
        return subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
