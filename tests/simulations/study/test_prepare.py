"""From an experiment to who holds what: the built-in corpus is as large as the population needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from simulations.corpora.builtin import builtin
from simulations.corpora.parts import REVIEWS_PER_USER, load_split
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table
from simulations.study.prepare import _hand_out, prepare
from tests.support.studies import PURKAYASTHA, RANDOMIZED


def study(users: int, **population: object) -> Experiment:
    return from_table({
        "name": "small",
        "data": {"public-size": 50, "test-size": 100},
        "population": {"users": users} | population,
        "policy": {"embedding": 32.0, "label": 3.0},
        "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("population", "records"),
    [({}, 1), ({"assignment": "column"}, REVIEWS_PER_USER),
     ({"assignment": "dirichlet", "alpha": 0.5}, REVIEWS_PER_USER)],
)  # fmt: skip
def test_the_built_in_corpus_has_as_many_users_as_are_asked_for(population: dict, records: int) -> None:
    experiment = study(120, **population)
    before, _ = load_split(experiment)
    split, held = _hand_out(experiment, before)
    assert set(held.users.tolist()) == set(range(120))
    assert len(split.train) == 120 * records
    if population.get("assignment") == "column":
        writers = np.array(split.train.users)
        assert all(len(set(writers[held.users == user])) == 1 for user in range(120))
        assert len(set(writers)) == 120


def test_users_of_few_reviews_where_the_corpus_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.corpora.builtin.LIMIT", 500)
    experiment = study(120, assignment="column")
    split, held = _hand_out(experiment, load_split(experiment)[0])
    assert len(split.train) == 500 - 150 and set(held.users.tolist()) == set(range(120))
    with pytest.raises(UserError, match="the corpus ends at 500"):
        load_split(study(400, assignment="column"))


@dataclass(frozen=True, eq=False)
class _NoEncoder:
    """`prepare_public` without an encoder: what is tested here is what comes before."""

    encoder = None


@pytest.fixture
def unencoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.study.prepare.prepare_public", lambda *_, **__: _NoEncoder())


def files(folder: Path, train: list[tuple[str, ...]], test: list[tuple[str, ...]], **data: object) -> Experiment:
    """A study of rows (text, label) or (text, label, user)."""
    header = ("text", "label", "who")[: len(train[0])]
    for name, rows in (("train", train), ("test", test)):
        (folder / f"{name}.tsv").write_text("\n".join("\t".join(row) for row in (header, *rows)) + "\n", "utf-8")
    people = len({row[2] for row in train}) if len(header) > 2 else len(train)
    return from_table({
        "name": "small",
        "data": {
            "source": "files", "path": str(folder), "train": "train.tsv", "test": "test.tsv", "text": "text",
            "label": "label", "public": {"fraction": 0.25}, **({"user": "who"} if len(header) > 2 else {}), **data,
        },
        "population": {"users": people // 2},
        "shuffle": {"enabled": False},
        "policy": {"embedding": 32.0, "label": 3.0},
        "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
    })  # fmt: skip


def rows(n: int, *, seed: int, sort: bool = False) -> list[tuple[str, ...]]:
    """Reviews that no other seed has a sentence of, with labels 0 and 1."""
    part = builtin(public=1, train=1, test=n, seed=seed).test
    made = [(text, str(label)) for text, label in zip(part.texts, part.labels.tolist(), strict=True)]
    return sorted(made, key=lambda row: row[1]) if sort else made


@pytest.mark.usefixtures("unencoded")
def test_a_limit_of_a_sorted_test_part_keeps_both_classes(tmp_path: Path) -> None:
    experiment = files(tmp_path, rows(40, seed=1), rows(60, seed=2, sort=True), **{"test-limit": 20})
    held = prepare(experiment, progress=print).held
    labels = [label for _, label in rows(60, seed=2, sort=True)]
    counts = np.bincount(held.test.labels)
    assert counts.sum() == 20 and abs(counts[1] - 20 * labels.count("1") / 60) < 1


@pytest.mark.usefixtures("unencoded")
def test_a_test_part_of_one_class_is_refused(tmp_path: Path) -> None:
    test = [row for row in rows(60, seed=2) if row[1] == "1"]
    with pytest.raises(UserError, match=r'data\.test: all .* test texts are of class "1"'):
        prepare(files(tmp_path, rows(40, seed=1), test), progress=print)
    with pytest.raises(UserError, match=r"data\.test: all 1 test texts"):
        prepare(files(tmp_path, rows(40, seed=1), rows(9, seed=2), **{"test-limit": 1}), progress=print)
