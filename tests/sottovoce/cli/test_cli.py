"""The command line: what goes to stdout, and every mistake one line, exit code 2, nothing left."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simulations.errors import UserError
from simulations.experiment import Experiment, load
from simulations.run.journal import Journal
from simulations.transport.signals import handling
from sottovoce.cli import main as cli
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


def complaint(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 2) -> str:
    """The last line on stderr of a command that fails; nothing is on stdout, and no traceback anywhere."""
    before = sorted(p.name for p in Path().rglob("*"))
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert sorted(p.name for p in Path().rglob("*")) == before, "something was left behind"
    line = captured.err.splitlines()[-1]
    assert line.startswith("sottovoce: ")
    return line


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
    wanted = {"name", "mechanism", "epsilon", "label_epsilon", "accuracy", "accuracy_clean_test", "users"}
    assert wanted | {"delivered", "bytes_per_user", "seconds", "budget"} <= set(results["arms"][0])
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
    assert {p.name for p in folder.iterdir()} == {
        "experiment.toml",
        "nodes",
        "results.json",
        "results.md",
        "accuracy.png",
    }


def test_options_reach_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = replace_run(monkeypatch, demo)
    assert cli.main(["demo", "--seed", "7", "--out", "a"]) == 0
    assert cli.main(["simulate", "good.toml", "--set", "population.users=500", "--set", "seed=3", "--out", "b"]) == 0
    assert cli.main(["simulate", "sst2-paper", "--data", "1", "--out", "c"]) == 0
    assert cli.main(["demo", "--set", "seed=4", "--set", "population.users=500", "--out", "d"]) == 0
    assert seen[:2] == [load("demo", ["seed=7"]), load("good.toml", ["population.users=500", "seed=3"])]
    assert seen[2].data.path == "1"
    assert seen[3] == load("demo", ["seed=4", "population.users=500"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "absent.toml"], "absent.toml: there is no such file"),
        (["simulate", "dmo"], "bundled experiment"),
        (["simulate"], "Missing argument 'FILE.toml'"),
        (["simulat", "good.toml"], "No such command 'simulat'"),
        (["demo", "--sed", "1"], "No such option"),
        (["demo", "--seed", "one"], "'one' is not a valid integer"),
        (["demo", "--seed", "-1"], "seed: must be a whole number of at least 0"),
        (["simulate", "good.toml", "--set", "population.users"], "section.key=value"),
        (["simulate", "good.toml", "--set", "population.user=1"], 'did you mean "users"'),
        (["simulate", "good.toml", "--set", "arm.0.embedding.mechanism=purkayasta"], "did you mean 'purkayastha'"),
        (["simulate", "good.toml", "--set", "arm.0.embedding.epsilon=-1"], "epsilon: must be a finite number"),
        (["simulate", "good.toml", "--set", "arm.0.embedding.epsilon=nan"], "epsilon: must be a finite number"),
        (["simulate", "good.toml", "--set", "arm.0.label.epsilon=-1"], "epsilon: must be a finite number"),
        (["simulate", "good.toml", "--set", "arm.0.label.epsilon=nan"], "epsilon: must be a finite number"),
        (["simulate", "good.toml", "--set", "arm.0.embedding.epsilon=1001"], 'arm "a": embedding: '),
        (["simulate", "good.toml", "--set", "arm.0.embedding.dim=1025"], 'arm "a": embedding: '),
        (["simulate", "good.toml", "--set", "arm.0.label.mechanism=random"], 'arm "a": label: '),
        (["simulate", "good.toml", "--set", "training.protocol=paper"], "acknowledge-not-private"),
        (["simulate", "good.toml", "--data", "folder"], 'data.path: does not apply to source = "built-in"'),
        (["simulate", "good.toml", "--out", "."], "not an empty folder"),
        (["simulate", "good.toml", "--resume", "results"], "no FILE.toml, --out, --data or --set"),
        (["simulate", "--resume", "results", "--out", "other"], "no FILE.toml, --out, --data or --set"),
        (["simulate", "--resume", "results"], "there is no unfinished run of that name"),
        (["simulate", "--resume", "good.toml"], "there is no unfinished run of that name"),
        (["demo", "--ray-address", "there"], "must be HOST:PORT"),
        (["audit", "--command", "true", "--timeout", "inf"], "--timeout inf: must be seconds above 0"),
        (["audit", "--command", "true", "--timeout", "nan"], "--timeout nan: must be seconds above 0"),
        (["audit", "--command", "true", "--timeout", "-5"], "--timeout -5: must be seconds above 0"),
        (["audit", "--verify", "no.json", "--seed", "-1"], "'--seed': -1 is not in the range"),
        (
            [
                "budget",
                "plan",
                "--mechanism",
                "purkayastha:epsilon=4,dim=16",
                "--central-epsilon",
                "0",
                "--delta",
                "1e-6",
            ],
            "epsilon must be above 0",
        ),
        (["simulate", "good.toml", "--out", "good.toml"], "not an empty folder"),
    ],
)
def test_mistakes(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_run(monkeypatch, raising(AssertionError("the run must not start")))
    assert words in complaint(capsys, arguments)


@pytest.mark.parametrize(
    "error",
    [
        ValueError('train.tsv: there is no column "label";\nthe columns are: sentence, labels'),
        UserError("train.tsv, line 3: the text is empty"),
        PermissionError(13, "Permission denied", "model/model.safetensors"),
        ModuleNotFoundError("No module named 'torch'", name="torch"),
    ],
)
def test_what_a_run_complains_about_is_one_line_and_leaves_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_run(monkeypatch, raising(error))
    line = complaint(capsys, ["simulate", "good.toml", "--out", "deep/results"])
    words = {
        "ValueError": 'train.tsv: there is no column "label"; the columns are: sentence, labels',
        "UserError": "train.tsv, line 3: the text is empty",
        "PermissionError": "model/model.safetensors: Permission denied",
        "ModuleNotFoundError": "pip install 'sottovoce[simulation]'",
    }
    assert words[type(error).__name__] in line


def test_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replace_run(monkeypatch, raising(KeyboardInterrupt()))
    assert "interrupted" in complaint(capsys, ["simulate", "good.toml"], code=130)


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
    assert complaint(capsys, ["simulate", "good.toml"], code=143) == "sottovoce: interrupted; nothing was kept"

    replace_run(monkeypatch, stopping(terminated))
    assert cli.main(["simulate", "good.toml", "--out", "results"]) == cli.TERMINATED == 143
    said = capsys.readouterr().err
    assert said.splitlines()[-1].endswith("results.part; continue it with: sottovoce simulate --resume results")
    assert "Traceback" not in said and (place / "results.part").is_dir()


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


def stopping(error: BaseException | Callable[[], Any] | None) -> Run:
    """A run whose users release something before it stops; see `simulations.run.journal`."""

    def run(out: Path) -> dict[str, Any]:
        Journal(out).check_code()
        (out / "nodes" / "0").mkdir(parents=True, exist_ok=True)
        (out / "nodes" / "0" / "ledger-a.sqlite").touch()
        if isinstance(error, BaseException):
            raise error
        return demo() if error is None else error()

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
    assert cli.main(["simulate", "--resume", "results", "--json"]) == 0 and seen[:1] == again
    captured = capfd.readouterr()
    assert json.loads(captured.out) == json.loads((place / "results" / "results.json").read_text())
    assert [p.name for p in place.iterdir() if p.name.startswith("results")] == ["results"]
    assert cli.main(["simulate", "--resume", "results"]) == 2 and "is finished already" in capfd.readouterr().err


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path) -> None:
    replace_run(monkeypatch, stopping(OSError(errno.ENOSPC, "No space left on device")))
    assert cli.main(["simulate", "good.toml", "--out", "results"]) == 2
    said = capsys.readouterr().err
    words = "No space left on device (is the disk full?); make room, then continue it with: sottovoce simulate --resume"
    assert said.splitlines()[-1].endswith(f"{words} results")
    assert (place / "results.part").is_dir() and "Traceback" not in said


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
