"""A column of results costs one place that computes it and one that shows it: shown by a module that adds two."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulations.experiment import to_toml
from simulations.experiment.result import SHOWN, ArmResult, arms_of
from simulations.output.jsonable import json_ready
from simulations.run import report
from simulations.run.measures import MEASURES, measures_of
from simulations.run.table import COLUMNS, tidy
from simulations.sweep import tables
from sottovoce.report.write import report as report_html
from tests.support.paths import ROOT
from tests.support.results import demo
from tests.support.studies import (
    CLASSES,
    PURKAYASTHA,
    RANDOMIZED,
    LocalGrid,
    experiment,
    placed,
    prepared,
    run_arms,
    use_folder,
)

#: Accuracy of each class, as groups are compared; and of the tenth of users whose texts are predicted worst.
MODULE = """
import numpy as np

from simulations.experiment.result import SHOWN
from simulations.run.measures import MEASURES, Measure

def by_class(guesses):
    def accuracy(group):
        right = group.guessed == group.labels
        return group.value(lambda weights: float(weights @ right / weights.sum()))
    there = np.unique(guesses.labels)
    return {guesses.classes[k]: accuracy(guesses.of(guesses.labels == k)) for k in there}

def worst_tenth(guesses):
    right = guesses.guessed == guesses.labels
    _, user = np.unique(guesses.users, return_inverse=True)
    def worst(weights):
        each = np.bincount(user, weights * right) / np.maximum(np.bincount(user, weights), 1)
        return float(np.sort(each)[: -(-len(each) // 10)].mean())
    return guesses.value(worst)

MEASURES["recall"] = Measure(by_class, wanted=lambda data, held: True)
MEASURES["worst-tenth"] = Measure(worst_tenth, wanted=lambda data, held: True)
SHOWN.update({"recall": "accuracy by class", "worst-tenth": "worst tenth of users"})
"""
HEADING = "worst tenth of users, on device"


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = dict(MEASURES), dict(SHOWN)
    (tmp_path / "column_of_a_test.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("column_of_a_test")
    yield
    for known, before in zip((MEASURES, SHOWN), kept, strict=True):
        known.clear()
        known.update(before)  # type: ignore[arg-type]


def ran(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """The folder and the results of a run of one arm."""
    use_folder(place / "nodes", monkeypatch)
    arm = {"name": "users", "embedding": PURKAYASTHA | {"epsilon": 0.5}, "label": RANDOMIZED}
    study = experiment(arm)
    ready = prepared(study)
    nodes = placed(study, ready, place / "nodes")
    line = run_arms(study, LocalGrid(nodes), ready=ready, models=place / "models")["users"].line
    names = measures_of(study.data, ready.held)
    results = demo() | {"arms": [line], "measures": list(names), "classes": list(ready.public.classes)}
    run = place / "runs" / "a"
    run.mkdir(parents=True)
    (run / "experiment.toml").write_text(to_toml(study), encoding="utf-8")
    report.write(results, run)
    about = {"name": "s", "axes": [], "points": [{"point": {}, "runs": ["a"]}]}
    (place / "study.json").write_text(json.dumps(about), encoding="utf-8")
    return run, results


@pytest.mark.usefixtures("added")
def test_a_new_column_is_in_every_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, results = ran(tmp_path / "study", monkeypatch)
    (arm,) = arms_of(json.loads((run / "results.json").read_text(encoding="utf-8")))
    groups = [each for each in arm.estimates() if each.metric.startswith("recall: ") and each.split == "on_device"]
    assert len(groups) == CLASSES and sum(each.n or 0 for each in groups) == 40
    worst = arm.estimate("worst-tenth", "on_device")
    assert worst is not None and worst.value <= (arm.accuracy_clean_test or 0) and worst.n == 40

    table = tidy({"a": results})
    assert tuple(table.columns) == COLUMNS and {each.metric for each in groups} <= set(table["metric"])
    said = f"{worst.value:.3f} ± {worst.standard_error:.3f}"
    text = (run / "results.md").read_text(encoding="utf-8")
    assert said in text and HEADING in text and "## accuracy by class, on device" in text
    said_by_group = f"{groups[0].value:.3f} ± {groups[0].standard_error:.3f}"
    assert said_by_group in text
    html, label = report_html([run, tmp_path / "study"], tmp_path / "report.html")
    assert html.read_text(encoding="utf-8").count(HEADING) == 3  # of the run, of the study, and of the study's run
    assert json.loads(label.read_text())["runs"][0]["arms"][0]["measures"]["worst-tenth"]["on_device"] == worst.value
    found = tables.read(tmp_path / "study")
    assert HEADING in tables.overview(found)[0]
    card = (tmp_path / "study" / "models" / "users" / "README.md").read_text(encoding="utf-8")
    assert f"| Worst tenth of users, clean test sentences | {worst.value:.4g} |" in card


def test_without_the_module_nothing_of_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = ran(tmp_path / "study", monkeypatch)
    assert "worst tenth" not in (run / "results.md").read_text(encoding="utf-8")


def test_neither_a_client_nor_help_loads_what_tables_need() -> None:
    code = (
        "import sys, client.app, sottovoce.cli.main, simulations.run.report, "
        "simulations.sweep.tables, simulations.run.measures; "
        "print([name for name in ('pandas', 'sklearn') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout == "[]\n"


def test_arms_of_a_kept_run_are_read_and_written_unchanged() -> None:
    with tarfile.open(ROOT / "tests" / "golden" / "runs-0.2.0.tar.gz") as archive:
        for name in ("release-once", "statistics"):
            lines = json.load(archive.extractfile(f"./{name}/results.json"))["arms"]  # type: ignore[arg-type]
            again = [json_ready(ArmResult.from_dict(line).to_dict()) for line in lines]
            new = {
                "guessed": {},
                "liars": "",
                "batch_tests": [],
                "queried": True,
                "doubts": [],
            }  # which that version did not have
            for line in lines:
                line["budget"] = {"public": []} | line["budget"]
                del line["budget"]["simulated_epsilon"]  # of curators that are gone
            assert again == [new | line for line in lines] and lines
