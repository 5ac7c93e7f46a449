"""Ways that train on texts, and the published procedure, killed at any moment; and files that may not grow while models
are saved. What has been done is kept, and the result is the same to the byte, but for seconds."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from simulations.errors import UserError
from simulations.experiment import Experiment, load, to_toml
from simulations.run.journal import Journal, resumed, started
from simulations.run.prepare import Prepared
from simulations.run.run import run
from tests.simulations.run.test_resume import HINT
from tests.support import studies
from tests.support.studies import LAPLACE, PURKAYASTHA, RANDOMIZED, ledger_rows
from tests.support.texts import RANDOM, SANTEXT, text_prepared, text_study

ARMS = {
    "sanitized-text": [{"name": "one", "text": SANTEXT}, {"name": "two", "text": RANDOM, "label": RANDOMIZED}],
    "paper": [{"name": "one", "embedding": PURKAYASTHA}, {"name": "two", "embedding": LAPLACE, "label": RANDOMIZED}],
}
WAYS, NODES = list(ARMS), 3
Doing = Callable[[], None]

pytestmark = pytest.mark.usefixtures("one_thread")  # they fork


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


def study(way: str, shared: Path) -> Experiment:
    more = {"acknowledge-not-private": True} if way == "paper" else {}
    people = {"users": NODES * 8, "users-per-node": 8}
    return text_study(shared, *ARMS[way], training={"protocol": way, "epochs": 1} | more, population=people)


def made_up(asked: Experiment, shared: Path) -> Prepared:
    """Reviews; the published procedure looks at the width of the encoder alone."""
    ready = text_prepared(asked, shared)
    width = np.zeros((len(ready.public.texts), 32), np.float32) if asked.training.way == "paper" else None
    return ready._replace(public=replace(ready.public, embeddings=width))


@pytest.fixture
def place(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return without_work(tmp_path, shared, monkeypatch)


def without_work(folder: Path, shared: Path, patch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which `run` finds made-up reviews, and accounts for nothing."""
    patch.chdir(folder)
    studies.without_work(patch, "paper", made=partial(made_up, shared=shared))
    return folder


def at_work(part: Path, asked: Experiment) -> None:
    results = run(asked, part, engine=studies.in_process)
    (part / "results.json").write_text(json.dumps(results, default=str))


def begin(place: Path, way: str, shared: Path) -> None:
    asked = study(way, shared)
    with started(place / "run", to_toml(asked)) as part:
        at_work(part, asked)


def go_on(place: Path) -> None:
    with resumed(place / "run") as part:
        asked = load(part / "experiment.toml")
        at_work(part, asked)


def left(out: Path) -> dict[str, Any]:
    """Every file to the byte, but for seconds and for what a ledger says of times."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        if name.startswith("nodes"):
            found[name] = None
        elif name == "results.json":
            results = json.loads(path.read_text())
            found[name] = {key: value for key, value in results.items() if key not in ("seconds", "arms")}
            found["lines"] = [{k: v for k, v in line.items() if k != "seconds"} for line in results["arms"]]
        elif name.endswith("README.md"):
            found[name] = None  # a card says when it was made
        else:
            found[name] = path.read_bytes()
    for arm in ("one", "two"):
        rows = ledger_rows(out / "nodes", arm)
        found[f"ledger of {arm}"] = [(r.user, r.record, r.stage, r.channel, r.digest, r.payload) for r in rows]
    return found


Whole = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def whole(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What a run of this way leaves that nobody disturbs."""
    known: dict[str, dict[str, Any]] = {}

    def made(way: str) -> dict[str, Any]:
        if way not in known:
            with pytest.MonkeyPatch.context() as patch:
                folder = without_work(tmp_path_factory.mktemp(way), shared, patch)
                begin(folder, way, shared)
            known[way] = left(folder / "run")
        return known[way]

    return made


def in_a_child(where: str, count: int, what: Doing, doing: Doing) -> tuple[int, str]:
    """doing(), in a fork, with what() done before the count-th call of `where`, a function: how the fork ended, and the
    line that a UserError said."""
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
    with open(reading, "rb") as said:
        words = said.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), words


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


slow, soak = (pytest.mark.slow,), (pytest.mark.slow, pytest.mark.soak)
MOMENTS = [
    ("sanitized-text", "tests.support.studies.release", NODES + 3, ()),  # mid-stage: some have answered
    ("sanitized-text", "server.training.on_text.fit", 2, soak),
    ("sanitized-text", "simulations.run.run.write_answers", 1, soak),
    ("paper", "server.training.paper.fit", 2, ()),  # the first arm is finished
    ("paper", "simulations.run.run.write_answers", 1, soak),
    ("paper", "simulations.run.run.results", 1, soak),
]


@pytest.mark.parametrize(("way", "where", "count"), [pytest.param(*moment[:3], marks=moment[3]) for moment in MOMENTS])
def test_a_way_that_is_killed_goes_on_to_the_same_bytes(
    way: str, where: str, count: int, whole: Whole, place: Path, shared: Path
) -> None:
    ended, _ = in_a_child(where, count, killed, partial(begin, place, way, shared))
    assert ended == -signal.SIGKILL and [p.name for p in place.iterdir()] == ["run.part"]
    go_on(place)
    assert left(place / "run") == whole(way)


# --- a full disk


def full(limit: int) -> None:
    """The system lets no file of this process grow beyond so many bytes: as a full disk, within a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, and does not kill
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


FULL = [
    ("paper", "simulations.run.run.save_model", 2, 3000, ()),  # in the middle of the weights
    *(
        (way, where, 2, at, soak)
        for way in WAYS
        for where in (
            "simulations.run.run.save_model",
            "simulations.run.run.write_answers",
            "simulations.run.journal.Journal.finish",
        )
        for at in (0, 100)
    ),
]


@pytest.mark.parametrize(("way", "where", "count", "limit"), [pytest.param(*case[:4], marks=case[4]) for case in FULL])
def test_a_disk_that_is_full_while_a_model_is_saved(
    way: str, where: str, count: int, limit: int, whole: Whole, place: Path, shared: Path
) -> None:
    """One line, which says how to go on; nothing that is half of something is taken for whole."""
    ended, said = in_a_child(where, count, partial(full, limit), partial(begin, place, way, shared))
    assert ended == 0 and "\n" not in said
    assert "(is the disk full?); make room, then continue it with: " in said and said.endswith(f"{HINT} run")
    assert [p.name for p in place.iterdir()] == ["run.part"]
    go_on(place)
    assert left(place / "run") == whole(way)


@pytest.mark.parametrize("limit", [0, 140, pytest.param(2000, marks=soak)])
def test_a_disk_that_is_full_before_anything_is_released_is_left_as_it_was(
    limit: int, place: Path, shared: Path
) -> None:
    """At 140 bytes an array is written in part."""
    doing = partial(begin, place, "sanitized-text", shared)
    ended, said = in_a_child("simulations.run.run.hand_out", 1, partial(full, limit), doing)
    assert ended == 0 and said.endswith("(is the disk full?); make room, then run it again") and "\n" not in said
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        OSError("1000 requested and 21 written"),
        Exception("No space left on device (os error 28)"),
        SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
    ],
)
def test_libraries_have_words_of_their_own_for_a_full_disk(
    error: Exception, place: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy, tokenizers, safetensors."""

    def failing(*arguments: Any, **named: Any) -> Any:
        raise error

    monkeypatch.setattr("simulations.run.run.hand_out", failing)
    with pytest.raises(UserError, match=r"\(is the disk full\?\); make room, then run it again$"):
        begin(place, "sanitized-text", shared)
    assert not list(place.iterdir())
