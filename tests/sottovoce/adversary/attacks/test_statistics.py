"""Attacks on one vector of a user: exact where there is no noise, at what ε allows where the server asks for the worst,
never above it.

Statistical tests allow for 5 standard errors, which an estimate of a true value exceeds with probability below 1e-6, on
fixed seeds.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from mechanisms.identity import Identity
from mechanisms.privunit import PrivUnit
from mechanisms.projection import signed_directions
from mechanisms.streams import SimulationStreams
from server.training.statistic_head import simplex_codes
from simulations.corpora.corpus import Corpus, Split
from simulations.experiment import to_toml
from simulations.output.jsonable import json_ready
from sottovoce.adversary.attacks import knowledge as attack_public
from sottovoce.adversary.attacks import membership as attack_membership
from sottovoce.adversary.attacks import statistics as attack_statistics
from sottovoce.adversary.attacks.run import Attack
from sottovoce.adversary.attacks.run import run as attack
from sottovoce.adversary.estimators import allowed, statistic
from sottovoce.adversary.estimators.likelihood import log_likelihood, log_likelihood_of_means
from sottovoce.adversary.estimators.statistic import Pool, VectorQuestion
from tests.support.studies import (
    CLASSES,
    TEST,
    USERS,
    LocalGrid,
    experiment,
    make_nodes,
    prepared,
    run_arms,
    use_folder,
)

SIGMAS = 5.0


def sphere(n: int, dim: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def within(success: float, truth: float, n: int) -> bool:
    return abs(success - truth) <= SIGMAS * math.sqrt(truth * (1 - truth) / n) + 1e-9


# --- densities


def test_the_likelihood_is_the_mechanisms_own() -> None:
    mechanism = PrivUnit(6, 3.0)
    x, z = sphere(9, 6), sphere(40, 6, 1)
    found = log_likelihood(mechanism, z, x)
    exact = np.array([mechanism.log_prob(np.tile(row, (9, 1)), x) for row in z])
    np.testing.assert_allclose(found, exact, atol=1e-9)
    np.testing.assert_allclose(log_likelihood_of_means(mechanism, z, x), exact, atol=1e-9)


@pytest.mark.parametrize("clip", [1.0, 0.5, 0.25])  # the last is below the mean's length
def test_a_mean_below_length_one_is_its_direction_or_the_opposite(clip: float) -> None:
    """By counting what many users of one mean release, in the three sets on which the density is constant."""
    mechanism, mean = PrivUnit(5, 2.0), 0.4 * sphere(1, 5)
    n = 200_000
    rng = np.random.default_rng(3)
    drawn = signed_directions(np.tile(mean, (n, 1)), rng.random(n), clip)
    people = np.arange(n)
    z = mechanism.sample(drawn, rng=SimulationStreams(4).rows(people, 0 * people, stage="test", channel="statistic"))
    uniform = sphere(n, 5, 9)  # the law that densities are relative to
    cosine, other = z @ (mean[0] / 0.4), uniform @ (mean[0] / 0.4)
    for where in (lambda c: c >= mechanism.threshold, lambda c: c <= -mechanism.threshold):
        share, mass = where(cosine).mean(), where(other).mean()
        density = np.exp(log_likelihood_of_means(mechanism, uniform[where(other)][:1], mean, clip)[0, 0])
        assert abs(share - density * mass) <= SIGMAS * math.sqrt((1 + density**2) / (4 * n))


def test_without_noise_the_nearest_is_certain() -> None:
    means = 0.5 * sphere(30, 4)
    evidence = log_likelihood_of_means(Identity("statistic", 4), means + 1e-5, means)
    assert (evidence.argmax(axis=1) == np.arange(30)).all()
    assert (np.sort(evidence, axis=1)[:, -2] < -100).all()


# --- questions of the server's choice


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_a_label_of_two_is_guessed_as_often_as_epsilon_allows(epsilon: float) -> None:
    """Constant features and half the sphere are randomized response: e^ε/(1 + e^ε), and no more."""
    h = np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
    asked = statistic.for_label(h, epsilon, classes=2, seed=1)
    n = 4000
    labels = np.arange(n) % 2
    released = asked.drawn(asked.vectors(np.resize(h, (n, 8)), labels), seed=5, stage="test")
    guesses = statistic.guessed(asked, released, Pool(h, np.full(60, -1)), 2)
    most = float(expit(epsilon))
    assert within((guesses == labels).mean(), most, n)
    assert allowed.guess(allowed.curve(asked.mechanism), np.full(2, 0.5)) == pytest.approx(most, abs=1e-6)


def test_a_question_for_a_value_gets_far_more_than_an_honest_one_and_no_more_than_is_allowed() -> None:
    """Four values that lie apart in few directions of many: principal components see others, the adversary's not."""
    rng = np.random.default_rng(2)
    n, m, values = 800, 24, 4
    of = rng.integers(values, size=2 * n)
    h = np.concatenate(
        [1.5 * np.eye(values)[of] + 0.3 * rng.normal(size=(2 * n, values)), 2.0 * rng.normal(size=(2 * n, m - values))],
        axis=1,
    ).astype(np.float32)
    pool = Pool(h[:n], np.full(n, -1), of[:n])
    labels, epsilon = rng.integers(2, size=n), 4.0
    asked = statistic.for_value(pool, values, epsilon, classes=2, seed=1)
    mean, m1 = np.zeros(m, np.float32), np.eye(m, dtype=np.float32)[:, -8:]
    honest = VectorQuestion(mean, m1, simplex_codes(2), PrivUnit(9, epsilon))
    found = {}
    for name, question in (("chosen", asked), ("honest", honest)):
        released = question.drawn(question.vectors(h[n:], labels), seed=5, stage="test")
        found[name] = (statistic.guessed(question, released, pool, values) == of[n:]).mean()
        share = np.bincount(of[n:]) / n
        most = allowed.guess(allowed.curve(question.mechanism), share)
        assert found[name] <= most + SIGMAS * math.sqrt(0.25 / n)
    assert found["honest"] < 0.35 and found["chosen"] > 0.75


# --- a run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 users of one record each who released one vector, without noise and at ε = 4."""
    return a_run(tmp_path, monkeypatch)


def a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **training: Any) -> Path:
    """The folder of a run; with training.records = 4, 15 users hold four records each."""
    people = {"users": 15, "assignment": "dirichlet", "alpha": 100.0} if training else {}
    small = experiment(
        {"name": "clear", "reference": True, "vector": {"mechanism": "identity", "dim": 3}},
        {"name": "noisy", "vector": {"mechanism": "privunit", "epsilon": 4.0, "dim": 3}},
        training={"protocol": "statistics"} | training,
        population=people,
        data={"public": {"labels": False}},
        policy={"vector": 4.0},
    )
    ready = prepared(small)
    more = Corpus([f"other {i}" for i in range(USERS)], np.arange(USERS) % CLASSES, ready.held.train.classes)
    rows: dict[str, Any] = ready.public.encoder.rows  # type: ignore[union-attr]
    rng = np.random.default_rng(8)
    rows |= {f"other {i}": rng.normal(size=8).astype(np.float32) for i in range(USERS)}
    use_folder(tmp_path / "nodes", monkeypatch)
    run_arms(small, LocalGrid(make_nodes(small, tmp_path / "nodes")), models=tmp_path / "models")
    (tmp_path / "experiment.toml").write_text(to_toml(small), encoding="utf-8")
    for module in (attack_statistics, attack_public):
        monkeypatch.setattr(module, "prepared", lambda run: ready)
    colours = {
        text: str(i % CLASSES) for part in (ready.public.texts, ready.held.train.texts) for i, text in enumerate(part)
    }
    monkeypatch.setattr(attack_statistics.attributes, "column", lambda study, held, name: colours)
    split = Split(Corpus([], np.zeros(0, int), more.classes), ready.held.train, more)
    monkeypatch.setattr("sottovoce.adversary.attacks.target.load_split", lambda *_: (split, {}))
    return tmp_path


def test_a_run(folder: Path) -> None:
    """Without noise whose, what and whether are known; with noise nothing is above what the theorem allows."""
    results = attack(Attack(folder, attributes=("colour",)))
    found = {f"{e['arm']}: {e['attack']} {e.get('attribute', '')}".strip(): e for e in results["entries"]}
    for kind in ("vector-text", "vector-attribute label", "vector-attribute colour", "vector-member"):
        assert found[f"clear: {kind}"]["success"] > 0.95, kind
        assert found[f"clear: {kind}"]["bound"] == 1.0
        for name in (kind, kind.replace("attribute", "attribute-chosen")):
            e = found[f"noisy: {name}"]
            assert e["worst_case_epsilon"] == pytest.approx(4, abs=1e-6) and e["texts"] >= TEST
            assert e["baseline"] < e["bound"] < 1
            assert e["success"] <= e["bound"] + SIGMAS * math.sqrt(0.25 / e["texts"])
    assert found["noisy: vector-attribute-chosen label"]["success"] > 0.75 > found["noisy: vector-text"]["success"]
    assert found["noisy: vector-text"]["success"] > 1.5 / USERS
    assert sum("there is no noise" in line for line in results["skipped"]) == 1
    assert json_ready(results)
    # of what does not apply it is not said that nothing was released
    others = [line for line in results["skipped"] if "membership" in line]
    assert len(others) == 2 * len(attack_membership.ATTACKS)
    assert all("released (statistic) is not what this attack reads (embedding)" in line for line in others)


def test_a_request_for_clipped_means_is_known_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of four records, whose request has C < 1: the attack finds it, guesses, and stays below the bound."""
    results = attack(Attack(a_run(tmp_path, monkeypatch, records=4), names=("vector-text",)))
    found = {e["arm"]: e for e in results["entries"]}
    assert found.keys() == {"clear", "noisy"} and found["clear"]["success"] == 1
    noisy = found["noisy"]
    assert noisy["texts"] == 15 and noisy["baseline"] < noisy["bound"] < 1
    assert noisy["success"] <= noisy["bound"] + SIGMAS * math.sqrt(0.25 / 15)


def test_attacks_do_not_touch_what_was_released(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.sqlite")}
    attack(Attack(folder, attributes=("colour",), names=("vector-attribute-chosen",), arms=("noisy",)))
    assert before and before == {path: path.read_bytes() for path in folder.rglob("*.sqlite")}
