"""A new protocol is one file, and a line of the table `server.protocols.PROTOCOLS`: nothing else names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

#: Users release once; the head is the mean of each class, moved towards the mean of all by an option of its own.
FILE = '''
"""Protocol nearest-mean: users release an embedding and a label once, and the head is the mean of each class."""

import logging

import numpy as np

from mechanisms.channels import EMBEDDING, LABEL
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, decoded
from server.protocols.declaration import Option, TrainingProtocol
from server.protocols.models import EmbeddingModel
from server.training.head import log_transition
from server.maps import factored

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
    z, y = decoded(mechanism, embedding.values), labels.values.astype(np.int64)
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
    public_text=True, encoder=True, options=(SHRINKAGE,), check=_check,
)
'''
#: Everything that knows protocols by name, asked about the new one.
PROGRAM = """
import sys
from pathlib import Path

from server.protocols import PROTOCOLS
from nearest_mean import NEAREST_MEAN

assert not {"torch", "transformers", "client", "simulations"} & set(sys.modules), "a declaration loads no model"
PROTOCOLS[NEAREST_MEAN.name] = NEAREST_MEAN  # its line of the table, before anybody reads it

import pytest

from simulations.errors import UserError
from simulations.experiment.ladder import of_experiment
from simulations.experiment.schema import schema
from tests.support.studies import PURKAYASTHA, RANDOMIZED, LocalGrid, experiment, make_nodes, run_arms, use_folder

ARM = {"name": "users", "embedding": PURKAYASTHA, "label": RANDOMIZED}


def study(*arms, shrinkage=0.25, **training):
    return experiment(*arms or [ARM], training={"protocol": NEAREST_MEAN.name, "shrinkage": shrinkage} | training)


def scaled(shrinkage):
    asked, place = study(shrinkage=shrinkage), Path(str(shrinkage))
    with pytest.MonkeyPatch.context() as patch:
        use_folder(place, patch)
        return run_arms(asked, LocalGrid(make_nodes(asked, place)), models=place / "models")["users"]


keys = schema()["properties"]["training"]["properties"]
assert NEAREST_MEAN.name in keys["protocol"]["enum"]
assert (keys["shrinkage"]["minimum"], keys["shrinkage"]["default"]) == (0, 0.1)
rungs = {rung["rung"]: rung["worst_case"] for rung in of_experiment(study())[0]["ladder"]}
assert {"embedding", "label", "shuffled"} <= set(rungs) and rungs["label"] == 3.0
ran, other = scaled(0.25), scaled(0.5)
assert ran.line["delivered"] == 60 and ran.line["dropped"] == ran.line["errors"] == {}
assert ran.line["accuracy"] > 0.8 and ran.line["accuracy_clean_test"] > 0.9  # chance is 1/3
moved = abs(other.model.maps.head_w).max() / abs(ran.model.maps.head_w).max()
assert moved == pytest.approx((1 - 0.5) / (1 - 0.25), rel=1e-6)
summary = "nearest-mean: the head is the mean of each class of the users' releases"
assert summary in Path("0.25/models/users/README.md").read_text()
vector = {"mechanism": "privunit", "epsilon": 1.0, "cap_probability": 0.75}
for key, arms, training in (
    ("training.shrinkage", [], {"protocol": "release-once"}),
    ("training.shrinkage: must be below 1", [], {"shrinkage": 1.5}),
    ("training.shrinkage: must be a finite number", [], {"shrinkage": "much"}),
    ("training.label_stages", [], {"label_stages": 2}),
    ('arm "users": text', [ARM | {"text": {"mechanism": "santext", "epsilon": 1.0}}], {}),
    ('arm "a": protocol', [{"name": "a", "protocol": "public-only"}], {}),
    ('arm "a": vector', [{"name": "a", "vector": vector}], {}),
):
    with pytest.raises(UserError) as caught:
        study(*arms, **training)
    assert str(caught.value).startswith(key), (key, caught.value)
"""


def test_users_train_it_by_its_option_and_what_contradicts_its_declaration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nearest_mean.py").write_text(FILE, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
