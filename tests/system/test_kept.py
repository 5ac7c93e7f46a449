"""Runs, ledgers and experiment files of released versions open: `tests/golden/runs-0.2.0.tar.gz` is kept from 0.2.0.

It holds two runs of 60 made-up users on two nodes: embeddings and labels beside an arm without noise, and user vectors.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from client.node import load_node
from client.policy import Refused
from simulations.artifacts.model_folder import read_about
from simulations.errors import UserError
from simulations.experiment import load, slug
from sottovoce.cli import main as cli
from tests.support.answers import ask, ledger_rows
from tests.support.clients import request
from tests.support.paths import ROOT
from tests.support.studies import ENCODER, WIDTH

#: Releases of each ledger, and the SHA-256 of their users, records, stages, channels, digests and bytes.
LEDGERS = {
    "release-once/0/embedding-and-label": (80, "5b8a6950e400c98e"),
    "release-once/0/no-noise": (80, "7858872b97e685fd"),
    "release-once/1/embedding-and-label": (80, "1999db498d303dbf"),
    "release-once/1/no-noise": (80, "1550026fb55b1b24"),
    "statistics/0/one-vector": (30, "4c1c056ff3f0486e"),
    "statistics/1/one-vector": (30, "cc0b9911cb5973e4"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kept")
    with tarfile.open(ROOT / "tests" / "golden" / "runs-0.2.0.tar.gz") as archive:
        archive.extractall(place, filter="data")
    for file in place.glob("*/experiment.toml"):
        with pytest.raises(UserError, match=r"training\.way: unknown key; known are .* protocol"):
            load(file)
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith(("stand-ins", "generator")))
        text = re.sub("^way =", "protocol =", re.sub("^statistic =", "vector =", text, flags=re.M), flags=re.M)
        file.write_text(re.sub(r"\.statistic\]", ".vector]", text), encoding="utf-8")
    return place


def rows_digest(node: Path, arm: str) -> tuple[int, str]:
    digest, rows = hashlib.sha256(), ledger_rows(node, arm)
    for row in rows:
        digest.update(json.dumps([row.user, row.record, row.stage, row.channel, row.digest]).encode() + row.payload)
    return len(rows), digest.hexdigest()[:16]


def test_ledgers_hold_what_was_released(kept: Path) -> None:
    found = {
        f"{run}/{node}/{slug(arm.name)}": rows_digest(kept / run / "nodes" / node, slug(arm.name))
        for run in ("release-once", "statistics")
        for node in ("0", "1")
        for arm in load(kept / run / "experiment.toml").arms
    }
    assert found == LEDGERS


def test_a_node_goes_on_under_its_policy(kept: Path) -> None:
    """What is left of a budget is what the ledger says: an embedding of 10π does not fit twice into 32."""
    node = kept / "release-once" / "nodes" / "1"
    assert len(load_node(node).shard("train")) == 30
    maps = {"encoder": ENCODER, "mean": np.zeros(WIDTH, np.float32), "m1": np.eye(WIDTH, 4, dtype=np.float32)}
    again = request(arm="embedding-and-label", **maps)
    with pytest.raises(Refused, match="budget"):
        ask(node, again)


@pytest.mark.parametrize("run", ["release-once", "statistics"])
def test_experiments_and_models_open(run: str, kept: Path) -> None:
    experiment = load(kept / run / "experiment.toml")
    assert experiment.population.users == 60 and experiment.seed == 3
    for arm in experiment.arms:
        classes, _ = read_about(kept / run / "models" / slug(arm.name))
        assert classes == ("red", "green", "blue")


def test_commands_read_them(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(kept / run) for run in ("release-once", "statistics")]
    assert cli.main(["report", *runs, "--out", str(tmp_path / "both.html")]) == 0
    label = json.loads((tmp_path / "both.json").read_text())
    assert "one vector" in json.dumps(label)
    ledger = kept / "statistics" / "nodes" / "0" / "ledger-one-vector.sqlite"
    assert cli.main(["budget", "ladder", "--ledger", str(ledger)]) == 0
    told = capsys.readouterr().out
    assert "any two users" in told
