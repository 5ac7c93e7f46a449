"""What a trusted server's noisy gradient descent learns, and whether its noise is what its accounting reckons with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from mechanisms.accounting.shuffle import amplify
from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from server.training.descent import DESCENTS, Descent, LocalDPSGD, NoisySteps
from server.training.statistic_head import records_of, simplex_codes

USERS, DIM, CLASSES = 900, 6, 3
KINDS = pytest.mark.parametrize("kind", ["dp-fedavg", "dp-sgd"])


def users(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of three classes that lie apart, (900, 6), and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, USERS)
    features = np.eye(CLASSES, DIM)[labels] + 0.4 * rng.normal(size=(USERS, DIM))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def nothing(classes: int = CLASSES, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((dim, classes)), np.zeros(classes)


def accuracy(descent: Descent, seed: int = 5) -> float:
    features, labels = users()
    weight, bias = descent.head(features, labels, users(2)[0], nothing(), seed=seed)
    fresh, truth = users(3)
    return float(np.mean((fresh @ weight + bias).argmax(axis=1) == truth))


@KINDS
def test_it_learns_and_at_a_tiny_epsilon_it_does_not(kind: str) -> None:
    assert accuracy(DESCENTS[kind](epsilon=8.0, delta=1e-6, steps=20)) > 0.9
    worthless = [accuracy(DESCENTS[kind](epsilon=1e-4, delta=1e-6, steps=20), seed=seed) for seed in range(8)]
    assert np.mean(worthless) < 0.6  # chance is 1/3; a head of nothing but noise gets .1 to .6


@KINDS
def test_what_it_starts_from_is_kept_where_a_step_is_nothing(kind: str) -> None:
    """Whitening and back: the head of public labels, in the units in which it came."""
    start = np.random.default_rng(0).normal(size=(DIM, CLASSES)), np.array([0.3, -0.2, 0.1])
    descent = DESCENTS[kind](epsilon=8.0, delta=1e-6, steps=1, learning_rate=1e-6)
    weight, bias = descent.head(*users(), users(2)[0], start, seed=1)
    np.testing.assert_allclose(weight, start[0], atol=1e-4)
    np.testing.assert_allclose(bias, start[1], atol=1e-4)


def noisy(kind: str, wrong: float) -> float:
    """Two-sided p-value of the noise of one run, of users whose features are 0, so that nothing else reaches the
    weights. wrong: factor on the noise."""
    dim, epsilon = 600, 1.0
    descent = DESCENTS[kind](epsilon=epsilon, delta=1e-6, steps=3, momentum=0.0, learning_rate=1.0)
    scale = descent.noise * descent.clip / (descent.rate * USERS) * np.sqrt(descent.steps)
    tampered = replace(descent, clip=descent.clip * wrong)  # what is added is nothing: only the noise feels it
    weight, _ = tampered.descend(np.zeros((USERS, dim)), np.arange(USERS) % 2, nothing(2, dim), seed=11)
    p = chi2.cdf(((weight / scale) ** 2).sum(), weight.size)
    return float(2 * min(p, 1 - p))


@KINDS
def test_the_noise_is_what_the_accounting_reckons_with(kind: str) -> None:
    """False alarm: 10⁻⁴ for each kind. 1,200 coordinates tell 2/3 and 3/2 of the noise from it."""
    assert noisy(kind, 1.0) > 1e-4
    assert noisy(kind, 2 / 3) < 1e-12 and noisy(kind, 3 / 2) < 1e-12


@KINDS
def test_no_user_moves_a_step_by_more_than_the_clip(kind: str) -> None:
    """One user's record replaced by another, however long, with the same noise and all others: a step's sum moves by
    at most 2·clip, and does where the two are opposite."""
    descent = DESCENTS[kind](epsilon=1.0, delta=1e-6, steps=1, rate=1.0, momentum=0.0, learning_rate=1.0)
    rng = np.random.default_rng(4)
    rest, labels = rng.normal(size=(50, DIM)), np.zeros(50, np.int64)
    moved = []
    for one, other, label in ((100.0, -100.0, 0), (100.0, 100.0, 1), (0.1, -3.0, 1)):
        heads = []
        for value, its in ((one, 0), (other, label)):
            x, y = rest.copy(), labels.copy()
            x[0], y[0] = value, its
            heads.append(descent.descend(x, y, nothing(2), seed=9))
        change = np.vstack([heads[0][0] - heads[1][0], heads[0][1] - heads[1][1]])
        moved.append(np.linalg.norm(change) * len(rest))  # what is learned is the sum over the expected batch
    assert max(moved) <= 2 * descent.clip * (1 + 1e-4) and max(moved) > 1.99 * descent.clip


@KINDS
def test_an_empty_step_is_noise_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    descent = DESCENTS[kind](epsilon=1.0, delta=1e-6, steps=3)
    monkeypatch.setattr(NoisySteps, "sampled", lambda self, n, rng: np.zeros(0, np.int64))
    weight, bias = descent.descend(*users(), nothing(), seed=1)
    assert np.isfinite(weight).all() and np.isfinite(bias).all() and weight.any()


def test_records_are_read_off_statistics_in_clear() -> None:
    features, labels = users()
    for classes in (2, CLASSES):
        codes = simplex_codes(classes)
        read, told = records_of(statistic_vectors(features, labels % classes, codes), codes)
        np.testing.assert_allclose(read, features, atol=1e-6)
        np.testing.assert_array_equal(told, labels % classes)


def test_what_is_out_of_range_is_refused() -> None:
    for wrong in ({"rate": 0.0}, {"rate": 2.0}, {"steps": 0}, {"clip": 0.0}, {"epsilon": 0.0}, {"delta": 0.0}):
        with pytest.raises(ValueError, match=f"dp-fedavg: {next(iter(wrong))}"):
            DESCENTS["dp-fedavg"](**{"epsilon": 1.0, "delta": 1e-6} | wrong)


def local(**settings: Any) -> LocalDPSGD:
    return LocalDPSGD(**{"epsilon": 2.0, "delta": 1e-6, "users": USERS, "groups": 3} | settings)


def test_a_group_is_the_crowd_of_local_gradients() -> None:
    """A user's draw is shuffled with those of one group; the whole population would hide more, and is not claimed."""
    planned = local().planned
    (among, alone) = (amplify((planned,), users=n, delta=1e-6).epsilon for n in (USERS // 3, USERS // 6))
    assert 1.95 < among <= 2.0 < alone
    assert planned.epsilon < local(groups=1).planned.epsilon
    with pytest.raises(ValueError, match="nothing fits epsilon 1e-05 among 900 users"):
        local(epsilon=1e-5).planned  # noqa: B018


def test_fewer_users_than_expected_draw_by_what_hides_so_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third stayed away. At the ε0 of the expected crowd each would cost more than is claimed."""
    drawn: list[PrivUnit] = []
    sample = PrivUnit.sample
    monkeypatch.setattr(PrivUnit, "sample", lambda self, x, *, rng: drawn.append(self) or sample(self, x, rng=rng))
    features, labels = users()
    came = USERS * 2 // 3
    local().descend(features[:came], labels[:came], nothing(), seed=3)
    (used,) = {(m.epsilon, m.cap_probability) for m in drawn}
    asked = [
        amplify((PrivUnit(64, *own),), users=came // 3, delta=1e-6).epsilon
        for own in (used, (local().planned.epsilon, local().planned.cap_probability))
    ]
    assert asked[0] <= 2.0 < asked[1]


def test_local_gradients_teach_and_at_a_tiny_epsilon_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {"much": PrivUnit(64, 40.0), "none": PrivUnit(64, 1e-3)}
    learned = {}
    for name, planned in drawn.items():
        monkeypatch.setattr(LocalDPSGD, "planned", planned)
        learned[name] = np.mean([accuracy(local(), seed=seed) for seed in range(4)])
    assert learned["much"] > 0.9 and learned["none"] < 0.6


def test_one_group_s_step_is_the_mean_gradient_with_the_mechanism_s_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """False alarm 10⁻⁴. At a head of zeros, two classes: gradients are code times features and constant, which the clip
    of 1 leaves alone; its error has the variance that the mechanism claims, not that of 2/3 or 3/2 of the scale."""
    dim, n = 300, 400
    monkeypatch.setattr(LocalDPSGD, "planned", PrivUnit(64, 6.0))
    rng = np.random.default_rng(8)
    x = rng.normal(size=(n, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels, codes = rng.integers(0, 2, n), simplex_codes(2)
    weight, bias = local(groups=1, momentum=0.0).descend(x, labels, nothing(2, dim), seed=3)
    share = np.sqrt(dim / (dim + 1))
    table = codes.astype(float).T @ np.vstack([weight / share, bias * np.sqrt(dim + 1)]).T / 2  # codes are 1 and -1
    rows = np.hstack([share * x, np.full((n, 1), 1 / np.sqrt(dim + 1))])
    error = table.ravel() - (codes[labels] * rows).mean(axis=0)
    variance = local().noise_of_mean(dim + 1, n)
    for wrong, low, high in ((1.0, 1e-4, 1.0), (2 / 3, 0.0, 1e-9), (3 / 2, 0.0, 1e-9)):
        p = chi2.cdf((error**2).sum() / (variance * wrong**2), error.size)
        assert low <= 2 * min(p, 1 - p) <= high
