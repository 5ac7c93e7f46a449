"""The processes of a deployment: watched, found by the list in its folder, stopped; no stranger ever touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.errors import Interrupted, Terminated, UserError
from simulations.transport.signals import handling
from sottovoce.deployment import processes as parties
from sottovoce.deployment.processes import (
    COMMANDS,
    LIST,
    Parties,
    ending_on_signals,
    running,
    stop,
)

SLEEP = ["sleep", "600"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 1; done"]
#: A process that starts a party, says so, and waits to be killed.
STARTER = """
import sys, time
from pathlib import Path
from sottovoce.deployment.processes import Parties
started = Parties(Path(sys.argv[1]), show=lambda line: None)
started.start("sleeper", "sleeper", ["sh", "-c", "sleep 600 & wait"])
started.start("other", "other", ["sleep", "600"])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture()
def folder(tmp_path: Path) -> Iterator[Path]:
    """A deployment's folder; whatever of it is alive after the test is killed."""
    place = tmp_path / "deployment"
    place.mkdir()
    yield place
    for process in running(place):
        os.kill(process.pid, signal.SIGKILL)


@pytest.fixture()
def ours(folder: Path) -> Parties:
    return Parties(folder, show=print)


def until(true: object, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_command_is_shown_noted_and_logged_for_its_owner_alone(folder: Path) -> None:
    shows: list[str] = []
    ours = Parties(folder, show=shows.append)
    process = ours.start("the party", "place", ["sh", "-c", "echo $GIVEN; echo bad 1>&2"], {"GIVEN": "a b"})
    process.wait()
    assert shows == ["GIVEN='a b' sh -c 'echo $GIVEN; echo bad 1>&2'"]
    assert (folder / COMMANDS).read_text() == f"# the party\n{shows[0]}\n"
    assert (folder / "place" / "log").read_text() == "a b\nbad\n"
    assert json.loads((folder / LIST).read_text())["processes"][0]["party"] == "deploy up"
    ours.stop()


def test_progress_is_passed_on_and_nothing_else_is(ours: Parties, lines: list[str]) -> None:
    ours.start("the party", "place", ["sh", "-c", "echo '    0.2 s  half done'; echo noise; printf '    1.0 s  do'"])
    with pytest.raises(UserError):
        ours.until(lambda: False, what="never", seconds=20)
    assert lines == ["the party: half done"]
    ours.stop()


def test_a_party_that_ends_early_is_named_with_its_last_telling_line_and_its_log(folder: Path, ours: Parties) -> None:
    ours.start("good", "good", SLEEP)
    script = "echo starting; printf '\\033[91mERROR\\033[0m: no room at all\\n'; echo shutting down; exit 3"
    ours.start("bad", "bad", ["sh", "-c", script])
    with pytest.raises(UserError) as caught:
        ours.until(lambda: False, what="never", seconds=20)
    log = folder / "bad" / "log"
    assert str(caught.value) == f"bad has ended with exit code 3: ERROR: no room at all; its log is {log}"
    ours.stop()
    assert running(folder) == []


def test_a_party_whose_work_has_an_end_may_end(folder: Path, ours: Parties) -> None:
    ours.start("good", "good", SLEEP)
    ours.start("worker", "worker", ["true"])
    ours.finish("worker")
    ours.check()
    ours.start("worker", "worker", ["sh", "-c", "echo 'sottovoce: no data there; name it'; exit 2"])
    with pytest.raises(UserError, match=r"^worker has ended with exit code 2: no data there; name it; its log is "):
        ours.finish("worker")
    with pytest.raises(UserError, match="cannot be started: No such file"):
        ours.start("ghost", "ghost", [str(folder / "ghost-command")])
    ours.stop()


def test_one_that_ignores_sigterm_is_killed(folder: Path, ours: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parties, "GRACE", 0.3)
    process = ours.start("stubborn", "stubborn", STUBBORN)
    until(lambda: (folder / "stubborn" / "log").read_text() == "ready\n")
    ours.stop()
    assert process.returncode == -signal.SIGKILL
    assert running(folder) == []


def test_after_a_sigkill_of_the_one_that_started_them_all_are_found_and_stopped(folder: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(folder)], stdout=subprocess.PIPE)
    assert starter.stdout is not None and starter.stdout.readline() == b"ready\n"
    (group,) = (one.pid for one in running(folder) if one.party == "sleeper")
    assert [p.party for p in running(folder)] == ["deploy up", "sleeper", "other"]
    starter.kill()
    starter.wait()
    assert len(running(folder)) == 2
    assert len(stop(folder)) == 2 and running(folder) == [] and stop(folder) == []
    until(lambda: not there(group))  # nor the child of one


def there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_children_of_a_party_that_has_ended_are_stopped(folder: Path, ours: Parties) -> None:
    process = ours.start("parent", "parent", ["sh", "-c", "trap '' TERM; sleep 600 & exit 0"])
    until(lambda: running(folder) == [])
    assert there(process.pid)
    ours.stop()
    until(lambda: not there(process.pid))


def test_strangers_are_let_live(folder: Path, tmp_path: Path) -> None:
    """Of another folder, as in a copy; of a number that is used again; of another start of the machine."""
    strangers = [subprocess.Popen(SLEEP, start_new_session=True) for _ in range(3)]
    first, second, third = (parties._start(process.pid) for process in strangers)
    try:
        for place, starts in (
            (tmp_path / "elsewhere", [first, second, third]),
            (folder, [f"{first}0", "another boot 7", ""]),
        ):
            entries = [
                {"party": "shuffler", "pid": process.pid, "start": start}
                for process, start in zip(strangers, starts, strict=True)
            ]
            (folder / LIST).write_text(json.dumps({"folder": os.path.realpath(place), "processes": entries}))
            assert stop(folder) == []
        assert all(process.poll() is None for process in strangers)
    finally:
        for process in strangers:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt), (signal.SIGHUP, KeyboardInterrupt)],
)
def test_signals_end_a_deployment_in_good_order(number: int, raised: type[BaseException]) -> None:
    """Whoever ended it is told by the exit code: 143 after SIGTERM, 130 after Ctrl-C."""
    with handling({number: signal.SIG_IGN}):
        with pytest.raises(raised), ending_on_signals():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(signal.SIGINT)  # a second changes nothing
        assert signal.getsignal(number) is signal.SIG_IGN
    assert Interrupted("x", by=raised()).code == (143 if number == signal.SIGTERM else 130)


def test_a_second_signal_ends_at_once_what_may_be_killed() -> None:
    with pytest.raises(KeyboardInterrupt), ending_on_signals((signal.SIGINT, signal.SIGTERM), again=signal.SIG_DFL):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_port_is_none_that_connections_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits = tmp_path / "sys" / "net" / "ipv4" / "ip_local_port_range"
    limits.parent.mkdir(parents=True)
    monkeypatch.setattr(parties, "_PROC", tmp_path)
    limits.write_text("1500\t65535\n")
    assert all(1024 <= parties.free_port() < 1500 for _ in range(20))
    limits.write_text("1024\t65535\n")
    assert parties.free_port() >= 1024
    limits.unlink()
    assert parties.free_port() >= 1024
