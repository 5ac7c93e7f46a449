"""Every measured table of the pages is in the manifest, and one command makes them anew, job by job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import tomli_w
import typer

from simulations.commands import cli
from simulations.study.summary import summarize
from tests.docs.test_commands import fault
from tests.simulations.study.test_summary import arm, run
from tests.support.paths import ROOT
from tests.support.programs import program
from tests.support.tiny_models import tiny_bert
from tests.system.test_simulation import table as study

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
_RIGHT, _DECIMAL = re.compile(r"---:"), re.compile(r"(?<![\d.])0?\.\d{2,}")
PLAIN = {"name": "plain", "reference": True, "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 16}}


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return program("results")


def measured(text: str) -> list[str]:
    """What stands above each table that has a column of numbers, or numbers in half of its rows."""
    lines, found = text.split("\n"), []
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")]
    for at in starts:
        rows = []
        for line in lines[at + 2 :]:
            if not line.startswith("|"):
                break
            rows.append(line)
        if _RIGHT.search(lines[at + 1]) or 2 * sum(bool(_DECIMAL.search(row)) for row in rows) >= len(rows):
            found.append(lines[at - 2])
    return found


def test_every_measured_table_is_in_the_manifest_and_the_other_way_round(results: ModuleType) -> None:
    tables = results.manifest(ROOT / "docs" / "tables.toml")
    shown = [(page.name, line) for page in PAGES for line in measured(page.read_text(encoding="utf-8"))]
    assert len(shown) > 40, "tables are not found any more"
    assert sorted(shown) == sorted((table.page, results.marker(table.name)) for table in tables.values())


def test_every_command_of_the_manifest_is_there(results: ModuleType) -> None:
    root = typer.main.get_command(cli.app)
    for table in results.manifest(ROOT / "docs" / "tables.toml").values():
        assert table.hand or table.jobs
        assert [why for line in table.jobs if (why := fault(line, root)) is not None] == [], table.name
        assert table.hand or len(table.seeds) >= 5


MANIFEST = """
[[table]]
name = "tiny"
page = "page.md"
jobs = ["simulate {data}/tiny.toml --set seed={seed}"]
seeds = [1, 2]

[[table]]
name = "aside"
page = "page.md"
jobs = ["budget ladder", "simulate other --set seed={seed}"]
seeds = [7]
hand = "a reason"
"""
PAGE = "# A page\n\n<!-- table: tiny -->\n\n| arm | old |\n| --- | ---: |\n| a | 0.5 |\n\nWords | after it.\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tables.toml").write_text(MANIFEST)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


Runner = Callable[[Sequence[str], Path], int]


def pretending(said: list[list[str]], place: Path) -> Runner:
    """Simulates in no time, and summarizes in earnest."""

    def runner(words: Sequence[str], output: Path) -> int:
        said.append(list(words))
        if words[0] == "simulate":
            seed = int(next(word for word in words if word.startswith("seed=")).removeprefix("seed="))
            (place / "made").mkdir(exist_ok=True)
            run(place / "made", seed, 0, arms=[arm("a", 0.6 + seed / 10)]).rename(words[-1])
        output.write_text(summarize(words[1:]) if words[0] == "summarize" else "said\n")
        return 0

    return runner


def test_a_table_is_made_from_its_jobs_which_are_kept(results: ModuleType, place: Path) -> None:
    tables, said = results.manifest(place / "tables.toml"), []
    given = {"pages": place, "out": place / "out", "data": Path("data"), "runner": pretending(said, place)}
    assert results.make(tables["tiny"], **given)
    page = (place / "page.md").read_text()
    assert "| a | 0.750 ± 0.050 (0.010) | – |" in page and "old" not in page
    assert page.startswith(PAGE[:30]) and page.endswith("\n\nWords | after it.\n")
    assert said[0][:4] == ["simulate", "data/tiny.toml", "--set", "seed=1"] and len(said) == 3
    assert not results.make(tables["tiny"], **given)  # nothing to do but to look
    assert [words[0] for words in said[3:]] == ["summarize"]
    assert not results.make(tables["aside"], **given) and (place / "page.md").read_text() == page
    assert "2 of 2 jobs" in next(results.listed([tables["tiny"]], place / "out"))
    assert (place / "out" / "aside" / "summary-1.md").is_file()


def test_what_is_not_finished_is_done_again_and_no_more(results: ModuleType, place: Path) -> None:
    """A command that failed, one that is another now, a simulation that was stopped, one that nobody noted."""
    (table, _), said = results.manifest(place / "tables.toml").values(), []
    runner, out = pretending(said, place), place / "out"

    def failing(words: Sequence[str], output: Path) -> int:
        return 2 if "seed=2" in words else runner(words, output)

    given = {"pages": place, "out": out, "data": Path("data")}
    with pytest.raises(ValueError, match="ended with 2"):
        results.make(table, **given, runner=failing)
    assert (place / "page.md").read_text() == PAGE
    (out / "tiny" / "0-2" / "run.part").mkdir()
    resumed: list[list[str]] = []

    def resuming(words: Sequence[str], output: Path) -> int:
        if "--resume" not in words:
            return runner(words, output)
        resumed.append(list(words))
        return runner(["simulate", "seed=2", "--out", words[-1]], output)

    assert results.make(table, **given, runner=resuming) and len(resumed) == 1
    (out / "tiny" / "0-1" / "done.json").unlink()  # its run is there
    said.clear()
    results.make(table, **given, runner=runner)
    assert [words[0] for words in said] == ["summarize"]
    done = out / "tiny" / "0-1" / "done.json"
    done.write_text(json.dumps({"command": ["simulate", "older"], "seconds": 1}))
    (out / "tiny" / "0-1" / "command.json").write_text(json.dumps(["simulate", "older"]))
    said.clear()
    results.make(table, **given, runner=runner)
    assert [words[0] for words in said] == ["simulate", "summarize"]


def test_what_cannot_be_made_is_one_line(results: ModuleType, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table, _) = results.manifest(place / "tables.toml").values()
    with pytest.raises(ValueError, match="needs --data FOLDER"):
        results.make(table, pages=place, out=place / "out", data=None, runner=pretending([], place))
    for page in ("no marker\n", "<!-- table: tiny -->\n\nno table\n", "<!-- table: tiny -->\n"):
        with pytest.raises(ValueError, match="no table tiny"):
            results.replaced(page, "tiny", ["| a |"])
    with pytest.raises(ValueError, match="printed no table"):
        results.first_table("nothing\n")
    assert results.main(["--only", "none"]) == 2 and "no table none; known are demo, " in capsys.readouterr().err
    assert results.main(["--list", "--only", "sst2-labels"]) == 0 and "of 5 jobs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.soak
def test_a_table_from_a_real_run(results: ModuleType, place: Path) -> None:
    """The published procedure, which needs no Flower, on a tiny encoder."""
    tiny_bert(place / "bert")
    way = {"way": "paper", "acknowledge-not-private": True, "epochs": 1, "label-stages": 1}
    asked = study(place / "bert", training=way) | {"arm": [PLAIN]}
    (place / "tiny.toml").write_text(tomli_w.dumps(asked))
    tiny = results.manifest(place / "tables.toml")["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setenv("PYTHONPATH", str(ROOT))
        assert results.make(tiny, pages=place, out=place / "out", data=place, runner=results.sottovoce)
    page = (place / "page.md").read_text()
    assert "| plain † |" in page and "old" not in page
