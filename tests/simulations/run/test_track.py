"""Export to trackers: what leaves, what does not, and which mistakes are found before a run."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from simulations.errors import UserError
from simulations.run.track import track, tracker
from tests.support.results import demo

NAME = "Purkayastha, ε = 10"


def results() -> dict[str, Any]:
    """A reference, and an arm with a parameter."""
    run = demo()
    run["arms"] = run["arms"][1:3]
    run["arms"][1]["parameters"] = {"embedding.dim": 16}
    return run


def installed(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def test_a_tracker_gets_settings_and_finite_figures() -> None:
    runs: dict[str, tuple[str, dict[str, str], dict[str, float]]] = {}
    track([lambda experiment, name, *rest: runs.update({name: (experiment, *rest)})], results())
    experiment, settings, figures = runs[f"{NAME}, seed 1"]
    assert experiment == "demo" and settings["embedding.dim"] == "16" and settings["protected"] == "True"
    assert figures["accuracy"] == 0.9 and figures["local_epsilon: same label"] == pytest.approx(31.416, abs=1e-3)
    _, reference, clear = runs["no noise, seed 1"]
    assert (reference["reference"], reference["protected"]) == ("True", "False")
    assert not [key for key in clear if key.endswith("epsilon")]


def test_a_tracker_that_fails_keeps_the_results_and_shows_no_password() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such\nserver at http://alice:s3c/ret@" + "h" * 300)

    with pytest.raises(UserError, match=r"no such server at http://\*\*\*@h+; the results are kept; export"):
        track([broken], results())


@pytest.mark.parametrize("place", ["mlfow:x", "mlflow:", "wandb"])
def test_an_unknown_tracker_is_refused(place: str) -> None:
    with pytest.raises(UserError, match=f"--track {place}: must be mlflow:PLACE, tensorboard:PLACE or wandb:PLACE"):
        tracker(place)


def test_mlflow_reports_nothing_from_its_import_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of that name ends with the variable that it reads."""
    name = "MLFLOW_DISABLE_TELEMETRY"
    (tmp_path / "mlflow.py").write_text(f"import os\nraise RuntimeError(os.environ.get({name!r}))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    for value, expected in (("false", "false"), (None, "true")):  # what the user has set stays
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
        with pytest.raises(UserError, match=f": {expected}$"):
            tracker(f"mlflow:{tmp_path}")


@installed("wandb")
@pytest.mark.slow
def test_wandb_learns_nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    track([tracker("wandb:mine/studies")], results())
    importlib.import_module("wandb").teardown()  # its service writes the files
    names = {path.name for path in tmp_path.rglob("*")}
    assert not {"requirements.txt", "wandb-metadata.json", "output.log"} & names, names
    output = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wandb"))
    assert b"local_epsilon: same label" in output and b"studies" in output
    for secret in (sys.executable, str(Path.cwd()), "pytest"):
        assert secret.encode() not in output
