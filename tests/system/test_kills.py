"""A device killed at every write and every send, with and without a power cut; full disks, and a damaged witness."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from client.app import NODES, release
from client.node import load_node
from client.store.ledger import Ledger, LedgerError
from mechanisms.messages.refusals import REFUSALS
from tests.support.answers import ledger_rows
from tests.support.clients import context, make_node, message, request
from tests.support.kills import SCENARIOS, traceable
from tests.support.paths import ROOT

USERS = 8

needs_trace = pytest.mark.skipif(not traceable(), reason="needs Linux on x86_64 where a process may trace its own fork")


def kills(folder: Path, scenario: str, *options: str) -> Counter[str]:
    """How many kills of a scenario there were, by the call that was about to be made."""
    command = [sys.executable, "-m", "tests.support.kills", scenario, str(folder), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return Counter(json.loads(done.stdout))


@needs_trace
@pytest.mark.parametrize(
    "options",
    [
        ["first"],
        ["later", "--power", "--every=2"],
        ["records", "--every=2"],
        ["records", "--power", "--every=2"],
        ["shuffler", "--every=11"],
        ["shuffler", "--power", "--every=13"],
    ],
    ids=" ".join,
)
def test_killed_at_writes_and_sends(tmp_path: Path, options: list[str]) -> None:
    counts = kills(tmp_path, *options)
    assert counts.total() > 10 and {"fdatasync", "fsync"} & set(counts)


@needs_trace
@pytest.mark.slow
@pytest.mark.soak
def test_a_thousand_kills(tmp_path: Path) -> None:
    """At every write and every send of every scenario, with and without a power cut."""
    runs = [[name, *power] for name in SCENARIOS for power in ([], ["--power"])]
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda run: kills(tmp_path / "-".join(run), *run), runs))
    assert sum(count.total() for count in counts) >= 1000


# -- disks and files that fail --------------------------------------------------------------------------------------


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device that has answered once."""
    monkeypatch.setenv(NODES, str(tmp_path))
    node = make_node(tmp_path / "0", range(USERS), seed=None)
    assert ask("train") is None
    return node


def ask(stage: str) -> str | None:
    """The name of the refusal, or None where the device answers."""
    answer = release(message(request(arm="", stage=stage)), context(0))
    if answer.has_content():
        return None
    return next(name for name, sent in REFUSALS.items() if sent == (answer.error.code, answer.error.reason))


def test_a_full_disk(device: Path) -> None:
    """Files may not grow, as on a full disk: nothing is charged, nothing leaves, and the device goes on afterwards."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 3000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            assert ask("more") == "storage"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(ledger_rows(device, "")) == 2 * USERS
    assert ask("more") is None
    assert len(ledger_rows(device, "")) == 4 * USERS


def test_a_disk_that_is_full_for_the_witness_alone(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged, nobody is told, and the very releases are sent when there is room again."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("client.store.rollback_guard.advance", full)
        assert ask("more") == "storage"
        assert ask("more") == "storage"  # not even repeated, while the witness is behind
    assert len(ledger_rows(device, "")) == 4 * USERS
    assert ask("more") is None
    assert len(ledger_rows(device, "")) == 4 * USERS


@pytest.mark.parametrize("damage", [None, b"", b"commit 1", b"The last commit\ncommit -1 00\n"])
def test_a_witness_that_is_gone_or_damaged(device: Path, damage: bytes | None) -> None:
    path = device / ".ledger.sqlite.made"
    whole = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(LedgerError, match="is damaged" if damage is not None else "is gone"):
        Ledger(device / "ledger.sqlite")
    assert ask("train") == "failed"
    path.write_bytes(whole)
    assert ask("train") is None


def test_a_clock_that_is_set_back_changes_nothing(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spent() -> float:
        with load_node(device).ledger("") as ledger:
            return float(ledger.spent(np.arange(USERS, dtype=np.int64)).epsilon[0])

    before = spent()
    monkeypatch.setattr("client.store.ledger.time.time", lambda: 1.0)
    assert ask("train") is None and spent() == before  # still known, at no cost
    assert ask("more") is None and spent() == pytest.approx(2 * before)
    assert sorted({(row.commit, row.time) for row in ledger_rows(device, "")})[-1] == (3, 1)
