"""The papers' items: their experiments can be run, and the published numbers stand beside ours."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from simulations.artifacts.text_channel import rewriter_to_price
from simulations.papers.reproduce import (
    Item,
    Paper,
    Size,
    arms_of,
    chosen,
    experiment_of,
    load_paper,
    papers,
    reproduce,
    text,
)
from sottovoce.cli import main as cli
from tests.support.commands import refused
from tests.support.paths import DATA


def test_every_item_has_a_valid_experiment_and_reasons_for_differences() -> None:
    for name in papers():
        paper = load_paper(name)
        assert len({item.name for item in paper.items}) == len(paper.items)
        for item in paper.items:
            for size in (Size(), Size(None, changes=("encoder.model=mpnet", "training.batch-size=64"))):
                study = experiment_of(paper, item, size, data=Path("data"), rows=2490)
                assert [arm.name for arm in study.arms] == [arm["name"] for arm in arms_of(item, size)]
                assert study.population.users == (2000 if size.rows else 2340) and item.differences
            assert (study.encoder.model, study.training.batch_size, study.data.test_limit) == ("mpnet", 64, None)
            assert len(study.arms) == len(item.arms)
            assert all(0 <= arm["theirs"] <= 1 for arm in item.arms)
        assert any(arm.get("quick") for item in paper.items for arm in item.arms)


@pytest.mark.skipif(not DATA.exists(), reason="shared/data is missing: the vocabularies of the papers' runs")
@pytest.mark.parametrize(  # arnold-2023 has items of pairs
    "name", [pytest.param(name, marks=[] if name == "arnold-2023" else [pytest.mark.soak]) for name in papers()]
)
def test_no_user_refuses_a_text_of_a_whole_run(name: str) -> None:
    """The price of a text depends on the vocabulary, which only a run reads."""
    paper = load_paper(name)
    for item in paper.items:
        study = experiment_of(paper, item, Size(), data=DATA, rows=2490)
        published = not study.training.protocol.private
        result = rewriter_to_price(study, ["a sentence"])
        assert (result is None) == published, item.name


ARMS = (
    {"name": "none", "text": {"mechanism": "identity"}, "theirs": 0.9, "quick": True},
    {"name": "some", "text": {"mechanism": "random"}, "theirs": 0.5},
)
ITEMS = (
    Item("Table 1, A", task="sst2", differences=("smaller",), arms=ARMS),
    Item("Table 1, B", task="stsb", measure="spearman", differences=("rounded",), arms=ARMS[1:]),
)
PAPER = Paper("made-up", "A paper", ITEMS)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for task in ("sst2", "stsb"):
        (tmp_path / "data" / task).mkdir(parents=True)
        (tmp_path / "data" / task / "train.tsv").write_text("head\n" + "row\n" * 500)
    return tmp_path / "data"


def test_what_was_run_stands_beside_the_paper(data: Path, tmp_path: Path) -> None:
    requests = []

    def run(study: Any, folder: Path) -> dict[str, Any]:
        requests.append((study.name, study.population.users, folder.name))
        measures = {"sanitized": {"spearman": {"value": 0.25, "error": math.nan}}}
        scores = {"accuracy": 0.75, "accuracy_se": 0.02, "measures": measures}
        return {"chance": 0.6, "arms": [{"name": arm.name} | scores for arm in study.arms]}

    result = reproduce(PAPER, PAPER.items, Size(), data=data, out=tmp_path, run=run)
    assert requests == [(f"made-up Table 1, {x.upper()}", 450, f"made-up-table-1-{x}-2000") for x in "ab"]
    page = text(PAPER, PAPER.items, result, Size())
    assert page.count("commonest class of our test sentences is right of 0.600.") == 1  # of a correlation there is none
    for line in ("| some | 0.500 | 0.750 ± 0.020 |", "| some | 0.500 | 0.250 |", "- smaller", "- rounded"):
        assert line in page.splitlines()
    quick = reproduce(PAPER, PAPER.items, Size(quick=True), data=data, out=tmp_path, run=run)
    assert [len(comparison.rows) for comparison in quick] == [1, 0] and "quick run" in quick[1].why
    (data / "sst2" / "train.tsv").unlink()
    missing = reproduce(PAPER, PAPER.items[:1], Size(), data=data, out=tmp_path, run=run)
    assert "name the folder of the data with --data" in text(PAPER, PAPER.items[:1], missing, Size())


def test_items_are_named_by_their_number_or_words() -> None:
    assert chosen(PAPER, "1") == list(ITEMS) == chosen(PAPER, None) and chosen(PAPER, ", b") == [ITEMS[1]]
    refused("--table 7: made-up has Table 1, A", chosen, PAPER, "7")
    refused("nobody-2020: is none of the papers", load_paper, "nobody-2020")


def test_the_command_goes_on_with_what_was_stopped_and_takes_any_size(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A paper may take hours: what has begun is resumed, and the page says how many sentences there were."""
    done: list[tuple[object, str]] = []
    arms = [arm["name"] for arm in chosen(load_paper("yue-2021"), "Table 1, SST-2")[0].arms]

    def ran(what: object, folder: Path) -> dict[str, Any]:
        done.append((what, folder.name))
        return {"chance": 0.6, "arms": [{"name": name, "accuracy": 0.5, "accuracy_se": 0.02} for name in arms]}

    monkeypatch.setattr("simulations.run.simulate.simulate", lambda study, folder: ran(study.population.users, folder))
    monkeypatch.setattr("simulations.run.simulate.resume", lambda folder: ran("resumed", folder))
    command = ["reproduce", "yue-2021", "--table", "1", "--data", str(data), "--out", str(tmp_path / "runs")]
    assert cli.main([*command, "--rows", "300", "--set", "training.epochs=2"]) == 0
    assert "- a run of 300 training and" in (page := capsys.readouterr().out) and "training.epochs=2" in page
    begun = tmp_path / "runs" / "yue-2021-table-1-sst-2-2000.part" / "unfinished"
    begun.mkdir(parents=True)
    (begun / "code.json").write_text("{}")
    assert cli.main(command) == 0
    sized = "yue-2021-table-1-sst-2-300-training-epochs-2"
    assert done == [(300, sized), ("resumed", "yue-2021-table-1-sst-2-2000")]
    capsys.readouterr()
    for wrong in (["--quick", "--rows", "300"], ["--rows", "99"], ["--rows", "most"]):
        assert cli.main([*command, *wrong]) == 2
        assert "--rows" in capsys.readouterr().err
    assert cli.main([*command, "--data", str(tmp_path / "nowhere")]) == 2
    assert "nothing was run: " in capsys.readouterr().err
