"""From an experiment to who holds what: the built-in corpus is as large as the population needs."""

from __future__ import annotations

import numpy as np
import pytest

from simulations.corpora.parts import REVIEWS_PER_USER, load_split
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table
from simulations.study.prepare import _hand_out
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
