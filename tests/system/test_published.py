"""Runs and studies whose folder is behind a URL: the same bits, wherever they go on, and nobody asked behind it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.shard import Shard
from simulations.errors import UserError
from simulations.experiment import load, slug, to_toml
from simulations.output.remote import Remote
from simulations.run.published import working_folder
from simulations.run.simulate import resume, simulate
from simulations.sweep import run as running
from simulations.sweep import worker
from simulations.sweep.run import Job
from sottovoce.cli import main as cli
from tests.support.studies import (
    ENCODER,
    PRIOR,
    PURKAYASTHA,
    RANDOMIZED,
    LocalGrid,
    experiment,
    ledger_rows,
    prepared,
    run_in_process,
)

STUDY = experiment(
    {"name": "randomized", "embedding": PURKAYASTHA, "label": RANDOMIZED},
    {"name": "prior", "embedding": PURKAYASTHA, "label": PRIOR},
    training={"label-stages": 2},
)
STAGES = 6  # each arm: two of training, one of asking


class Lost(BaseException):
    """The machine is gone: nothing of this process is done any more."""


@pytest.fixture(autouse=True)
def _in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    run_in_process(monkeypatch)
    monkeypatch.setattr("simulations.run.run.prepare", lambda study, **_: prepared(study))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run into a folder, and its bits."""
    out = tmp_path_factory.mktemp("here") / "run"
    with pytest.MonkeyPatch.context() as patch:
        run_in_process(patch)
        patch.setattr("simulations.run.run.prepare", lambda study, **_: prepared(study))
        simulate(STUDY, out)
    yield out, bits(out)


def bits(out: Path) -> dict[str, Any]:
    results = json.loads((out / "results.json").read_text())
    return {
        "releases": {
            (arm.name, r.user, r.record, r.stage, r.channel): (r.digest, r.payload, r.epsilon)
            for arm in STUDY.arms
            for r in ledger_rows(out / "nodes", arm.name)
        },
        "weights": [(out / "models" / slug(arm.name) / "maps.safetensors").read_bytes() for arm in STUDY.arms],
        "lines": [{k: v for k, v in line.items() if k != "seconds"} for line in results["arms"]],
    }


def asking(patch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[str]:
    """Calls before(i) before users are asked for the i-th time; returns a list of the stages that they answer."""
    send, answered = LocalGrid.send_and_receive, []

    def asked(grid: LocalGrid, messages: Any, *, timeout: float) -> Any:
        sent = list(messages)
        before(len(answered))
        about = sent[0].content["request.about"]
        answered.append(f"{about['arm']}/{about['stage']}")
        return send(grid, sent, timeout=timeout)

    patch.setattr(LocalGrid, "send_and_receive", asked)
    return answered


def test_a_run_at_a_url_is_the_run_and_what_users_are_asked_is_there_first(
    tmp_path: Path, here: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, seen = tmp_path / "there" / "run", []

    def before(number: int) -> None:
        names = {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()}
        asked = [name for name in names if name.startswith("unfinished/asked/")]
        seen.append((len(asked), len([name for name in names if name.endswith(".sqlite")])))
        assert not [n for n in names if n.startswith("nodes/") and not n.endswith(".sqlite")]  # nobody's texts, so far

    asking(monkeypatch, before)
    results = simulate(STUDY, there.as_uri())
    assert [asked for asked, _ in seen] == [1, 2, 3, 4, 5, 6] and [n for _, n in seen] == [0, 6, 6, 6, 12, 12]
    assert bits(there) == here[1] and not list(Path().rglob("*.*")) and len(results["arms"]) == 2
    held = [{p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} for out in (there, here[0])]
    assert held[0] == held[1]
    for node in (there / "nodes").iterdir():
        mine, same = (Shard.load(out / "nodes" / node.name, "train") for out in (there, here[0]))
        assert list(mine.texts) == list(same.texts)
        rows = np.arange(len(mine))
        np.testing.assert_array_equal(mine.embeddings(ENCODER).take(rows), same.embeddings(ENCODER).take(rows))
    with pytest.raises(UserError, match="is there already and not empty"):
        simulate(STUDY, there.as_uri())
    with pytest.raises(UserError, match="is finished already"):
        resume(there.as_uri())


@pytest.mark.parametrize(("at", "disk"), [(0, "lost"), (2, "kept"), (4, "lost")])
def test_a_run_goes_on_from_its_url_on_any_machine(
    at: int, disk: str, tmp_path: Path, here: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "there").as_uri()

    def die(number: int) -> None:
        if number == at:
            raise Lost

    with pytest.MonkeyPatch.context() as patch:
        asking(patch, die)
        with pytest.raises(Lost):
            simulate(STUDY, url)
    assert not (tmp_path / "there" / "results.json").exists()
    if disk == "lost":
        (tmp_path / "two").mkdir()
        monkeypatch.chdir(tmp_path / "two")
    if at == 0:  # nobody had been asked: nothing is kept, as of a run into a folder
        assert not Remote(url).files()
        simulate(STUDY, url)
    else:
        with pytest.raises(UserError, match=r"holds an unfinished run; continue it with: .* --resume file://"):
            simulate(STUDY, url)
        again = asking(monkeypatch, lambda number: None)
        resume(url if disk == "lost" else working_folder(url))
        assert len(again) == STAGES - at // 3 * 3  # a finished arm's users are not asked again
    assert bits(tmp_path / "there") == here[1] and not list((tmp_path / "two").rglob("*.*"))


@pytest.mark.slow
def test_a_machine_that_is_cut_off_leaves_what_was_there_when_users_were_asked_last(
    tmp_path: Path, here: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what is done where it dies is put there: its users answer a stage that the URL has no ledger of."""
    there = tmp_path / "there"
    snapshots: list[Path] = []

    def before(number: int) -> None:
        shutil.copytree(there, tmp_path / f"snapshot-{number}")
        snapshots.append(tmp_path / f"snapshot-{number}")

    with pytest.MonkeyPatch.context() as patch:
        asking(patch, before)
        simulate(STUDY, there.as_uri())
    for number, snapshot in enumerate(snapshots[1::3]):
        place = tmp_path / f"machine-{number}"
        place.mkdir()
        monkeypatch.chdir(place)
        resume(snapshot.as_uri())
        assert bits(snapshot) == here[1]


def test_whose_mark_is_gone_asks_nobody_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"

    def taken(number: int) -> None:
        if number == 1:
            (there / "unfinished" / "mark.json").write_text('{"url": "", "mark": "another"}')

    answered = asking(monkeypatch, taken)
    with pytest.raises(UserError, match="another process goes on with this run, and this one stops"):
        simulate(STUDY, there.as_uri())
    assert len(answered) == 2 and json.loads((there / "unfinished" / "mark.json").read_text())["mark"] == "another"
    with pytest.raises(UserError, match="another process has gone on with the run since"):
        resume(there.as_uri())


def test_a_run_that_fails_before_anybody_is_asked_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UserError("no engine")

    monkeypatch.setattr("simulations.run.simulate.run_on_flower", fail)
    with pytest.raises(UserError, match="no engine"):
        simulate(STUDY, (tmp_path / "there").as_uri())
    assert not [path for path in (tmp_path / "there").rglob("*") if path.is_file()] and not list(Path().rglob("*.*"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://run", "memory: keeps nothing"),
        ("https://host/run", "https: keeps nothing"),
        ("nope://host/run", "Protocol not known: nope"),
        ("s3://bucket/run", "needs another package: pip install s3fs"),
        ("gs://bucket/run", "needs another package: pip install gcsfs"),
        ("sftp://host/run", "needs another package: pip install paramiko"),
    ],
)
def test_what_no_folder_can_be_is_said_in_one_line(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("s3fs", "gcsfs", "paramiko"):
        monkeypatch.setitem(sys.modules, package, None)
    Path("small.toml").write_text(to_toml(STUDY), encoding="utf-8")
    others = (["simulate", "--resume"], ["summarize"], ["report"], ["attack"]) if url.startswith("s3") else ()
    for command in (["simulate", "small.toml", "--out"], *others):
        assert cli.main([*command, url]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and words in said.err, said.err
    assert [path.name for path in Path().iterdir()] == ["small.toml"]


def test_commands_read_a_run_at_its_url(
    tmp_path: Path, here: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    shutil.copytree(here[0], there)
    said = []
    for place in (str(here[0]), there.as_uri()):
        assert cli.main(["summarize", place]) == 0
        assert cli.main(["budget", "ladder", "--ledger", f"{place}/nodes/0/ledger-prior.sqlite"]) == 0
        said.append(capsys.readouterr().out.replace(place, "PLACE"))
    assert said[0] == said[1]
    assert cli.main(["report", there.as_uri()]) == 0 and "<html" in Path("report.html").read_text(encoding="utf-8")
    assert cli.main(["attack", there.as_uri(), "--attack", "presence", "--limit", "5"]) in (0, 2)
    for command in ("report", "summarize", "attack"):
        capsys.readouterr()
        assert cli.main([command, (tmp_path / "nothing").as_uri()]) == 2
        assert capsys.readouterr().err.endswith("/nothing: holds no finished run\n")


@pytest.mark.slow
def test_a_study_at_a_url_goes_on_anywhere_and_ends_with_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("small.toml").write_text(to_toml(STUDY), encoding="utf-8")
    Path("s.toml").write_text('name = "s"\nexperiment = "small.toml"\nseeds = [1, 2, 3]\n', encoding="utf-8")
    begun: list[str] = []

    def workers(jobs: Sequence[Job], at_once: int) -> Iterator[str]:
        for job in jobs:
            begun.append(job.name)
            worker._run(job.file, job.url or str(job.out), 1)
            yield job.name

    monkeypatch.setattr(running, "processes", workers)
    assert cli.main(["sweep", "s.toml", "--out", "folder"]) == 0
    begun.clear()
    url = (tmp_path / "there").as_uri()
    with pytest.MonkeyPatch.context() as patch:
        asking(patch, lambda number: (_ for _ in ()).throw(Lost()) if number == STAGES + 2 else None)
        with pytest.raises(Lost):
            cli.main(["sweep", "s.toml", "--out", url])
    assert [name[-1] for name in begun] == ["1", "2"]
    (tmp_path / "two").mkdir()
    for file in ("small.toml", "s.toml"):
        shutil.copy(file, tmp_path / "two")
    folder = Path("folder").resolve()
    monkeypatch.chdir(tmp_path / "two")
    begun.clear()
    assert cli.main(["sweep", "s.toml", "--out", url]) == 0
    assert [name[-1] for name in begun] == ["2", "3"]
    tidy = [
        [line for line in (at / "tidy.csv").read_text().splitlines() if ",seconds," not in line]
        for at in (folder, tmp_path / "there")
    ]
    assert tidy[0] == tidy[1] and len(tidy[0]) > 10
    begun.clear()
    assert cli.main(["sweep", "s.toml", "--out", url]) == 0 and begun == []
    assert cli.main(["report", url]) == 0
    Path("small.toml").write_text(to_toml(load("small.toml", ["data.public-size=91"])), encoding="utf-8")
    assert cli.main(["sweep", "s.toml", "--out", url]) == 2
