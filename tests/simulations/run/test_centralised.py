"""References that read all data: their models, and that they count as private nowhere."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulations.artifacts.ways import embeddings_of
from simulations.errors import UserError
from simulations.experiment.ladder import of_experiment
from simulations.run import trust
from simulations.run.evaluation import evaluate
from simulations.run.references import centralised, logistic_regression, paper
from sottovoce.report import facts
from tests.support.studies import LAPLACE, PURKAYASTHA, RANDOMIZED, TEST, USERS, experiment, prepared
from tests.support.texts import text_prepared, text_study

READS_ALL = {"name": "centralised, not private", "protocol": "centralised", "reference": True}


def test_the_penalty_is_chosen_on_held_out_rows() -> None:
    rng = np.random.default_rng(2)
    h, y = rng.normal(size=(60, 40)), rng.integers(2, size=60)
    noise = logistic_regression(h, y, classes=2, seed=0)
    assert (noise.scores(h).argmax(axis=1) == y).mean() < 0.95  # the least penalty learns the rows by heart
    h[:, 0] += 6 * y
    scores = logistic_regression(h, y, classes=3, seed=0).scores(h)
    assert (scores.argmax(axis=1) == y).mean() > 0.95 and np.isneginf(scores[:, 2]).all()


def test_it_learns_from_users_and_releases_nothing() -> None:
    study = experiment(READS_ALL, data={"measures": ["macro-f1"]})
    ready = prepared(study)
    trained = centralised(study, study.arms[0], ready)
    result, answers = evaluate(trained, study.data, ready.held, seed=study.seed)
    assert result.accuracy_clean_test is not None and result.accuracy_clean_test > 0.9 and trained.model is None
    assert result.accuracy is None and not answers["sanitized"].guesses.any() and result.bytes_per_user is None
    assert result.measures["on_device"]["macro-f1"]["value"] > 0.9
    assert trust.unprotected(result) and trust.local(result) is None and trust.central(result) == (None, "the server")
    cost = facts.paid(result, "training user")
    assert cost is not None and cost.epsilon == math.inf
    (before,) = of_experiment(study)
    assert before["ladder"] is None and before["test_ladder"] is None and before["reference"]


@pytest.mark.parametrize(
    ("arm", "training", "words"),
    [
        ({"reference": False}, {}, "write reference = true"),
        ({"embedding": PURKAYASTHA}, {}, "releases nothing"),
        ({"label": {"mechanism": "identity"}}, {}, "releases nothing"),
        ({}, {"protocol": "sanitized-text"}, '"centralised" does not go with training.protocol = "sanitized-text"'),
    ],
)
def test_an_arm_that_would_release_something_is_refused(
    arm: dict[str, object], training: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        experiment(READS_ALL | arm, training=training)


def test_the_published_procedure_is_scored_on_both_splits_and_not_private(tmp_path: Path) -> None:
    arm = {"name": "paper", "embedding": LAPLACE, "label": RANDOMIZED}
    training = {"protocol": "paper", "epochs": 2, "acknowledge-not-private": True}
    study = text_study(tmp_path, arm, training=training, data={"test-repeats": 3})
    ready, (setup,) = text_prepared(study, tmp_path), study.setups
    public = replace(ready.public, embeddings=np.zeros((len(ready.public.texts), 32), np.float32))
    trained = paper(study, setup, ready.held, embeddings_of(setup, public)[0])
    result, answers = evaluate(trained, study.data, ready.held, seed=study.seed)
    assert trust.unprotected(result) and result.budget.worst_case_epsilon == math.inf and trained.model is not None
    assert (result.budget.metric_epsilon, result.budget.label_epsilon) == (2 * 10.0, 3.0)
    assert answers["sanitized"].guesses.sum() == 3 * TEST and answers["on_device"].guesses.sum() == TEST
    assert result.delivered == USERS and None not in (result.accuracy, result.accuracy_clean_test)
