"""One arm from its public maps to its line of the table, without Flower: the client's handler runs in this process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.artifacts.ways import embeddings_of
from simulations.run.population import late
from tests.support.studies import (
    CLASSES,
    LAPLACE,
    NODES,
    PRIOR,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    USERS,
    LocalGrid,
    charged,
    experiment,
    folder,
    ledger_rows,
    make_nodes,
    prepared,
    run_arms,
    sent,
)

__all__ = ["folder"]  # a fixture

ARMS = {
    "public-only": {"protocol": "public-only", "embedding": PURKAYASTHA},
    "no noise": {"reference": True, "embedding": {"mechanism": "identity", "dim": 4}},
    "laplace": {"embedding": LAPLACE},
    "randomized": {"embedding": PURKAYASTHA, "label": RANDOMIZED},
}


def arm(name: str) -> dict:
    return {"name": name, **ARMS[name]}


@pytest.mark.parametrize(
    ("name", "metric", "worst"),
    [
        ("public-only", "angular", 10 * math.pi),
        ("no noise", "angular", math.inf),
        ("laplace", "euclidean", 20.0),
        ("randomized", "angular", 10 * math.pi),
    ],
)
def test_a_line_of_the_table_and_the_ledgers_behind_it(name: str, metric: str, worst: float, folder: Path) -> None:
    in_clear = name == "laplace"  # its labels, which are declared public
    study = experiment(arm(name), policy={"accept-unprotected": ["label: public"] if in_clear else []})
    grid = LocalGrid(make_nodes(study, folder))
    line = run_arms(study, grid)[name].line
    public_only, reference, randomized = (name == other for other in ("public-only", "no noise", "randomized"))

    assert line["dim"] == 4 and line["mechanism"] == ARMS[name]["embedding"]["mechanism"]
    assert (line["epsilon"], line["label_epsilon"]) == (None if reference else 10.0, 3.0 if randomized else None)
    assert line["reference"] is reference
    assert line["way"] == ("public-only" if public_only else "release-once")
    assert line["dropped"] == line["errors"] == {}
    assert line["users"] == line["delivered"] == (0 if public_only else USERS)
    # A label is an int16, a coordinate an integer of the public grid or a float32.
    assert line["bytes_per_user"] in ((0,) if public_only else (4 * 2 + 2, 4 * 4 + 2))
    assert line["accuracy"] > 0.8 and line["accuracy_clean_test"] > 0.9  # the classes lie far apart; chance is 1/3

    budget = line["budget"]
    assert (budget["metric"], budget["metric_epsilon"]) == (metric, math.inf if reference else 10.0)
    assert budget["worst_case_epsilon"] == pytest.approx(worst, rel=1e-6)
    assert budget["worst_case_epsilon"] >= worst  # numerical loss is never in one's favour
    assert budget["label_epsilon"] == (math.inf if reference else 3.0 if randomized else None)
    assert ("declared public" in budget["statement"]) == in_clear == budget["public_label"]
    assert (budget["statement"] == "no protection") == reference and "inf" not in budget["statement"]

    rows = charged(folder, name)
    assert rows == sent(grid), "what left and what was charged differ"
    stages = {"test": {"embedding"}} | ({} if public_only else {"train": {"embedding", "label"}})
    assert {(r[2], r[3]) for r in rows} == {(s, c) for s, channels in stages.items() for c in channels}
    assert len(rows) == TEST + (0 if public_only else 2 * USERS)
    cost = {r.channel: r.epsilon for r in ledger_rows(folder, name)}
    assert cost["embedding"] == budget["worst_case_epsilon"]
    if randomized:
        assert cost["label"] == budget["label_epsilon"]


def test_stages_ask_disjoint_users_and_pay_for_their_priors(folder: Path) -> None:
    study = experiment({"name": "prior", "embedding": PURKAYASTHA, "label": PRIOR}, training={"label-stages": 2})
    grid = LocalGrid(make_nodes(study, folder))
    line = run_arms(study, grid)["prior"].line
    rows = ledger_rows(folder, "prior")
    assert charged(folder, "prior") == sent(grid)
    users = {stage: {r.user for r in rows if r.stage == stage} for stage in ("train-1", "train-2", "test")}
    assert not users["train-1"] & users["train-2"]
    assert users["train-1"] | users["train-2"] == set(range(USERS))
    assert users["test"] == set(range(USERS, USERS + TEST))
    assert line["delivered"] == USERS and line["budget"]["label_epsilon"] == 3.0
    digests = {stage: {r.digest for r in rows if (r.stage, r.channel) == (stage, "label")} for stage in users}
    assert len(digests["train-1"]) == len(digests["train-2"]) == 1
    assert digests["train-1"] != digests["train-2"], "the second stage must have the first one's model as prior"
    assert line["accuracy"] > 0.8


def test_those_who_drop_out_are_neither_delivered_nor_charged(folder: Path) -> None:
    study = experiment(arm("randomized"), population={"dropout": 0.4})
    line = run_arms(study, LocalGrid(make_nodes(study, folder)))["randomized"].line
    assert line["users"] == USERS and 10 < line["delivered"] < 55
    trained = {r.user for r in ledger_rows(folder, "randomized") if r.stage == "train"}
    assert len(trained) == line["delivered"]


def test_those_who_are_late_are_charged_and_not_delivered(folder: Path) -> None:
    study = experiment(arm("randomized"), population={"late": 0.3})
    grid = LocalGrid(make_nodes(study, folder))
    outcome = run_arms(study, grid)["randomized"]
    line, stages = outcome.line, {"train": range(USERS), "test": range(USERS, USERS + TEST)}
    gone = {
        stage: {u for u in users if late(np.array([u]), probability=0.3, stage=stage, seed=study.seed)[0]}
        for stage, users in stages.items()
    }
    assert line["dropped"] == {"late": len(gone["train"]), "test: late": len(gone["test"])}
    assert 5 < len(gone["train"]) < 35 and line["delivered"] == USERS - len(gone["train"])
    payers = {stage: {r.user for r in ledger_rows(folder, "randomized") if r.stage == stage} for stage in stages}
    assert payers == {stage: set(users) for stage, users in stages.items()}
    assert line["accuracy"] > 0.8

    # What is amplified is amplified by those who were delivered, and by no others.
    for name, n in (("ladder", line["delivered"]), ("test_ladder", TEST - len(gone["test"]))):
        shuffled = next(r for r in line[name] or [] if r["rung"] == "shuffled")
        assert f"{n:,} users" in shuffled["assumption"], shuffled


def test_who_is_late_is_a_matter_of_seed_stage_and_user_alone() -> None:
    """As independent coins: each share is within 5 standard errors (false alarms: 6e-7 each, of three)."""
    users = np.arange(20_000)
    first, *others = (
        late(users, probability=0.3, stage=stage, seed=seed)
        for stage, seed in (("train-1", 1), ("train-2", 1), ("train-1", 2))
    )
    assert (first == late(users[::-1], probability=0.3, stage="train-1", seed=1)[::-1]).all()
    for share, p in ((first, 0.3), *((first & other, 0.09) for other in others)):
        for scale, holds in ((1, True), (2 / 3, False), (3 / 2, False)):
            q = scale * p
            assert (abs(share.mean() - q) < 5 * math.sqrt(q * (1 - q) / len(users))) == holds


def test_a_stage_waits_as_long_as_the_experiment_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = experiment(arm("randomized"), population={"timeout": 12.5})
    waited = []

    class Watched(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float) -> Any:
            waited.append(timeout)
            return super().send_and_receive(messages, timeout=timeout)

    run_arms(study, Watched(make_nodes(study, folder)))
    assert waited == [12.5, 12.5]


def test_a_batch_below_its_minimum_is_discarded_and_its_users_stay_charged(folder: Path) -> None:
    # Nobody knows before asking that so many nodes are away.
    study = experiment(arm("randomized"), shuffle={"minimum-users": 30})
    nodes = make_nodes(study, folder)
    outcome = run_arms(study, LocalGrid(nodes, lost={1, 2, 3, 4}))["randomized"]
    line = outcome.line
    assert line["delivered"] == 0 and line["bytes_per_user"] == 0 and line["accuracy"] is None
    reason = "batch discarded: {} users are fewer than the 30 a batch must have"
    present = [u for u in range(USERS, USERS + TEST) if u % NODES >= 4]
    assert line["dropped"] == {reason.format(20): 1, f"test: {reason.format(len(present))}": 1}
    assert line["accuracy_clean_test"] > 1 / CLASSES  # what public data alone achieve
    assert len(ledger_rows(folder, "randomized")) == 2 * 20 + len(present)


def test_m_above_the_encoders_width_is_said_before_anything_starts() -> None:
    study = experiment({"name": "wide", "embedding": PURKAYASTHA | {"dim": [4, 9]}})
    with pytest.raises(ValueError, match=r'arm "wide": embedding.dim: 9 is above the encoder\'s width 8'):
        embeddings_of(study.setups[0], prepared(study).public)
