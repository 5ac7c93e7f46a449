"""Every measured table of the pages is in the manifest, and one command makes them anew, job by job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
import tomli_w
import typer

from benchmarks.summary import summarize
from simulations.experiment.toml import document
from sottovoce.cli import main as cli
from tests.docs.test_commands import fault
from tests.docs.test_summary import arm, run
from tests.support.paths import ROOT
from tests.support.programs import program
from tests.support.tiny_models import tiny_bert
from tests.system.test_simulation import table as study

PAGES = [ROOT / "README.md", *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "papers")]
_RIGHT, _DECIMAL = re.compile(r"---:"), re.compile(r"(?<![\d.])0?\.\d{2,}")
PLAIN = {"name": "plain", "reference": True, "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 16}}


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return program("results")


def where(page: Path) -> str:
    """The page as tables.toml names it."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


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
    shown = [(where(page), line) for page in PAGES for line in measured(page.read_text(encoding="utf-8"))]
    assert len(shown) > 40, "tables are not found any more"
    assert sorted(shown) == sorted((table.page, results.marker(table.name)) for table in tables.values())


def test_every_command_of_the_manifest_is_there(results: ModuleType) -> None:
    root = typer.main.get_command(cli.app)
    for table in results.manifest(ROOT / "docs" / "tables.toml").values():
        assert table.hand or table.jobs
        assert [why for line in table.jobs if (why := fault(line, root)) is not None] == [], table.name
        assert table.hand or len(table.seeds) >= 5


#: What the summary says of an arm in one column: a mean with its errors, a number, a range, or that there is none.
SAID = r"(?:[-+]?\d\.\d{3}(?: ± \d\.\d{3})?(?: \(\d\.\d{3}\))?|\d[\d,.]*(?:–\d[\d,.]*)?|∞|–)"


def test_a_table_with_columns_of_its_own_stands_in_its_page_as_the_manifest_has_it(results: ModuleType) -> None:
    laid = [table for table in results.manifest(ROOT / "docs" / "tables.toml").values() if table.rows]
    assert len(laid) >= 3
    for table in laid:
        lines = (ROOT / "docs" / table.page).read_text(encoding="utf-8").split("\n")
        at = lines.index(results.marker(table.name)) + 2
        shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[at : at + 2 + len(table.rows)]]
        assert shown[0] == list(table.head) and not lines[at + len(shown)].startswith("|"), table.name
        for row, cells in zip(table.rows, shown[2:], strict=True):
            for cell, there in zip(row, cells, strict=True):
                form = SAID.join(map(re.escape, results.CELL.sub("\0", cell).split("\0")))
                assert re.fullmatch(form, there), (table.name, there)


def test_what_a_table_of_its_own_names_is_in_its_experiments(results: ModuleType, tmp_path: Path) -> None:
    """Or a day of runs would end in a line about a name."""
    _, columns = summarize([run(tmp_path, 1, 0, arms=[arm("a", 0.5)])]).split("| arm | ")[:2]
    known = {"arm", *columns.split("\n")[0].removesuffix(" |").split(" | ")}
    for table in results.manifest(ROOT / "docs" / "tables.toml").values():
        arms = [{one["name"] for one in document(line.split()[1])["arm"]} for line in table.jobs if table.rows]
        for cell in chain.from_iterable(table.rows):
            for job, name, column in results.CELL.findall(cell):
                assert name in arms[int(job or 0)] and column in known, (table.name, cell)


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


def test_jobs_may_be_runs_of_one_summary(results: ModuleType, place: Path) -> None:
    jobs = '"simulate tiny --set seed=1", "simulate tiny --set seed=2"'
    manifest = MANIFEST.replace('"simulate {data}/tiny.toml --set seed={seed}"', jobs)
    (place / "tables.toml").write_text(manifest.replace("seeds = [1, 2]", "together = true"))
    (table, _), said = results.manifest(place / "tables.toml").values(), []
    assert results.make(table, pages=place, out=place / "out", data=None, runner=pretending(said, place))
    assert [words[0] for words in said] == ["simulate", "simulate", "summarize"] and len(said[-1]) == 3
    assert "| a | 0.750 ± 0.050 (0.010) | – |" in (place / "page.md").read_text()


OWN = """
[[table]]
name = "own"
page = "page.md"
of = "tiny"
head = ["", "there", "users"]
rows = [["of **a**, {a|accuracy, sanitized}", "**{a|accuracy, on device}**", ".9"], ["all", "", "{0:a|users}"]]
"""


def test_a_table_has_columns_of_its_own_from_the_jobs_of_another(results: ModuleType, place: Path) -> None:
    (place / "tables.toml").write_text(MANIFEST + OWN)
    (place / "page.md").write_text(f"{PAGE}\n<!-- table: own -->\n\n| | old |\n| --- | --- |\n| a | b |\n")
    tables, said = results.manifest(place / "tables.toml"), []
    given = {"pages": place, "out": place / "out", "data": Path("data"), "runner": pretending(said, place)}
    assert results.make(tables["own"], **given)
    assert [words[0] for words in said] == ["simulate", "simulate", "summarize"] and not (place / "out/own").exists()
    tail = (place / "page.md").read_text().split("<!-- table: own -->\n\n")[1].splitlines()
    assert tail[:3] == [
        "|  | there | users |",
        "| --- | ---: | ---: |",
        "| of **a**, 0.750 ± 0.050 (0.010) | **0.900 ± 0.000** | .9 |",
    ]
    assert re.fullmatch(r"\| all \|  \| [\d,]+ \|", tail[3]) and "old" in (place / "page.md").read_text()


def test_a_table_of_its_own_names_what_there_is(results: ModuleType, place: Path) -> None:
    said = {0: "of a\n\n| arm | users |\n| --- | ---: |\n| a † | 3 |\n", 1: "| arm | m' |\n| --- | --- |\n| a | 2–4 |"}
    table = {"name": "own", "page": "page.md", "runs": "own", "head": ("x", "y")}
    assert results.laid_out(results.Table(**table, rows=(("a", "{a|users}"), ("b", "{1:a|m'}"))), said) == [
        "| x | y |",
        "| --- | ---: |",
        "| a | 3 |",
        "| b | 2–4 |",
    ]
    for cell, where in (("{b|users}", "job 0 .*'users' of an arm 'b'"), ("{a|ε}", "'ε'"), ("{2:a|users}", "job 2 ")):
        with pytest.raises(ValueError, match=where):
            results.laid_out(results.Table(**table, rows=(("a", cell),)), said)
    (place / "tables.toml").write_text(MANIFEST + OWN.replace(', "users"]', "]"))
    with pytest.raises(ValueError, match="a row of own has another number of cells"):
        results.manifest(place / "tables.toml")


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
    way = {"protocol": "paper", "acknowledge-not-private": True, "epochs": 1, "label-stages": 1}
    asked = study(place / "bert", training=way) | {"arm": [PLAIN]}
    (place / "tiny.toml").write_text(tomli_w.dumps(asked))
    tiny = results.manifest(place / "tables.toml")["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setenv("PYTHONPATH", str(ROOT))
        assert results.make(tiny, pages=place, out=place / "out", data=place, runner=results.sottovoce)
    page = (place / "page.md").read_text()
    assert "| plain † |" in page and "old" not in page
