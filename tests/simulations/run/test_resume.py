"""A run that is killed at any moment goes on: nobody is charged twice, no release is lost, the result is the same.

Processes are killed for good (SIGKILL), in a fork; the nodes' side runs in the same process (see LocalGrid). The same
on Flower and Ray is in test_scale.py.
"""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import SafetensorError

from client.node import write_node
from client.store.ledger import Ledger, LedgerError
from mechanisms.messages.refusals import REFUSALS
from simulations.errors import Interrupted, UserError
from simulations.experiment import Experiment, load, slug, to_toml
from simulations.run import journal as resume
from simulations.run.journal import Journal, refuse_unfinished, resumed, started
from simulations.run.run import run
from tests.support.stand_in_gpu import stand_in_gpu
from tests.support.studies import (
    NODES,
    PRIOR,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    USERS,
    LocalGrid,
    experiment,
    in_process,
    ledger_rows,
    without_work,
)

ARMS = [
    {"name": "first", "embedding": PURKAYASTHA, "label": RANDOMIZED},
    {"name": "second", "embedding": PURKAYASTHA, "label": PRIOR},
]
STUDY = experiment(*ARMS, training={"label-stages": 2})
STAGES = 3
HINT = "sottovoce simulate --resume"

pytestmark = pytest.mark.usefixtures("one_thread")  # they fork


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which `run` finds made-up embeddings."""
    monkeypatch.chdir(tmp_path)
    without_work(monkeypatch)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that nobody disturbs leaves."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        without_work(patch)
        begin(folder / "run")
    return left(folder / "run")


def at_work(part: Path, study: Experiment, grid: Any = LocalGrid) -> None:
    """`run` on a grid in this process, and a report of one file."""
    results = run(study, part, engine=partial(in_process, grid=grid))
    (part / "results.json").write_text(json.dumps(results))


def begin(out: Path, grid: Any = LocalGrid, study: Experiment = STUDY) -> None:
    with started(out, to_toml(study)) as part:
        at_work(part, study, grid)


def go_on(out: Path, grid: Any = LocalGrid) -> None:
    with resumed(out) as part:
        assert load(part / "experiment.toml") == STUDY
        at_work(part, STUDY, grid)


def charges(out: Path, arm: str) -> list[tuple[Any, ...]]:
    """What the arm's ledgers hold, but for the times."""
    rows = ledger_rows(out / "nodes", arm)
    return [(r.user, r.record, r.stage, r.channel, r.digest, r.guarantee, r.epsilon, r.delta, r.payload) for r in rows]


def left(out: Path) -> dict[str, Any]:
    """Everything that must be the same, bit for bit: releases and charges, weights, lines but for their seconds."""
    results = json.loads((out / "results.json").read_text())
    rows = [(arm["name"], *charge) for arm in ARMS for charge in charges(out, arm["name"])]
    assert len(rows) == len(ARMS) * (2 * USERS + TEST)
    return {
        "rows": rows,
        "maps": [(out / "models" / slug(arm["name"]) / "maps.safetensors").read_bytes() for arm in ARMS],
        "lines": [{k: v for k, v in line.items() if k != "seconds"} for line in results["arms"]],
        "files": sorted(str(p.relative_to(out)) for p in out.rglob("*")),
    }


def killed_at(out: Path, where: str, count: int, doing: Callable[..., None] = begin) -> None:
    """Runs in a child process that SIGKILL ends when `where`, a function, is called for the count-th time."""
    module, _, name = where.rpartition(".")
    owner = __import__(module, fromlist=[name]) if not module.endswith(".Journal") else Journal
    real, calls = getattr(owner, name), [0]

    def dying(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    child = os.fork()
    if child == 0:
        try:
            setattr(owner, name, dying)
            doing(out)
        finally:
            os._exit(1)  # nobody has killed it
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


MOMENTS = [
    ("simulations.run.partition.write_node", 1),  # the hand-out, at its beginning and at its end
    ("simulations.run.partition.write_node", NODES),
    ("tests.support.studies.release", 3),  # mid-stage: some nodes have answered
    ("tests.support.studies.release", NODES + 2),  # in the second stage, which asks by the first one's model
    ("simulations.run.collect.shuffle", 1),  # all have answered, nothing has come of it
    ("simulations.run.journal.Journal.finish", 1),  # the model is saved, the arm is not finished
    ("tests.support.studies.release", STAGES * NODES + 1),  # between arms
    ("simulations.run.run.results", 1),  # all arms are finished, the report is not written
    ("simulations.run.journal._whole", 1),
    ("os.rename", 2),  # it has its name, and has not forgotten how it was made
]


@pytest.mark.parametrize(("where", "count"), MOMENTS)
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_happened(
    where: str, count: int, whole: dict[str, Any], place: Path
) -> None:
    out = place / "run"
    killed_at(out, where, count)
    before = {a["name"]: charges(place / "run.part", a["name"]) for a in ARMS}
    go_on(out)
    assert left(out) == whole
    for name, rows in before.items():  # what was charged before is there still
        assert set(rows) <= set(charges(out, name))
    assert [p.name for p in place.iterdir()] == ["run"]


def test_killed_while_it_forgets_how_it_was_made_it_is_finished(place: Path) -> None:
    killed_at(place / "run", "shutil.rmtree", 4)
    left(place / "run")
    refuse_unfinished(place / "run")
    assert "is finished already" in refusal(place / "run")


def test_arms_of_any_name_run_and_go_on(place: Path) -> None:
    """Names longer than a request's, and in other scripts: a file that is accepted runs to its end."""
    long = "Purkayastha, ε = 10 for each radian, label by randomized response, ε = 3"
    arms = [ARMS[0] | {"name": name} for name in ("p", long, f"{long}, again", "高斯", "مرحبا", "🙂")]
    study = experiment(*arms)
    out = place / "run"

    def begun(out: Path) -> None:
        begin(out, study=study)

    killed_at(out, "tests.support.studies.release", NODES * 5 + 1, begun)
    with resumed(out) as part:
        assert load(part / "experiment.toml") == study
        at_work(part, study)
    for arm in study.arms:
        assert len(charges(out, arm.name)) == 2 * USERS + TEST
        assert (out / "models" / slug(arm.name) / "maps.safetensors").is_file()


def test_it_may_be_killed_again_and_again(whole: dict[str, Any], place: Path) -> None:
    out = place / "run"
    killed_at(out, "tests.support.studies.release", 3)
    for count in (5, 2 * NODES + 1):
        killed_at(out, "tests.support.studies.release", count, go_on)
    go_on(out)
    assert left(out) == whole


def test_finished_arms_are_not_asked_again(place: Path) -> None:
    killed_at(place / "run", "tests.support.studies.release", STAGES * NODES + 1)
    grids: list[LocalGrid] = []

    def grid(nodes: int) -> LocalGrid:
        grids.append(LocalGrid(nodes))
        return grids[0]

    go_on(place / "run", grid)
    assert len(grids[0].sent) == STAGES * NODES


class Failing(LocalGrid):
    """Raises once so many messages have been answered."""

    def __init__(self, nodes: int, error: BaseException, after: int = NODES + 1) -> None:
        super().__init__(nodes)
        self.error, self.after = error, after

    def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
        answers = super().send_and_receive(list(messages)[: self.after - len(self.sent)], timeout=timeout)
        if len(self.sent) >= self.after:
            raise self.error
        return answers


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (KeyboardInterrupt(), Interrupted, "interrupted; what users have released is kept in"),
        (OSError(errno.ENOSPC, "No space left on device"), UserError, "(is the disk full?); make room, then continue"),
        (SafetensorError("I/O error: No space left (os error 28)"), UserError, "(is the disk full?); make room, then"),
        (ValueError("m' is wrong"), UserError, "m' is wrong; what users have released is kept in"),
    ],
)
def test_what_stops_a_run_says_how_to_go_on(
    error: BaseException, raised: type[Exception], words: str, whole: dict[str, Any], place: Path
) -> None:
    with pytest.raises(raised) as stopped:
        begin(place / "run", lambda nodes: Failing(nodes, error))
    assert words in str(stopped.value) and "\n" not in str(stopped.value)
    assert isinstance(error, ValueError) or f"{HINT} run" in str(stopped.value)
    assert [p.name for p in place.iterdir()] == ["run.part"]
    go_on(place / "run")
    assert left(place / "run") == whole


class Killed(LocalGrid):
    """From the second request on, no process is left that runs a node."""

    def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
        self.lost = set(self.get_node_ids()) if self.sent else set()
        return super().send_and_receive(messages, timeout=timeout)


def test_a_run_whose_nodes_are_all_gone_stops(whole: dict[str, Any], place: Path) -> None:
    """In place of results of 0 users; what was released is kept."""
    said = rf"^stage \S+: none of {NODES} nodes answered: no answer; was memory short"
    with pytest.raises(UserError, match=said) as stopped:
        begin(place / "run", Killed)
    assert "what users have released is kept in" in str(stopped.value) and "\n" not in str(stopped.value)
    go_on(place / "run")
    assert left(place / "run") == whole


def test_a_bug_keeps_what_was_released_too(place: Path) -> None:
    with pytest.raises(RuntimeError) as stopped:
        begin(place / "run", lambda nodes: Failing(nodes, RuntimeError("x")))
    assert any(HINT in note for note in stopped.value.__notes__)


@pytest.mark.parametrize("error", [AssertionError(), KeyError("x"), TypeError("x"), ZeroDivisionError("x")])
def test_a_bug_that_comes_again_is_not_told_to_be_resumed(error: Exception, place: Path) -> None:
    with pytest.raises(type(error)) as stopped:
        begin(place / "run", lambda nodes: Failing(nodes, error))
    (note,) = stopped.value.__notes__
    assert "--resume" not in note and f"is kept in {place / 'run.part'}; resumed, the run would fail so again" in note


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_before_anything_is_released_nothing_is_left(
    error: BaseException, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(study: Experiment, **_: Any) -> Any:
        raise error

    monkeypatch.setattr("simulations.run.run.prepare", failing)
    with pytest.raises((ValueError, KeyboardInterrupt)) as stopped:
        begin(place / "deep" / "run")
    assert HINT not in str(stopped.value) and not list(place.iterdir())


# --- a full disk


def test_a_ledger_that_cannot_be_written_stops_the_run(
    whole: dict[str, Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, commits = Ledger.commit, [0]

    def full(self: Ledger, charges: Any) -> None:
        commits[0] += 1
        if commits[0] > NODES + 2:  # in the middle of the second stage
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise LedgerError("ledger: it cannot be used") from error
        real(self, charges)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", full)
        with pytest.raises(UserError, match=r"a node cannot write its ledger \(is the disk full\?\); make room, then"):
            begin(place / "run")
    assert commits[0] > NODES + 2
    go_on(place / "run")
    assert left(place / "run") == whole


class Limited(LocalGrid):
    """From the second stage on, the system lets no file of this process grow."""

    def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
        if self.sent:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, and does not kill
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return super().send_and_receive(messages, timeout=timeout)


def test_files_that_may_not_grow_stop_the_run(whole: dict[str, Any], place: Path) -> None:
    """What a full disk does to SQLite, done to a child process by the system's own limit."""

    def limited(out: Path) -> None:
        with pytest.raises(UserError, match=rf"a node cannot write its ledger \(is the disk full\?\).*{HINT} run"):
            begin(out, Limited)
        os.kill(os.getpid(), signal.SIGKILL)  # as it should have been

    killed_at(place / "run", "simulations.run.run.results", 1, limited)
    assert [p.name for p in place.iterdir()] == ["run.part"]
    go_on(place / "run")
    assert left(place / "run") == whole


def test_a_damaged_ledger_is_its_own_users_loss_alone(place: Path) -> None:
    def grid(nodes: int) -> LocalGrid:
        (place / "run.part" / "nodes" / "2" / "ledger-first.sqlite").write_bytes(b"not a ledger" * 1000)
        return LocalGrid(nodes)

    begin(place / "run", grid)
    line = json.loads((place / "run" / "results.json").read_text())["arms"][0]
    assert line["errors"] == {REFUSALS["failed"][1]: STAGES} and line["delivered"] == USERS - USERS // NODES


# --- what is refused


def unfinished(place: Path) -> Path:
    with pytest.raises(Interrupted):
        begin(place / "run", lambda nodes: Failing(nodes, KeyboardInterrupt()))
    return place / "run.part"


def refusal(out: Path) -> str:
    with pytest.raises(UserError) as refused:
        go_on(out, lambda nodes: pytest.fail("users were asked"))
    line = str(refused.value)
    assert "\n" not in line
    return line


def test_where_there_is_nothing_to_go_on_with(place: Path) -> None:
    assert "there is no unfinished run of that name" in refusal(place / "run")
    (place / "run.part").mkdir()
    assert "was stopped before it had begun; delete" in refusal(place / "run")
    (place / "run.part").rmdir()
    begin(place / "run")
    assert "is finished already" in refusal(place / "run")


def test_the_unfinished_folder_itself_may_be_named(whole: dict[str, Any], place: Path) -> None:
    go_on(unfinished(place))
    assert left(place / "run") == whole


@pytest.mark.parametrize(
    ("file", "key", "words"),
    [
        ("code.json", "code", "was started by other code of Sottovoce"),
        ("data.json", "training texts", "training texts are not what the run was started with"),
        ("data.json", "the encoder", "the encoder is not what the run was started with"),
        ("data.json", "public embeddings", "public embeddings are not what"),
        ("data.json", "users' records", "users' records are not what"),
        ("asked/first/train-1.json", "embedding", "asking again would charge them twice"),
    ],
)
def test_what_would_give_other_bits(file: str, key: str, words: str, place: Path) -> None:
    path = unfinished(place) / "unfinished" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "another"}))
    before = ledger_rows(place / "run.part" / "nodes", "first")
    with pytest.raises(UserError, match=words):
        go_on(place / "run")
    assert ledger_rows(place / "run.part" / "nodes", "first") == before


def test_models_trained_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun on a GPU goes on on one; a run that trains no such model may go on anywhere."""
    paper = experiment(ARMS[0], training={"protocol": "paper", "acknowledge-not-private": True})
    monkeypatch.delenv("SOTTOVOCE_DEVICE", raising=False)
    with stand_in_gpu():
        there, anywhere = (resume.trained_on(each.encoder, each.training) for each in (paper, STUDY))
    monkeypatch.setenv("SOTTOVOCE_DEVICE", "cpu")
    here, nowhere = (resume.trained_on(each.encoder, each.training) for each in (paper, STUDY))
    assert (there, here, anywhere, nowhere) == ("cuda", "cpu", None, None)
    Journal(place).check_code(there)
    Journal(place).check_code(there)
    with pytest.raises(UserError) as refused:
        Journal(place).check_code(here)
    assert str(refused.value) == (
        f"{place}: was started with models trained on cuda, and here they would be on cpu (SOTTOVOCE_DEVICE): no "
        "result would be the same; resume where the run was started, or run the experiment anew into another folder"
    )


def test_other_packages(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished(place)
    monkeypatch.setattr(resume, "version", lambda name: "0.0.1")
    line = refusal(place / "run")
    assert "was started with flwr " in line and "and here is 0.0.1" in line


def test_a_run_that_an_older_version_began(place: Path) -> None:
    """As 0.1 left one: its file of packages has the same form."""
    path = unfinished(place) / "unfinished" / "code.json"
    known = json.loads(path.read_text())
    known["versions"]["sottovoce"] = "0.1.0"
    path.write_text(json.dumps(known))
    assert "was started with sottovoce 0.1.0, and here is " in refusal(place / "run")


def test_a_run_that_is_at_work(place: Path) -> None:
    with started(place / "run", to_toml(STUDY)):
        assert "another process is at work on this run" in refusal(place / "run")
        with pytest.raises(UserError, match="another run into it is at work"), started(place / "run", to_toml(STUDY)):
            pytest.fail("it was started twice")
        (place / "run.part" / "results.json").write_text("{}")
    assert [p.name for p in (place / "run").iterdir()]


def test_another_run_into_an_unfinished_one(place: Path) -> None:
    unfinished(place)
    with pytest.raises(UserError, match=f"unfinished run; continue it with: {HINT} run, or name another"):
        begin(place / "run")
    for folder in ("run", "run.part"):
        with pytest.raises(UserError, match=f"the run is not finished; continue it with: {HINT} run"):
            refuse_unfinished(place / folder)
    refuse_unfinished(place / "another")
    go_on(place / "run")
    refuse_unfinished(place / "run")


def test_relative_paths_lead_where_they_led(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished(place)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    with resumed(Path("../run")) as part:
        assert Path.cwd() == place
        at_work(part, STUDY)
    assert Path.cwd() == place / "elsewhere" and (place / "run" / "results.json").exists()


def test_the_nodes_get_what_they_need_again_and_keep_their_ledgers(
    whole: dict[str, Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine, of other cores, or a cache that was emptied: users stay where their ledgers are."""
    part = unfinished(place)
    for file in [*part.glob("nodes/*/node.json"), *part.glob("nodes/*/*.npy"), *part.glob("nodes/*/*.texts")]:
        file.unlink()
    seven = SimpleNamespace(**vars(math) | {"ceil": lambda value: 7})
    monkeypatch.setattr("simulations.run.partition.math", seven)
    go_on(place / "run")
    assert left(place / "run") == whole


def test_a_half_written_hand_out_is_not_used(place: Path) -> None:
    killed_at(place / "run", "simulations.run.partition.write_node", 3)
    part = place / "run.part"
    assert (part / "nodes.part").is_dir() and not (part / "nodes").exists()
    write_node(part / "nodes.part" / "77", seed=1, arms={})
    go_on(place / "run")
    assert len(list((place / "run" / "nodes").iterdir())) == NODES
