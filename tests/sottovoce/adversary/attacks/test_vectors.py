"""Attacks on one vector of a user: exact where there is no noise, at what ε allows where the server asks for the worst,
never above it.

Statistical tests allow for 5 standard errors, which an estimate of a true value exceeds with probability below 1e-6, on
fixed seeds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from mechanisms.identity import Identity
from mechanisms.messages.questions import Projection, VectorQuestion
from mechanisms.privunit import PrivUnit
from mechanisms.projection import signed_directions
from mechanisms.streams import SimulationStreams
from simulations.corpora.corpus import Corpus
from simulations.output.jsonable import json_ready
from sottovoce.adversary.attacks import membership as attack_membership
from sottovoce.adversary.attacks import poison as attack_poison
from sottovoce.adversary.attacks.run import attack
from sottovoce.adversary.estimators import allowed, vectors
from sottovoce.adversary.estimators.poison import STEPS, imitations, leaning, points, strongest, unseen, worst_direction
from sottovoce.adversary.estimators.vectors import Pool, log_likelihood_of_means
from tests.support.mechanisms import unit
from tests.support.studies import (
    CLASSES,
    TEST,
    USERS,
    attacked_run,
    experiment,
    prepared,
)

SIGMAS = 5.0


@pytest.mark.parametrize("clip", [0.5, 0.25])  # the last is below the mean's length
def test_a_mean_below_length_one_is_its_direction_or_the_opposite(clip: float) -> None:
    """By counting what many users of one mean release, in the three sets on which the density is constant."""
    mechanism, mean = PrivUnit(5, 2.0), 0.4 * unit(1, 5)
    n = 200_000
    rng = np.random.default_rng(3)
    drawn = signed_directions(np.tile(mean, (n, 1)), rng.random(n), clip)
    people = np.arange(n)
    z = mechanism.sample(drawn, rng=SimulationStreams(4).rows(people, 0 * people, stage="test", channel="statistic"))
    uniform = unit(n, 5, 9)  # the law that densities are relative to
    cosine, other = z @ (mean[0] / 0.4), uniform @ (mean[0] / 0.4)
    for where in (lambda c: c >= mechanism.threshold, lambda c: c <= -mechanism.threshold):
        share, mass = where(cosine).mean(), where(other).mean()
        density = np.exp(log_likelihood_of_means(mechanism, uniform[where(other)][:1], mean, clip)[0, 0])
        assert abs(share - density * mass) <= SIGMAS * math.sqrt((1 + density**2) / (4 * n))


def test_without_noise_the_nearest_is_certain() -> None:
    means = 0.5 * unit(30, 4)
    evidence = log_likelihood_of_means(Identity("statistic", 4), means + 1e-5, means)
    assert (evidence.argmax(axis=1) == np.arange(30)).all()
    assert (np.sort(evidence, axis=1)[:, -2] < -100).all()


# --- questions of the server's choice


def test_a_label_of_two_is_guessed_as_often_as_epsilon_allows() -> None:
    """Constant features and half the sphere are randomized response: e^ε/(1 + e^ε), and no more."""
    epsilon = 2.0
    h = np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
    maps = Projection("ab" * 32, h[0], np.eye(8, 2, dtype=np.float32))
    honest = VectorQuestion(
        {"mechanism": "privunit", "epsilon": epsilon}, projection=maps, codes=np.eye(2, dtype=np.float32)
    )
    asked = vectors.for_label(honest, h, seed=1)
    n = 4000
    labels = np.arange(n) % 2
    points = vectors.inputs(asked, np.resize(h, (n, 8)), labels)
    released = vectors.drawn(asked, points, seed=5, stage="test")
    guesses = vectors.guessed(asked, released, Pool(h, np.full(60, -1)), 2)
    most = float(expit(epsilon))
    assert abs((guesses == labels).mean() - most) <= SIGMAS * math.sqrt(most * (1 - most) / n)
    assert allowed.guess(allowed.curve(asked.mechanism), np.full(2, 0.5)) == pytest.approx(most, abs=1e-6)


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
    ready = ready._replace(held=replace(ready.held, test=more))
    colours = {
        text: str(i % CLASSES) for part in (ready.public.texts, ready.held.train.texts) for i, text in enumerate(part)
    }
    monkeypatch.setattr("sottovoce.adversary.attacks.attributes.column", lambda target, name: colours)
    return attacked_run(small, ready, tmp_path, monkeypatch)


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise whose, what and whether are known; with noise nothing is above what the theorem allows. The ledgers
    of 60 users of one record each stay as they were."""
    folder = a_run(tmp_path, monkeypatch)
    before = {path: path.read_bytes() for path in folder.rglob("*.sqlite")}
    results = attack(folder, attributes=("colour",))
    assert before and before == {path: path.read_bytes() for path in folder.rglob("*.sqlite")}
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
    results = attack(a_run(tmp_path, monkeypatch, records=4), "vector-text")
    found = {e["arm"]: e for e in results["entries"]}
    assert found.keys() == {"clear", "noisy"} and found["clear"]["success"] == 1
    noisy = found["noisy"]
    assert noisy["texts"] == 15 and noisy["baseline"] < noisy["bound"] < 1
    assert noisy["success"] <= noisy["bound"] + SIGMAS * math.sqrt(0.25 / 15)


# --- dishonest users


VECTOR = {"name": "vector", "vector": {"mechanism": "privunit", "epsilon": 4.0, "dim": 3}}


def test_liars_do_harm_that_grows_with_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = experiment(
        VECTOR, training={"protocol": "statistics"}, data={"public": {"labels": False}}, policy={"vector": 4.0}
    )
    attacked_run(small, prepared(small), tmp_path, monkeypatch)
    monkeypatch.setattr(attack_poison, "SHARES", (0.01, 0.3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.sqlite")}
    results = attack(tmp_path, *attack_poison.ATTACKS)
    assert before and before == {path: path.read_bytes() for path in tmp_path.rglob("*.sqlite")}
    for name in attack_poison.ATTACKS:
        few, many = (e for e in results["entries"] if e["attack"] == name)
        assert (few["attribute"], many["attribute"]) == ("1 % liars", "30 % liars")
        assert few["success"] <= few["baseline"] + 0.1 and many["success"] > many["baseline"] + 0.3
        assert all("theorem: moved by at most" in e["note"] for e in (few, many))


def test_messages_are_what_the_wire_allows_and_go_where_liars_want() -> None:
    mechanism, direction = PrivUnit(17, 3.0), np.eye(17)[3]
    made = [make(mechanism, direction, 500, 1) for make in (points, imitations)]
    made += [leaning(mechanism, direction, 500, 1, step=step) for step in (0.3, 1.0)]
    for codes in made:
        values = mechanism.grid.decode(codes)
        slack = np.sqrt(17) * mechanism.grid.step / 2 + 1e-9
        assert np.abs(np.linalg.norm(values, axis=1) - 1).max() <= slack
    means = [float(mechanism.grid.decode(codes).mean(axis=0) @ direction) for codes in made]
    np.testing.assert_allclose(means, [1.0, mechanism.scale, 0.3, 1.0], atol=0.06)


def test_the_strongest_lie_is_the_one_that_harms_most() -> None:
    mechanism, direction = PrivUnit(17, 3.0), np.eye(17)[3]
    honest = np.eye(17) / 17

    def harm(codes: np.ndarray) -> float:  # a defence that drops all above two standard deviations
        along = mechanism.grid.decode(codes) @ direction
        return float(np.where(along > 2 / np.sqrt(17), 0.0, along).mean())

    best = strongest(mechanism, direction, 100, 1, honest=honest, users=1000, harm=harm)
    along = mechanism.grid.decode(best) @ direction
    seen = [step for step in (*STEPS, unseen(0.1, 1000, 17)) if step < 2]
    np.testing.assert_allclose(along, max(seen) / np.sqrt(17), atol=1e-3)


def test_the_worst_direction_is_that_of_equally_visible_ones() -> None:
    rng = np.random.default_rng(3)
    root = rng.normal(size=(12, 12)) / 4 + np.eye(12)
    honest, gain = root @ root.T, rng.normal(size=12)
    known = max(np.eye(12), key=lambda x: gain @ x / np.sqrt(x @ np.linalg.solve(honest, x)))
    found = worst_direction(lambda shift: float(np.tanh(gain @ shift)), np.eye(12), honest, 0.02)
    np.testing.assert_allclose(found, known, atol=1e-9)
