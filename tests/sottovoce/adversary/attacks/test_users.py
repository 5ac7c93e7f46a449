"""Attacks on vectors of users of many records: what is planted is found, what is not there is not.

Statistical tests allow for 5 standard errors, on fixed seeds.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from mechanisms.identity import Identity
from mechanisms.privunit import PrivUnit
from server.training.statistic_head import simplex_codes
from simulations.experiment import from_table
from simulations.output.jsonable import json_ready
from simulations.run import report
from simulations.run.journal import UNFINISHED
from simulations.run.run import run
from sottovoce.adversary.attacks.run import Attack
from sottovoce.adversary.attacks.run import run as attack
from sottovoce.adversary.estimators import linkage, statistic
from sottovoce.adversary.estimators.statistic import Pool, VectorQuestion
from tests.support.studies import in_process
from tests.support.tiny_models import WORDS, tiny_bert

SIGMAS = 5.0


def vectors(records: int, n: int = 400) -> tuple[VectorQuestion, np.ndarray, np.ndarray, Pool]:
    """A question without noise; means of users with one value each, of three; and public records."""
    rng = np.random.default_rng(4)
    centres = 3 * np.linalg.qr(rng.normal(size=(8, 8)))[0][:3]
    of, public = np.arange(n) % 3, np.arange(600) % 3
    question = VectorQuestion(
        np.zeros(8, np.float32), np.eye(8, dtype=np.float32), simplex_codes(2), Identity("statistic", 9)
    )
    h = centres[np.repeat(of, records)] + rng.normal(size=(n * records, 8))
    labels = rng.integers(2, size=n * records)
    means = question.vectors(h.astype(np.float32), labels).reshape(n, records, -1).mean(axis=1)
    pool = (centres[public] + rng.normal(size=(600, 8))).astype(np.float32)
    return question, means, of, Pool(pool, np.full(600, -1), public)


@pytest.mark.parametrize(("records", "least"), [(1, 0.85), (2, 0.6), (5, 0.5)])
def test_an_attribute_of_a_user_of_many_records_is_found(records: int, least: float) -> None:
    """Records of both labels cancel each other: half of the users of two records show nothing."""
    question, means, of, pool = vectors(records)
    guesses = statistic.guessed(question, means, pool, 3, np.full(len(of), records), seed=1)
    assert (guesses == of).mean() > least
    single = statistic.guessed(question, means, pool, 3)
    assert (guesses == of).mean() >= (single == of).mean() - 0.05  # users made of as many records are the better prior


def test_users_of_one_record_are_guessed_as_before() -> None:
    question, means, _, pool = vectors(1)
    one = statistic.guessed(question, means, pool, 3)
    np.testing.assert_array_equal(statistic.guessed(question, means, pool, 3, np.ones(len(means), np.int64)), one)


def test_made_users_have_the_label_that_is_most_frequent() -> None:
    question, _, _, pool = vectors(3)
    means, of = statistic.made_users(question, Pool(pool.embeddings, pool.labels), 4, seed=1)
    assert len(means) == len(of) < 2_000 and abs(of.mean() - 0.5) < 0.1  # ties of two labels are left out
    top, clear = statistic.most_frequent(np.array([[0, 1, 1], [2, 0, 1], [2, 2, 0]]))
    assert clear.tolist() == [True, False, True] and top[clear].tolist() == [1, 2]


def test_two_vectors_of_a_user_are_linked_as_far_as_noise_allows() -> None:
    question, means, _, pool = vectors(3, n=100)
    clear = linkage.same_user(question.mechanism, means, means, means)
    assert (clear.argmax(axis=1) == np.arange(100)).all()
    noisy = VectorQuestion(question.mean, question.m1, question.codes, PrivUnit(9, 2.0))
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    one, two = (noisy.drawn(units, seed=seed, stage="test") for seed in (1, 2))
    evidence = linkage.same_user(noisy.mechanism, statistic.made_users(noisy, pool, 3, seed=1)[0], one, two)
    success = (evidence.argmax(axis=1) == np.arange(100)).mean()
    assert success <= linkage.bound_of(2.0, 100) + SIGMAS * math.sqrt(0.25 / 100)


# --- runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of 60 users of three records each, in whose words a colour shows."""
    place = tmp_path_factory.mktemp("users")
    tiny_bert(place / "bert")
    rng = np.random.default_rng(1)
    for name, people, each in (("train.tsv", 90, 3), ("test.tsv", 200, 1)):
        lines = ["user\tcolour\tlabel\ttext"]
        for user in range(people):
            words = WORDS[:6] if user % 2 else WORDS[6:12]
            for _ in range(each):
                text, label = " ".join(rng.choice(words, size=9)), rng.integers(2)
                lines.append(f"{name[:2]}{user}\t{'red' if user % 2 else 'blue'}\t{label}\t{text}")
        (place / name).write_text("\n".join(lines) + "\n")
    return place


def finished(folder: Path, out: Path, way: str, *arms: dict, **sections: dict) -> Path:
    small = from_table(
        {
            "name": "users",
            "seed": 5,
            "arm": list(arms),
            "data": {
                "source": "files",
                "path": str(folder),
                "train": "train.tsv",
                "test": "test.tsv",
                "text": "text",
                "label": "label",
                "user": "user",
                "overlap": "made of few words",
                "public": {"fraction": 0.3, "labels": False, "split": "random"},
            },
            "population": {"users": 60, "users-per-node": 30, "assignment": "column"},
            "encoder": {"model": str(folder / "bert"), "max-length": 16},
            "training": {"protocol": way, "epochs": 1, "batch-size": 10},
            "shuffle": {"enabled": False},
            "policy": {
                "embedding": 100.0,
                "statistic": 4.0,
                "text": 1000.0,
                "label": 9.0,
                "accept-unprotected": ["label: made up"],
            },
        }
        | sections
    )
    out.mkdir()
    report.write(run(small, out, engine=in_process), out)
    shutil.rmtree(out / UNFINISHED)
    return out


@pytest.mark.slow
def test_a_run_of_vectors(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arms = (
        {"name": "clear", "reference": True, "statistic": {"mechanism": "identity", "dim": 3}},
        {"name": "noisy", "statistic": {"mechanism": "privunit", "epsilon": 4.0, "dim": 3}},
    )
    out = finished(folder, tmp_path / "run", "statistics", *arms)
    results = attack(Attack(out, attributes=("colour",)))
    found = {f"{e['arm']}: {e['attack']} {e.get('attribute', '')}".strip(): e for e in results["entries"]}
    assert found["clear: vector-attribute colour"]["success"] > 0.8
    assert "records" in found["clear: vector-attribute colour"]["note"]
    assert found["clear: vector-user"]["success"] > 0.9 and found["clear: vector-linkage"]["success"] > 0.9
    for name in ("vector-attribute label", "vector-attribute colour", "vector-user", "vector-linkage"):
        e = found[f"noisy: {name}"]
        assert e["success"] <= e["bound"] + SIGMAS * math.sqrt(0.25 / e["texts"]) and e["bound"] < 1
    assert json_ready(results)
