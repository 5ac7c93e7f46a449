"""One-run audits: each bound by a second derivation, right at its rate, and above a claim that is not kept."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from sottovoce.adversary.estimators import one_run

ALPHA = 1e-3


def test_guesses_are_of_the_highest_and_lowest() -> None:
    included = np.array([True, False, True, False, True, False])
    assert one_run.right_guesses(np.array([9.0, -9, 8, -8, 0, 0]), included, 4) == 4
    assert one_run.right_guesses(np.array([-9.0, 9, 8, -8, 0, 0]), included, 4) == 2
    for guesses in (3, 0, 8):
        with pytest.raises(ValueError, match="even number, at most all"):
            one_run.right_guesses(np.zeros(6), included, guesses)


def test_the_chance_at_a_delta_by_its_definition() -> None:
    """β + 2mδ·max (Pr[v > W >= v − i])/i, sum by sum; at δ = 0 the binomial's tail."""
    m, r, v, epsilon, delta = 50, 20, 17, 1.0, 1e-3
    p = np.exp(epsilon) / (1 + np.exp(epsilon))
    mass = [float(binom.pmf(w, r, p)) for w in range(r + 1)]
    worst = max(sum(mass[v - i : v]) / i for i in range(1, v + 1))
    assert one_run.chance(m, r, v, epsilon, delta) == pytest.approx(sum(mass[v:]) + 2 * m * delta * worst)
    assert one_run.chance(m, r, v, epsilon, 0.0) == pytest.approx(sum(mass[v:]))


@pytest.mark.parametrize(("mu", "m", "r", "v"), [(1.0, 20, 20, 17), (1.0, 100, 20, 19), (0.5, 50, 20, 15)])
def test_what_is_refuted_is_what_no_distribution_of_right_guesses_allows(mu: float, m: int, r: int, v: int) -> None:
    """A linear program over p_0..p_r, the curve by its tangents, which lie above it: its largest tail is no less, and
    barely more."""
    at = np.geomspace(1e-9, min(r / m, 1 - 1e-9), 120)
    x = ndtri(at)
    slopes, heights = np.exp((x**2 - (x + mu) ** 2) / 2), ndtr(x + mu)
    rows, limits = [], []
    for t in range(1, r + 1):
        won = np.where(np.arange(r + 1) >= t, np.arange(r + 1), 0) / m
        lost = np.where(np.arange(r + 1) >= t - 1, r - np.arange(r + 1), 0) / m
        rows += list(won - slopes[:, None] * lost)
        limits += list(heights - slopes * at)
    tail = np.where(np.arange(r + 1) >= v, -1.0, 0.0)
    solved = linprog(tail, A_ub=np.array(rows), b_ub=limits, A_eq=np.ones((1, r + 1)), b_eq=[1.0], bounds=(0, 1))
    assert one_run.refuted(m, r, v, mu, -solved.fun * 1.001)
    assert not one_run.refuted(m, r, v, mu, -solved.fun * 0.99)


def bounds(scale: float, runs: int) -> tuple[int, int]:
    """Of runs how many claim too much of ε = 1 and of μ = 1: canaries answered by randomized response, or with Gaussian
    noise, at 1/scale of it."""
    rng, m, wrong = np.random.default_rng(8), 1000, [0, 0]
    for _ in range(runs):
        coins = rng.random(m) < 0.5
        told = np.where(rng.random(m) < 1 / (1 + np.exp(-scale)), coins, ~coins)
        right = int((told == coins).sum())
        wrong[0] += one_run.lower_epsilon(m, m, right, 0.0, ALPHA) > 1.0
        right = one_run.right_guesses(scale * coins + rng.normal(size=m), coins, 500)
        wrong[1] += one_run.lower_mu(m, 500, right, ALPHA) > 1.0
    return wrong[0], wrong[1]


def test_bounds_are_wrong_no_oftener_than_they_say_and_see_what_is_not_kept() -> None:
    """Of 40 sound runs none claims too much (expected: .04; four with probability 1e-7); randomized response at 3/2 of
    its ε and Gaussian noise at a quarter are found nearly always, and at 2/3 of ε nothing is."""
    assert max(bounds(1.0, 40)) < 4 and bounds(2 / 3, 10) == (0, 0)
    assert bounds(1.6, 10)[0] > 5 and bounds(4.0, 5)[1] == 5


def test_no_guess_right_says_nothing_and_a_bound_is_what_its_chance_says() -> None:
    assert one_run.lower_epsilon(100, 50, 0, 1e-5, ALPHA) == 0 == one_run.lower_mu(100, 50, 10, ALPHA)
    bound = one_run.lower_epsilon(1000, 200, 180, 1e-5, ALPHA)
    assert one_run.chance(1000, 200, 180, bound, 1e-5) == pytest.approx(ALPHA, rel=1e-3) and bound > 1
    assert one_run.refuted(1000, 200, 180, one_run.lower_mu(1000, 200, 180, ALPHA), ALPHA)
