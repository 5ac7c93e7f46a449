"""The Flower app of `flwr run .`: its server's side on nodes that Flower has started, and what its bundle carries."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Message
from flwr.cli.build import build_fab_from_disk

from client.app import NODES, release
from simulations.errors import UserError
from simulations.run import server_app as flower
from tests.support.clients import context, message
from tests.support.paths import ROOT
from tests.support.studies import PURKAYASTHA, RANDOMIZED, LocalGrid, use_folder
from tests.support.tiny_models import tiny_bert

USERS = 24


class StartedGrid(LocalGrid):
    """Nodes that find their folders as `flwr run` has them do: in `out` of the run's settings."""

    def __init__(self, nodes: int, out: str) -> None:
        super().__init__(nodes)
        self.out = out

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float) -> list[Message]:
        del timeout
        return [release(message(m.content), context(m.dst_node_id - 1, out=self.out)) for m in messages]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small experiment file; the home folder is a temporary one, and nothing else says where nodes are."""
    use_folder(tmp_path, monkeypatch)
    monkeypatch.delenv(NODES)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = {
        "name": "small",
        "data": {"public-size": 40, "test-size": 20},
        "population": {"users": USERS},
        "encoder": {"model": str(tiny_bert(tmp_path / "bert")), "max-length": 32},
        "shuffle": {"minimum-users": 5},
        "policy": {"embedding": 32.0, "label": 3.0},
        "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
    }
    (tmp_path / "study.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    return str(tmp_path / "study.toml")


def start(study: str, out: str, nodes: int) -> None:
    flower.main(StartedGrid(nodes, out), context(experiment=study, out=out))


@pytest.mark.parametrize("nodes", [1, 50])
def test_the_study_runs_on_any_number_of_nodes(nodes: int, study: str, tmp_path: Path) -> None:
    start(study, "~/runs/flwr", nodes)
    out = tmp_path / "runs" / "flwr"
    assert len(list((out / "nodes").iterdir())) == nodes  # six of fifty have nobody
    results = (out / "results.json").read_text()
    assert f'"delivered": {USERS}' in results and '"errors": {}' in results


def test_a_run_that_cannot_be_leaves_nothing(study: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for out in ("runs/flwr", "~/there"):
        with pytest.raises(UserError, match="name a folder that is not there yet"):
            start(study, out, 1)
    (tmp_path / "bert" / "config.json").write_text("not what it was")
    with pytest.raises(ValueError, match="encoder: "):
        start(study, "~/runs/flwr", 1)
    assert not (tmp_path / "runs" / "flwr").exists()


def test_no_data_file_travels_in_the_bundle(tmp_path: Path) -> None:
    app = tmp_path / "app"
    shown = ("simulations/experiments", "simulations/studies", "simulations/papers", "simulations/corpora")
    for folder in ("client", "server", "mechanisms", "simulations", *shown):
        (app / folder).mkdir(parents=True, exist_ok=True)
        for name in ("code.py", "users.jsonl", "users.json", "users.tsv", "notes.md", "ledger.sqlite", "users.yaml"):
            (app / folder / name).write_text("")
    (app / "data").mkdir()
    for name in ("users.jsonl", "data/users.jsonl", "data/users.py", "README.md", "LICENSE"):
        (app / name).write_text("")
    (app / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    code = {"client/code.py", "server/code.py", "mechanisms/code.py", "simulations/code.py"}
    for folder in shown:
        (app / folder / "demo.toml").write_text("")
        code |= {f"{folder}/code.py", f"{folder}/demo.toml"}
    assert bundled(app) == {"pyproject.toml", ".info/CONTENT"} | code


def bundled(app: Path) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as fab:
        return set(fab.namelist())
