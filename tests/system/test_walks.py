"""Walks of newcomers by the how-to pages, in a folder of their own; studies run in this process."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from mechanisms.messages.refusals import REFUSALS
from simulations.sweep import worker
from simulations.sweep.run import Job
from sottovoce.cli import main as cli
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.predict import predictor, serving
from tests.support.clients import context
from tests.support.paths import ROOT
from tests.support.quickstart import asks, quickstart
from tests.support.studies import run_in_process
from tests.support.tiny_models import tiny_bert


class Prompt:
    """A prompt in a folder `home` with a model of two layers in `bert`."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._capsys = home, capsys

    def types(self, line: str) -> str:
        """Return what a correct command prints."""
        code = cli.main(shlex.split(line))
        output = self._capsys.readouterr()
        assert code == 0, f"{line}: {output.err}"
        return output.out


@pytest.fixture
def prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Prompt:
    tiny_bert(tmp_path / "home" / "bert")
    run_in_process(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "home")
    return Prompt(tmp_path / "home", capsys)


def write_reviews(file: Path) -> None:
    """Write 300 reviews, and one of them twice."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(300):
        words = " ".join(rng.choice(["the", "film", "book", "a", "plot", "and", "very"], size=10))
        rows.append([f"{words} {('bad', 'good')[i % 2]}; seen {i} times", ("negative", "positive")[i % 2]])
    with open(file, "w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([["review", "sentiment"], *rows, [rows[1][0].upper(), "positive"]])


@pytest.mark.slow
def test_from_a_table_to_a_sweep_and_a_page(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/experiments.md: five ε by three seeds, in four commands."""

    def here(jobs: Sequence[Job], at_once: int) -> Iterator[str]:
        for job in jobs:
            worker._run(job.file, str(job.out), 1)
            yield job.name

    monkeypatch.setattr("simulations.sweep.run.processes", here)
    write_reviews(prompt.home / "reviews.csv")
    assert "300 of 301 rows" in prompt.types("init mine --from reviews.csv")
    assert "NOT met" not in prompt.types("check mine/experiment.toml --set encoder.model=bert")
    printed = prompt.types("sweep mine/experiment.toml --set encoder.model=bert")
    arms = ["class names alone, no users", *(f"one vector, ε = {epsilon}" for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0))]
    assert all(f"| {arm}" in printed for arm in arms)
    prompt.types("report studies/mine-sweep")
    with open(prompt.home / "studies" / "mine-sweep" / "tidy.csv", encoding="utf-8", newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if (row["metric"], row["split"]) == ("accuracy", "on_device")]
    assert {row["arm"] for row in rows if row["reference"] == "False"} == set(arms)
    assert "The study mine-sweep" in (prompt.home / "report.html").read_text(encoding="utf-8")


STUDY = {
    "name": "mine",
    "data": {"public-size": 80, "test-size": 40},
    "population": {"users": 60},
    "encoder": {"model": "bert", "max-length": 32},
    "shuffle": {"minimum-users": 5},
    "policy": {"embedding": 32.0, "label": 3.0},
    "arm": [
        {
            "name": "vectors",
            "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 8},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        }
    ],
}


def test_from_a_run_to_a_device_that_asks(prompt: Prompt) -> None:
    """docs/how-to/device.md: a bundle, a device of it, its records, and a question to the model."""
    types, home = prompt.types, prompt.home
    (home / "study.toml").write_text(tomli_w.dumps(STUDY), encoding="utf-8")
    (home / "notes.csv").write_text("said,mood\nthe film was good,positive\na bad book,negative\n", encoding="utf-8")
    types("simulate study.toml --out run")
    types("deploy keys make keys --nodes 1")
    keys = "--sign-key keys/publisher/sign.key --seal-to keys/server/seal.pub --model-seal-to keys/predict/seal.pub"
    types(f"device bundle --run run --out bundle {keys} --shuffler-seal-to keys/shuffler/seal.pub")
    install = "device install --bundle bundle --device me"
    assert "answers for embedding, label" in types(f"{install} --publisher keys/publisher/sign.pub")
    assert "2 records of user 0" in types("device add me --file notes.csv --text said --label mood")
    assert "nothing has left this device" in types("device ledger me")

    model = predictor(home / "run", private_keys=(read_key(home / "keys" / "predict" / "seal.key"),))
    own = home / "keys" / "predict"
    with serving(model, certificate=own / "cert.pem", key=own / "cert.key") as address:
        ask = f'device ask me "a fine film" --server {address} --root-certificates keys/ca/ca.pem'
        assert cli.main(shlex.split(ask)) == 2  # its policy wants a crowd of 5
        node = json.loads((home / "me" / "node.json").read_text())
        node["policy"]["minimum_users"] = 0
        (home / "me" / "node.json").write_text(json.dumps(node))
        prompt._capsys.readouterr()
        assert "nothing has left this device" in types("device ledger me")
        assert "cost   ε = 31.42 at worst" in types(ask)
    assert "sentence 1 that was asked about: embedding ε = 31.42 at worst" in types("device ledger me")
    assert "31.42" in types("budget ladder --ledger me/ledger.sqlite")


def test_the_mod_in_an_app(prompt: Prompt) -> None:
    """Both examples of docs/how-to/flower-app.md: constants leave, updates are charged, other requests are refused."""
    page = (ROOT / "docs/how-to/flower-app.md").read_text("utf-8")
    for number, user in ((0, 2), (1, 3)):
        names: dict[str, Any] = {"ClientApp": quickstart}
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[number], names)
        reply = names["app"](asks(), context(user))
        assert dict(reply.content["metrics"]) == {"num-examples": 1} and "arrays" in reply.content
    refused = names["app"](asks("evaluate"), context(3))
    assert (refused.error.code, refused.error.reason) == REFUSALS["unaccounted"]
    printed = prompt.types("budget ladder --ledger ledger.sqlite")
    assert "2 releases of 2 users" in printed and "statistic" in printed
