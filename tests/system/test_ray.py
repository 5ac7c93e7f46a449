"""Flower on Ray: the same seed gives the same releases and the same weights, bit for bit, whatever the number of nodes,
of processes and of machines, and whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.app import NODES, release
from client.shard import records_path
from mechanisms.messages.refusals import REFUSALS
from server.query import MESSAGE_TYPE
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table, slug
from simulations.output.jsonable import json_ready
from simulations.run.run import run
from simulations.transport.engine import check_address, machine_fault, run_on_flower
from sottovoce.cli import main as cli
from sottovoce.deployment.processes import free_port
from tests.support.deployments import wait_until
from tests.support.paths import ROOT
from tests.support.studies import (
    PRIOR,
    PURKAYASTHA,
    RANDOMIZED,
    experiment,
    in_process,
    ledger_rows,
    merged,
    without_work,
)
from tests.support.tiny_models import tiny_bert

pytestmark = pytest.mark.xdist_group("ray")  # Ray takes all cores: one of these at a time

USERS, TEST = 24, 40
ARMS = [
    {"name": "no noise", "reference": True, "embedding": {"mechanism": "identity", "dim": 16}},
    {"name": "prior", "embedding": PURKAYASTHA | {"dim": 16}, "label": PRIOR},
]
SECONDS = 480.0  # for what takes some on an idle machine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the encoder's checkpoint `bert` and a cache."""
    folder = tmp_path_factory.mktemp("simulation")
    tiny_bert(folder / "bert")
    return folder


@pytest.fixture(autouse=True)
def environment(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders and embeddings are kept in `shared`, not in the user's cache; what the engine sets is put back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    monkeypatch.setenv(NODES, "")


def table(shared: Path, **sections: Any) -> dict[str, Any]:
    """24 users in two stages, 40 test users, two arms; sections' keys are added."""
    whole: dict[str, Any] = {
        "name": "small",
        "seed": 1,
        "data": {"public-size": 80, "test-size": TEST},
        "population": {"users": USERS},
        "encoder": {"model": str(shared / "bert"), "max-length": 32},
        "training": {"label-stages": 2},
        "shuffle": {"minimum-users": 5},
        "policy": {"embedding": 32.0, "label": 3.0},
        "arm": ARMS,
    }
    return merged(whole, sections)


def bits(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Releases, weights and lines of the table, without what differs between two runs of the same: times."""
    names = [arm["name"] for arm in results["arms"]]
    return {
        "releases": {
            (name, r.user, r.record, r.stage, r.channel): (r.digest, r.payload)
            for name in names
            for r in ledger_rows(out / "nodes", name)
        },
        "weights": [(out / "models" / slug(name) / "maps.safetensors").read_bytes() for name in names],
        "lines": json_ready([{k: v for k, v in line.items() if k != "seconds"} for line in results["arms"]]),
    }


def made(out: Path, asked: Experiment, engine: Callable[..., Any] = in_process) -> dict[str, Any]:
    out.mkdir()
    return bits(out, run(asked, out, engine=engine))


# --- any number of nodes and processes


def study(nodes: int, users: int = 128, **population: Any) -> Experiment:
    """An experiment whose embeddings are made up."""
    population |= {"users": users, "users-per-node": -(-users // nodes)}
    arms = ({"name": "randomized", "embedding": PURKAYASTHA, "label": RANDOMIZED}, ARMS[1] | {"embedding": PURKAYASTHA})
    return experiment(*arms, population=population, training={"label-stages": 2})


@pytest.mark.parametrize(
    ("nodes", "actors"),
    [(8, None), *(pytest.param(*each, marks=[pytest.mark.slow, pytest.mark.soak]) for each in ((64, 1), (1, 4)))],
)
def test_any_number_of_nodes_and_processes(
    nodes: int, actors: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """actors: Ray's, where there are any."""
    without_work(monkeypatch)
    late = {"late": 0.1, "dropout": 0.1}
    one = made(tmp_path / "one", study(1, **late))
    engine = in_process if actors is None else partial(run_on_flower, actors=actors)
    assert made(tmp_path / "run", study(nodes, **late), engine) == one
    assert len(list((tmp_path / "run" / "nodes").iterdir())) == nodes and len(one["releases"]) > 400


# --- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster of two nodes of one core each, on this machine; a cluster of others is left alone.

    The second one sees an empty folder where the tests' folders are, as another machine would.
    """
    hide = 'mount -t tmpfs none "$0" && exec "$@"'
    hiding = ["unshare", "--mount", "sh", "-c", hide, str(tmp_path_factory.getbasetemp())]
    if subprocess.run([*hiding, "true"], capture_output=True).returncode:
        hiding[1:1] = ["--user", "--map-root-user"]  # for who is not root
        if subprocess.run([*hiding, "true"], capture_output=True).returncode:
            pytest.skip("a folder cannot be hidden from a process here: unshare(2) is not permitted")
    address = f"127.0.0.1:{free_port()}"
    # A folder of its own, or whoever starts Ray on this machine meanwhile would join; the names of sockets are short.
    folder = Path("/tmp") / f"sottovoce-{os.getpid()}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", "--disable-usage-stats", "--block"]
    port = address.partition(":")[2]
    head = [*ray, "--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
    started = []
    try:
        for number, command in enumerate((head, [*hiding, *ray, f"--address={address}"]), 1):
            # In a session of its own, so that all that it starts, and nothing else, can be stopped.
            started.append(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL))
            wait_until(lambda number=number: machines(address) == number, started[-1])
        yield address
        assert all(process.poll() is None for process in started), "the cluster was stopped"
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def machines(address: str) -> int:
    """How many machines the cluster has by now: none as long as its first one has not registered."""
    import ray

    try:
        check_address(address)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, UserError):
        return 0
    try:
        return sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_the_command_on_a_cluster_whose_machines_share_no_folder(
    cluster: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its single users release the bits of cohorts in this process; it prints one object, and leaves the cluster."""
    views: list[bool] = []  # of each machine that has answered for nodes: whether it sees the nodes' folders

    def engine(job: Callable[[Any], Any], *, folder: Path, **options: Any) -> Any:
        def looking(grid: Any) -> Any:
            result = job(grid)
            views.extend(seen_where_answered(folder))
            return result

        return run_on_flower(looking, folder=folder, **options)

    monkeypatch.setattr("simulations.run.simulate.run_on_flower", engine)
    file, out = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(table(shared, population={"users-per-node": 1})), encoding="utf-8")
    assert cli.main(["simulate", str(file), "--out", str(out), "--json", "--ray-address", cluster]) == 0
    printed = capfd.readouterr().out
    results = json.loads(printed)
    assert sorted(views) == [False, True] and printed.count("\n") == 1
    assert json.loads((out / "results.json").read_text()) == results
    assert len(list((out / "nodes").iterdir())) == USERS
    cohorts = made(tmp_path / "cohorts", from_table(table(shared)))
    assert len(list((tmp_path / "cohorts" / "nodes").iterdir())) < USERS
    assert len(cohorts["releases"]) == len(ARMS) * (2 * USERS + TEST)
    assert bits(out, results) == cohorts
    for arm in results["arms"]:
        assert arm["users"] == arm["delivered"] == USERS and arm["dropped"] == arm["errors"] == {}
        assert 0 <= arm["accuracy"] <= 1 and 0 <= arm["accuracy_clean_test"] <= 1
    prior = results["arms"][1]
    assert (prior["epsilon"], prior["label_epsilon"], prior["budget"]["label_epsilon"]) == (10.0, 3.0, 3.0)
    assert 0 < prior["bytes_per_user"] <= 40 and results["arms"][0]["budget"]["worst_case_epsilon"] == "inf"
    with pytest.raises(UserError, match=r"does not see .*nowhere"):
        run_on_flower(lambda grid: None, nodes=1, folder=tmp_path / "nowhere", address=cluster)
    check_address(cluster)


def seen_where_answered(folder: Path) -> list[bool]:
    """Of each machine of the cluster that runs actors which answer for nodes: whether it sees the folder."""
    import ray
    from ray._private import state
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors = [about for about in state.actors().values() if about["State"] == "ALIVE"]
    machines = {about["Address"]["NodeID"] for about in actors if about["ActorClassName"] == "ClientAppActor"}
    where = [NodeAffinitySchedulingStrategy(machine, soft=False) for machine in machines]
    looks = [ray.remote(os.path.exists).options(num_cpus=0, scheduling_strategy=each) for each in where]
    return ray.get([look.remote(str(folder)) for look in looks])


@pytest.mark.parametrize("arguments", [["demo"], ["--resume", "run"]])
def test_a_cluster_that_is_not_there_ends_in_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulations.transport.engine._REACH", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ports = ((free_port(), "Connection refused"), (silent.getsockname()[1], "timed out"), (70000, "HOST:PORT"))
        for port, words in ports:
            assert cli.main(["simulate", *arguments, "--ray-address", f"127.0.0.1:{port}"]) == 2
            output = capsys.readouterr()
            assert output.out == "" and not list(tmp_path.iterdir())
            assert f"--ray-address 127.0.0.1:{port}: " in output.err and words in output.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"numpy": "1.0"}, "has numpy 1.0, and this one 2.0: install the same"),
        ({"numpy": None}, "does not have numpy; install there what is installed here: numpy 2.0"),
    ],
)
def test_what_keeps_a_machine_of_a_cluster_from_answering(change: dict[str, Any], words: str | None) -> None:
    assert machine_fault({"numpy": "2.0", "scipy": "1.0"} | change, {"numpy": "2.0", "scipy": "1.0"}) == words


# --- workers that die, nodes that hang, commands that are killed


def faulty(fault: Callable[[], object]) -> ClientApp:
    """The client's app, whose node 1 does something else with a request of training."""
    app = ClientApp()

    @app.query("release")
    def answer(asked: Message, context: Context) -> Message:
        training = str(asked.content["request.about"]["stage"]).startswith("train")
        if training and context.node_config["partition-id"] == 1:
            fault()
        return release(asked, context)

    return app


@pytest.mark.slow
def test_a_worker_that_dies_and_a_client_that_raises_cost_their_own_users_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = tmp_path / "deaths"

    def die() -> None:
        with deaths.open("a") as file:
            file.write("x")
        os._exit(1)

    def engine(job: Callable[..., Any], *, nodes: int, folder: Path) -> Any:
        records_path(folder / "2", "train").write_bytes(b"HIV positive")
        return run_on_flower(job, nodes=nodes, folder=folder, app=faulty(die))

    without_work(monkeypatch)
    arm = {"name": "a", "embedding": PURKAYASTHA, "label": {"mechanism": "identity"}}
    (tmp_path / "out").mkdir()
    (line,) = run(experiment(arm, population={"timeout": 120.0}), tmp_path / "out", engine=engine)["arms"]
    assert deaths.read_text() == "xx", "a worker must die on the message, and the one that tries it again"
    assert line["users"] == 60 and line["delivered"] == 40 and line["dropped"] == {}
    assert line["errors"] == {"a worker died, or no reason was given": 1, REFUSALS["failed"][1]: 1}
    assert "HIV" not in json.dumps(json_ready(line)) and line["accuracy"] is not None
    rows = ledger_rows(tmp_path / "out" / "nodes", "a")
    assert {r.user % 6 for r in rows if r.stage == "train"} == {0, 3, 4, 5}
    assert {r.user % 6 for r in rows if r.stage == "test"} == {0, 1, 2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.soak
def test_a_node_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage goes on at its timeout, and the run ends though the node never does. Each of its messages keeps a
    process busy, so there are more of these. Flower gives a message to the process that was free last, so a first
    message to each node holds its process until all have started: time counts from then on."""
    started, actors = tmp_path / "started", 4
    started.mkdir()
    app = ClientApp()

    @app.query("release")
    def answer(asked: Message, context: Context) -> Message:
        if not asked.content:
            (started / str(os.getpid())).touch()
            while len(os.listdir(started)) < actors:
                time.sleep(0.1)
        return release(asked, context)

    def engine(job: Callable[[Any], Any], *, nodes: int, folder: Path) -> Any:
        def later(grid: Any) -> Any:
            nothing = [Message(RecordDict(), node, MESSAGE_TYPE) for node in grid.get_node_ids()]
            assert all(answer.has_error() for answer in grid.send_and_receive(nothing, timeout=SECONDS))
            (folder / "1" / "node.json").unlink()
            os.mkfifo(folder / "1" / "node.json")  # whoever opens it waits for a writer
            return job(grid)

        return run_on_flower(later, nodes=nodes, folder=folder, actors=actors, app=app)

    without_work(monkeypatch)
    (tmp_path / "run").mkdir()
    whole = study(4, users=64, timeout=30.0)  # in each of two stages enough users for a batch
    line = run(replace(whole, arms=whole.arms[:1]), tmp_path / "run", engine=engine)["arms"][0]
    assert line["delivered"] == 48 and line["errors"] == {"no answer": 3}


def stop(process: subprocess.Popen[str], moment: str, how: signal.Signals) -> str:
    """Send the signal once a line on stderr has the words; return what comes after, when the process has ended."""
    assert process.stderr is not None
    assert any(moment in line for line in process.stderr), f"ended before {moment!r}"
    process.send_signal(how)
    rest = process.stderr.read()
    process.wait(SECONDS)
    assert how != signal.SIGTERM or process.returncode == 143, rest
    return rest


KILLED = [
    ("starting Flower on Ray", signal.SIGKILL),  # all is handed out
    ("no noise: stage train-1", signal.SIGKILL),  # within an arm
    ("no noise: stage train-2", signal.SIGINT),
    ("no noise: stage train-2", signal.SIGTERM),
    ("prior: learning maps", signal.SIGKILL),  # between two arms
]


@pytest.mark.slow
@pytest.mark.soak
def test_a_command_that_is_killed_at_several_moments_goes_on(shared: Path, tmp_path: Path) -> None:
    asked = table(shared, population={"users": 48, "users-per-node": 6})
    (tmp_path / "small.toml").write_text(tomli_w.dumps(asked), encoding="utf-8")
    whole = made(tmp_path / "whole", from_table(asked))

    def command(*arguments: str) -> subprocess.Popen[str]:
        words, pipe = [sys.executable, "-m", "sottovoce.cli.main", "simulate", *arguments], subprocess.PIPE
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)

    arguments: tuple[str, ...] = ("small.toml", "--out", "run")
    for moment, how in KILLED:
        words = stop(command(*arguments), moment, how)
        arguments = ("--resume", "run")
        if how != signal.SIGKILL:
            assert re.search("continue it with: sottovoce simulate --resume run\n", words) and "Stack" not in words
    assert not (tmp_path / "run").exists() and (tmp_path / "run.part").is_dir()
    last = command("--resume", "run", "--json")
    printed, words = last.communicate(timeout=SECONDS)
    assert last.returncode == 0 and "finished before: no noise" in words
    assert bits(tmp_path / "run", json.loads(printed)) == whole
    assert not (tmp_path / "run.part").exists()
