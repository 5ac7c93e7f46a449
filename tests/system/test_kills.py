"""A device killed at every write and every send, with and without a power cut; full and read-only disks; old copies."""

from __future__ import annotations

import json
import os
import resource
import shutil
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
from tests.support.clients import context, make_node, message, request
from tests.support.kill_points import traceable
from tests.support.kills import SCENARIOS
from tests.support.paths import ROOT

USERS = 8

needs_trace = pytest.mark.skipif(not traceable(), reason="needs a Linux where a process may trace its own fork")


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
    (name,) = [n for n, (code, text) in REFUSALS.items() if (code, text) == (answer.error.code, answer.error.reason)]
    return name


def charged(device: Path) -> int:
    with load_node(device).ledger("") as ledger:
        return len(ledger.rows())


def test_a_full_disk(device: Path) -> None:
    """Files may not grow, as on a full disk: nothing is charged, nothing leaves, and the device goes on afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 3000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            assert ask("more") == "storage"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert charged(device) == 2 * USERS
    assert ask("more") is None
    assert charged(device) == 4 * USERS


def test_a_disk_that_is_full_for_the_witness_alone(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged, nobody is told, and the very releases are sent when there is room again."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("client.store.rollback_guard.advance", full)
        assert ask("more") == "storage"
        assert ask("more") == "storage"  # not even repeated, while the witness is behind
    assert charged(device) == 4 * USERS
    assert ask("more") is None
    assert charged(device) == 4 * USERS


@pytest.mark.parametrize("byte", (0, 3_331, 13_324, 26_648))
def test_a_byte_that_changed_is_noticed_or_harmless(device: Path, byte: int) -> None:
    """Wherever it lies: the device refuses, or what it says of the past is what was."""
    with load_node(device).ledger("") as ledger:
        before = ledger.rows()
    path = device / "ledger.sqlite"
    data = bytearray(path.read_bytes())
    data[byte % len(data)] ^= 0x20
    path.write_bytes(data)
    try:
        with load_node(device).ledger("") as ledger:
            rows = ledger.rows()
            assert [(r.user, r.record, r.payload) for r in rows] == [(r.user, r.record, r.payload) for r in before]
    except LedgerError as error:
        assert "\n" not in str(error)
        assert ask("more") in ("failed", "storage")


# -- old copies -------------------------------------------------------------------------------------------------------


@pytest.fixture
def copies(device: Path) -> tuple[Path, Path]:
    """The ledger and an older copy of it."""
    path, copy = device / "ledger.sqlite", device / "copy"
    shutil.copy(path, copy)
    assert ask("more") is None
    return path, copy


def test_a_copy_that_went_on_by_itself_is_noticed(device: Path, copies: tuple[Path, Path], tmp_path: Path) -> None:
    """The same number of commits, other commits: as where two devices were given one ledger."""
    path, copy = copies
    other = tmp_path / "other"
    shutil.copytree(device, other)
    shutil.copy(copy, other / "ledger.sqlite")
    (other / ".ledger.sqlite.made").unlink()
    with Ledger(other / "ledger.sqlite", durable=False) as ledger, ledger.exclusive():
        ledger._connection.execute("INSERT INTO commits (time, nonce) VALUES (0, ?)", (bytes(16),))
        ledger._connection.execute("COMMIT")
    shutil.copy(other / "ledger.sqlite", path)
    with pytest.raises(LedgerError, match="another ledger"):
        Ledger(path)


def test_a_fresh_ledger_in_its_place_is_noticed(device: Path, tmp_path: Path) -> None:
    Ledger(tmp_path / "fresh" / "ledger.sqlite").close()
    shutil.copy(tmp_path / "fresh" / "ledger.sqlite", device / "ledger.sqlite")
    assert ask("more") == "failed"


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
    with load_node(device).ledger("") as ledger:
        spent = ledger.spent(np.arange(USERS, dtype=np.int64)).epsilon
    monkeypatch.setattr("client.store.ledger.time.time", lambda: 1.0)
    assert ask("train") is None and charged(device) == 2 * USERS  # still known, at no cost
    assert ask("more") is None
    with load_node(device).ledger("") as ledger:
        assert ledger.spent(np.arange(USERS, dtype=np.int64)).epsilon == pytest.approx(2 * spent)
        assert sorted({(r.commit, r.time) for r in ledger.rows()})[-1] == (3, 1)
    assert ask("more") is None
