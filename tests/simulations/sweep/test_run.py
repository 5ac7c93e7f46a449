"""A study's runs: what is done is not done again, what was stopped goes on, and the tables are the same."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from simulations.errors import TERMINATED, Interrupted, UserError
from simulations.experiment import load
from simulations.output.atomic import alone
from simulations.run.figures import pareto
from simulations.run.journal import begun, resumed, started
from simulations.run.run import run
from simulations.sweep import run as running
from simulations.sweep import tables, worker
from simulations.sweep.definition import load_study
from simulations.sweep.run import Job, processes, run_study
from sottovoce.cli import main as cli
from tests.support.commands import refused
from tests.support.paths import ROOT
from tests.support.studies import LocalGrid, in_process, without_work

STUDY = """
name = "s"
experiment = "small.toml"
seeds = [1, 2]
[grid]
population.users = [40, 60]
arm.a.label.epsilon = [1.0, 3.0]
"""
BASE = """
name = "small"
[data]
public-size = 90
test-size = 40
[population]
users = 60
users-per-node = 60
[training]
maps = "principal-components"
[shuffle]
minimum-users = 10
[policy]
embedding = 32.0
label = 5.0
[[arm]]
name = "a"
embedding = { mechanism = "purkayastha", epsilon = 10.0, dim = 4 }
label = { mechanism = "randomized-response", epsilon = 3.0 }
[[arm]]
name = "none"
reference = true
embedding = { mechanism = "identity", dim = 4 }
[[arm]]
name = "all"
reference = true
protocol = "centralised"
"""


def settle(place: Path, patch: pytest.MonkeyPatch) -> None:
    """In a working folder with a study, where nothing is encoded or accounted for."""
    patch.chdir(place)
    without_work(patch)
    Path("small.toml").write_text(BASE, encoding="utf-8")
    Path("s.toml").write_text(STUDY, encoding="utf-8")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(tmp_path, monkeypatch)
    monkeypatch.setattr("simulations.sweep.tables.save", lambda figure, path: path.touch())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that nobody disturbs."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        settle(place, patch)
        workers = Here()
        assert all(path.is_file() for path in done(Path("out"), workers)) and len(workers.begun) == 4
    return place / "out"


class Killed(BaseException):
    """As SIGKILL, but that the test goes on."""


class Here:
    """Workers in this process; `kill` ends the sweep in the middle of the run of this number."""

    def __init__(self, *, kill: int | None = None) -> None:
        self.kill = kill
        self.begun: list[str] = []

    def __call__(self, jobs: Sequence[Job], at_once: int) -> Iterator[str]:
        for job in jobs:
            self.begun.append(job.name)
            with resumed(job.out) if begun(job.out) else started(job.out) as part:
                results = run(load(job.file), part, engine=self.engine)
                (part / "results.json").write_text(json.dumps(results))
            yield job.name

    def engine(self, job: Any, *, nodes: int, folder: Path) -> Any:
        grid = Stopping if self.kill == len(self.begun) else LocalGrid
        return in_process(job, nodes=nodes, folder=folder, grid=grid)


class Stopping(LocalGrid):
    """Its second request is the last that is answered."""

    def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
        if len(self.sent) > self.nodes:
            raise Killed
        return super().send_and_receive(messages, timeout=timeout)


def done(out: Path, workers: Any) -> list[Path]:
    return run_study(load_study("s.toml"), out, jobs=1, workers=workers)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def without_seconds(path: Path) -> list[bytes]:
    """The lines of a table, but for those of the metric that no two runs share."""
    return [line for line in path.read_bytes().split(b"\n") if b",seconds," not in line]


def assert_the_same(one: Path, other: Path) -> None:
    """Two folders of one study hold the same tables, byte for byte but for seconds."""
    for name in ("tidy.csv", "means.csv"):
        assert without_seconds(one / name) == without_seconds(other / name)
        assert len(without_seconds(one / name)) < (one / name).read_bytes().count(b"\n")
    for name in ("differences.csv", "study.md", "study.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_study_that_was_killed_goes_on_and_ends_with_the_same_tables(whole: Path) -> None:
    stopped = Here(kill=2)
    with pytest.raises(Killed):
        done(Path("again"), stopped)
    assert len(stopped.begun) == 2
    rest = Here()
    done(Path("again"), rest)
    assert len(rest.begun) == 3 and rest.begun[0] == stopped.begun[1]  # the first is done; the second goes on
    assert_the_same(Path("again"), whole)
    once_more = Here()
    before = Path("again/tidy.csv").read_bytes()
    done(Path("again"), once_more)
    assert once_more.begun == [] and Path("again/tidy.csv").read_bytes() == before


def test_the_tables_hold_what_the_runs_say(whole: Path) -> None:
    """On made-up accuracies, since those of the encoder's stand-in are all 1."""
    shutil.copytree(whole, "out")
    study, rng, scores = load_study("s.toml"), np.random.default_rng(1), []
    for of_run in study.runs:
        path = Path("out", "runs", of_run.name, "results.json")
        result = json.loads(path.read_text())
        scores.append({arm["name"]: float(rng.random()) for arm in result["arms"]})
        for arm in result["arms"]:
            arm["accuracy_clean_test"] = scores[-1][arm["name"]]
            arm["measures"] = {"on_device": {"by-class: good": {"value": 0.5, "error": 0.1}}}
        result["measures"] = ["by-class"]
        for pair in result["differences"]:
            pair["on_device"]["difference"] = scores[-1][pair["arm"]] - scores[-1][pair["less"]]
        path.write_text(json.dumps(result))
    tables.write(study, Path("out"))
    page = Path("out/study.md").read_text(encoding="utf-8")
    for users in (40, 60):
        assert f"## users {users}: accuracy by class, on device\n\n| arm | good |" in page
    assert page.count("| 0.500 ± 0.000 |") == 4 * 2  # arms and points
    tidy = rows(Path("out/tidy.csv"))
    assert len({tuple(row.values())[:-3] for row in tidy}) == len(tidy)
    accuracy = [row for row in tidy if (row["metric"], row["split"]) == ("accuracy", "on_device")]
    assert [float(row["value"]) for row in accuracy] == [score for of_run in scores for score in of_run.values()]
    places = {(row["population.users"], row["seed"]) for row in accuracy}
    assert places == {(users, seed) for users in ("40", "60") for seed in ("1", "2")}
    less, name = "a, label ε = 1.0", "a, label ε = 3.0"
    values = [of_run[name] for of_run in scores[:2]]
    own = {"population.users": "40", "arm": name, "metric": "accuracy", "split": "on_device"}
    (mean,) = (row for row in rows(Path("out/means.csv")) if own.items() <= row.items())
    assert float(mean["mean"]) == fmean(values) and float(mean["error"]) == stdev(values) / math.sqrt(2) > 0
    gaps = [of_run[name] - of_run[less] for of_run in scores[:2]]
    own = {"population.users": "40", "arm": name, "less": less, "kind": "on_device"}
    (gap,) = (row for row in rows(Path("out/differences.csv")) if own.items() <= row.items())
    assert float(gap["difference"]) == pytest.approx(fmean(gaps)) != 0
    assert float(gap["error"]) == pytest.approx(stdev(gaps) / math.sqrt(2))


def test_what_is_in_the_folder_already(whole: Path) -> None:
    shutil.copytree(whole, "out")
    Path("s.toml").write_text(STUDY.replace("[1, 2]", "[1, 2, 3]").replace("[40, 60]", "[40]"), encoding="utf-8")
    more = Here()
    done(Path("out"), more)
    assert [name[-1] for name in more.begun] == ["3"]
    Path("small.toml").write_text(BASE.replace("public-size = 90", "public-size = 91"), encoding="utf-8")
    refused("is a run of another experiment than the study's", done, Path("out"), more)
    Path("other").mkdir()
    Path("other/file").write_text("")
    refused("holds no study", done, Path("other"), more)
    with alone(Path("out/runs/.lock"), "held"):
        refused("another process is at work", done, Path("out"), more)
    Path("s.toml").write_text(f"{STUDY}\nencoder.model = ['minilm', './nowhere']", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^encoder: there is no folder nowhere$"):  # before any run begins
        done(Path("new"), more)
    assert len(more.begun) == 1


def programs(patch: pytest.MonkeyPatch, *sources: str) -> list[Job]:
    """Jobs of which each is a program of Python."""
    Path("runs").mkdir()
    jobs = [Job(f"j{i}", Path(f"{i}.toml"), Path("runs", f"j{i}")) for i in range(len(sources))]

    def start(job: Job, actors: int, environment: Any) -> subprocess.Popen[bytes]:
        with open(running._log(job), "wb") as log:
            return subprocess.Popen([sys.executable, "-S", "-c", sources[int(job.name[1:])]], stderr=log)

    patch.setattr(running, "_started", start)
    patch.setattr(running, "_LOOK", 0.01)
    return jobs


def test_where_a_run_fails_those_at_work_are_waited_for_and_no_other_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('{}', 'w')"
    fail = "import sys\nsys.stderr.write('sottovoce: what is wrong\\na line\\n')\nsys.exit(2)"
    jobs = programs(monkeypatch, wait.format("first"), fail, "open('third', 'w')")
    failure = running._failure
    monkeypatch.setattr(running, "_failure", lambda job, code: Path("go").touch() or failure(job, code))
    with pytest.raises(UserError, match="runs/j1: what is wrong; the others are kept"):
        list(processes(jobs, 2))
    assert Path("first").exists() and not Path("third").exists()


def test_a_failure_names_its_cause_and_not_the_last_line_of_a_library() -> None:
    job, again = Job("j", Path("j.toml"), Path("j")), "run it again to go on"
    for line, code, why in (
        ("sottovoce: no file", worker.MISTAKE, f"no file; the others are kept: mend it, then {again}"),
        ("sottovoce: KeyError: 3", worker.BUG, "KeyError: 3; the others are kept; run again, it would fail so again"),
        ("sottovoce: ActorError: it died", worker.FAILURE, f"ActorError: it died; the others are kept: {again}"),
        ("", -signal.SIGKILL, f"was ended by signal SIGKILL (is memory short?); the others are kept: {again}"),
        ("", 9, f"ended with exit code 9, see j.log; the others are kept: {again}"),
    ):
        Path("j.log").write_text(f"    3.2 s  at work\n{line}\nsys:1: DeprecationWarning: builtin type\n")
        assert running._failure(job, code).startswith(why)


def test_a_worker_says_why_it_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: None))
    for error, code, words in (
        (UserError("name it"), worker.MISTAKE, "sottovoce: name it"),
        (KeyError("x"), worker.BUG, "sottovoce: KeyError: 'x'"),
        (RuntimeError("no\nroom"), worker.FAILURE, "sottovoce: RuntimeError: no room"),
        (OSError(5, "no disk"), worker.FAILURE, "sottovoce: OSError: [Errno 5] no disk"),
    ):
        monkeypatch.setattr(worker, "_run", Mock(side_effect=error))
        assert worker.main(["small.toml", "out", "1", str(os.getppid())]) == code
        output = capsys.readouterr().err
        assert output.splitlines()[-1] == words and ("Traceback" in output) == (code != worker.MISTAKE)


def test_ctrl_c_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = "import time\nopen('at-work', 'w')\ntime.sleep(600)"
    jobs = programs(monkeypatch, asleep, asleep)
    children: list[subprocess.Popen[bytes]] = []
    start = running._started
    monkeypatch.setattr(running, "_started", lambda *a: children.append(start(*a)) or children[-1])

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "time", SimpleNamespace(sleep=interrupted, monotonic=time.monotonic))
    with pytest.raises(Interrupted, match="run it again to go on"):
        list(processes(jobs, 2))
    assert [process.returncode for process in children] == [-signal.SIGTERM, -signal.SIGTERM]


WORKER = """
import os, sys, time
from simulations.sweep import worker
worker._run = lambda *_: os.write(1, b"at work.") and time.sleep(300)
sys.exit(worker.main(["small.toml", "out", "1", sys.argv[1]]))
"""


def test_a_run_ends_with_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    parent = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"
    program = [sys.executable, "-c", parent, WORKER]
    sweep = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert sweep.stdout is not None and sweep.stdout.read(8) == b"at work."
    sweep.kill()
    start = time.monotonic()
    assert sweep.stdout.read() == b"" and time.monotonic() - start < 200  # at its end once the run has closed it too
    sweep.wait()
    ended = subprocess.run([sys.executable, "-c", WORKER, str(sweep.pid)], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (TERMINATED, b"", b"")


def test_the_pareto_front_is_what_nothing_is_better_than() -> None:
    rng = np.random.default_rng(1)
    points = [(float(e), float(a)) for e, a in rng.integers(0, 12, size=(60, 2))]
    better = lambda p, q: p[0] <= q[0] and p[1] >= q[1] and p != q  # noqa: E731
    assert sorted(pareto(points)) == [i for i, q in enumerate(points) if not any(better(p, q) for p in points)]
    assert pareto([]) == []


def test_the_command(whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(whole, "studies/s")
    monkeypatch.setattr(running, "processes", Here())
    assert cli.main(["sweep", "s.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 4
    assert cli.main(["sweep", "s.toml"]) == 0
    shown = capsys.readouterr()
    assert "| population.users | arm |" in shown.out and "s: 4 of 4 runs are done" in shown.err
    assert cli.main(["sweep", "s.toml", "--set", "population.dropout=2"]) == 2
