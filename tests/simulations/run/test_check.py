"""What is said of a run before it runs, beside what a run would do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from client.models.tokens import padded_word_ids
from mechanisms.vocabulary import NOTHING
from simulations.analysis.budget import texts_to_price
from simulations.corpora.builtin import builtin
from simulations.errors import UserError
from simulations.experiment import Experiment, to_toml
from simulations.experiment.ladder import of_experiment
from simulations.experiment.preflight import check_requests
from simulations.run.check import check
from simulations.run.prepare import parts
from simulations.run.report import data_notes
from sottovoce.cli import budget as check_command
from sottovoce.cli import main as cli
from tests.support.studies import PURKAYASTHA, RANDOMIZED, Rows, files_study, merged
from tests.support.studies import experiment as make_experiment
from tests.support.tiny_models import bert

__all__ = ["bert"]  # a fixture


SANTEXT = {"mechanism": "santext", "epsilon": 4.0, "tokens": 8, "length": "kept", "punctuation": "drop"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def study(bert: Path, **sections: Any) -> Experiment:
    table: dict[str, Any] = {
        "data": {"public-size": 40, "test-size": 50},
        "population": {"users-per-node": "auto"},
        "encoder": {"model": str(bert), "max-length": 24},
        "shuffle": {"minimum-users": 20},
        "policy": {"embedding": 40.0, "accept-unprotected": []},
    }
    arms = sections.pop("arm", [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}])
    return make_experiment(*arms, **merged(table, sections))


def test_it_counts_what_the_run_would_work_on_and_leaves_nothing_behind(bert: Path, tmp_path: Path) -> None:
    experiment = study(bert)
    result = check(experiment)
    split, _, _ = parts(experiment)
    for name, rows in (("public", 40), ("train", 60), ("test", 50)):
        corpus = getattr(split, name)
        counts = {label: int((corpus.labels == i).sum()) for i, label in enumerate(corpus.classes)}
        assert result["parts"][name] == {"rows": rows, "classes": counts}
    assert result["crowds"] == {"train": {"users": 60, "least": 20}, "test": {"users": 50, "least": 20}}
    priced = of_experiment(experiment, records=1, classes=2)
    assert result["arms"] == [line | {"expected": None} for line in priced]  # users of embeddings teach no share
    tokenizer = Tokenizer.from_file(str(bert / "tokenizer.json"))
    every = [text for part in (split.public, split.train, split.test) for text in part.texts]
    lengths = [len(tokenizer.encode(text).ids) for text in every]
    (cut,) = result["cut"]
    assert cut["share"] == np.mean([n > 24 for n in lengths]) > 0 and cut["longest"] == max(lengths)
    assert list(tmp_path.iterdir()) == []


def owned(users: dict[str, int], seed: int) -> Rows:
    """Texts with a class and a user, of whom each has so many rows."""
    words, rng = ["bad", "bright", "cold", "film", "good", "plot", "quick", "slow"], np.random.default_rng(seed)
    of = [user for user, rows in users.items() for _ in range(rows)]
    return [(f"{' '.join(rng.choice(words, 9))} {user} {i}", str(i % 2), user) for i, user in enumerate(of)]


def by_people(bert: Path, train: dict[str, int], test: dict[str, int], **sections: Any) -> Experiment:
    arm = {
        "name": "one vector",
        "vector": {"mechanism": "privunit", "epsilon": 6.0, "dim": 4},
        "answer": {"mechanism": "randomized-response", "epsilon": 4.0},
    }
    data = {"user": "who", "public": {"fraction": 0.25, "labels": False}} | sections.pop("data", {})
    made: dict[str, Any] = {
        "population": {"users": 30},
        "encoder": {"model": str(bert), "max-length": 24},
        "training": {"protocol": "statistics"},
        "shuffle": {"enabled": True, "minimum-users": 20},
        "arm": [arm],
        "policy": {"vector": 8.0, "answer": 4.0},
    }
    return files_study(Path("."), owned(train, 1), owned(test, 2), data=data, **merged(made, sections))


def test_each_kind_of_user_is_priced_with_their_own_records(bert: Path) -> None:
    """One test user of 50 rows pays 200 beside training users of 2."""
    most, others = 50, 2
    experiment = by_people(
        bert,
        {f"u{i}": others for i in range(40)},
        {"heavy": most} | {f"t{i}": 1 for i in range(24)},
        population={"late": 0.2},
    )
    result = check(experiment)
    (arm,) = result["arms"]
    users = {key: next(rung for rung in arm[key] if rung["rung"] == "user") for key in ("ladder", "test_ladder")}
    assert users["ladder"]["worst_case"] == pytest.approx(6.0)
    assert users["test_ladder"]["worst_case"] == pytest.approx(4.0 * most)
    assert result["crowds"]["test"]["users"] == 20
    shuffled = next(rung for rung in arm["test_ladder"] if rung["rung"] == "shuffled")
    assert shuffled["crowd"] == (20 if shuffled["epsilon"] is not None else None)
    assert f" All that one test user releases: ε = {4 * most}" in check_command.lines(result)


def test_it_names_arms_whose_users_will_not_be_queried(bert: Path) -> None:
    """By class names, assumed right; an encoder that is trained first, and a gate that is off, are not considered."""

    expected = {}

    def names(descriptions: Any = None, **sections: Any) -> list[str]:
        described = {"class-descriptions": descriptions or {"0": "a bad film", "1": "a good film"}}
        weak = {"name": "weak", "vector": {"mechanism": "privunit", "epsilon": 0.01, "dim": 4}}
        users = {f"u{i}": 2 for i in range(40)}, {f"t{i}": 1 for i in range(24)}
        result = check(by_people(bert, *users, data=described, arm=[weak], **sections))
        assert result["warnings"][: len(result["names"])] == result["names"]
        (expected["weak"],) = (arm["expected"] for arm in result["arms"])
        return list(result["names"])

    (line,) = names()
    assert expected["weak"] is None
    assert line.startswith('arm "weak": no user will be queried: if the class names are right, 30 user vectors')
    assert not names(training={"least-gain": 0.0}) and not names("none")
    assert 0 <= expected["weak"]["share"] < 0.5 and expected["weak"]["half"] > 30


def test_many_classes_are_priced_as_a_run_asks(bert: Path) -> None:
    """By numbers of features that a vector has room for; the statistic's own, where the arm names none."""
    experiment, classes = by_people(bert, {}, {}), 77
    arm = experiment.arms[0]
    chosen = replace(experiment, arms=(replace(arm, statistic={"mechanism": "privunit", "epsilon": 6.0}),))
    (line,) = of_experiment(chosen, classes=classes, records=2, test_records=1, tests=30, public=400)
    assert {rung["rung"]: rung["worst_case"] for rung in line["ladder"]}["user"] == pytest.approx(6.0)
    check_requests(chosen.setups[0], classes=classes, width=384)
    wide = replace(arm, statistic={"mechanism": "privunit", "epsilon": 6.0, "dim": 384})
    with pytest.raises(UserError, match=f"384 features of {classes} classes take"):
        check_requests(chosen.setup(wide), classes=classes, width=384)


def test_no_more_test_users_hide_one_than_the_data_have(bert: Path) -> None:
    """`test-limit` is no number of users: the test part may have fewer rows."""
    answer = {"mechanism": "randomized-response", "epsilon": 1.0}
    train, test = ([row[:2] for row in owned({f"u{i}": 1 for i in range(n)}, seed)] for n, seed in ((90, 1), (30, 2)))
    experiment = files_study(
        Path("."),
        train,
        test,
        data={"test-limit": 500, "public": {"fraction": 0.25}},
        population={"users": 60},
        encoder={"model": str(bert), "max-length": 24},
        shuffle={"enabled": True, "minimum-users": 20},
        policy={"answer": 1.0},
        arm=[{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED, "answer": answer}],
    )
    (line,) = check(experiment)["arms"]
    assert [rung["crowd"] for rung in line["test_ladder"] if rung["rung"] == "shuffled"] == [30]
    (unread,) = of_experiment(experiment)
    shuffled = unread["test_ladder"][-1]
    assert shuffled["crowd"] == 500 and "if there are as many as data.test-limit" in shuffled["assumption"]


def test_a_text_mechanisms_limit_cuts_what_it_says(bert: Path) -> None:
    arm = {"name": "a", "text": SANTEXT, "label": RANDOMIZED}
    reasons = ["length: of this test"]
    experiment = study(
        bert,
        training={"protocol": "sanitized-text"},
        arm=[arm, arm | {"name": "b"}],
        policy={"text": 10_000.0, "accept-unprotected": reasons},
    )
    split, _, _ = parts(experiment)
    texts = [text for part in (split.train, split.test) for text in part.texts]
    mechanism = texts_to_price(experiment)["a"]
    shorter = padded_word_ids(texts, mechanism)
    longer = padded_word_ids(texts, replace(mechanism, tokens=9))
    cut = check(experiment)["cut"][-1]
    assert cut["where"] == "text.tokens of 2 arms" and cut["most"] == 8
    assert cut["share"] == pytest.approx(float(np.mean(longer[:, -1] != NOTHING))) and shorter.shape[1] == 8


def test_the_command(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(to_toml(study(bert)), encoding="utf-8")
    assert cli.main(["check", "study.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(check(study(bert))))
    assert cli.main(["check", "study.toml", "--set", "encoder.max-length=65"]) == 2  # as a run would
    assert "encoder.max-length: must be from 3 to the encoder's 64 places" in capsys.readouterr().err
    options = ("encoder.max-length=8", "population.late=0.5", "shuffle.minimum-users=40")
    assert cli.main(["check", "study.toml", *(word for option in options for word in ("--set", option))]) == 0
    shown = capsys.readouterr().out
    assert "All that one training user releases: ε = 34.42" in shown and "Look at: encoder.max-length" in shown
    assert "30 train users are expected in a batch" in shown and "NOT met" in shown


# --- what of the data is named before a run


def of_rows(folder: Path, train: Rows, test: Rows, **data: object) -> Experiment:
    people = {row[2:] or row for row in train}
    own = len(train[0]) > 2
    data = {"public": {"split": "built-in", "labels": False}, "overlap": "tested elsewhere"} | data
    population = {"users": len(people), "assignment": "column" if own else "record"}
    return files_study(folder, train, test, data=data, population=population)


def written(texts: list[str], n: int) -> Rows:
    return [(f"{texts[i % len(texts)]} {i}", str(i % 2)) for i in range(n)]


def english(n: int, seed: int) -> list[str]:
    return [str(text) for text in builtin(public=1, train=1, test=n, seed=seed).test.texts]


def test_a_user_with_a_large_share_of_the_rows_is_named(tmp_path: Path) -> None:
    texts = english(200, 4)
    train = [(text, str(i % 2), "Bot" if i < 30 else f"u{i % 50}") for i, text in enumerate(texts[:150])]
    test = [(text, str(i % 2), f"t{i}") for i, text in enumerate(texts[150:])]
    lines = check(of_rows(tmp_path, train, test))["warnings"]
    assert [line for line in lines if "user " in line] == [
        'train: user "Bot" holds 30 of 150 rows (20%): a figure over rows is largely this person\'s; take some of '
        "these rows out, or give more users"
    ]
    five = [(text, str(i % 2), f"u{i % 5}") for i, text in enumerate(texts[:150])]
    assert not any("user " in line for line in check(of_rows(tmp_path, five, test))["warnings"])


def test_classes_that_a_limit_leaves_without_a_row_are_named(tmp_path: Path) -> None:
    """970 of 1,000 test rows are of one class: .97 of 100 rows are too, and the classes that lost their rows are named
    once, before a run and in its results."""
    labels = ["big", *(f"rare{i:02}" for i in range(30))]
    train = [(f"a film {i}", labels[i % 31]) for i in range(62)]
    test = [(f"some book {i}", "big" if i >= 30 else labels[1 + i]) for i in range(1000)]
    experiment = of_rows(tmp_path, train, test, **{"test-limit": 100})
    split, _, about = parts(experiment)
    counts = np.bincount(split.test.labels, minlength=31)
    assert counts[0] == 97 and counts.sum() == 100
    assert about["untested"] == [label for label, n in zip(split.test.classes, counts, strict=True) if not n]
    assert any("Classes without a row under data.test-limit" in line for line in data_notes(about))
    lines = check(experiment)["warnings"]
    assert sum(about["untested"][0] in line for line in lines if "test" in line.split(":")[0]) == 1
