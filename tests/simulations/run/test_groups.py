"""Accuracy by class, group and user."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment.sections import Data, Population
from simulations.run.accuracy import Counts, score
from simulations.run.measures import Guesses, by_class, by_group, by_user, measures_of
from simulations.run.prepare import Held, Holders, owners

NOBODY = Holders(np.zeros(1, np.int64), np.zeros(1, np.int64))


def held(labels: np.ndarray, *, groups: list[str] | None = None, users: np.ndarray | None = None) -> Held:
    """Test sentences of classes "0", "1", ..., each text once."""
    names = tuple(str(k) for k in range(int(labels.max()) + 1))
    extra = {} if groups is None else {"dialect": groups}
    test = Corpus([f"text {i}" for i in range(len(labels))], labels, names, extra=extra)
    return Held(test, test, NOBODY, NOBODY, np.arange(len(labels)), owners=users)


def guesses(right: np.ndarray, truth: Held, column: str | None = None) -> Guesses:
    """Guesses that are right where `right` is, and otherwise of the next class."""
    labels, classes = truth.test.labels, truth.test.classes
    guessed = np.where(right, labels, (labels + 1) % len(classes))
    rows = np.arange(len(labels))
    return Guesses(
        np.eye(len(classes))[guessed],
        labels,
        rows,
        rows if truth.owners is None else truth.owners,
        classes,
        None,
        1,
        truth.groups(column),
        truth.owners is not None,
    )


def test_accuracy_by_class_and_group_has_the_error_of_its_own_texts() -> None:
    truth = held(np.repeat([0, 1], [30, 10]), groups=["north"] * 20 + ["south"] * 20)
    right = np.arange(40) % 4 > 0
    result = by_class(guesses(right, truth))
    assert {name: (each.value, each.n) for name, each in result.items()} == {"0": (22 / 30, 30), "1": (0.8, 10)}
    assert result["1"].error == pytest.approx(math.sqrt(10 / 14 * 4 / 14 / 13))  # with four more, two of them right
    assert {name: each.n for name, each in by_group(guesses(right, truth, "dialect")).items()} == {
        "north": 20,
        "south": 20,
    }
    assert by_group(guesses(right, truth)) == {}


def test_texts_of_one_user_are_one_draw() -> None:
    """Of 40 texts by 8 users who are right always or never, the error is about that of 8 texts."""
    users = np.repeat(np.arange(8), 5)
    truth = held(np.arange(40) % 2, users=users)
    right = users % 2 == 0
    by_text = score(Counts(np.ones(40, np.int64), right.astype(np.int64)))
    result = guesses(right, truth).accuracy()
    assert by_text is not None and by_text.error is not None
    assert result.error == pytest.approx(math.sqrt(0.25 / 11)) and result.error > 1.9 * by_text.error


def test_by_user_tells_chance_from_users_who_differ() -> None:
    """Variance is unbiased: over 50 populations of 60 users its mean is the true one, .0225 or 0, within 4 errors."""
    rng = np.random.default_rng(4)
    often = rng.integers(2, 30, size=60)
    users = np.repeat(np.arange(60), often)
    truth = held(np.arange(len(users)) % 2, users=users)
    for spread in (0.0, 0.15):
        variances = []
        for _ in range(50):
            p = 0.8 + spread * rng.choice([-1, 1], size=60)
            result = by_user(guesses(rng.random(len(users)) < p[users], truth))
            variances.append(result["variance"].value)
        error = np.std(variances) / math.sqrt(len(variances))
        assert abs(np.mean(variances) - spread**2) < 4 * error, spread  # false alarm: 1 in 16,000
        for wrong in (2 / 3, 3 / 2):
            assert spread == 0 or abs(np.mean(variances) - wrong * spread**2) > 4 * error
    assert result["worst decile"].value < result["worst decile by chance"].value < result["mean"].value
    assert [each.n for each in result.values()] == [60] * 4


def test_worst_decile_by_hand() -> None:
    users = np.repeat(np.arange(20), 4)
    right = np.ones(80, np.bool_)
    right[[0, 1, 2, 4]] = False  # user 0 is right once, user 1 three times
    result = by_user(guesses(right, held(np.arange(80) % 2, users=users)))
    assert result["worst decile"].value == (0.25 + 0.75) / 2 and result["mean"].value == (18 + 1) / 20
    assert by_user(guesses(right[:76], held(np.arange(76) % 2, users=users[:76]))) == {}  # 19 users


def test_users_of_measures_are_those_of_the_data_or_dealt_alike() -> None:
    rows = np.arange(200)
    corpus = Corpus([f"t {i}" for i in rows], rows % 2, ("a", "b"), users=[f"u{i % 9}" for i in rows])
    split = Split(corpus, corpus, corpus.take(np.arange(100)))
    assert owners(Population(users=9, assignment="record"), split, 1) is None
    by_column = owners(Population(users=9, assignment="column"), split, 1)
    assert by_column is not None and np.array_equal(by_column, np.arange(100) % 9)
    dealt = owners(Population(users=10, assignment="dirichlet", alpha=0.1), split, 1)
    assert dealt is not None and np.bincount(dealt).tolist() == [20] * 5  # as many records as training users have


def results(lines: list[Any], classes: int = 3) -> dict[str, Any]:
    return {
        "name": "n",
        "seed": 1,
        "way": "release-once",
        "classes": [str(k) for k in range(classes)],
        "chance": 0.1,
        "arms": lines,
        "measures": [],
    }


# --- the column, and tables


def test_an_attribute_column_is_read_and_kept_from_devices(tmp_path: Path) -> None:
    for name in ("train", "test"):
        rows = [f"{name} text {i},{'ab'[i % 2]},{['north', 'south', ''][i % 3]}" for i in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label,dialect", *rows]))
    data, people = replace(COLUMN, path=str(tmp_path), train="train.csv", test="test.csv"), Population(users=5)
    split, _ = load_split(data, people, 1)
    assert split.test.extra["dialect"] == ["north", "south", "not given"] * 4
    rows = [f"text {i},{'ab'[i % 2]},group {i}" for i in range(101)]
    (tmp_path / "test.csv").write_text("\n".join(["text,label,dialect", *rows]))
    with pytest.raises(UserError, match=r'column "dialect" has 101 values, and at most 100 are compared'):
        load_split(data, people, 1)
    (tmp_path / "test.csv").write_text(f"text,label,dialect\nsome text,a,{'a long answer ' * 20}\n")
    with pytest.raises(UserError, match=r'line 2: "dialect" is a text of 280 characters; name a column of groups'):
        load_split(data, people, 1)
    with pytest.raises(UserError, match=r"data.group: is one of sentiment, genre of the built-in corpus"):
        Data(group="dialect")


def test_which_measures_a_run_has_of_itself() -> None:
    users = np.repeat(np.arange(20), 2)
    truth = held(np.arange(40) % 2, groups=["a"] * 40, users=users)
    assert measures_of(Data(), truth) == ("by-class", "by-user", "own-labels")
    assert measures_of(COLUMN, truth) == ("by-class", "by-group", "by-user", "own-labels")
    assert measures_of(replace(COLUMN, label_range=(0.0, 1.0)), replace(truth, owners=None)) == ("by-group",)


COLUMN = Data(source="files", path="p", train="a.csv", test="b.csv", text="text", label="label", group="dialect")
