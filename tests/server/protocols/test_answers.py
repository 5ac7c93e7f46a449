"""Users who ask a trained model by the class that their own device finds: training, prices, reports, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simulations.errors import UserError
from simulations.experiment import load, to_toml
from simulations.experiment.ladder import of_experiment
from simulations.run.prepare import Prepared
from tests.support.studies import (
    CLASSES,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    LocalGrid,
    experiment,
    folder,
    ledger_rows,
    make_nodes,
    run_arms,
)

__all__ = ["folder"]  # a fixture

EPSILON = 4.0
ANSWER = {"mechanism": "randomized-response", "epsilon": EPSILON}
PRIVUNIT = {"mechanism": "privunit", "epsilon": 6.0, "dim": 3}
STATISTICS = {"training": {"protocol": "statistics"}, "data": {"public": {"labels": False}}}
POLICY = {"vector": 6.0, "embedding": 32.0, "answer": EPSILON, "label": 3.0, "accept-unprotected": []}
ALARM = 1e-6


def study(*arms: dict[str, Any], **sections: dict[str, Any]) -> Any:
    return experiment(*arms, **{"policy": POLICY} | sections)


def ran(made: Any, folder: Path, ready: Prepared | None = None) -> dict[str, Any]:
    return run_arms(made, LocalGrid(make_nodes(made, folder)), ready=ready, nodes=folder)


def test_users_are_taught_by_statistics_and_ask_by_answers(folder: Path) -> None:
    """Sanitized accuracy is that of the released classes: the device's, but for the truths and errors that a draw
    makes of each other."""
    repeats = 20
    data = STATISTICS["data"] | {"test-repeats": repeats}
    made = study({"name": "a", "vector": PRIVUNIT, "answer": ANSWER}, **STATISTICS | {"data": data})
    done = ran(made, folder)["a"]
    line, kept = done.line, 1 / (1 + (CLASSES - 1) * math.exp(-EPSILON))
    right = line["accuracy_clean_test"]
    expected = right * kept + (1 - right) * (1 - kept) / (CLASSES - 1)
    n = TEST * repeats
    law = stats.binom(n, expected)
    assert ALARM < law.cdf(round(line["accuracy"] * n)) < 1 - ALARM
    assert line["accuracy"] < right
    rows = [row for row in ledger_rows(folder, "a") if row.channel == "answer"]
    assert len(rows) == n and all(row.epsilon == pytest.approx(EPSILON) and row.stage == "test" for row in rows)
    assert done.model.embedding is None and done.model.maps.dim == 3
    rungs = {r["rung"]: r["epsilon"] for r in line["test_ladder"]}
    assert list(rungs) == ["answer", "record", "user", "shuffled"]
    assert rungs["answer"] == rungs["user"] == pytest.approx(EPSILON) and 0 < rungs["shuffled"] < EPSILON
    budget = line["budget"]
    assert budget["worst_case_epsilon"] == pytest.approx(6.0) and budget["asking_epsilon"] == pytest.approx(EPSILON)
    assert budget["statement"] == "6, any two users' data; whoever asks: 4, any two texts"
    assert line["mechanism"] == "privunit, then randomized-response"


def test_release_once_teaches_by_embeddings_and_asks_by_answers(folder: Path) -> None:
    """The training users' price is still that of embedding and label, and the test users' that of the answer alone."""
    arm = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}
    made = study(arm | {"answer": ANSWER}, arm | {"name": "b"})
    lines = {name: done.line for name, done in ran(made, folder).items()}
    one, other = lines["a"], lines["b"]
    assert one["ladder"] == other["ladder"]
    assert one["test_ladder"][0]["rung"] == "answer" and one["test_ladder"][2]["epsilon"] == EPSILON
    assert other["test_ladder"][2]["epsilon"] == pytest.approx(10 * np.pi, rel=0.01)
    for name in ("worst_case_epsilon", "metric_epsilon", "label_epsilon"):
        assert one["budget"][name] == other["budget"][name]
    assert (one["budget"]["asking_epsilon"], other["budget"]["asking_epsilon"]) == (EPSILON, None)
    assert one["accuracy_clean_test"] == other["accuracy_clean_test"] and one["accuracy"] > 0.7
    assert {r.channel for r in ledger_rows(folder, "a")} == {"embedding", "label", "answer"}


def test_without_noise_it_is_the_device_and_public_models_are_asked_so_too(folder: Path) -> None:
    clear = {"name": "clear", "protocol": "public-only", "answer": {"mechanism": "identity"}, "reference": True}
    made = study(clear, {"name": "public", "protocol": "public-only", "answer": ANSWER})
    done = ran(made, folder)
    line = done["clear"].line
    assert line["accuracy"] == line["accuracy_clean_test"] > 0.9
    assert line["test_ladder"][2]["epsilon"] == "inf" and line["budget"]["asking_epsilon"] == math.inf
    public = done["public"].line
    assert public["ladder"] is None and public["budget"]["statement"].startswith("nothing leaves; whoever asks: 4")
    assert (public["budget"]["worst_case_epsilon"], public["budget"]["asking_epsilon"]) == (None, EPSILON)
    assert public["accuracy"] < public["accuracy_clean_test"] == line["accuracy"]


def test_what_is_expected_before_a_run_is_what_a_run_costs(folder: Path) -> None:
    made = study({"name": "a", "vector": PRIVUNIT, "answer": ANSWER}, **STATISTICS)
    (before,) = of_experiment(made, classes=CLASSES)
    after = ran(made, folder)["a"].line["test_ladder"]
    assert [(r["rung"], r["epsilon"], r["delta"]) for r in before["test_ladder"]] == [
        (r["rung"], r["epsilon"], r["delta"]) for r in after
    ]


def test_a_study_with_answers_is_written_and_read_back(tmp_path: Path) -> None:
    made = study({"name": "a", "vector": PRIVUNIT, "answer": ANSWER}, **STATISTICS)
    (tmp_path / "e.toml").write_text(to_toml(made))
    assert load(str(tmp_path / "e.toml")) == made and made.policy.answer == EPSILON


@pytest.mark.parametrize(
    ("arm", "sections", "complaint"),
    [
        ({"answer": ANSWER | {"epsilon": 4.1}}, {}, "answer: worst-case ε 4.1 is above policy.answer = 4"),
        ({"answer": ANSWER}, {"policy": POLICY | {"answer": 0.0}}, "above policy.answer = 0"),
        ({"answer": {"mechanism": "identity"}}, {}, "its answers are sent unprotected"),
        ({"answer": {"mechanism": "purkayastha", "epsilon": 1.0}}, {}, "answer: purkayastha"),
        ({"answer": {"mechanism": "randomized-response-prior", "epsilon": 1.0}}, {}, "sanitizes the label, not the"),
        ({"answer": ANSWER | {"dim": 3}}, {}, "answer.dim: applies to embeddings only"),
        ({"answer": {"mechanism": "randomized-response"}}, {}, "missing parameter epsilon"),
        ({"answer": ANSWER}, {"policy": POLICY | {"total": 3.0}}, "4, is above policy.total = 3"),
        (
            {"answer": ANSWER, "vector": PRIVUNIT, "embedding": PURKAYASTHA, "label": None},
            STATISTICS,
            "an answer or an embedding; remove one of the two",
        ),
        (
            {"answer": ANSWER, "embedding": None, "text": {"mechanism": "santext", "epsilon": 1.0}},
            {"training": {"protocol": "sanitized-text"}},
            'answer: does not go with training.protocol = "sanitized-text"',
        ),
    ],
)
def test_studies_that_make_no_sense_are_refused_in_one_line(
    arm: dict[str, Any], sections: dict[str, Any], complaint: str
) -> None:
    whole = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED} | arm
    with pytest.raises(UserError) as refused:
        study({k: v for k, v in whole.items() if v is not None}, **sections)
    assert complaint in str(refused.value) and "\n" not in str(refused.value)
