"""The same seed and the same embeddings give the same releases and the same weights, bit for bit: whatever the number
of nodes, of processes that answer for them and of machines, and whoever was killed meanwhile."""

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
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Message, RecordDict

from server.query import MESSAGE_TYPE
from simulations.errors import UserError
from simulations.experiment import Experiment, load, slug
from simulations.run.run import run
from simulations.transport.engine import check_address, machine_fault, run_on_flower
from sottovoce.cli import main as cli
from tests.support.paths import ROOT
from tests.support.studies import (
    PRIOR,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    experiment,
    in_process,
    ledger_rows,
    prepared,
)
from tests.support.tiny_models import tiny_bert

pytestmark = pytest.mark.xdist_group("ray")  # Ray takes all cores: one of these at a time

ARMS = [
    {"name": "randomized", "embedding": PURKAYASTHA, "label": RANDOMIZED},
    {"name": "prior", "embedding": PURKAYASTHA, "label": PRIOR},
]
USERS = 128
SECONDS = 480.0  # for what takes some on an idle machine


def study(nodes: int, users: int = USERS, **sections: Any) -> Experiment:
    people = {"users": users, "users-per-node": -(-users // nodes), "late": 0.1, "dropout": 0.1}
    return experiment(*ARMS, population=people, training={"label-stages": 2}, **sections)


def bits(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Releases, weights and lines of the table, without what differs between two runs of the same: times."""
    return {
        "releases": {
            (arm["name"], r.user, r.record, r.stage, r.channel): (r.digest, r.payload)
            for arm in ARMS
            for r in ledger_rows(out / "nodes", arm["name"])
        },
        "weights": [(out / "models" / slug(a["name"]) / "maps.safetensors").read_bytes() for a in ARMS],
        "lines": [{k: v for k, v in line.items() if k != "seconds"} for line in results["arms"]],
    }


def made(out: Path, asked: Experiment, engine: Callable[..., Any], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr("simulations.run.run.prepare", lambda asked, **_: prepared(asked))
    out.mkdir()
    return bits(out, run(asked, out, engine=engine))


def in_this_process(out: Path, asked: Experiment) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        return made(out, asked, in_process, patch)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All users on one node, in this process."""
    return in_this_process(tmp_path_factory.mktemp("one") / "run", study(1))


@pytest.mark.parametrize("nodes", [8, pytest.param(64, marks=pytest.mark.soak)])
def test_any_number_of_nodes(nodes: int, one: dict[str, Any], tmp_path: Path) -> None:
    assert in_this_process(tmp_path / "run", study(nodes)) == one
    assert len(list((tmp_path / "run" / "nodes").iterdir())) == nodes
    assert len(one["releases"]) > len(ARMS) * (1.5 * USERS + TEST)


# --- Flower on Ray


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actors", "nodes"), [pytest.param(*each, marks=pytest.mark.soak) for each in ((1, 64), (2, 8), (4, 1))]
)
def test_any_number_of_processes(
    actors: int, nodes: int, one: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = partial(run_on_flower, actors=actors)
    assert made(tmp_path / "run", study(nodes), engine, monkeypatch) == one


# --- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster of two nodes of one core each, on this machine; a cluster of others is left alone.

    The second one sees an empty folder where the tests' folders are, as another machine would.
    """
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    assert ray is not None
    hide = 'mount -t tmpfs none "$0" && exec "$@"'
    hiding = ["unshare", "--mount", "sh", "-c", hide, str(tmp_path_factory.getbasetemp())]
    if subprocess.run([*hiding, "true"], capture_output=True).returncode:
        hiding[1:1] = ["--user", "--map-root-user"]  # for who is not root
        if subprocess.run([*hiding, "true"], capture_output=True).returncode:
            pytest.skip("a folder cannot be hidden from a process here: unshare(2) is not permitted")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A folder of its own, or whoever starts Ray on this machine meanwhile would join; the names of sockets are short.
    folder = Path("/tmp") / f"sottovoce-{os.getpid()}"
    quiet = ("--num-cpus=1", "--disable-usage-stats", "--block")
    head = [ray, "start", "--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false", *quiet]
    started = []
    try:
        for number, command in enumerate((head, [*hiding, ray, "start", f"--address=127.0.0.1:{port}", *quiet]), 1):
            # In a session of its own, so that all that it starts, and nothing else, can be stopped.
            started.append(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL))
            wait(lambda: reached(f"127.0.0.1:{port}"))
            wait(lambda number=number: machines(f"127.0.0.1:{port}") == number)
        yield f"127.0.0.1:{port}"
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
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError:
        return 0
    try:
        return sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()


def reached(address: str) -> bool:
    try:
        check_address(address)
    except UserError:
        return False
    return True


def wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_a_cluster_whose_machines_share_no_folder_gives_the_same_and_is_left_running(
    cluster: str, one: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[bool] = []  # of each machine that has answered for nodes: whether it sees the nodes' folders

    def engine(job: Callable[[Any], Any], *, nodes: int, folder: Path) -> Any:
        def looking(grid: Any) -> Any:
            result = job(grid)
            views.extend(seen_where_answered(folder))
            return result

        return run_on_flower(looking, nodes=nodes, folder=folder, address=cluster)

    assert made(tmp_path / "run", study(8), engine, monkeypatch) == one
    assert sorted(views) == [False, True]
    with pytest.raises(UserError, match=r"does not see .*nowhere"):
        run_on_flower(lambda grid: None, nodes=1, folder=tmp_path / "nowhere", address=cluster)
    assert reached(cluster)


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


def test_a_cluster_that_is_not_there_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulations.transport.engine._REACH", 0.3)
    with socket.socket() as nobody, socket.socket() as other:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        other.bind(("127.0.0.1", 0))
        other.listen()  # and does not answer
        ports = (
            (nobody.getsockname()[1], "Connection refused"),
            (other.getsockname()[1], "timed out"),
            (70000, "HOST:PORT"),
        )
        for port, words in ports:
            address = f"127.0.0.1:{port}"
            for command in (["simulate", "demo"], ["simulate", "--resume", "run"]):
                assert cli.main([*command, "--ray-address", address]) == 2
                output = capsys.readouterr()
                assert output.out == "" and output.err.count("\n") == 1 and not list(tmp_path.iterdir())
                assert f"--ray-address {address}: " in output.err and words in output.err


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


# --- stopped, on Flower and Ray


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `sottovoce simulate` with the arguments, in a process of its own."""
    table = {
        "name": "small",
        "data": {"public-size": 80, "test-size": 40},
        "population": {"users": 48, "users-per-node": 6},
        "encoder": {"model": str(tiny_bert(tmp_path / "bert")), "max-length": 32},
        "training": {"label-stages": 2},
        "shuffle": {"minimum-users": 5},
        "policy": {"embedding": 32.0, "label": 3.0},
        "arm": ARMS,
    }
    (tmp_path / "small.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    code = str(ROOT)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": code}

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sottovoce.cli.main", "simulate", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def stop(process: subprocess.Popen[str], moment: str, how: signal.Signals, *, code: int | None = None) -> str:
    """Sends the signal once a line on stderr has the words; returns what comes after, and the process has ended, with
    this exit code if one is given."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if moment in line:
            process.send_signal(how)
            break
    else:
        pytest.fail(f"ended before {moment!r}: {''.join(said)}")
    rest = process.stderr.read()
    assert code in (None, process.wait(SECONDS)), rest
    process.wait(SECONDS)
    return rest


TOLD = r"^sottovoce: interrupted; .* continue it with: sottovoce simulate --resume run\n"
KILLED = [
    ("starting Flower on Ray", signal.SIGKILL),  # all is handed out
    ("randomized: stage train-1", signal.SIGKILL),  # within an arm
    ("randomized: stage train-2", signal.SIGINT),
    ("randomized: stage train-2", signal.SIGTERM),
    ("prior: learning maps", signal.SIGKILL),  # between two arms
]


@pytest.fixture
def whole(tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command's study gives that nobody stops, in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "whole").mkdir()
    results = run(load(tmp_path / "small.toml"), tmp_path / "whole", engine=in_process)
    return bits(tmp_path / "whole", results)


@pytest.mark.slow
@pytest.mark.soak
def test_a_command_that_is_killed_at_several_moments_goes_on(
    whole: dict[str, Any], command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    arguments: tuple[str, ...] = ("small.toml", "--out", "run")
    for moment, how in KILLED:
        said = stop(command(*arguments), moment, how, code=143 if how == signal.SIGTERM else None)
        arguments = ("--resume", "run")
        if how != signal.SIGKILL:
            assert re.search(TOLD, said, re.M) and "Stack trace" not in said and "SIGTERM" not in said
    assert not (tmp_path / "run").exists() and (tmp_path / "run.part").is_dir()
    last = command("--resume", "run", "--json")
    printed, said = last.communicate(timeout=SECONDS)
    assert last.returncode == 0 and "finished before: randomized" in said
    assert bits(tmp_path / "run", json.loads(printed)) == whole
    assert not (tmp_path / "run.part").exists()


@pytest.mark.slow
@pytest.mark.soak
def test_a_node_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage goes on at its timeout, and the run ends though the node never does. Each of its messages keeps a
    process busy, so there are more of these; all have started before time counts."""

    def engine(job: Callable[[Any], Any], *, nodes: int, folder: Path) -> Any:
        def later(grid: Any) -> Any:
            nothing = [Message(RecordDict(), node, MESSAGE_TYPE) for node in grid.get_node_ids()]
            assert all(answer.has_error() for answer in grid.send_and_receive(nothing, timeout=SECONDS))
            (folder / "1" / "node.json").unlink()
            os.mkfifo(folder / "1" / "node.json")  # whoever opens it waits for a writer
            return job(grid)

        return run_on_flower(later, nodes=nodes, folder=folder, actors=4)

    people = {"users": 32, "users-per-node": 8, "timeout": 8.0}
    asked = experiment(ARMS[0], population=people)
    monkeypatch.setattr("simulations.run.run.prepare", lambda asked, **_: prepared(asked))
    (tmp_path / "run").mkdir()
    line = run(asked, tmp_path / "run", engine=engine)["arms"][0]
    assert line["delivered"] == 24 and line["errors"] == {"no answer": 2}
