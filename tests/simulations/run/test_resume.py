"""A run that is killed at any moment goes on: nobody is charged twice, no release is lost, the result is the same.

Processes are killed for good (SIGKILL), in a fork; the nodes' side runs in the same process (see LocalGrid). The same
on Flower and Ray is in test_ray.py.
"""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mechanisms.messages.refusals import REFUSALS
from simulations.errors import Interrupted, UserError
from simulations.experiment import Experiment, load
from simulations.run import journal
from simulations.run.journal import Journal, refuse_unfinished, resumed, started
from simulations.run.prepare import Prepared
from simulations.run.run import run
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
    prepared,
    without_work,
)
from tests.support.texts import RANDOM, SANTEXT, text_prepared, text_study

ARMS = [
    {"name": "first", "embedding": PURKAYASTHA, "label": RANDOMIZED},
    {"name": "second", "embedding": PURKAYASTHA, "label": PRIOR},
]
STUDY = experiment(*ARMS, training={"label-stages": 2})
STAGES = 3
HINT = "sottovoce simulate --resume"
FEW = 3
Doing = Callable[[Path], None]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: a fork would wait for ever for the threads of OpenMP that it does not inherit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


def study_of(protocol: str, shared: Path) -> Experiment:
    if protocol == "release-once":
        return STUDY
    arms = {"name": "one", "text": SANTEXT}, {"name": "two", "text": RANDOM, "label": RANDOMIZED}
    people = {"users": FEW * 8, "users-per-node": 8}
    return text_study(shared, *arms, training={"protocol": protocol, "epochs": 1}, population=people)


def made_up(study: Experiment, shared: Path) -> Prepared:
    return prepared(study) if study == STUDY else text_prepared(study, shared)


@pytest.fixture
def place(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which `run` finds made-up data and accounts for nothing."""
    monkeypatch.chdir(tmp_path)
    without_work(monkeypatch, made=partial(made_up, shared=shared))
    return tmp_path


def at_work(part: Path, study: Experiment, grid: Any = LocalGrid) -> None:
    """`run` on a grid in this process, and a report of one file."""
    results = run(study, part, engine=partial(in_process, grid=grid))
    (part / "results.json").write_text(json.dumps(results, default=str))


def begin(out: Path, grid: Any = LocalGrid, study: Experiment = STUDY) -> None:
    with started(out) as part:
        at_work(part, study, grid)


def go_on(out: Path, grid: Any = LocalGrid) -> None:
    with resumed(out) as part:
        at_work(part, load(part / "experiment.toml"), grid)


def charges(out: Path, arm: str) -> list[tuple[Any, ...]]:
    """What the arm's ledgers hold, but for the times."""
    rows = ledger_rows(out / "nodes", arm)
    return [(r.user, r.record, r.stage, r.channel, r.digest, r.guarantee, r.epsilon, r.delta, r.payload) for r in rows]


def left(out: Path) -> dict[str, Any]:
    """Return what must be the same: charges with their releases, and each file but for seconds, dates and ledgers."""
    result: dict[str, Any] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        if name == "results.json":
            results = json.loads(path.read_text())
            result[name] = {key: value for key, value in results.items() if key not in ("seconds", "arms")}
            result["lines"] = [{k: v for k, v in line.items() if k != "seconds"} for line in results["arms"]]
        else:
            result[name] = None if name.startswith("nodes") or name.endswith("README.md") else path.read_bytes()
    for arm in load(out / "experiment.toml").arms:
        result[f"charges of {arm.name}"] = charges(out, arm.name)
    return result


Whole = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def whole_of(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What a run of a protocol leaves that nobody disturbs."""
    known: dict[str, dict[str, Any]] = {}

    def whole(protocol: str) -> dict[str, Any]:
        if protocol not in known:
            with pytest.MonkeyPatch.context() as patch:
                folder = tmp_path_factory.mktemp(protocol)
                patch.chdir(folder)
                without_work(patch, made=partial(made_up, shared=shared))
                begin(folder / "run", study=study_of(protocol, shared))
            known[protocol] = left(folder / "run")
        return known[protocol]

    return whole


@pytest.fixture
def whole(whole_of: Whole) -> dict[str, Any]:
    result = whole_of("release-once")
    assert all(len(result[f"charges of {arm['name']}"]) == 2 * USERS + TEST for arm in ARMS)
    return result


def in_a_child(where: str, count: int, what: Callable[[], None], doing: Callable[[], None]) -> tuple[int, str]:
    """doing(), in a fork, with what() done before the count-th call of `where`, a function: how the fork ended, and the
    line of its UserError."""
    module, _, name = where.rpartition(".")
    owner: Any = Journal if module.endswith(".Journal") else __import__(module, fromlist=[name])
    real, calls = getattr(owner, name), [0]

    def disturbed(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == count:
            what()
        return real(*arguments, **named)

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            setattr(owner, name, disturbed)
            doing()
            os.write(writing, b"it went well")
        except UserError as error:
            os.write(writing, str(error).encode())
        except BaseException as error:
            os.write(writing, f"raised {error!r}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        words = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), words


def killed_at(out: Path, where: str, count: int, doing: Doing = begin) -> None:
    """Run in a child process that SIGKILL ends when `where`, a function, is called for the count-th time."""
    ended, words = in_a_child(where, count, lambda: os.kill(os.getpid(), signal.SIGKILL), partial(doing, out))
    assert ended == -signal.SIGKILL, words


MOMENTS = [
    ("release-once", "simulations.run.partition.write_node", NODES),  # the hand-out
    ("release-once", "tests.support.studies.release", NODES + 2),  # in the second stage, by the first one's model
    ("release-once", "simulations.run.collect.shuffle", 1),  # all have answered, nothing has come of it
    ("release-once", "simulations.run.journal.Journal.finish", 1),  # the model is saved, the arm is not finished
    ("release-once", "simulations.run.run.results", 1),  # all arms are finished, the report is not written
    ("release-once", "simulations.run.journal._whole", 1),
    ("release-once", "os.rename", 2),  # it has its name, and has not forgotten how it was made
    ("sanitized-text", "server.training.end_to_end.train", 2),  # the first arm is finished
]


@pytest.mark.parametrize(("protocol", "where", "count"), MOMENTS)
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_happened(
    protocol: str, where: str, count: int, whole_of: Whole, shared: Path, place: Path
) -> None:
    out, study = place / "run", study_of(protocol, shared)
    killed_at(out, where, count, partial(begin, study=study))
    before = {arm.name: charges(place / "run.part", arm.name) for arm in study.arms}
    go_on(out)
    assert left(out) == whole_of(protocol)
    for name, rows in before.items():  # what was charged before is there still
        assert set(rows) <= set(charges(out, name))
    assert [p.name for p in place.iterdir()] == ["run"]


class Failing(LocalGrid):
    """Grid that raises an error once this many messages have been answered."""

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
        (ValueError("m' is wrong"), UserError, "m' is wrong; what users have released is kept in"),
    ],
)
def test_an_error_says_how_to_go_on(
    error: BaseException, raised: type[Exception], words: str, whole: dict[str, Any], place: Path
) -> None:
    with pytest.raises(raised) as stopped:
        begin(place / "run", lambda nodes: Failing(nodes, error))
    assert words in str(stopped.value) and "\n" not in str(stopped.value)
    assert isinstance(error, ValueError) or f"{HINT} run" in str(stopped.value)
    assert [p.name for p in place.iterdir()] == ["run.part"]
    go_on(place / "run" if isinstance(error, ValueError) else place / "run.part")  # either name
    assert left(place / "run") == whole


class Killed(LocalGrid):
    """From the second request on, no process is left that runs a node."""

    def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
        self.lost = set(self.get_node_ids()) if self.sent else set()
        return super().send_and_receive(messages, timeout=timeout)


def test_a_run_whose_nodes_are_all_gone_stops(whole: dict[str, Any], place: Path) -> None:
    """In place of results of 0 users; what was released is kept."""
    text = rf"^stage \S+: none of {NODES} nodes answered: no answer; was memory short"
    with pytest.raises(UserError, match=text) as stopped:
        begin(place / "run", Killed)
    assert "what users have released is kept in" in str(stopped.value) and "\n" not in str(stopped.value)
    go_on(place / "run")
    assert left(place / "run") == whole


@pytest.mark.parametrize(("error", "again"), [(RuntimeError("x"), False), (KeyError("x"), True)])
def test_a_bug_keeps_what_was_released_and_one_that_comes_again_is_not_resumed(
    error: Exception, again: bool, place: Path
) -> None:
    with pytest.raises(type(error)) as stopped:
        begin(place / "run", lambda nodes: Failing(nodes, error))
    (note,) = stopped.value.__notes__
    assert (HINT in note) == (not again) == ("would fail so again" not in note) and (place / "run.part").is_dir()


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


def full(limit: int) -> None:
    """The system lets no file of this process grow beyond so many bytes: as a full disk, within a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, and does not kill
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def test_a_full_disk_under_a_ledger_stops_a_run_that_goes_on_later(whole: dict[str, Any], place: Path) -> None:
    doing = partial(begin, place / "run")
    ended, words = in_a_child("tests.support.studies.release", NODES + 1, partial(full, 0), doing)
    assert ended == 0 and "\n" not in words
    assert "a node cannot write its ledger (is the disk full?); make room, then continue it with: " in words
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


def test_a_run_that_counts_as_begun_has_its_experiment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it is killed: `begun` asks for the code, and `resumed` reads both."""
    original, seen = Journal.check_code, []

    def noted(self: Journal, trained_on: str | None = None) -> None:
        original(self, trained_on)
        seen.append(load(self.folder.parent / "experiment.toml") == STUDY)

    monkeypatch.setattr(Journal, "check_code", noted)
    begin(place / "run")
    assert seen == [True]


def test_where_there_is_nothing_to_go_on_with(place: Path) -> None:
    assert "there is no unfinished run of that name" in refusal(place / "run")
    (place / "run.part").mkdir()
    assert "was stopped before it had begun; delete" in refusal(place / "run")
    (place / "run.part").rmdir()
    begin(place / "run")
    assert "is finished already" in refusal(place / "run")


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("code.json", "the code of Sottovoce"),
        ("code.json", "numpy"),
        ("data.json", "training texts"),
        ("data.json", "the encoder"),
        ("data.json", "public embeddings"),
        ("data.json", "users' records"),
        ("asked/first/train-1.json", "embedding"),
    ],
)
def test_what_would_give_other_bits_is_refused_before_users_are_asked(file: str, key: str, place: Path) -> None:
    path = unfinished(place) / "unfinished" / file
    record = json.loads(path.read_text())
    assert key in record
    path.write_text(json.dumps(record | {key: "another"}))
    before = ledger_rows(place / "run.part" / "nodes", "first")
    words = "charge them twice" if file.startswith("asked") else f"was started with other values of {key}"
    with pytest.raises(UserError, match=words):
        go_on(place / "run")
    assert ledger_rows(place / "run.part" / "nodes", "first") == before


def test_models_trained_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun on a GPU goes on on one; a run that trains no such model may go on anywhere."""
    paper = experiment(ARMS[0], training={"protocol": "paper", "acknowledge-not-private": True})
    with monkeypatch.context() as patch:
        patch.delenv("SOTTOVOCE_DEVICE", raising=False)
        patch.setattr("torch.cuda.is_available", lambda: True)
        patch.setattr("torch.cuda.current_device", lambda: 0)
        there, anywhere = (journal.trained_on(study.encoder, study.training) for study in (paper, STUDY))
    assert (there, anywhere) == ("cuda", None)
    Journal(place).check_code(there)
    Journal(place).check_code(there)
    with pytest.raises(UserError, match=r"SOTTOVOCE_DEVICE\) \(cuda then, cpu now\)"):
        Journal(place).check_code("cpu")


def test_a_run_that_is_at_work(place: Path) -> None:
    with started(place / "run"):
        assert "another process is at work on this run" in refusal(place / "run")
        with pytest.raises(UserError, match="another run into it is at work"), started(place / "run"):
            pytest.fail("it was started twice")


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
