"""A device's noise comes from the operating system alone, and no draw is ever made twice."""

from __future__ import annotations

import ast
import copy
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.app import NODES, release
from client.node import load_node, write_node
from mechanisms import streams
from mechanisms.messages.wire import reply_from_record
from mechanisms.streams import SecureStreams, SecureUniforms
from tests.support.clients import OPEN, context, make_node, message, request, with_prior
from tests.support.paths import ROOT

USERS = 8


def draws(source: SecureUniforms, k: int = 4) -> list[float]:
    return source.uniform(USERS, k).ravel().tolist()


def uniforms() -> SecureUniforms:
    ids = np.arange(USERS, dtype=np.int64)
    return SecureStreams().rows(ids, ids, stage="s", channel="c")


def in_a_fork(source: SecureUniforms) -> list[float]:
    """What a fork of this process draws from a source that was made before it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, np.array(draws(source)).tobytes())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    data = os.read(reading, 2**16)
    os.close(reading)
    os.close(writing)
    return np.frombuffer(data).tolist()


def test_forks_do_not_repeat_each_other() -> None:
    """52 random bits each: that any two of these 160 agree by chance has probability below 3e-12."""
    source = uniforms()
    seen = draws(source)
    for _ in range(3):
        seen += in_a_fork(source)
    seen += draws(source)
    assert len(seen) == 5 * 4 * USERS == len(set(seen))


def test_a_new_process_does_not_repeat_the_last_one() -> None:
    program = (
        "import numpy as np; from mechanisms.streams import SecureStreams; i = np.arange(8);"
        "print(*SecureStreams().rows(i, i, stage='s', channel='c').uniform(8, 4).ravel())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    said = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert len(said[0]) == 32 and not set(said[0]) & set(said[1])


@pytest.mark.parametrize("snapshot", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_snapshot_of_the_memory_holds_no_draws_to_come(snapshot) -> None:
    """There is nothing in the source that a restored snapshot could draw from again."""
    source = uniforms()
    draws(source)
    assert vars(source) == {"_rows": USERS} and vars(SecureStreams()) == {}
    restored = snapshot(source)
    assert not set(draws(source)) & set(draws(restored))


def test_a_snapshot_of_the_disk_draws_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices restored from one image answer the same new question with noise of their own."""
    monkeypatch.setenv(NODES, str(tmp_path))
    make_node(tmp_path / "0", range(USERS), seed=None)
    assert release(message(request(arm="")), context(0)).has_content()
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    answers = [reply_from_record(release(message(request(arm="", stage="new")), context(i)).content) for i in (0, 1)]
    first, second = (next(iter(a.releases[0].payload.values())) for a in answers)
    assert (first != second).any(axis=1).all()


def test_seeds_of_global_generators_change_nothing() -> None:
    seen = []
    for _ in range(2):
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        seen += draws(uniforms())
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("make", [request, with_prior])
def test_all_of_a_devices_noise_is_the_operating_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make) -> None:
    """If it gave the same bytes again, two devices would draw alike: nothing else is mixed in, and nothing is missing.
    That it is asked once for every call, for as many bytes as are used, leaves nothing over."""
    asked: list[int] = []

    def constant(n: int) -> bytes:
        asked.append(n)
        return np.random.default_rng(len(asked)).bytes(n)

    monkeypatch.setenv(NODES, str(tmp_path))
    answers = []
    for i in (0, 1):
        make_node(tmp_path / str(i), range(USERS), seed=None)
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(streams.os, "urandom", constant)
            answers.append(reply_from_record(release(message(make(arm="")), context(i)).content))
    for one, other in zip(answers[0].releases, answers[1].releases, strict=True):
        for name in one.payload:
            np.testing.assert_array_equal(one.payload[name], other.payload[name])
    drawn = [n for n in asked if n != 16]  # the ledger's nonces are from there as well
    assert drawn and all(n % (8 * USERS) == 0 for n in drawn)


def test_a_device_whose_generator_fails_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(n: int) -> bytes:
        raise NotImplementedError("no source of randomness")

    monkeypatch.setenv(NODES, str(tmp_path))
    make_node(tmp_path / "0", range(USERS), seed=None)
    load_node(tmp_path / "0").ledger("").close()
    with monkeypatch.context() as patch:
        patch.setattr(streams.os, "urandom", fails)
        assert release(message(request(arm="")), context(0)).has_error()
    with load_node(tmp_path / "0").ledger("") as ledger:
        assert ledger.rows() == []


def test_only_a_simulations_node_makes_seeded_streams() -> None:
    """By name: in client/, the seeded source is made in one place, where node.json says that this is a simulation."""
    makers = []
    for path in sorted((ROOT / "client").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "SimulationStreams" in ast.unparse(node.func):
                makers.append(path.name)
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("np.random"):
                pytest.fail(f"{path.name}: {ast.unparse(node)}")
    assert makers == ["node.py"]


@pytest.mark.parametrize("run_config", [{"seed": 1}, {"randomness": "seeded"}, {"simulation": "1"}, {"out": "."}])
def test_what_a_server_configures_does_not_reach_the_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_config: dict
) -> None:
    """A run's configuration comes from the server: it names neither seed nor source, nor another folder."""
    nodes = tmp_path / "device"
    monkeypatch.setenv(NODES, str(nodes))
    monkeypatch.chdir(tmp_path)
    make_node(tmp_path / "nodes" / "0", range(USERS))  # a simulation lies about
    answers = []
    for i in (0, 1):
        make_node(nodes / str(i), range(USERS), seed=None)
        given = release(message(request(arm="")), context(i, **run_config))
        answers.append(reply_from_record(given.content).releases[0].payload["z"])
    assert (answers[0] != answers[1]).any(axis=1).all()
    assert release(message(request()), context(0, **run_config)).has_error()  # nor the simulation's arm


def test_a_device_has_a_total(tmp_path: Path) -> None:
    """Else a server may ask, within each record's limits, about as many records as there are."""
    write_node(tmp_path, policy=replace(OPEN, total=math.inf))
    with pytest.raises(ValueError, match=r"node\.json: a device's policy needs a finite total"):
        load_node(tmp_path)
    write_node(tmp_path, seed=1, arms={"a": replace(OPEN, total=math.inf)})
    assert load_node(tmp_path).simulated
