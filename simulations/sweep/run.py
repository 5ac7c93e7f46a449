"""Simultaneous and resumable runs of a sweep, each in its own process, then its tables and figures."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from client.models.onnx import cores
from server.checkpoint_files import fingerprint
from simulations.errors import Interrupted, Terminated, UserError
from simulations.experiment import load, to_toml
from simulations.output.atomic import alone, whole
from simulations.sweep import tables, worker
from simulations.sweep.definition import Study

log = logging.getLogger(__name__)

#: Approximate memory of a run, bytes, and seconds between two checks of the processes.
MEMORY, _LOOK = 2 * 2**30, 0.2
#: Seconds for a terminated run to save its progress.
_END = 60.0


class Job(NamedTuple):
    """Run that is not finished.

    Args:
        name: Name of the run.
        file: File of its experiment.
        out: Folder of its results.
    """

    name: str
    file: Path
    out: Path


#: Function that does the jobs, a given number at once, reports their progress, and yields the name of each finished
#: one. It raises UserError if one fails.
Workers = Callable[[Sequence[Job], int], Iterator[str]]


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int | None = None,
    workers: Workers | None = None,
) -> list[Path]:
    """Complete a sweep in the folder `out`, and write its tables and figures there.

    A second call continues an interrupted sweep: finished runs stay, others are resumed.

    Args:
        study: The sweep.
        out: Folder of the sweep.
        jobs: Number of simultaneous runs. None takes as many as cores and memory allow.
        workers: Function that does the jobs; the default starts processes.

    Returns:
        The paths of the tables and figures.

    Raises:
        UserError: `out` holds something else, an encoder is missing, or a run fails.
        Interrupted: It was stopped.
    """
    out = Path(os.path.abspath(out))
    if out.exists() and not (out / "runs").is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is there already and holds no study; name another folder")
    (out / "runs").mkdir(parents=True, exist_ok=True)
    with alone(out / "runs" / ".lock", f"--out {out}: another process is at work on this study; wait for it"):
        open_jobs = _left(study, out)
        if done := len(study.runs) - len(open_jobs):
            log.info(f"{study.name}: {done} of {len(study.runs)} runs are done")
        _check_models(study, {job.name for job in open_jobs})
        at_once = max(1, min(jobs or _room(), len(open_jobs)))
        if open_jobs:
            log.info(f"{study.name}: {len(open_jobs)} runs to do, {at_once} at once")
        start = time.monotonic()
        for number, name in enumerate((workers or processes)(open_jobs, at_once), 1):
            more = (len(open_jobs) - number) * (time.monotonic() - start) / number
            then = f"; about {more / 60:.0f} min to go" if more >= 60 else f"; about {more:.0f} s to go" if more else ""
            log.info(f"{done + number} of {len(study.runs)} runs are done: {name}{then}")
        return tables.write(study, out)


def _check_models(study: Study, names: Collection[str]) -> None:
    """Raise ValueError (one line) if an encoder of these runs is missing, before any of them starts."""
    for model in dict.fromkeys(run.experiment.encoder.model for run in study.runs if run.name in names):
        fingerprint(model)


def _room() -> int:
    """Return the number of runs for which there are cores and memory."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(cores(), free // MEMORY))


def _left(study: Study, out: Path) -> list[Job]:
    """Return the unfinished runs. Raise UserError if a folder belongs to another experiment."""
    jobs = []
    for run in study.runs:
        folder = out / "runs" / run.name
        job = Job(run.name, folder.with_name(f"{run.name}.toml"), folder)
        text = to_toml(run.experiment)
        begun = job.out.exists() or job.out.with_name(f"{job.out.name}.part").exists()
        if job.file.is_file() and load(job.file) != run.experiment and begun:
            raise UserError(
                f"--out {out}: runs/{run.name} is a run of another experiment than the study's; name another folder, "
                "or delete it"
            )
        with whole(job.file) as file:
            file.write(text.encode())
        if not (job.out / "results.json").is_file():
            jobs.append(job)
    return jobs


def processes(jobs: Sequence[Job], at_once: int) -> Iterator[str]:
    """Run jobs in processes, each with its share of the cores (a `Workers` function).

    The output of each process goes to a file beside its run's folder. If a run fails, those at work are finished, and
    no other starts.

    Args:
        jobs: The jobs.
        at_once: Number of simultaneous processes.

    Yields:
        The name of each finished run.

    Raises:
        UserError: A run failed.
        Interrupted: It was stopped.
    """
    actors = max(1, cores() // at_once)
    # One thread of BLAS and torch, however many runs are at work: sums split otherwise have other last bits.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    waiting, working = list(jobs), dict[str, subprocess.Popen[bytes]]()
    failed: dict[str, str] = {}
    try:
        while working or (waiting and not failed):
            while waiting and not failed and len(working) < at_once:
                job = waiting.pop(0)
                working[job.name] = _started(job, actors, environment)
                log.info(f"{job.name}: begins")
            for name, process in list(working.items()):
                if (code := process.poll()) is not None:
                    del working[name]
                    if code == 0:
                        yield name
                    else:
                        failed[name] = _failure(next(job for job in jobs if job.name == name), code)
            time.sleep(_LOOK)
    except (KeyboardInterrupt, Terminated) as error:
        _end(working.values())
        raise Interrupted("interrupted; what is done is kept: run it again to go on", by=error) from error
    except BaseException:
        _end(working.values())
        raise
    for name, line in failed.items():
        raise UserError(f"runs/{name}: {line}")


def _started(job: Job, actors: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    worker_arguments = [str(job.file), str(job.out), str(actors), str(os.getpid())]
    program = [sys.executable, "-m", "simulations.sweep.worker", *worker_arguments]
    with open(_log(job), "wb") as log:
        return subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment))


def _log(job: Job) -> Path:
    return job.out.with_name(f"{job.name}.log")


def _failure(job: Job, code: int) -> str:
    """Return the reason for a run's exit code, and what to do. A process that a signal has ended left no reason."""
    kept = "the others are kept"
    if code < 0:
        memory = " (is memory short?)" if -code == signal.SIGKILL else ""
        return f"was ended by signal {signal.Signals(-code).name}{memory}; {kept}: run it again to go on"
    lines = _log(job).read_text(encoding="utf-8", errors="replace").splitlines()
    reasons = [line.removeprefix(worker.WHY) for line in lines if line.startswith(worker.WHY)]
    why = reasons[-1] if reasons else f"ended with exit code {code}, see {_log(job)}"
    if code == worker.BUG:
        return f"{why}; {kept}; run again, it would fail so again: its log is {_log(job)}"
    return f"{why}; {kept}: {'mend it, then ' * (code == worker.MISTAKE)}run it again to go on"


def _end(working: Iterable[subprocess.Popen[bytes]]) -> None:
    """Terminate processes, and kill those that do not end in time."""
    at_work = list(working)
    for process in at_work:
        process.terminate()
    end = time.monotonic() + _END
    for process in at_work:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
