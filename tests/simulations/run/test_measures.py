"""Measures beside accuracy: by their definitions, at their ends, and their errors against how estimates vary."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from mechanisms.randomized_response import RandomizedResponse
from simulations.corpora.corpus import Corpus
from simulations.corpora.files import read_files
from simulations.errors import UserError
from simulations.experiment import from_table
from simulations.experiment.result import SHOWN
from simulations.experiment.sections import MEASURES as KEYS
from simulations.experiment.sections import Data
from simulations.run.measures import (
    MEASURES,
    Guesses,
    auprc,
    auroc,
    macro_f1,
    matthews,
    measured,
    own_labels,
    pearson,
    spearman,
)
from simulations.run.prepare import Prepared
from simulations.run.table import beside
from tests.support.results import guesses
from tests.support.studies import LocalGrid, experiment, ledger_rows, placed, prepared, run_arms, use_folder

BINARY, MANY = 2, 4
NAMES = KEYS
OF_CLASSES = {"matthews": matthews, "macro-f1": macro_f1, "auroc": auroc, "auprc": auprc}


def made_up(classes: int, n: int = 300, seed: int = 0, *, rounded: bool = False) -> tuple[np.ndarray, ...]:
    """Scores that know something of the labels, labels of unlike classes, and weights; rounded: scores with ties."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=n, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum())
    scores = rng.normal(size=(n, classes)) + np.eye(classes)[labels]
    weights = rng.integers(0, 4, size=n).astype(np.float64)
    return (np.round(scores) if rounded else scores), labels, weights


def by_hand(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Measures of the likeliest class, by their definitions."""
    classes = scores.shape[1]
    cells = labels * classes + scores.argmax(axis=1)
    table = np.bincount(cells, weights, minlength=classes**2).reshape(classes, classes)
    true, guessed, total = table.sum(axis=1), table.sum(axis=0), table.sum()
    there = true + guessed > 0
    spread = math.sqrt(total**2 - true @ true) * math.sqrt(total**2 - guessed @ guessed)
    return {
        "matthews": float((np.trace(table) * total - true @ guessed) / spread),
        "macro-f1": float(np.mean(2 * np.diag(table)[there] / (true + guessed)[there])),
    }


@pytest.mark.parametrize("classes", [BINARY, MANY])
@pytest.mark.parametrize("rounded", [False, True])
def test_they_are_what_they_are_called(classes: int, rounded: bool) -> None:
    scores, labels, weights = made_up(classes, rounded=rounded)
    by_class = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    rest = [(by_class[:, k], labels == k) for k in range(classes)]
    if classes == BINARY:
        rest = [(scores[:, 1] - scores[:, 0], labels == 1)]
    want = by_hand(scores, labels, weights) | {
        "auroc": np.mean([metrics.roc_auc_score(truth, score, sample_weight=weights) for score, truth in rest]),
        "auprc": np.mean(
            [metrics.average_precision_score(truth, score, sample_weight=weights) for score, truth in rest]
        ),
    }
    for name, value in want.items():
        assert OF_CLASSES[name](guesses(scores, labels), weights) == pytest.approx(value, rel=1e-12), name
    assert set(MEASURES) == set(SHOWN) == {*KEYS, "by-class", "by-group", "by-user", "own-labels"}


def test_own_labels_of_other_texts_correct_a_model() -> None:
    """The model always says class 0. One user finds nine texts of ten in class 1; of one text nothing is learnt."""
    users, labels = np.repeat([0, 1, 2], [10, 10, 1]), np.array([1] * 9 + [0] + [0] * 10 + [1])
    scores = np.tile([0.5, 0.0], (21, 1))
    corrected = own_labels(Guesses(scores, labels, np.arange(21), users, ("0", "1"), None, 1))
    assert corrected.value == pytest.approx((9 + 10 + 0) / 21)  # log(10/5.40) - log(3/7.60) > .5 in the first nine
    # a text of which there are two rows tells nothing of itself
    again = own_labels(Guesses(scores[:2], np.array([1, 1]), np.zeros(2), np.zeros(2), ("0", "1"), None, 1))
    assert again.value == 0.0


def test_a_class_without_weight_is_none() -> None:
    scores, labels, weights = made_up(MANY)
    weights[(labels == 3) | (scores.argmax(axis=1) == 3)] = 0
    want = by_hand(scores, labels, weights)["macro-f1"]
    assert macro_f1(guesses(scores, labels), weights) == pytest.approx(want, rel=1e-12)


def test_where_nothing_is_known_or_everything_is() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    ones, right = np.ones(5), np.eye(2)[labels]
    every = [of(guesses(right, labels), ones) for of in OF_CLASSES.values()]
    assert every == pytest.approx([1.0, 1.0, 1.0, 1.0])
    one_class = guesses(np.tile([1.0, 0.0], (5, 1)), labels)
    assert math.isnan(matthews(one_class, ones)) and auroc(one_class, ones) == 0.5 and auprc(one_class, ones) == 0.6
    assert math.isnan(auroc(guesses(right, np.ones(5, np.int64)), ones))
    assert measured(NAMES, None) == dict.fromkeys(NAMES)


def test_errors_are_as_large_as_estimates_vary() -> None:
    """Of a measure of 80 texts, each guessed twice alike: 250 studies. The ratio of the mean variance to the variance
    of estimates is within 35 % of 1 but for a false alarm in 10^4 (chi-squared, 249 degrees); errors of 2/3 or of 3/2
    would be told, and so would those that took the guesses of one text for two texts."""
    values, squares, apart = [], [], []
    for seed in range(250):
        scores, labels, _ = made_up(BINARY, 80, seed)
        twice, truth, texts = np.tile(scores, (2, 1)), np.tile(labels, 2), np.tile(np.arange(80), 2)
        of = partial(by_hand, twice, truth)
        result = guesses(twice, truth, texts, seed=seed).value(lambda weights, of=of: of(weights)["matthews"])
        values.append(result.value)
        squares.append(result.error**2)
        if seed < 40:
            other = guesses(twice, truth, seed=seed).value(lambda weights, of=of: of(weights)["matthews"])
            apart.append(other.error**2)
    ratio = np.mean(squares) / np.var(values)
    for scale, holds in ((1.0, True), (2 / 3, False), (1.5, False)):
        assert (0.65 < ratio * scale**2 < 1.35) == holds
    assert np.mean(apart) / np.var(values) < 0.65


def test_a_table_beside_the_accuracies() -> None:
    def arm(name: str, value: float | None) -> dict[str, object]:
        one = {"matthews": None if value is None else {"value": value, "error": 0.02}}
        other = {"matthews": {"value": 0.5, "error": math.nan}}
        return {"name": name, "measures": {"sanitized": one, "on_device": other}}

    runs = [{"measures": ["matthews"], "arms": [arm("a", 0.25), arm("b", None)]}]
    ((title, (headings, *rows)),) = beside(runs)
    assert title == "" and headings == ["arm", "matthews, sanitized", "matthews, on device"]
    assert rows == [["a", "0.250 ± 0.020", "0.500"], ["b", "–", "0.500"]]
    ((_, (_, (_, twice, _), _)),) = beside(runs * 2)
    assert twice == "0.250 ± 0.000"
    assert beside([{"arms": []}]) == []


def test_measures_that_nobody_knows_are_refused() -> None:
    for given in (["f1"], ["matthews", "matthews"], "matthews", [1]):
        with pytest.raises(UserError, match=r"data\.measures: must be a list of different ones of"):
            from_table({"name": "x", "data": {"measures": given}, "arm": []})


# --- labels that are numbers of a declared range

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
    result, _ = read_files(tmp_path, "c.jsonl", "b.tsv", text="text", label="score", numbers=numbers)
    assert [result.classes[label] for label in result.labels] == ["2.5", "5"]


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
    noise = {"mechanism": "randomized-response", "epsilon": 2.0}
    arm = {"name": "users", "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4}, "label": noise}
    study = replace(experiment(arm, population={"users": 240, "users-per-node": 120}, training=PLAIN), data=SCORES)
    ready = ordered(prepared(study))
    nodes = placed(study, ready, tmp_path / "nodes")
    line = run_arms(study, LocalGrid(nodes), ready=ready)["users"].line
    assert line["label_mechanism"] == "randomized-response" and line["budget"]["label_epsilon"] == 2.0
    labels = [row for row in ledger_rows(tmp_path / "nodes", "users") if row.channel == "label"]
    assert len(labels) == 240 and {row.guarantee for row in labels} == {RandomizedResponse(2.0, 3).guarantee}
    for name in ("pearson", "spearman"):
        assert all(line["measures"][where][name]["value"] > 0.8 for where in ("on_device", "sanitized"))
