"""A number in a range: its law against the published density, its window, and what Laplace noise would cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechanisms.piecewise import Piecewise
from mechanisms.randomized_response import RandomizedResponse

EPSILONS = (0.25, 1.0, 2.0, 4.0, 8.0)


def law(noise: Piecewise) -> np.ndarray:
    x, y = np.divmod(np.arange(noise.classes**2), noise.classes)
    return np.exp(noise.log_prob(y, x)).reshape(noise.classes, noise.classes)


@pytest.mark.parametrize("levels", [2, 3, 7, 26, 101])
@pytest.mark.parametrize("epsilon", [0.0, *EPSILONS, 50.0])
def test_no_two_levels_are_told_apart_by_more(epsilon: float, levels: int) -> None:
    """All pairs and outputs, by enumeration: the ratio e^ε is reached and not passed, and the window stays inside."""
    noise = Piecewise(epsilon, levels)
    table = law(noise)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    worst = np.log(table.max(axis=0) / table.min(axis=0)).max()
    assert worst == pytest.approx(epsilon, abs=1e-12)
    first = noise.first(np.arange(levels))
    assert first[0] == 0 and first[-1] == levels - noise.window and (np.diff(first) >= 0).all()
    assert 2 * noise.window <= levels
    np.testing.assert_allclose(first, levels - noise.window - first[::-1], atol=1)  # as far from either end


def test_where_one_level_is_likely_it_is_randomized_response() -> None:
    noise, plain = Piecewise(8.0, 7), RandomizedResponse(8.0, 7)
    assert noise.window == 1
    x, y = np.divmod(np.arange(49), 7)
    np.testing.assert_allclose(noise.log_prob(y, x), plain.log_prob(y, x))
    for made in (noise, plain):
        assert made.blanket().log_gamma == pytest.approx(plain.blanket().log_gamma)
    np.testing.assert_allclose(noise.privacy_loss().log_p, plain.privacy_loss().log_p)


def worst_variance(epsilon: float, levels: int, window: int) -> float:
    """Of the unbiased number in [-1, 1], for all inputs: from the table of probabilities alone."""
    first = np.round(np.linspace(0, levels - window, levels))[:, None]
    y = np.arange(levels)[None]
    law = np.where((y >= first) & (y < first + window), math.exp(epsilon), 1.0)
    law /= law.sum(axis=1, keepdims=True)
    mean, second = (law @ y[0] ** k for k in (1, 2))
    half = (mean[-1] - mean[0]) / 2
    return float(((second - mean**2) / half**2).max())


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.0, 4.0])
def test_no_other_width_has_a_smaller_worst_variance(epsilon: float) -> None:
    """By search over all of them; the published one's is that of their Lemma 1, and below that of Laplace noise."""
    levels, half = 301, math.exp(epsilon / 2)
    found = {w: worst_variance(epsilon, levels, w) for w in range(1, levels // 2 + 1, 1 if epsilon == 2.0 else 7)}
    mine = worst_variance(epsilon, levels, Piecewise(epsilon, levels).window)
    assert mine <= min(found.values()) * (1 + 1e-3)
    published = worst_variance(epsilon, levels, round(levels / (half + 1)))
    assert published == pytest.approx(1 / (half - 1) + (half + 3) / (3 * (half - 1) ** 2), rel=0.03)
    assert mine < published < 8 / epsilon**2
    window = Piecewise(epsilon, levels).window
    assert mine < min(worst_variance(epsilon, levels, w) for w in (window * 2 // 3, min(window * 3 // 2, levels // 2)))


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_blanket_and_the_loss_are_those_of_the_table(epsilon: float) -> None:
    noise = Piecewise(epsilon, 20)
    table = law(noise)
    assert math.exp(noise.blanket().log_gamma) == pytest.approx(table.min(axis=0).sum())
    loss, p, q = noise.privacy_loss(), table[0], table[-1]
    for nats in (0.0, 0.3, epsilon - 0.1):
        assert loss.delta(nats) == pytest.approx(np.maximum(p - math.exp(nats) * q, 0).sum(), abs=1e-9)
        every = np.maximum(table[:, None] - math.exp(nats) * table[None], 0).sum(axis=2)
        assert every.max() <= loss.delta(nats) + 1e-12


def test_the_window_of_a_tiny_epsilon_is_that_of_a_small_one(recwarn: pytest.WarningsRecorder) -> None:
    for levels in (2, 11, 51):
        assert Piecewise(1e-100, levels).window == Piecewise(1e-12, levels).window
    assert not recwarn.list
