"""Accuracy by class, group and user, and warnings where a loss falls on one group."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment.result import ArmResult
from simulations.experiment.sections import Data, Population
from simulations.run import report
from simulations.run.accuracy import Counts, contrast, score
from simulations.run.evaluation import Answers
from simulations.run.groups import FALSE_ALARM, MARGIN, warnings, with_losses
from simulations.run.journal import UNFINISHED
from simulations.run.measures import Guesses, by_class, by_group, by_user, measures_of
from simulations.run.prepare import Held, Holders, owners
from simulations.run.references import remarks
from simulations.run.run import run
from simulations.run.table import tidy
from sottovoce.report.write import report as write_report
from tests.support.results import line
from tests.support.studies import (
    PURKAYASTHA,
    RANDOMIZED,
    experiment,
    in_process,
    without_work,
)

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


# --- warnings


def answers(right: np.ndarray) -> Answers:
    one = np.ones(len(right), np.int64)
    return Answers(*(Counts(one, right.astype(np.int64)) for _ in range(2)))


def arms(*names: str) -> list[dict[str, Any]]:
    reference = line("no noise", "identity", math.inf, 0.9, reference=True)
    return [reference, *(line(name, "purkayastha", 1.0, 0.8) for name in names)]


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


def test_a_class_that_noise_destroys_is_named_in_results_and_their_lines() -> None:
    labels = np.repeat([0, 1, 2], [180, 180, 40])
    truth, rng = held(labels), np.random.default_rng(2)
    clear = rng.random(400) < 0.9
    noisy = clear & (rng.random(400) < np.where(labels == 2, 0.2, 0.97))
    lines = with_losses(arms("users"), {"no noise": answers(clear), "users": answers(noisy)}, truth, Data())
    result = lines[1]["measures"]["on_device"]["loss-by-class: 2"]
    assert result["falls"] and result["value"] > 0.5 > 0.1 > result["rest"] and result["against"] == "no noise"
    assert not lines[1]["measures"]["on_device"]["loss-by-class: 0"]["falls"] and "measures" not in lines[0]
    said = remarks([results(list(lines))])
    assert len([each for each in said if 'the loss falls on class "2": 0.' in each]) == 2  # of either split
    assert not [each for each in said if "no noise: " in each]
    many = remarks([results(list(lines))] * 2)
    assert any('class "2" with 2 of 2 seeds: ' in each for each in many)
    table = tidy({"a": results(list(lines))})
    assert len(table[table["metric"] == "loss-by-class: 2"]) == 2


def test_a_group_is_named_by_its_column_and_a_loss_that_all_share_is_not() -> None:
    rng = np.random.default_rng(3)
    dialect = np.where(np.arange(600) % 3 == 0, "south", "north")
    truth = held(np.arange(600) % 2, groups=dialect.tolist())
    clear = rng.random(600) < 0.95
    even = clear & (rng.random(600) < 0.6)
    uneven = clear & (rng.random(600) < np.where(dialect == "south", 0.6, 0.95))
    every = {"no noise": answers(clear), "even": answers(even), "uneven": answers(uneven)}
    lines = with_losses(arms("even", "uneven"), every, truth, COLUMN)
    said = remarks([results(list(lines), 2)])
    assert not [each for each in said if each.startswith("even: ")]
    assert [each for each in said if each.startswith('uneven: on the device the loss falls on group "south": ')]


def test_a_reference_of_the_arm_s_own_protocol_comes_before_others() -> None:
    truth = held(np.arange(40) % 2)
    every = [line("other", "identity", math.inf, 0.9, reference=True, way="statistics"), *arms("users")]
    public = line("alone", "purkayastha", 1.0, 0.8, way="public-only")
    result = {each["name"]: answers(np.arange(40) > 3) for each in [*every, public]}
    lines = with_losses([*every, public], result, truth, Data())
    assert lines[2]["measures"]["on_device"]["loss-by-class: 1"]["against"] == "no noise"
    assert "measures" not in lines[3]  # nothing of it is lost to users' noise
    assert all("measures" not in each for each in with_losses(every[2:], result, truth, Data()))  # no reference at all
    nothing = result | {"users": answers(np.zeros(40, np.bool_))}
    nothing["users"] = Answers(Counts(np.zeros(40, np.int64), np.zeros(40, np.int64)), nothing["users"].device)
    lines = with_losses(every, nothing, truth, Data())
    assert list(lines[2]["measures"]) == ["on_device"]


def one_null(rng: np.random.Generator, more: float) -> bool:
    """Whether a run is warned about whose arms lose .1 everywhere, and `more` beyond that in class 0, by users of 6."""
    sizes = rng.choice([6, 20, 60, 200], size=rng.integers(2, 6))
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    users = rng.integers(max(2, len(labels) // 6), size=len(labels)) if rng.random() < 0.5 else None
    truth = held(labels, users=users)
    hard = rng.normal(size=len(labels)) + (0 if users is None else rng.normal(size=len(labels))[users])
    cuts = np.quantile(hard, [0.1, 0.2 + more])  # the same texts are hard for both models
    clear, noisy = hard > cuts[0], hard > np.where(labels == 0, cuts[1], np.quantile(hard, 0.2))
    noisy ^= rng.random(len(labels)) < 0.02
    names = [f"arm {i}" for i in range(3)]
    every = {name: answers(noisy) for name in names} | {"no noise": answers(clear)}
    lines = with_losses(arms(*names), every, truth, Data())
    return any(warnings([results(list(lines))], [ArmResult.from_dict(each)]) for each in lines)


def test_a_run_without_cause_is_warned_about_in_one_of_a_hundred_at_most() -> None:
    """200 null cases at the margin, the hardest of the null hypothesis, with classes of 6 to 200 texts and users with
    several: more than 10 alarms have a chance of 7e-6."""
    rng = np.random.default_rng(11)
    assert sum(one_null(rng, MARGIN) for _ in range(200)) <= 10 and FALSE_ALARM == 0.01


@pytest.mark.parametrize("owned", [False, True])
def test_the_error_of_a_contrast_is_how_contrasts_vary(owned: bool) -> None:
    """2,000 draws: their variance over the mean squared error lies in .86 to 1.16; a false alarm has a chance of 1e-5.

    Two thirds and three halves of the error are far outside.
    """
    rng, result = np.random.default_rng(5), []
    for _ in range(2000):
        users = np.repeat(np.arange(100), 4)
        inside = users < 40
        hard = rng.normal(size=400) + (rng.normal(size=400)[users] if owned else 0)
        clear, noisy = hard > -1.0, hard + 0.5 * rng.normal(size=400) > -0.3
        each = contrast(
            *(Counts(np.ones(400, np.int64), right.astype(np.int64)) for right in (clear, noisy)),
            inside,
            users if owned else np.arange(400),
        )
        assert each is not None
        result.append((each.loss - each.rest, each.more_error))
    values, errors = np.array(result).T
    ratio = values.var() / np.mean(errors**2)
    assert 0.86 < ratio < 1.16, ratio


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


# --- a whole run


def test_a_run_compares_its_losses_with_its_reference_and_reports_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In results.json, and where a loss falls on a class, in the log, results.md and the report."""
    study = experiment(
        {"name": "no noise", "reference": True, "embedding": {"mechanism": "identity", "dim": 4}},
        {"name": "loud", "embedding": PURKAYASTHA | {"epsilon": 1.0}, "label": RANDOMIZED | {"epsilon": 0.1}},
        data={"public": {"labels": False}},
        training={"maps": "principal-components"},
    )
    without_work(monkeypatch)
    monkeypatch.setattr("simulations.run.groups.MARGIN", -1.0)  # so that any loss falls on a class
    out = tmp_path / "run"
    out.mkdir()
    with caplog.at_level("WARNING"):
        results = run(study, out, engine=in_process)
    report.write(results, out)
    rmtree(out / UNFINISHED)  # as a finished run is left
    clear, loud = (arm["measures"]["on_device"] for arm in results["arms"])
    losses = [loss for name, loss in loud.items() if name.startswith("loss-by-class: ")]
    assert len(losses) == 3 and {loss["against"] for loss in losses} == {"no noise"}
    assert any(loss["falls"] for loss in losses) and "loss-by-class: blue" not in clear
    said = "loud: on the device the loss falls on class "
    assert [record for record in caplog.records if record.getMessage().startswith(said)]
    assert said in (out / "results.md").read_text(encoding="utf-8")
    html = write_report([out], tmp_path / "report.html")[0].read_text(encoding="utf-8")
    assert f'<p class="warn">{said}' in html
