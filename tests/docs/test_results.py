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

from benchmarks.summary import figure, main, summarize
from simulations.experiment.toml import document
from sottovoce.cli import main as cli
from tests.docs.test_commands import fault
from tests.support.paths import ROOT
from tests.support.programs import program
from tests.support.results import user

PAGES = [ROOT / "README.md", *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "papers")]
_RIGHT, _DECIMAL = re.compile(r"---:"), re.compile(r"(?<![\d.])0?\.\d{2,}")


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return program("results")


def where(page: Path) -> str:
    """The page as tables.toml names it."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def measured(text: str) -> list[str]:
    """What stands above each table that has a column of numbers, or numbers in half of its rows."""
    lines, result = text.split("\n"), []
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")]
    for at in starts:
        rows = []
        for line in lines[at + 2 :]:
            if not line.startswith("|"):
                break
            rows.append(line)
        if _RIGHT.search(lines[at + 1]) or 2 * sum(bool(_DECIMAL.search(row)) for row in rows) >= len(rows):
            result.append(lines[at - 2])
    return result


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


# --- means over runs of one experiment

STUDY = {"name": "study", "data": {"path": "a"}, "arm": [{"name": "a", "arm": {"embedding": {"epsilon": 1.0}}}]}


def arm(name, accuracy, worst=31.4, error=0.01, public=()):
    return {
        "name": name,
        "accuracy": accuracy,
        "accuracy_se": error,
        "accuracy_clean_test": 0.9,
        "accuracy_clean_test_se": None,
        "dim": 16,
        "delivered": 2000,
        "reference": False,
        "ladder": None if worst is None else user(worst, public=public),
        "budget": {"worst_case_epsilon": worst, "label_epsilon": None},
    }


def run(tmp_path, seed, accuracy, *, study=STUDY, arms=None, differences=(), **options):
    results = {
        "name": study["name"],
        "seed": seed,
        "arms": arms or [arm("a", accuracy, **options)],
        "way_sentence": None,
        "differences": list(differences),
    }
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "experiment.toml").write_text(tomli_w.dumps(study | {"seed": seed}))
    return folder


def test_mean_and_standard_errors(tmp_path):
    """Over seeds, and in brackets by test text, which more seeds do not make smaller."""
    folders = [run(tmp_path, s, a, error=e) for s, a, e in ((1, 0.7, 0.01), (2, 0.8, 0.02), (3, 0.9, 0.03))]
    lines = summarize(folders).splitlines()
    assert lines[0] == "study, 3 seeds (1, 2, 3): mean ± standard error over seeds (and by test text)"
    # standard deviation 0.1, by hand: 0.1 / sqrt(3) = 0.058
    assert lines[4] == "| a | 0.800 ± 0.058 (0.020) | – | 0.900 ± 0.000 | 16 | 31.4 | 2,000 |"


def pair(one, less, difference, error, users_added=False):
    said = {"difference": difference, "error": error}
    return {"arm": one, "less": less, "users_added": users_added, "sanitized": said, "on_device": None}


@pytest.fixture
def three(tmp_path):
    folders = []
    for seed, base, users in ((1, 0.60, 0.70), (2, 0.70, 0.78), (3, 0.80, 0.92)):
        arms = [arm("other", 0.1), arm("public-only", base), arm("users", users)]
        differences = [
            pair("public-only", "other", base - 0.1, 0.03),
            pair("users", "other", users - 0.1, 0.03),
            pair("users", "public-only", users - base, 0.004, users_added=True),
        ]
        folders.append(run(tmp_path, seed, 0.0, arms=arms, differences=differences))
    return folders


def test_what_users_added_and_every_gap_is_paired_by_run(three):
    text = summarize(three)
    # gains .10, .08, .12: their deviation, 0.02 / sqrt(3) = 0.012, not that of the accuracies
    assert "| users | 0.800 ± 0.064 (0.010) | +0.100 ± 0.012 (0.004) |" in text
    assert "| public-only | 0.700 ± 0.058 (0.010) | – |" in text
    assert "| 3 users | +0.700 ± 0.064 (0.030) | +0.100 ± 0.012 (0.004) |" in text
    assert summarize(three[:1]).startswith("study, 1 seed (1): mean (standard error by test text)\n")
    assert "| +0.100 (0.004) |" in summarize(three[:1])


def test_a_figure_is_what_its_suffix_says_and_the_same_each_time(three, tmp_path):
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("b.svg", b"<?xml")):
        assert main([*map(str, three), "--figure", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    picture = (tmp_path / "a.svg").read_bytes()
    assert picture == (tmp_path / "b.svg").read_bytes() and b"public-only" in picture


def test_what_users_paid_is_that_of_the_dearest_run(tmp_path):
    dear = arm("a", 0.7) | {"ladder": user(40.0, worst_case="inf", delta=1e-6)}
    none = arm("a", 0.7, worst=None)
    for arms in ([arm("a", 0.7), dear, none], [dear, none, arm("a", 0.7)]):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        runs = [run(folder, seed, 0, arms=[each]) for seed, each in enumerate(arms)]
        assert "| 16 | 40 (δ 1e-06) | 2,000 |" in summarize(runs)
    endless = [run(tmp_path, seed, 0.7, worst=worst) for seed, worst in ((1, 31.4), (2, "inf"))]
    assert "| 16 | ∞ |" in summarize(endless) and "| a † |" in summarize(endless)


def test_what_is_declared_public_is_named_in_the_row(tmp_path):
    folder = run(tmp_path, 1, 0, arms=[arm("a", 0.7, public=["label"]), arm("b", 0.7)])
    text = summarize([folder])
    assert "| 16 | 31.4 ‡ | 2,000 |" in text and "| 16 | 31.4 | 2,000 |" in text
    ticks = figure([folder]).axes[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == ["a (label public)", "b"]


EPSILON = [{"name": "a", "arm": {"embedding": {"epsilon": 2.0}}}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, "name is 'other' there, and 'study' here"),
        ({"data": {"path": "a", "test-limit": 5}}, "data.test-limit is 5 there, and not given here"),
        ({"arm": EPSILON}, "arm.0.arm.embedding.epsilon is 2.0 there, and 1.0 here"),
        ({"arm": EPSILON * 2}, "arm is 2 entries there, and 1 entries here"),
    ],
)
def test_runs_of_different_experiments_are_refused(change, words, tmp_path, capsys):
    """Names of studies and arms may be the same: what counts is the experiment as it was resolved."""
    one, other = run(tmp_path, 1, 0.7), run(tmp_path, 2, 0.7, study=STUDY | change)
    assert main([str(one), str(other)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err and str(other) in captured.err
