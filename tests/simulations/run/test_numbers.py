"""Labels that are numbers of a declared range: read, released by the piecewise mechanism, learnt from and scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mechanisms.piecewise import Piecewise
from simulations.corpora.corpus import Corpus
from simulations.corpora.files import read_files
from simulations.errors import UserError
from simulations.experiment.sections import Data
from simulations.run.measures import measured, pearson, spearman
from simulations.run.prepare import Prepared
from tests.support.paths import DATA
from tests.support.results import guesses
from tests.support.studies import LocalGrid, experiment, ledger_rows, placed, prepared, run_arms, use_folder

PLAIN = {"maps": "principal-components"}
SCORES = Data(
    source="files",
    path="none",
    train="a.tsv",
    test="b.tsv",
    text="text",
    label="score",
    label_range=(-1.0, 1.0),
    levels=3,
    measures=("pearson", "spearman"),
)


def test_labels_are_rounded_to_the_nearest_level(tmp_path: Path) -> None:
    given = ["0", "5.0", "4.87", "2.125", ".1", "1e0", " 3.75 "]
    for name in ("a", "b"):
        lines = [f"text {i}\t{score}" for i, score in enumerate(given)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tscore", *lines]) + "\n")
    numbers = replace(SCORES, label_range=(0.0, 5.0), levels=21).numbers
    train, test = read_files(tmp_path, "a.tsv", "b.tsv", text="text", label="score", numbers=numbers)
    assert train.classes == test.classes and len(train.classes) == 21 and train.classes[1:3] == ("0.25", "0.5")
    assert [float(train.classes[label]) for label in train.labels] == [0, 5, 4.75, 2, 0, 1, 3.75]
    (tmp_path / "c.jsonl").write_text('{"text": "a", "score": 2.4}\n{"text": "b", "score": 5}\n')
    found, _ = read_files(tmp_path, "c.jsonl", "b.tsv", text="text", label="score", numbers=numbers)
    assert [found.classes[label] for label in found.labels] == ["2.5", "5"]


@pytest.mark.parametrize("score", ["5.01", "-0.1", "nan", "inf", "x", "", "1,5", "1_0", "0x1", "1e9999"])
def test_what_is_no_number_of_the_range_is_refused(score: str, tmp_path: Path) -> None:
    for name, value in (("a", "1"), ("b", score)):
        (tmp_path / f"{name}.tsv").write_text(f"text\tscore\nsome\t2\nother\t{value}\n")
    with pytest.raises(UserError, match=r"line 3: label is no number from 0 to 5"):
        read_files(tmp_path, "a.tsv", "b.tsv", text="text", label="score", numbers=(0.0, 2.5, 5.0))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label_range": (1.0, 1.0)}, "the lower first"),
        ({"label_range": (0.0, np.inf)}, "two finite numbers"),
        ({"label_range": None}, "data.levels: goes with data.label-range"),
        ({"label_range": None, "levels": None}, 'data.measures: "pearson" is of labels that are numbers'),
    ],
)
def test_what_contradicts_itself_is_said(change: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        replace(SCORES, **change)


def test_correlations_are_scipy_s() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 300).astype(float)
    expected = truth + rng.normal(size=300).round(1)
    often = rng.integers(0, 4, 300)
    a, b = np.repeat(expected, often), np.repeat(truth, often)
    assert pearson(expected, truth, often.astype(float)) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert spearman(expected, truth, often.astype(float)) == pytest.approx(stats.spearmanr(a, b).statistic)
    labels = np.arange(300) % 3
    sure = measured(["pearson"], guesses(50 * np.eye(3)[labels], labels, numbers=(0.0, 2.0, 3.0)))
    assert sure["pearson"]["value"] == pytest.approx(1.0)  # a model that is sure expects the number itself
    assert np.isnan(pearson(np.ones(3), truth[:3], np.ones(3)))


def ordered(ready: Prepared) -> Prepared:
    """The rows of three classes as levels of one number."""
    train, test = (Corpus(of.texts, of.labels, ("-1", "0", "1")) for of in (ready.held.train, ready.held.test))
    held = replace(ready.held, train=train, test=test)
    return ready._replace(public=replace(ready.public, classes=("-1", "0", "1")), held=held)


def test_a_number_is_released_and_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line, the ledgers and what the model expects, of 240 users."""
    use_folder(tmp_path / "nodes", monkeypatch)
    noise = {"mechanism": "piecewise", "epsilon": 2.0}
    arm = {"name": "users", "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4}, "label": noise}
    study = replace(experiment(arm, population={"users": 240, "users-per-node": 120}, training=PLAIN), data=SCORES)
    ready = ordered(prepared(study))
    nodes = placed(study, ready, tmp_path / "nodes")
    line = run_arms(study, LocalGrid(nodes), ready=ready)["users"].line
    assert line["label_mechanism"] == "piecewise" and line["budget"]["label_epsilon"] == 2.0
    labels = [row for row in ledger_rows(tmp_path / "nodes", "users") if row.channel == "label"]
    assert len(labels) == 240 and {row.guarantee for row in labels} == {Piecewise(2.0, 3).guarantee}
    for name in ("pearson", "spearman"):
        assert all(line["measures"][where][name]["value"] > 0.8 for where in ("on_device", "sanitized"))


def test_sts_b_is_read() -> None:
    if not (DATA / "stsb" / "train.tsv").is_file():
        pytest.skip("shared/data is not here")
    numbers = replace(SCORES, label_range=(0.0, 5.0), levels=26).numbers
    train, test = read_files(
        DATA / "stsb", "train.tsv", "dev.tsv", text="sentence1", second_text="sentence2", label="score", numbers=numbers
    )
    assert (len(train), len(test)) == (5749, 1500) and isinstance(train.texts[0], tuple)
    assert train.classes[-1] == "5" and np.bincount(train.labels, minlength=26).min() > 0
