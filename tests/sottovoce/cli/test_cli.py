"""The command line: what goes to stdout, and every mistake one line, exit code 2, nothing left."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from simulations.experiment import Experiment, load, to_toml
from simulations.run.journal import Journal
from simulations.transport.signals import handling
from sottovoce.cli import main as cli
from tests.support.commands import complaint
from tests.support.paths import ROOT
from tests.support.results import demo

GOOD = """
name = "small"
[policy]
embedding = 40.0
label = 5.0
[[arm]]
name = "a"
embedding = { mechanism = "purkayastha", epsilon = 10.0, dim = 16 }
label = { mechanism = "randomized-response", epsilon = 2.0 }
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, with an experiment file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulations.run.journal._code", lambda: "this code")
    for name in (*cli.QUIET, "SOTTOVOCE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "good.toml").write_text(GOOD)
    return tmp_path


def replace_run(monkeypatch: pytest.MonkeyPatch, run: Run) -> list[Experiment]:
    """`simulations.run.run.run` becomes `run`; the experiments it was given are in the list."""
    seen: list[Experiment] = []

    def wrapped(experiment: Experiment, out: Path, *, engine: Any) -> dict[str, Any]:
        seen.append(experiment)
        (out / "nodes").mkdir(exist_ok=True)
        (out / "experiment.toml").write_text(to_toml(experiment))
        logging.getLogger("simulations.run").info("at work")
        return run(out) if signature(run).parameters else run()

    module = ModuleType("simulations.run.run")
    module.run = wrapped  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "simulations.run.run", module)
    return seen


def raising(error: BaseException) -> Run:
    def run() -> dict[str, Any]:
        raise error

    return run


def test_json_is_one_object_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: Path
) -> None:
    def chatty() -> dict[str, Any]:
        print("a library talks")
        os.write(1, b"a worker talks\n")
        return demo()

    replace_run(monkeypatch, chatty)
    assert cli.main(["demo", "--json", "--out", "results"]) == 0
    assert {k: os.environ[k] for k in cli.QUIET} == cli.QUIET  # no telemetry
    captured = capfd.readouterr()
    results = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    assert results["arms"][1]["budget"]["metric_epsilon"] == "inf"
    for words in ("a library talks", "a worker talks", "at work", "results: results"):
        assert words in captured.err
    assert json.loads((place / "results" / "results.json").read_text()) == results


def test_a_table_for_people(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: Path) -> None:
    replace_run(monkeypatch, demo)
    assert cli.main(["simulate", "good.toml"]) == 0
    captured = capfd.readouterr()
    assert "planar Laplace, ε = 10" in captured.out and "at work" in captured.err and "at work" not in captured.out
    (folder,) = (place / "runs").iterdir()
    assert re.fullmatch(r"small-\d{8}-\d{6}", folder.name) and f"runs/{folder.name}" in captured.out
    files = {"experiment.toml", "nodes", "results.json", "results.md", "accuracy.png"}
    assert {p.name for p in folder.iterdir()} == files


def test_options_reach_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = replace_run(monkeypatch, demo)
    assert cli.main(["demo", "--seed", "7", "--out", "a"]) == 0
    assert cli.main(["simulate", "good.toml", "--set", "population.users=500", "--set", "seed=3", "--out", "b"]) == 0
    assert cli.main(["simulate", "sst2-paper", "--data", "1", "--out", "c"]) == 0
    assert seen[:2] == [load("demo", ["seed=7"]), load("good.toml", ["population.users=500", "seed=3"])]
    assert seen[2].data.path == "1"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("simulate absent.toml", "absent.toml: there is no such file"),
        ("simulate dmo", "bundled experiment"),
        ("simulate", "Missing argument 'FILE.toml'"),
        ("simulat good.toml", "No such command 'simulat'"),
        ("demo --sed 1", "No such option"),
        ("demo --seed one", "'one' is not a valid integer"),
        ("simulate good.toml --set population.users", "section.key=value"),
        ("simulate good.toml --set population.user=1", 'did you mean "users"'),
        ("simulate good.toml --set seed=1 --set seed=2", "seed is set twice"),
        ("simulate good.toml --set arm.0.embedding.epsilon=nan", "must be a finite number"),
        ("simulate good.toml --data folder", 'data.path: does not apply to source = "built-in"'),
        ("simulate good.toml --out .", "not an empty folder"),
        ("simulate --resume results --out other", "no FILE.toml, --out, --data or --set"),
        ("simulate --resume results", "there is no unfinished run of that name"),
        ("demo --ray-address there", "must be HOST:PORT"),
        ("audit --command true --timeout nan", "--timeout nan: must be seconds above 0"),
        ("audit --mechanism privunit --fixed", "--fixed is of --command"),
        ("audit --command true --delta 1e-3", "--command takes no --mechanism"),
        ("audit --verify no.json --fixed", "--verify takes"),
        ("encoders --prefix x", "--prefix goes with NAME"),
        ("check", "Missing argument 'FILE.toml', or --schema"),
    ],
)
def test_mistakes(line: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replace_run(monkeypatch, raising(AssertionError("the run must not start")))
    assert words in complaint(capsys, *line.split())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError('there is no column "label";\nthe columns are: a, b'), 'no column "label"; the columns are: a, b'),
        (PermissionError(13, "Permission denied", "model.onnx"), "model.onnx: Permission denied"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "pip install 'sottovoce[simulation]'"),
    ],
)
def test_what_a_run_complains_about_is_one_line_and_leaves_nothing(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_run(monkeypatch, raising(error))
    assert words in complaint(capsys, "simulate", "good.toml", "--out", "deep/results")


def test_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replace_run(monkeypatch, raising(KeyboardInterrupt()))
    assert "interrupted" in complaint(capsys, "simulate", "good.toml", code=130)


@pytest.fixture
def sigterm() -> Iterator[None]:
    """SIGTERM must not end the tests where nobody has taken it over."""

    def missed(number: int, frame: Any) -> None:
        raise AssertionError("nobody takes SIGTERM")

    with handling({signal.SIGTERM: missed}):
        yield
        assert signal.getsignal(signal.SIGTERM) is missed  # the command has put it back


@pytest.mark.usefixtures("sigterm")
def test_sigterm_ends_a_command_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    def terminated() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("goes on")

    replace_run(monkeypatch, terminated)
    assert complaint(capsys, "simulate", "good.toml", code=143) == "interrupted; nothing was kept"


def test_a_run_in_which_nobody_was_delivered_ends_with_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    refused = {"delivered": 0, "accuracy": None, "errors": {"the policy does not allow the mechanism": 40}}
    results = demo()
    results["arms"][2] |= refused
    replace_run(monkeypatch, lambda: results)
    assert cli.main(["simulate", "good.toml", "--out", "results"]) == 1
    said = capsys.readouterr()
    line = (
        "Purkayastha, ε = 10: none of 2,000 users was delivered (3 not on the sphere (dropped), 40 the policy does not "
        "allow the mechanism (errors))"
    )
    assert said.err.splitlines()[-1] == f"sottovoce: {line}" and "planar Laplace" in said.out
    assert f"{line}." in (place / "results" / "results.md").read_text()


def stopping(error: BaseException | None) -> Run:
    """A run whose users release something before it stops; see `simulations.run.journal`."""

    def run(out: Path) -> dict[str, Any]:
        Journal(out).check_code()
        (out / "nodes" / "0").mkdir(parents=True, exist_ok=True)
        (out / "nodes" / "0" / "ledger-a.sqlite").touch()
        if error is not None:
            raise error
        return demo()

    return run


def test_a_run_that_was_interrupted_says_how_to_go_on_and_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: Path
) -> None:
    seen = replace_run(monkeypatch, stopping(KeyboardInterrupt()))
    asked = ["simulate", "good.toml", "--set", "population.users=500", "--out", "results"]
    assert cli.main(asked) == cli.INTERRUPTED
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("sottovoce: interrupted; ") and said.endswith("sottovoce simulate --resume results")
    assert not (place / "results").exists() and cli.main(asked) == 2
    assert "unfinished run; continue it with: sottovoce simulate --resume results" in capfd.readouterr().err
    for arguments in (["attack", "results"], ["report", "results"], ["report", "results.part"]):
        assert cli.main(arguments) == 2
        said = capfd.readouterr().err
        assert "the run is not finished; continue it with: sottovoce simulate --resume results" in said

    again = replace_run(monkeypatch, stopping(None))
    assert cli.main(["simulate", "--resume", "results.part", "--json"]) == 0 and seen[:1] == again
    captured = capfd.readouterr()
    assert json.loads(captured.out) == json.loads((place / "results" / "results.json").read_text())
    assert captured.err.endswith("results: results\n")
    assert [p.name for p in place.iterdir() if p.name.startswith("results")] == ["results"]
    assert cli.main(["simulate", "--resume", "results"]) == 2 and "is finished already" in capfd.readouterr().err


def test_check_prices_each_point_of_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    monkeypatch.setattr("simulations.run.check.check", lambda e: {"users": e.population.users, "arms": len(e.arms)})
    (place / "sweep.toml").write_text(
        f"{GOOD}[population]\nusers = 500\n[sweep]\nseeds = [1, 2]\n[sweep.grid]\npopulation.users = [300, 400]\n"
        "arm.a.embedding.epsilon = [5.0, 12.0]\n"
    )
    assert cli.main(["check", "sweep.toml", "--json"]) == 0
    points = [{"point": {"population.users": users}, "users": users, "arms": 2} for users in (300, 400)]
    assert json.loads(capsys.readouterr().out) == {"users": 500, "arms": 1, "sweep": points}
    assert cli.main(["check", "good.toml", "--json"]) == 0 and "sweep" not in json.loads(capsys.readouterr().out)
    assert "sweep.toml: population.users = 300" in complaint(
        capsys, "check", "sweep.toml", "--set", "policy.embedding=32.0"
    )


def test_a_bug_is_not_passed_off_as_the_users_mistake(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    for error in (KeyError("x"), RuntimeError("x"), OSError("x"), ModuleNotFoundError("x", name="simulations.x")):
        replace_run(monkeypatch, raising(error))
        with pytest.raises(type(error)):
            cli.main(["simulate", "good.toml"])
    assert [p.name for p in place.iterdir()] == ["good.toml"]


def test_help_answers_without_heavy_imports() -> None:
    code = (
        "import sys; from sottovoce.cli.main import main; code = main(['--help']); "
        "heavy = {'torch', 'flwr', 'ray', 'transformers', 'matplotlib', 'scipy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout and "simulate" in done.stdout


# --- faults of a shell: streams that are full, closed or not in UTF-8, a folder that is gone


ASCII = {"PYTHONIOENCODING": "ascii"}
C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


class Case(NamedTuple):
    """A command, the shell's words behind it, its exit code, the one line on stderr, and how its output begins."""

    line: str
    shell: str = ""
    code: int = 0
    complaint: str = ""
    begins: str = ""
    environment: Mapping[str, str] | None = None


CASES = [
    Case("check --schema", "> /dev/full", 2, "standard output: No space left on device"),
    Case("check --schema", ">&-", 2, "standard output is closed; redirect it to a file, or to /dev/null"),
    Case("check --schema", "2>&-", begins="{\n"),
    Case("check --no-such-option", "2> /dev/full", 2),
    Case("check --schema", "<&-", begins="{\n"),
    Case(
        "sanitize --words w.txt --mechanism santext:epsilon=5",
        "<&-",
        2,
        "standard input is closed; name a file with --in",
    ),
    Case("check --schema", "| true", 1),  # as click ends, without a word
    Case("check --schema", begins="{\n", environment=ASCII),
    Case("check --schema", begins="{\n", environment=C),
    Case("check --schema", code=2, complaint="the working folder is gone; change to one that is there"),
]


def test_one_line_whatever_the_streams_are(place: Path) -> None:
    """All at once: each start of a process takes a second. What an encoding lacks is a "?" in a text, and escaped in
    JSON."""
    (place / "w.txt").write_text("the 0 1\nfilm 1 0\ngood 1 1\nbad 1 -1\n")
    begun = []
    for number, case in enumerate(CASES):
        gone = place / f"gone-{number}"
        gone.mkdir()
        where = f"cd {gone}; rmdir {gone}; " if "working folder" in case.complaint else ""
        line = f"set -o pipefail; {where}'{sys.executable}' -m sottovoce {case.line} {case.shell}"
        environment = (
            os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(place / "cache")} | (case.environment or {})
        )
        environment.pop("SOTTOVOCE_DEBUG", None)
        begun.append(
            subprocess.Popen(
                ["bash", "-c", line], cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    for case, process in zip(CASES, begun, strict=True):
        out, said = (stream.decode() for stream in process.communicate(timeout=300))
        assert process.returncode == case.code, (case, said)
        assert "Traceback" not in said and "Exception" not in said, (case, said)
        last = said.splitlines()[-1:]
        assert last == ([f"sottovoce: {case.complaint}"] if case.complaint else []), (case, said)
        assert out.startswith(case.begins), case
        if case.environment:
            assert out.isascii()
            assert "ε" in json.dumps(json.loads(out), ensure_ascii=False) if out[0] == "{" else "?" not in out
