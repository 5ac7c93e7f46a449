"""Measures beside accuracy: their definitions, their ends, their errors, and the columns that they need."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.files import read_files
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment import from_table
from simulations.experiment.result import SHOWN, SPLITS, ArmResult
from simulations.experiment.sections import MEASURES as KEYS
from simulations.experiment.sections import Data, Population
from simulations.run.evaluation import Trained, evaluate, predicted
from simulations.run.measures import (
    MEASURES,
    Guesses,
    auprc,
    auroc,
    by_class,
    by_group,
    by_user,
    macro_f1,
    matthews,
    measured,
    measures_of,
    own_labels,
    pearson,
    spearman,
)
from simulations.run.prepare import Held, Holders, owners
from simulations.run.table import beside
from tests.support.results import guesses

BINARY, MANY = 2, 4
OF_CLASSES = {"matthews": matthews, "macro-f1": macro_f1, "auroc": auroc, "auprc": auprc}
NOBODY = Holders(np.zeros(1, np.int64), np.zeros(1, np.int64))
COLUMN = Data(source="files", path="p", train="a.csv", test="b.csv", text="text", label="label", group="dialect")
SCORES = replace(COLUMN, group=None, label_range=(-1.0, 1.0), levels=3, measures=("pearson", "spearman"))


def made_up(classes: int, n: int = 300, seed: int = 0, *, rounded: bool = False) -> tuple[np.ndarray, ...]:
    """Return scores that know something of the labels (rounded: with ties), labels of unlike classes, and weights."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=n, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum())
    scores = rng.normal(size=(n, classes)) + np.eye(classes)[labels]
    weights = rng.integers(0, 4, size=n).astype(np.float64)
    return (np.round(scores) if rounded else scores), labels, weights


def by_hand(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return measures of the likeliest class, by their definitions."""
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


@pytest.mark.parametrize(("classes", "rounded"), [(BINARY, False), (BINARY, True), (MANY, True)])
def test_measures_of_classes_agree_with_their_definitions(classes: int, rounded: bool) -> None:
    scores, labels, weights = made_up(classes, rounded=rounded)
    by_class = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    rest = [(by_class[:, k], labels == k) for k in range(classes)]
    if classes == BINARY:
        rest = [(scores[:, 1] - scores[:, 0], labels == 1)]
    want = by_hand(scores, labels, weights) | {
        name: np.mean([of(truth, score, sample_weight=weights) for score, truth in rest])
        for name, of in (("auroc", metrics.roc_auc_score), ("auprc", metrics.average_precision_score))
    }
    for name, value in want.items():
        assert OF_CLASSES[name](guesses(scores, labels), weights) == pytest.approx(value, rel=1e-12), name
    weights[(labels == 0) | (scores.argmax(axis=1) == 0)] = 0  # a class without weight does not count
    if classes == MANY:
        want = by_hand(scores, labels, weights)
        assert macro_f1(guesses(scores, labels), weights) == pytest.approx(want["macro-f1"], rel=1e-12)
    assert set(MEASURES) == set(SHOWN) == {*KEYS, "by-class", "by-group", "by-user", "own-labels"}


def test_measures_where_nothing_or_everything_is_known() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    ones, right = np.ones(5), np.eye(2)[labels]
    assert [of(guesses(right, labels), ones) for of in OF_CLASSES.values()] == pytest.approx([1.0, 1.0, 1.0, 1.0])
    one_class = guesses(np.tile([1.0, 0.0], (5, 1)), labels)
    assert math.isnan(matthews(one_class, ones)) and auroc(one_class, ones) == 0.5 and auprc(one_class, ones) == 0.6
    assert math.isnan(auroc(guesses(right, np.ones(5, np.int64)), ones))
    assert measured(KEYS, None) == dict.fromkeys(KEYS)


def test_own_labels_of_other_texts_correct_a_model() -> None:
    """The model always says class 0. One user finds nine texts of ten in class 1; of one text nothing is learnt."""
    users, labels = np.repeat([0, 1, 2], [10, 10, 1]), np.array([1] * 9 + [0] + [0] * 10 + [1])
    scores = np.tile([0.5, 0.0], (21, 1))
    corrected = own_labels(Guesses(scores, labels, np.arange(21), users, ("0", "1"), None, 1))
    assert corrected.value == pytest.approx((9 + 10 + 0) / 21)  # log(10/5.40) - log(3/7.60) > .5 in the first nine
    # a text of which there are two rows tells nothing of itself
    again = own_labels(Guesses(scores[:2], np.array([1, 1]), np.zeros(2), np.zeros(2), ("0", "1"), None, 1))
    assert again.value == 0.0


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


# --- by class, group and user


def held(labels: np.ndarray, *, groups: list[str] | None = None, users: np.ndarray | None = None) -> Held:
    """Return test sentences of classes "0", "1", ..., each text once."""
    names = tuple(str(k) for k in range(int(labels.max()) + 1))
    extra = {} if groups is None else {"dialect": groups}
    test = Corpus([f"text {i}" for i in range(len(labels))], labels, names, extra=extra)
    return Held(test, test, NOBODY, NOBODY, np.arange(len(labels)), owners=users)


def right_where(right: np.ndarray, truth: Held, column: str | None = None) -> Guesses:
    """Return guesses that are right where `right` is, and otherwise of the next class."""
    labels, classes = truth.test.labels, truth.test.classes
    guessed = np.where(right, labels, (labels + 1) % len(classes))
    rows = np.arange(len(labels))
    users = rows if truth.owners is None else truth.owners
    owned, groups = truth.owners is not None, truth.groups(column)
    return Guesses(np.eye(len(classes))[guessed], labels, rows, users, classes, None, 1, groups, owned)


def test_accuracy_by_class_and_group_has_the_error_of_its_own_texts() -> None:
    truth = held(np.repeat([0, 1], [30, 10]), groups=["north"] * 20 + ["south"] * 20)
    right = np.arange(40) % 4 > 0
    result = by_class(right_where(right, truth))
    assert {name: (each.value, each.n) for name, each in result.items()} == {"0": (22 / 30, 30), "1": (0.8, 10)}
    assert result["1"].error == pytest.approx(math.sqrt(10 / 14 * 4 / 14 / 13))  # with four more, two of them right
    groups = by_group(right_where(right, truth, "dialect"))
    assert {name: each.n for name, each in groups.items()} == {"north": 20, "south": 20}
    assert by_group(right_where(right, truth)) == {}


def test_texts_of_one_user_are_one_draw() -> None:
    """Of 40 texts by 8 users who are right always or never, the error is that of 8 texts and four more."""
    users = np.repeat(np.arange(8), 5)
    result = right_where(users % 2 == 0, held(np.arange(40) % 2, users=users)).accuracy()
    assert result.error == pytest.approx(math.sqrt(0.25 / 11))


def test_variance_between_users_is_without_chance() -> None:
    """Variance is unbiased: over 50 populations of 60 users its mean is the true one, .0225 or 0, within 4 errors."""
    rng = np.random.default_rng(4)
    often = np.r_[2, rng.integers(2, 30, size=59)]
    users = np.repeat(np.arange(60), often)
    truth = held(np.arange(len(users)) % 2, users=users)
    for spread in (0.0, 0.15):
        variances = []
        for _ in range(50):
            p = 0.8 + spread * rng.choice([-1, 1], size=60)
            result = by_user(right_where(rng.random(len(users)) < p[users], truth))
            variances.append(result["variance"].value)
        error = np.std(variances) / math.sqrt(len(variances))
        assert abs(np.mean(variances) - spread**2) < 4 * error, spread  # false alarm: 1 in 16,000
        for wrong in (2 / 3, 3 / 2):
            assert spread == 0 or abs(np.mean(variances) - wrong * spread**2) > 4 * error
    assert [each.n for each in result.values()] == [60, 60]


def test_each_user_counts_once_and_few_users_do_not() -> None:
    users = np.repeat(np.arange(20), 4)
    right = np.ones(80, np.bool_)
    right[[0, 1, 2, 4]] = False  # user 0 is right once, user 1 three times
    assert by_user(right_where(right, held(np.arange(80) % 2, users=users)))["mean"].value == (18 + 1) / 20
    assert by_user(right_where(right[:76], held(np.arange(76) % 2, users=users[:76]))) == {}  # 19 users


def test_users_of_measures_are_those_of_the_data_or_dealt_alike() -> None:
    rows = np.arange(200)
    corpus = Corpus([f"t {i}" for i in rows], rows % 2, ("a", "b"), users=[f"u{i % 9}" for i in rows])
    split = Split(corpus, corpus, corpus.take(np.arange(100)))
    assert owners(Population(users=9, assignment="record"), split, 1) is None
    by_column = owners(Population(users=9, assignment="column"), split, 1)
    assert by_column is not None and np.array_equal(by_column, np.arange(100) % 9)
    dealt = owners(Population(users=10, assignment="dirichlet", alpha=0.1), split, 1)
    assert dealt is not None and np.bincount(dealt).tolist() == [20] * 5  # as many records as training users have


def test_a_run_has_measures_that_its_data_need() -> None:
    users = np.repeat(np.arange(20), 2)
    truth = held(np.arange(40) % 2, groups=["a"] * 40, users=users)
    assert measures_of(Data(), truth) == ("by-class", "by-user", "own-labels")
    assert measures_of(COLUMN, truth) == ("by-class", "by-group", "by-user", "own-labels")
    numbers = replace(COLUMN, label_range=(0.0, 1.0))
    assert measures_of(numbers, replace(truth, owners=None)) == ("by-group",)
    for share, classes, dominates in ((74, 2, False), (76, 2, True), (55, 12, True)):
        labels = np.r_[np.zeros(share, np.int64), np.arange(100 - share) % (classes - 1) + 1]
        assert ("macro-f1" in measures_of(Data(), held(labels))) == dominates
    assert measures_of(Data(measures=("auroc",)), held(labels)) == ("auroc", "macro-f1", "by-class")


def test_a_column_of_groups_is_read_and_has_few_short_values(tmp_path: Path) -> None:
    header = "text,label,dialect"
    for name in ("train", "test"):
        rows = [f"{name} text {i},{'ab'[i % 2]},{['north', 'south', ''][i % 3]}" for i in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]))
    data, people = replace(COLUMN, path=str(tmp_path), train="train.csv", test="test.csv"), Population(users=5)
    assert load_split(data, people, 1)[0].test.extra["dialect"] == ["north", "south", "not given"] * 4
    many = [f"text {i},{'ab'[i % 2]},group {i}" for i in range(101)]
    for rows, words in (
        (many, r'column "dialect" has 101 values, and at most 100 are compared'),
        ([f"some text,a,{'a long answer ' * 20}"], r'line 2: "dialect" is a text of 280 characters'),
    ):
        (tmp_path / "test.csv").write_text("\n".join([header, *rows]))
        with pytest.raises(UserError, match=words):
            load_split(data, people, 1)


# --- labels that are numbers of a declared range


def test_labels_are_rounded_to_the_nearest_level_or_refused(tmp_path: Path) -> None:
    given = ["0", "5.0", "4.87", "2.125", ".1", "1e0", " 3.75 "]
    for name in ("a", "b"):
        lines = [f"text {i}\t{score}" for i, score in enumerate(given)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tscore", *lines]) + "\n")
    numbers = replace(SCORES, label_range=(0.0, 5.0), levels=21).numbers
    train, test = read_files(tmp_path, "a.tsv", "b.tsv", text="text", label="score", numbers=numbers)
    assert train.classes == test.classes and len(train.classes) == 21 and train.classes[1:3] == ("0.25", "0.5")
    assert [float(train.classes[label]) for label in train.labels] == [0, 5, 4.75, 2, 0, 1, 3.75]
    for score in ("5.01", "-0.1", "nan", "1,5", "1_0", "0x1", "1e9999"):
        (tmp_path / "b.tsv").write_text(f"text\tscore\nsome\t2\nother\t{score}\n")
        with pytest.raises(UserError, match=r"line 3: label is no number from 0 to 5"):
            read_files(tmp_path, "a.tsv", "b.tsv", text="text", label="score", numbers=numbers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label_range": (1.0, 1.0)}, "the lower first"),
        ({"label_range": (0.0, np.inf)}, "two finite numbers"),
        ({"label_range": None}, "data.levels: goes with data.label-range"),
        ({"label_range": None, "levels": None}, 'data.measures: "pearson" is of labels that are numbers'),
    ],
)
def test_settings_of_numbers_that_contradict_are_refused(change: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
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


def test_a_model_is_measured_by_what_its_data_need_and_on_the_device_by_own_labels() -> None:
    owned = held(np.arange(40) % 2, users=np.repeat(np.arange(20), 2))
    guesses = predicted(np.eye(2)[owned.test.labels], np.arange(40))
    trained = Trained(ArmResult("a"), None, dict.fromkeys(SPLITS, guesses))
    result, _ = evaluate(trained, Data(), owned, seed=1)
    assert {split for split in SPLITS if "own-labels" in result.measures[split]} == {"on_device"}
    truth = held(np.arange(30) % 3)
    sure = predicted(50 * np.eye(3)[truth.test.labels], np.arange(30))
    trained = Trained(ArmResult("a"), None, {"sanitized": None, "on_device": sure})
    result, _ = evaluate(trained, SCORES, truth, seed=1)
    assert result.measures == {"sanitized": {"pearson": None, "spearman": None}, "on_device": ANY}
    assert [each["value"] for each in result.measures["on_device"].values()] == pytest.approx([1.0, 1.0])
