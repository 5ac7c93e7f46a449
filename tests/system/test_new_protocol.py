"""A new protocol is one file in server/protocols, and a line of its table: nothing else in the tree names it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT

NAME = "nearest-mean"
#: Users release once; the head is the mean of each class, moved towards the mean of all by an option of its own.
FILE = '''
"""Protocol nearest-mean: users release an embedding and a label once, and the head is the mean of each class."""

import logging

import numpy as np

from mechanisms.channels import EMBEDDING, LABEL
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion
from server.protocols.declaration import Option, TrainingProtocol
from server.protocols.decoding import decoded, log_transition
from server.protocols.models import EmbeddingModel
from server.training.rescale import factored

SHRINKAGE = Option("shrinkage", 0.1, "Share by which each mean is moved to the mean of all classes.")


def nearest_mean(public, channels, training, *, folder):
    """Weigh each release by the likelihood of its label under each class, and point the head to the means."""
    mechanism = public.maps.best(channels.embedding)
    maps = public.maps.of(mechanism)
    batch = yield channels.embeddings(
        public.encoder.identity, maps, mechanism, stage="train", split="train", label=True
    )
    embedding, labels = batch.of(EmbeddingQuestion), batch.of(LabelQuestion)
    if embedding is None or labels is None:
        return None
    z, y = decoded(mechanism, embedding), labels.values.astype(np.int64)
    logging.getLogger(__name__).info(f"means of {len(z)} releases")
    weights = np.exp(log_transition(channels.label, y, classes=channels.classes))
    weights -= weights.mean(axis=1, keepdims=True)
    means = (1 - SHRINKAGE.of(training.options)) * z.T @ weights / len(z)
    head = factored(maps.mean, maps.m1, means, np.zeros(channels.classes))
    return EmbeddingModel(channels, public.encoder, mechanism, head, asked=maps)


def _check(options):
    if SHRINKAGE.of(options) >= 1:
        raise ValueError("shrinkage: must be below 1, or all means are the same")


NEAREST_MEAN = TrainingProtocol(
    "nearest-mean", "the head is the mean of each class of the users' releases", steps=nearest_mean,
    trains_on=frozenset({EMBEDDING.name, LABEL.name}), queried=frozenset({EMBEDDING.name}),
    public_text=True, public_labels=True, encoder=True, options=(SHRINKAGE,), check=_check,
)
'''
EXPERIMENT = """
name = "small"
seed = 3
[data]
source = "built-in"
public-size = 90
test-size = 40
[population]
users = 60
users-per-node = 10
[shuffle]
minimum-users = 10
[policy]
embedding = 32.0
label = 5.0
[training]
protocol = "nearest-mean"
shrinkage = 0.25
[[arm]]
name = "users"
embedding = { mechanism = "purkayastha", epsilon = 10.0, dim = 4 }
label = { mechanism = "randomized-response", epsilon = 3.0 }
"""
#: Everything that knows protocols by name, asked about the new one.
ASKED = """
import json, sys
from pathlib import Path

import server.protocols

heavy = sorted({"torch", "transformers", "client", "simulations"} & set(sys.modules))

import pytest

from simulations.errors import UserError
from simulations.experiment import from_table, load, to_toml
from simulations.experiment.ladder import of_experiment
from simulations.experiment.schema import page, schema
from simulations.experiment.toml import parsed
from simulations.output.jsonable import json_ready
from simulations.run import report
from simulations.run.partition import hand_out
from tests.support.results import demo
from tests.support.studies import LocalGrid, prepared, run_arms, use_folder

file, place = Path("nearest.toml"), Path("ran")
study = load(file)
table = parsed(file, file)
(arm,) = table["arm"]


def refusal(*arms, **sections):
    changed = {name: table.get(name, {}) | values for name, values in sections.items()}
    try:
        from_table(table | {"arm": list(arms) or [arm]} | changed)
    except UserError as error:
        return str(error)


def scaled(study, folder):
    with pytest.MonkeyPatch.context() as patch:
        use_folder(folder / "nodes", patch)
        ready = prepared(study)
        nodes = hand_out(study.setups, study.population, ready.public, ready.held, folder / "nodes", seed=study.seed)
        return run_arms(study, LocalGrid(nodes), ready=ready, models=folder / "models")["users"]


ran, other = scaled(study, place / "a"), scaled(load(file, ["training.shrinkage=0.5"]), place / "b")
results = demo() | {"way": study.training.protocol.name, "arms": [json_ready(ran.line)], "differences": []}
(place / "run").mkdir()
report.write(results, place / "run")
print(json.dumps({
    "heavy": heavy, "again": load(file) == from_table(__import__("tomllib").loads(to_toml(study))),
    "schema": schema()["properties"]["training"]["properties"], "page": page(),
    "ladder": of_experiment(study)[0]["ladder"], "line": json_ready(ran.line),
    "moved": float(abs(other.model.maps.head_w).max() / abs(ran.model.maps.head_w).max()),
    "card": (place / "a" / "models" / "users" / "README.md").read_text(),
    "report": (place / "run" / "results.md").read_text(),
    "refused": [
        refusal(training={"protocol": "release-once"}), refusal(training={"shrinkage": 1.5}),
        refusal(training={"shrinkage": "much"}), refusal(training={"label-stages": 2}),
        refusal(data={"public": {"labels": False}}), refusal(data={"public": {"labelled": 5}}),
        refusal(arm | {"text": {"mechanism": "santext", "epsilon": 1.0}}),
        refusal(arm | {"answer": {"mechanism": "randomized-response", "epsilon": 1.0}}),
        refusal({"name": "a", "protocol": "public-only"}),
        refusal({"name": "a", "vector": {"mechanism": "privunit", "epsilon": 1.0, "cap_probability": 0.75}}),
    ],
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of a copy of the code with the new file."""
    tree = tmp_path_factory.mktemp("tree")
    for package in ("client", "server", "mechanisms", "simulations", "sottovoce", "tests"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "server" / "protocols" / "nearest_mean.py").write_text(FILE, encoding="utf-8")
    table = tree / "server" / "protocols" / "__init__.py"
    named = table.read_text().replace("for protocol in (", "for protocol in (NEAREST_MEAN, ")
    own = "from server.protocols.nearest_mean import NEAREST_MEAN\n"
    table.write_text(named.replace("PROTOCOLS:", f"{own}PROTOCOLS:"))
    (tree / "nearest.toml").write_text(EXPERIMENT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=tree,
        env={"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_users_train_it_by_its_option_and_it_is_described_everywhere(told: dict[str, Any]) -> None:
    assert told["heavy"] == [], "the declaration loads no model and nothing of other packages"
    assert told["again"] and NAME in told["schema"]["protocol"]["enum"]
    assert (told["schema"]["shrinkage"]["minimum"], told["schema"]["shrinkage"]["default"]) == (0, 0.1)
    assert "| `training.shrinkage` | a number, at least 0 | 0.1 | Share by which" in told["page"]
    rungs = {rung["rung"]: rung["worst_case"] for rung in told["ladder"]}
    assert {"embedding", "label", "shuffled"} <= set(rungs) and rungs["label"] == 3.0
    line = told["line"]
    assert line["delivered"] == 60 and line["dropped"] == line["errors"] == {}
    assert line["accuracy"] > 0.8 and line["accuracy_clean_test"] > 0.9  # chance is 1/3
    assert told["moved"] == pytest.approx((1 - 0.5) / (1 - 0.25), rel=1e-6)
    assert f"protocol {NAME}" in told["report"] and "users" in told["report"]
    assert f"{NAME}: the head is the mean of each class of the users' releases" in told["card"]


def test_what_contradicts_its_declaration_is_refused(told: dict[str, Any]) -> None:
    starts = (
        "training.shrinkage",
        "training.shrinkage: must be below 1",
        "training.shrinkage: must be a finite number",
        "training.label-stages",
        "data.public.labels",
        "data.public.labelled",
        'arm "users": text',
        'arm "users": answer',
        'arm "a": protocol',
        'arm "a": vector',
    )
    for error, start in zip(told["refused"], starts, strict=True):
        assert error.startswith(start), (error, start)
