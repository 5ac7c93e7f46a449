"""Dishonest users of a finished run: liars do harm, within the theorem, and the honest releases are as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mechanisms.privunit import PrivUnit
from sottovoce.adversary.attacks import poison as attack_poison
from sottovoce.adversary.attacks.run import attack
from sottovoce.adversary.estimators.poison import STEPS, imitations, leaning, points, strongest, unseen, worst_direction
from tests.support.studies import attacked_run, experiment, prepared

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
