"""From an experiment to who holds what: the built-in corpus is as large as the population needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simulations.corpora.builtin import builtin
from simulations.corpora.parts import REVIEWS_PER_USER
from simulations.errors import UserError
from simulations.experiment import Experiment, bundled, from_table
from simulations.experiment.sections import Shuffle
from simulations.experiment.toml import document
from simulations.run.prepare import _hand_out, prepare
from simulations.run.report import data_notes
from tests.support.studies import PURKAYASTHA, RANDOMIZED, files_study, split_of


def study(users: int, **population: object) -> Experiment:
    return from_table(
        {
            "name": "small",
            "data": {"public-size": 50, "test-size": 100},
            "population": {"users": users} | population,
            "policy": {"embedding": 32.0, "label": 3.0},
            "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
        }
    )


@pytest.mark.parametrize(
    ("population", "records"),
    [({}, 1), ({"assignment": "column"}, REVIEWS_PER_USER)],
)
def test_the_built_in_corpus_has_as_many_users_as_are_asked_for(population: dict, records: int) -> None:
    experiment = study(120, **population)
    before, _ = split_of(experiment)
    split, held = _hand_out(experiment.population, before, experiment.seed)
    assert set(held.users.tolist()) == set(range(120))
    assert len(split.train) == 120 * records
    if population:
        assert len(set(split.train.users)) == 120


def test_users_of_few_reviews_where_the_corpus_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.corpora.builtin.LIMIT", 500)
    experiment = study(120, assignment="column")
    split, held = _hand_out(experiment.population, split_of(experiment)[0], experiment.seed)
    assert len(split.train) == 500 - 150 and set(held.users.tolist()) == set(range(120))
    with pytest.raises(UserError, match="the corpus ends at 500"):
        split_of(study(400, assignment="column"))


@dataclass(frozen=True, eq=False)
class _NoEncoder:
    """`prepare_public` without an encoder: what is tested here is what comes before."""

    encoder = None
    embeddings = None


@pytest.fixture
def unencoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.run.prepare.prepare_public", lambda *_, **__: _NoEncoder())


def files(folder: Path, train: list[tuple[str, ...]], test: list[tuple[str, ...]], **data: object) -> Experiment:
    people = len({row[2:] or row for row in train})
    data = {"public": {"fraction": 0.25}} | data
    return files_study(folder, train, test, data=data, population={"users": people // 2})


def rows(n: int, *, seed: int, sort: bool = False) -> list[tuple[str, ...]]:
    """Reviews that no other seed has a sentence of, with labels 0 and 1."""
    part = builtin(public=1, train=1, test=n, seed=seed).test
    made = [(text, str(label)) for text, label in zip(part.texts, part.labels.tolist(), strict=True)]
    return sorted(made, key=lambda row: row[1]) if sort else made


@pytest.mark.usefixtures("unencoded")
def test_a_test_part_of_one_class_is_refused(tmp_path: Path) -> None:
    test = [row for row in rows(60, seed=2) if row[1] == "1"]
    with pytest.raises(UserError, match=r'data\.test: all .* test texts are of class "1"'):
        prepare(files(tmp_path, rows(40, seed=1), test))
    with pytest.raises(UserError, match=r"data\.test: all 1 test texts"):
        prepare(files(tmp_path, rows(40, seed=1), rows(9, seed=2), **{"test-limit": 1}))


def test_a_test_part_that_is_held_out_of_what_users_would_hold(tmp_path: Path) -> None:
    """By sentences and by rows: nobody's, the file's own is not asked, and the public part is what it was."""
    for split in ("random", "by-sentence"):
        public = {"fraction": 0.25, "split": split}
        args = (rows(40, seed=1), rows(9, seed=2))
        whole, _ = split_of(files(tmp_path, *args, public=public))
        result, about = split_of(files(tmp_path, *args, public=public, **{"held-out": 0.2}))
        assert list(result.public.texts) == list(whole.public.texts) and about["held_out"] == 0.2
        assert len(result.test) == round(0.2 * len(whole.train))
        assert sorted([*result.train.texts, *result.test.texts]) == sorted(whole.train.texts)


# -- what the parts share ----------------------------------------------------------------------------------------------


def with_users(made: list[tuple[str, ...]], name: str, each: int) -> list[tuple[str, ...]]:
    return [(*row, f"{name}{i // each}") for i, row in enumerate(made)]


@pytest.mark.usefixtures("unencoded")
def test_who_is_tested_is_whom_the_data_name(tmp_path: Path) -> None:
    """Three rows to a person: a third of the users, with records 0, 1 and 2, and a ladder for three."""
    experiment = files(tmp_path, with_users(rows(40, seed=1), "a", 2), with_users(rows(30, seed=2), "b", 3))
    held = prepare(experiment).held
    first = experiment.population.users
    assert held.test_holders.people == 10 and held.test_holders.most == 3
    assert set(held.test_holders.users.tolist()) == set(range(first, first + 10))
    assert held.test_holders.records.tolist() == [0, 1, 2] * 10 and held.test_rows.tolist() == list(range(30))
    owners = dict(zip(held.test.users, held.test_holders.users.tolist(), strict=True))
    assert len(owners) == 10 and [owners[name] for name in held.test.users] == held.test_holders.users.tolist()


@pytest.mark.usefixtures("unencoded")
def test_somebody_in_train_and_test_would_have_two_budgets(tmp_path: Path) -> None:
    train, test = with_users(rows(40, seed=1), "a", 1), with_users(rows(30, seed=2), "a", 1)
    for more in ({}, {"overlap": "no reason is good enough"}):
        with pytest.raises(UserError, match=r"data\.user: \d+ people are in test and in train"):
            prepare(files(tmp_path, train, test, **more))


@pytest.mark.usefixtures("unencoded")
def test_a_column_of_users_makes_users(tmp_path: Path) -> None:
    train, test = with_users(rows(40, seed=1), "a", 2), with_users(rows(30, seed=2), "b", 3)
    with pytest.raises(UserError, match=r"data\.test-repeats: each is by users of their own"):
        files(tmp_path, train, test, **{"test-repeats": 2})
    table = files(tmp_path, train, test)
    for assignment in ({"assignment": "record"}, {"assignment": "dirichlet", "alpha": 1.0}):
        with pytest.raises(UserError, match=r"population\.assignment: .* data\.user says whose they are"):
            replace(table, population=replace(table.population, **assignment))
    # no more test-repeats, which data of people refuse
    with pytest.raises(UserError, match=r"minimum-users: 11 is more than the 10 test users.*more test users$"):
        prepare(replace(table, population=replace(table.population, users=12), shuffle=Shuffle(minimum_users=11)))


@pytest.mark.usefixtures("unencoded")
def test_parts_that_overlap_need_a_reason_which_the_results_give(tmp_path: Path) -> None:
    """Copies and repetitions; the public part names its classes otherwise."""
    train, test = rows(50, seed=101), rows(40, seed=201)
    test += [*train, *((f" {t.upper()} ", y) for t, y in test)]
    with pytest.raises(UserError, match=r"data\.overlap: is missing") as caught:
        prepare(files(tmp_path, train, test))
    assert "\n" not in str(caught.value)
    about = prepare(files(tmp_path, train, test, overlap="planted")).about
    shared, notes = about["overlap"]["test in train"], "\n".join(data_notes(about))
    assert shared["texts"] > 0 and about["repeated"]["test"] > 0
    assert "Overlap: " in notes and "Accepted: planted." in notes and "stand in their part before" in notes
    public: dict[str, object] = {"public": {"split": "built-in"}, "public-size": 30}
    named = [[(text, "no" if label == "0" else "aye") for text, label in part] for part in (train, rows(40, seed=202))]
    with pytest.raises(UserError, match=r"data\.public\.classes: is missing"):
        prepare(files(tmp_path, *named, **public))
    public["public"] = {"split": "built-in", "classes": {"no": "negative", "aye": "positive"}}
    notes = "\n".join(data_notes(prepare(files(tmp_path, *named, **public)).about))
    assert "no is negative" in notes and "aye is positive" in notes and "Overlap" not in notes


def test_what_comes_with_sottovoce_says_why_its_parts_overlap() -> None:
    for name, data in ((name, document(name)["data"]) for name in bundled()):
        assert data["source"] != "files" or data["overlap"], name
