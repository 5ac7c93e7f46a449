"""Runs in trackers, read back by the trackers' own readers where these are installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from simulations.errors import UserError
from simulations.run.track import track, tracker
from sottovoce.cli import main as cli
from tests.support.results import demo

NAME = "Purkayastha, ε = 10"


def results() -> dict[str, Any]:
    """Of a reference, and of an arm with a parameter."""
    made = demo()
    made["arms"] = made["arms"][1:3]
    made["arms"][1]["parameters"] = {"embedding.dim": 16}
    return made


def installed(package: str, extra: str = "tracking") -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install '.[{extra}]'")


def test_what_a_tracker_is_told() -> None:
    runs: dict[str, tuple[str, dict[str, str], dict[str, float]]] = {}
    track([lambda study, name, *about: runs.update({name: (study, *about)})], results())
    study, settings, figures = runs[f"{NAME}, seed 1"]
    assert study == "demo" and settings["embedding.dim"] == "16" and settings["protected"] == "True"
    assert figures["accuracy"] == 0.9 and figures["local_epsilon: same label"] == pytest.approx(31.416, abs=1e-3)
    _, reference, bare = runs["no noise, seed 1"]
    assert (reference["reference"], reference["protected"]) == ("True", "False")
    assert not [key for key in bare if key.endswith("epsilon")]  # an infinite one is no number


def test_a_tracker_that_fails_says_that_the_results_are_kept() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such\nserver at http://alice:s3c/ret@" + "h" * 300)

    with pytest.raises(UserError, match=r"no such server at http://\*\*\*@h+; the results are kept; export"):
        track([broken], results())


@pytest.mark.parametrize("place", ["http://alice:s3c/ret@127.0.0.1:9", "sqlite://alice:s3c/ret@h/x"])
@installed("mlflow")
def test_a_tracker_that_is_not_there_is_refused_before_the_run_without_its_password(place: str) -> None:
    with pytest.raises(UserError, match=r"^--track mlflow:\w+://\*\*\*@") as caught:
        tracker(f"mlflow:{place}")
    assert "s3c" not in str(caught.value) and "alice" not in str(caught.value)


def test_mistakes_are_refused_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["simulate", "demo"], ["sweep", "composition"], ["simulate", "--resume", "x"]):
        assert cli.main([*command, "--track", "mlfow:x"]) == 2
        assert '--track mlfow:x: must be mlflow:PLACE, tensorboard:PLACE or wandb:PLACE; did you mean "mlflow"' in (
            capsys.readouterr().err
        )
    with pytest.raises(UserError, match="--track wandb:mine/a#b"):
        tracker("wandb:mine/a#b")
    assert not list(tmp_path.iterdir())


@installed("mlflow")
@pytest.mark.slow
def test_mlflow_reads_it(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    if importlib.util.find_spec("sqlalchemy") is None:
        uri = (tmp_path / "runs").as_uri()
    made = results()
    made["arms"][1]["measures"] = {"on_device": {"by-class: größe/c#?": {"value": 0.5, "error": None}}}
    track([tracker(f"mlflow:{uri}")], made)
    client = MlflowClient(tracking_uri=uri)
    result = client.get_experiment_by_name("demo")
    assert result is not None
    runs = {run.info.run_name: run for run in client.search_runs([result.experiment_id])}
    run = runs[f"{NAME}, seed 1"]
    assert run.data.metrics["accuracy"] == 0.9 and run.data.params["embedding.dim"] == "16"
    assert run.info.status == "FINISHED" and runs["no noise, seed 1"].data.params["protected"] == "False"


@pytest.mark.parametrize(("set_by_user", "told"), [(None, "true"), ("false", "false")])
def test_mlflow_is_told_to_report_nothing_before_it_is_imported(
    set_by_user: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in, which breaks off once it has been told: 3.17 itself has no telemetry client then, and one without."""
    name = "MLFLOW_DISABLE_TELEMETRY"
    (tmp_path / "mlflow.py").write_text(f"import os\nraise RuntimeError(os.environ.get({name!r}))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    monkeypatch.setenv(name, set_by_user or "")  # what was set before comes back after the test
    if set_by_user is None:
        monkeypatch.delenv(name)
    with pytest.raises(UserError, match=f": {told}$"):
        tracker(f"mlflow:{tmp_path}")


@installed("tensorboard")
@pytest.mark.slow
def test_tensorboard_reads_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # another run of that name has a folder of its own
        track([tracker(f"tensorboard:{tmp_path}")], results())
    for name in ("purkayastha-eps-10-seed-1", "purkayastha-eps-10-seed-1-2"):
        read = EventAccumulator(str(tmp_path / "demo" / name))
        read.Reload()
        assert read.Scalars("accuracy")[0].value == pytest.approx(0.9)


@installed("wandb", "wandb")
@pytest.mark.slow
def test_wandb_reads_it_and_is_told_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    track([tracker("wandb:mine/studies")], results())
    importlib.import_module("wandb").teardown()  # its service writes the files
    runs = {run[0].run.display_name: run for run in map(wandb_run, tmp_path.glob("wandb/offline-*/*.wandb"))}
    assert set(runs) == {f"{NAME}, seed 1", "no noise, seed 1"}
    (about, history, rest) = runs[f"{NAME}, seed 1"]
    assert (about.run.entity, about.run.project, about.run.run_group) == ("mine", "studies", "demo")
    config = {update.key: json.loads(update.value_json) for update in about.run.config.update}
    assert config["embedding.dim"] == "16" and config["protected"] == "True"
    logged = {item.nested_key[0] or item.key: json.loads(item.value_json) for item in history.history.item}
    assert logged["accuracy"] == 0.9 and logged["local_epsilon: same label"] == pytest.approx(31.416, abs=1e-3)
    assert rest <= {"header", "telemetry", "summary", "exit", "files", "stats"}
    files = [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".log", ".wandb")]
    assert not {"requirements.txt", "wandb-metadata.json", "output.log"} & set(files), files
    output = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wandb"))
    for secret in (sys.executable, str(Path.cwd()), "pytest"):  # the command, the folder, the program
        assert secret.encode() not in output


def wandb_run(path: Path) -> tuple[Any, Any, set[str]]:
    """The run and the history of what W&B has written, and which kinds of records are beside: its own messages in
    LevelDB's log format, blocks of 32 KiB behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, result = path.read_bytes(), 7, b"", {}
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record.FromString(whole)
            result[record.WhichOneof("record_type")], whole = record, b""
    return result.pop("run"), result.pop("history"), set(result)
