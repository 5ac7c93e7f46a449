"""What a trusted server's noisy gradient descent learns, and whether its noise is what its accounting reckons with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2, norm

from mechanisms.accounting.descent import descent_epsilon, least_noise
from mechanisms.gaussian import Gaussian
from mechanisms.losses.gaussian import replaced_loss
from mechanisms.projection import statistic_vectors
from server.training.descent import DPSGD
from server.training.statistic_head import records_of, simplex_codes

USERS, DIM, CLASSES, DELTA = 900, 6, 3, 1e-6


def users(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of three classes that lie apart, (900, 6), and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, USERS)
    features = np.eye(CLASSES, DIM)[labels] + 0.4 * rng.normal(size=(USERS, DIM))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def nothing(classes: int = CLASSES, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((dim, classes)), np.zeros(classes)


def test_it_learns_and_at_a_tiny_epsilon_it_does_not() -> None:
    def accuracy(epsilon: float, seed: int) -> float:
        descent = DPSGD(epsilon=epsilon, delta=DELTA, steps=20)
        weight, bias = descent.head(*users(), users(2)[0], nothing(), seed=seed)
        fresh, truth = users(3)
        return float(np.mean((fresh @ weight + bias).argmax(axis=1) == truth))

    assert accuracy(8.0, 5) > 0.9
    assert np.mean([accuracy(1e-4, seed) for seed in range(8)]) < 0.6  # chance is 1/3; noise alone gets .1 to .6


def test_what_it_starts_from_is_kept_where_a_step_is_nothing() -> None:
    """Whitening and back: the head of public labels, in the units in which it came."""
    start = np.random.default_rng(0).normal(size=(DIM, CLASSES)), np.array([0.3, -0.2, 0.1])
    descent = DPSGD(epsilon=8.0, delta=1e-6, steps=1, learning_rate=1e-6)
    weight, bias = descent.head(*users(), users(2)[0], start, seed=1)
    np.testing.assert_allclose(weight, start[0], atol=1e-4)
    np.testing.assert_allclose(bias, start[1], atol=1e-4)


def noisy(wrong: float) -> float:
    """Two-sided p-value of the noise of one run, of users whose features are 0, so that nothing else reaches the
    weights. wrong: factor on the noise."""
    dim, epsilon = 600, 1.0
    descent = DPSGD(epsilon=epsilon, delta=1e-6, steps=3, momentum=0.0, learning_rate=1.0)
    scale = descent.noise * descent.clip / (descent.rate * USERS) * np.sqrt(descent.steps)
    tampered = replace(descent, clip=descent.clip * wrong)  # what is added is nothing: only the noise feels it
    weight, _ = tampered.descend(np.zeros((USERS, dim)), np.arange(USERS) % 2, nothing(2, dim), seed=11)
    p = chi2.cdf(((weight / scale) ** 2).sum(), weight.size)
    return float(2 * min(p, 1 - p))


def test_the_noise_is_what_the_accounting_reckons_with() -> None:
    """False alarm: 10⁻⁴. 1,200 coordinates tell 2/3 and 3/2 of the noise from it."""
    assert noisy(1.0) > 1e-4
    assert noisy(2 / 3) < 1e-12 and noisy(3 / 2) < 1e-12


def test_no_user_moves_a_step_by_more_than_the_clip() -> None:
    """One user's record replaced by another, however long, with the same noise and all others: a step's sum moves by
    at most 2·clip, and does where the two are opposite."""
    descent = DPSGD(epsilon=1.0, delta=1e-6, steps=1, rate=1.0, momentum=0.0, learning_rate=1.0)
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


def test_an_empty_step_is_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DPSGD, "sampled", lambda self, n, rng: np.zeros(0, np.int64))
    weight, bias = DPSGD(epsilon=1.0, delta=DELTA, steps=3).descend(*users(), nothing(), seed=1)
    assert np.isfinite(weight).all() and np.isfinite(bias).all() and weight.any()


def test_records_are_read_off_statistics_in_clear() -> None:
    features, labels = users()
    for classes in (2, CLASSES):
        codes = simplex_codes(classes)
        read, classes_read = records_of(statistic_vectors(features, labels % classes, codes), codes)
        np.testing.assert_allclose(read, features, atol=1e-6)
        np.testing.assert_array_equal(classes_read, labels % classes)


# --- the price of noisy steps


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 300), (4.0, 0.25, 50)])
def test_it_is_what_dp_accounting_says_of_replacement_and_not_of_removal(noise: float, rate: float, steps: int) -> None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as theirs

    def other(relation: NeighboringRelation) -> float:
        one = theirs.from_gaussian_mechanism(
            noise, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=1e-4
        )
        return float(one.self_compose(steps).get_epsilon_for_delta(DELTA))

    epsilon = descent_epsilon(noise, rate=rate, steps=steps, delta=DELTA)
    assert epsilon == pytest.approx(other(NeighboringRelation.REPLACE_ONE), rel=1e-3)
    assert epsilon > 1.3 * other(NeighboringRelation.ADD_OR_REMOVE_ONE)


def test_no_pair_of_vectors_loses_more_than_opposite_ones() -> None:
    """By quadrature in the plane of two vectors: every hockey-stick divergence of every pair is at most that of ±1,
    which the cells give from above and below."""
    noise, rate = 1.3, 0.3
    cells = replaced_loss(noise, rate)
    x = np.linspace(-9, 9, 361)
    plane, area, line = np.stack(np.meshgrid(x, x), axis=-1), (x[1] - x[0]) ** 2, np.linspace(-15, 15, 600_001)

    def density(*vector: float) -> np.ndarray:
        center, moved = (norm.pdf(plane - np.array(at), 0, noise).prod(axis=-1) for at in ((0.0, 0.0), vector))
        return (1 - rate) * center + rate * moved

    opposite = ((1.0, 0.0), (-1.0, 0.0))
    others = (((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (-0.6, 0.8)), ((1.0, 0.0), (-0.5, 0.0)), ((0.3, 0.0), opposite[1]))
    for epsilon in (-1.0, -0.2, 0.0, 0.3, 1.0):
        worst, *losses = (
            np.maximum(density(*one) - math.exp(epsilon) * density(*other), 0).sum() * area
            for one, other in (opposite, *others)
        )
        assert max(losses) <= worst + 1e-5
        up, down = ((1 - rate) * norm.pdf(line, 0, noise) + rate * norm.pdf(line, at, noise) for at in (1, -1))
        exact = np.maximum(up - math.exp(epsilon) * down, 0).sum() * (line[1] - line[0])  # in one dimension, up to 1e-9
        assert worst == pytest.approx(exact, abs=1e-4)
        assert cells.delta_optimistic(epsilon) - 1e-9 <= exact <= cells.delta(epsilon) + 1e-9


def test_without_sampling_it_is_one_gaussian_release() -> None:
    """Of two unit vectors, at most 2 apart: the analytic calibration of Balle and Wang 2018."""
    noise = least_noise(1.0, rate=1.0, steps=50, delta=DELTA) / math.sqrt(50)
    assert noise == pytest.approx(Gaussian.calibrated(1.0, DELTA, 2).sigma, rel=1e-3)


def test_the_least_noise_costs_what_was_asked_for_and_hardly_less() -> None:
    noise = least_noise(2.0, rate=0.25, steps=20, delta=DELTA)
    assert 1.999 < descent_epsilon(noise, rate=0.25, steps=20, delta=DELTA) <= 2.0
    assert descent_epsilon(noise * 2 / 3, rate=0.25, steps=20, delta=DELTA) > 3.0


@pytest.mark.parametrize(
    ("price", "given"),
    [
        *((descent_epsilon, {"steps": steps}) for steps in (0, 2.9, math.nan)),  # 2.9 would be reckoned as 2
        (descent_epsilon, {"rate": 1.5}),
        (descent_epsilon, {"noise": -1.0}),
        (least_noise, {"epsilon": 0.0}),
        *((DPSGD, {"rate": rate}) for rate in (0.0, 2.0)),
        *((DPSGD, {name: 0.0}) for name in ("steps", "clip", "epsilon", "delta")),
    ],
)
def test_no_price_of_what_is_out_of_range(price: Callable[..., object], given: dict[str, float]) -> None:
    defaults = {"rate": 0.25, "steps": 20, "delta": DELTA} | {"noise" if price is descent_epsilon else "epsilon": 1.0}
    with pytest.raises(ValueError, match=f"{next(iter(given)).removesuffix('s')}"):
        price(**defaults | given)


@pytest.mark.parametrize(("noise", "rate"), [(0.3, 1e-6), (30.0, 1e-6), (1.0, 0.3)])
def test_a_rare_sample_keeps_enough_digits_and_a_rarer_one_is_refused(noise: float, rate: float) -> None:
    """δ(0), 60 digits: q·(2Φ(1/σ) - 1), since the pair is q·(N(1, σ²) - N(-1, σ²)) apart."""
    with mpmath.workdps(60):
        exact = float(mpmath.mpf(rate) * mpmath.erf(1 / (mpmath.mpf(noise) * mpmath.sqrt(2))))
    assert exact * (1 - 1e-8) <= replaced_loss(noise, rate).delta(0.0) <= exact * (1 + 1e-3)
    with pytest.raises(ValueError, match="rate must be from 1e-06 to 1, got 1e-12"):
        replaced_loss(noise, 1e-12)
