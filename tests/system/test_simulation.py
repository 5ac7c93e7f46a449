"""The whole run, through Flower on Ray, on a tiny encoder of random weights."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from client.app import NODES
from client.shard import records_path
from mechanisms.messages.refusals import REFUSALS
from simulations.experiment import from_table, slug
from simulations.output.jsonable import json_ready
from simulations.run.run import run
from simulations.transport.engine import run_on_flower
from sottovoce.cli import main as cli
from tests.support.studies import PRIOR, PURKAYASTHA, RANDOMIZED, in_process, ledger_rows
from tests.support.tiny_models import tiny_bert

pytestmark = pytest.mark.xdist_group("ray")  # Ray takes all cores: one of these at a time

USERS, TEST = 24, 40
ARMS = [
    {"name": "no noise", "reference": True, "embedding": {"mechanism": "identity", "dim": 16}},
    {"name": "prior", "embedding": PURKAYASTHA | {"dim": 16}, "label": PRIOR},
]


def table(model: Path, **sections: Any) -> dict[str, Any]:
    """24 users in two stages, 40 test users, two arms; sections' keys are added."""
    whole: dict[str, Any] = {
        "name": "small",
        "seed": 1,
        "data": {"public-size": 80, "test-size": TEST},
        "population": {"users": USERS},
        "encoder": {"model": str(model), "max-length": 32},
        "training": {"label-stages": 2},
        "shuffle": {"minimum-users": 5},
        "policy": {"embedding": 32.0, "label": 3.0},
        "arm": ARMS,
    }
    for name, values in sections.items():
        whole[name] = whole.get(name, {}) | values if isinstance(values, dict) else values
    return whole


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Encoders and embeddings are kept in the folder, not in the user's cache; the environment is put back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv(NODES, "")  # the engine sets it: put back afterwards
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            patch.setenv(name, os.environ.get(name, "" if name == "PYTHONPATH" else "1"))
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the encoder's checkpoint `bert` and a cache."""
    folder = tmp_path_factory.mktemp("simulation")
    tiny_bert(folder / "bert")
    return folder


@pytest.fixture(autouse=True)
def cache(shared: Path) -> Iterator[None]:
    with own_cache(shared / "cache"):
        yield


class Finished:
    """A run that has ended: its folder and its results."""

    def __init__(self, out: Path, results: dict[str, Any]) -> None:
        self.out = out
        self.results = results

    def arm(self, name: str) -> dict[str, Any]:
        return next(arm for arm in self.results["arms"] if arm["name"] == name)

    def lines(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in arm.items() if k != "seconds"} for arm in self.results["arms"]]

    def releases(self) -> dict[tuple, tuple]:
        """Digest and bytes of every release on a ledger, by (arm, user, record, stage, channel)."""
        return {
            (arm["name"], r.user, r.record, r.stage, r.channel): (r.digest, r.payload)
            for arm in ARMS
            for r in ledger_rows(self.out / "nodes", arm["name"])
        }

    def weights(self) -> dict[str, bytes]:
        return {a["name"]: (self.out / "models" / slug(a["name"]) / "maps.safetensors").read_bytes() for a in ARMS}


def finish(out: Path, experiment: dict[str, Any], engine: Callable[..., Any] = run_on_flower) -> Finished:
    out.mkdir()
    return Finished(out, run(from_table(experiment), out, engine=engine))


@pytest.fixture(scope="module")
def cohorts(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run that others are compared with: users in cohorts, seed 1, in this process. Whether Flower and Ray change a
    bit is what is asked."""
    with own_cache(shared / "cache"):
        return finish(tmp_path_factory.mktemp("runs") / "cohorts", table(shared / "bert"), in_process)


@pytest.mark.slow
def test_the_command_prints_one_object_and_single_users_release_the_bits_of_cohorts(
    cohorts: Finished, shared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(tomli_w.dumps(table(shared / "bert", population={"users-per-node": 1})), encoding="utf-8")
    out = tmp_path / "out"
    assert cli.main(["simulate", str(file), "--out", str(out), "--json"]) == 0
    printed = capfd.readouterr().out
    results = json.loads(printed)
    assert printed.count("\n") == 1
    wanted = {
        "name",
        "mechanism",
        "epsilon",
        "label_epsilon",
        "accuracy",
        "accuracy_clean_test",
        "users",
        "delivered",
        "bytes_per_user",
        "seconds",
        "budget",
    }
    for arm in results["arms"]:
        assert wanted <= set(arm)
        assert {"metric_epsilon", "worst_case_epsilon", "label_epsilon"} <= set(arm["budget"])
        assert arm["users"] == arm["delivered"] == USERS
        assert arm["dropped"] == arm["errors"] == {}
        assert 0 <= arm["accuracy"] <= 1 and 0 <= arm["accuracy_clean_test"] <= 1
    prior = results["arms"][1]
    assert 0 < prior["bytes_per_user"] <= 40
    assert (prior["epsilon"], prior["label_epsilon"], prior["budget"]["label_epsilon"]) == (10.0, 3.0, 3.0)
    assert results["arms"][0]["budget"]["worst_case_epsilon"] == "inf"
    left = {"answers", "nodes", "models", "experiment.toml", "results.json", "results.md", "accuracy.png", "spent.png"}
    assert {p.name for p in out.iterdir()} == left
    assert json.loads((out / "results.json").read_text()) == results

    single = Finished(out, results)
    assert len(list((out / "nodes").iterdir())) == USERS > len(list((cohorts.out / "nodes").iterdir()))
    assert len(cohorts.releases()) == len(ARMS) * (2 * USERS + TEST)
    assert single.releases() == cohorts.releases()
    assert single.weights() == cohorts.weights()
    assert single.lines() == json_ready(cohorts.lines())


def kill_readers(fifo: Path, times: int, killed: list[int]) -> None:
    """Kills the next so many processes that open the FIFO to read it, each as soon as it has. None but those that this
    process has started, or theirs: nobody else's study shall suffer."""
    own = os.getpid()
    while len(killed) < times:
        with contextlib.suppress(BrokenPipeError), open(fifo, "w"):  # opens when a reader does
            for entry in Path("/proc").iterdir():
                if not entry.name.isdecimal() or int(entry.name) in (own, *killed):  # one killed may still be going
                    continue
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    reads = any(os.readlink(fd) == str(fifo) for fd in (entry / "fd").iterdir())
                    if reads and own in ancestors(int(entry.name)):
                        os.kill(int(entry.name), signal.SIGKILL)
                        killed.append(int(entry.name))


def ancestors(process: int) -> list[int]:
    """The process' parent, its parent, and so on."""
    found = []
    while process > 1:
        # The second field, a name in brackets, may hold anything: the parent is the second after it.
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


@pytest.mark.slow
def test_a_worker_that_dies_and_a_client_that_raises_cost_their_own_users_only(shared: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def engine(job: Callable[..., Any], *, nodes: int, folder: Path) -> Any:
        shard = records_path(folder / "1", "train")
        shard.unlink()
        os.mkfifo(shard)
        killer = threading.Thread(target=kill_readers, args=(shard.resolve(), 2, killed), daemon=True)
        killer.start()
        records_path(folder / "2", "train").write_bytes(b"HIV positive")
        return run_on_flower(job, nodes=nodes, folder=folder)

    arm = {"name": "a", "embedding": PURKAYASTHA | {"dim": 16}, "label": {"mechanism": "identity"}}
    study = table(
        shared / "bert",
        arm=[arm],
        training={"label-stages": 1},
        population={"users": 60, "users-per-node": 10, "timeout": 120.0},
        policy={"accept-unprotected": ["label: public in this test"]},
    )
    finished = finish(tmp_path / "out", study, engine)
    line = finished.arm("a")
    assert len(killed) == 2, "a worker must die on the message, and the one that tries it again"
    assert line["users"] == 60 and line["delivered"] == 40
    assert line["errors"] == {"a worker died, or no reason was given": 1, REFUSALS["failed"][1]: 1}
    assert "HIV" not in json.dumps(line) and line["dropped"] == {}
    rows = ledger_rows(finished.out / "nodes", "a")
    assert {r.user % 6 for r in rows if r.stage == "train"} == {0, 3, 4, 5}
    assert {r.user % 6 for r in rows if r.stage == "test"} == {0, 1, 2, 3, 4, 5}
    assert line["accuracy"] is not None


def test_the_published_procedure_runs_without_nodes_and_says_what_it_is(shared: Path, tmp_path: Path) -> None:
    way = {"training": {"protocol": "paper", "acknowledge-not-private": True, "epochs": 1}}
    arms = [ARMS[0] | {"embedding": {"mechanism": "identity"}}, ARMS[1] | {"label": RANDOMIZED}]
    finished = finish(tmp_path / "out", table(shared / "bert", arm=arms) | way)
    assert "not private" in finished.results["way_sentence"] and not (finished.out / "nodes").exists()
    assert [(line["dim"], line["epsilon"], line["way"]) for line in finished.lines()] == [
        (16, None, "paper"),
        (16, 10.0, "paper"),
    ]
    assert all("∞ for the gradients" in line["budget"]["statement"] for line in finished.lines())
