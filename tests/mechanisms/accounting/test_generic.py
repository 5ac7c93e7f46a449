"""The generic amplification bound against enumeration, published figures and the clone pairs that it generalizes."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from mechanisms.accounting import generic
from mechanisms.accounting.generic import (
    LEAST_EPSILON,
    ClonePair,
    _split,
    binomial_masses,
    block_edges,
    pair_profile,
    variation_pair,
    variation_ratio,
)
from tests.support.small_worlds import hockey_stick, shuffled


def pair_laws(pair, users):
    """The counts under x0 and x1, by enumeration: the fourth output is that of users who are not clones."""
    others = (pair.clone, pair.clone, pair.shared_clone, 1 - 2 * pair.clone - pair.shared_clone)
    rows = [others] * (users - 1)
    return [shuffled([*rows, (*target, pair.shared, 0.0)]) for target in ((pair.high, pair.low), (pair.low, pair.high))]


PAIRS = [
    variation_pair(math.exp(0.3), math.tanh(0.15)),  # nothing is shared: the stronger clone
    variation_pair(math.exp(1.5), 0.3),
    variation_pair(3.0, 0.04),
    ClonePair(0.5, 0.3, 0.1, 0.2, 0.05),
]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("users", [1, 7])
def test_divergence_is_that_of_the_enumerated_counts(pair, users):
    first, second = pair_laws(pair, users)
    bound = pair_profile(pair, users, 1e-3)
    for epsilon in (0.0, 0.05, 0.3, 0.9, 1.4):
        exact = hockey_stick(first, second, epsilon)
        assert exact == pytest.approx(hockey_stick(second, first, epsilon), rel=1e-9, abs=1e-15)  # symmetric
        assert exact * (1 - 1e-12) - 1e-15 <= bound(epsilon) <= exact * (1 + 2e-7) + 2.1e-10


@pytest.mark.parametrize("pair", PAIRS[:3:2])
def test_wide_blocks_of_counts_are_on_the_safe_side(pair, monkeypatch):
    monkeypatch.setattr(generic, "_BLOCKS", 3)
    monkeypatch.setattr(generic, "_BLOCKS_2D", 3)
    first, second = pair_laws(pair, 7)
    for epsilon in (0.0, 0.3, 0.9):
        assert hockey_stick(first, second, epsilon) <= pair_profile(pair, 7, 1e-3)(epsilon) * (1 + 1e-12)


def test_published_variation_ratio_is_not_a_bound_for_every_randomizer():
    """Why `variation_ratio` differs from the paper: a randomizer of its parameters that is further apart."""
    p, alpha, s = 3.0, 0.02, 0.6
    rest, beta = 1 - (p + 1) * alpha - s, (p - 1) * alpha
    first, second = (p * alpha, alpha, s, rest), (alpha, p * alpha, s, rest)
    other = (alpha, alpha, s / p, 1 - 2 * alpha - s / p)
    users, epsilon = 15, 0.4
    exact = hockey_stick(*(shuffled([row] + [other] * (users - 1)) for row in (first, second)), epsilon)

    # the published pair: (A + Δ1, C - A + Δ2), the target's third output hidden among all who are not clones
    merged = (alpha, alpha, 1 - 2 * alpha)
    targets = [(a, b, 1 - a - b) for a, b in (first[:2], second[:2])]
    published = hockey_stick(*(shuffled([row] + [merged] * (users - 1)) for row in targets), epsilon)
    ours = pair_profile(variation_pair(p, beta), users, 1e-6)(epsilon)
    assert exact == pytest.approx(7.85e-5, rel=1e-3) and published == pytest.approx(9.16e-6, rel=1e-3)
    assert exact < ours < 5 * exact


def test_no_amplification_is_none():
    for epsilon, users, delta in ((0.0, 100, 1e-6), (30.0, 1000, 1e-6), (3.0, 1, 1e-9)):
        assert variation_ratio(epsilon, 1.0, users, delta) is None
    assert variation_ratio(math.inf, 1.0, 100, 1e-6) is None
    assert variation_ratio(1.0, 0.0, 100, 1e-6) is None


def true_delta(pair, users, epsilon):
    """By the law of (N0, N1, N2), the target's output and the clones' among users - 1."""
    clone, shared, others = mpmath.mpf(pair.clone), mpmath.mpf(pair.shared_clone), users - 1
    target = [mpmath.mpf(pair.high), mpmath.mpf(pair.low), mpmath.mpf(pair.shared)]
    first, second = {}, {}
    for at in product(range(users), repeat=3):
        if (rest := others - sum(at)) < 0:
            continue
        ways = mpmath.factorial(others) / mpmath.fprod(mpmath.factorial(n) for n in (*at, rest))
        mass = ways * clone ** (at[0] + at[1]) * shared ** at[2] * (1 - 2 * clone - shared) ** rest
        for i in range(3):
            key = tuple(n + (i == j) for j, n in enumerate(at))
            first[key] = first.get(key, 0) + mass * target[i]
            second[key] = second.get(key, 0) + mass * target[(1, 0, 2)[i]]
    return mpmath.fsum(max(p - mpmath.exp(epsilon) * second[at], 0) for at, p in first.items())


@pytest.mark.parametrize(
    ("epsilon_0", "beta", "users", "at"), [(0.01, 1.7e-7, 12, 0.005), (0.01, 2.4e-7, 8, 0.004), (0.69, 0.1, 10, 0.4)]
)
def test_deltas_far_below_any_difference_of_tails_are_those_of_the_counts(epsilon_0, beta, users, at):
    """A clone of Q0 or Q1 is rare, and several of them are far rarer than a lower tail's rounding."""
    pair = variation_pair(math.exp(epsilon_0), beta)
    with mpmath.workdps(40):
        for epsilon in (at / 4, at, 1.1 * at):
            true = float(true_delta(pair, users, epsilon))
            found = pair_profile(pair, users, true)(epsilon)
            assert true * (1 - 1e-12) <= found <= true * (1 + 1e-5)


def test_masses_of_few_among_many_keep_their_digits():
    for n, share in ((12, 1e-4), (400, 0.01), (900, 0.3), (60, 0.999)):
        total, tops, weight, _ = _split(np.array([float(n)]), np.ones(1), share, 1e-60)
        with mpmath.workdps(40):
            p, before = mpmath.mpf(share), -1
            masses = [mpmath.binomial(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1)]
            assert (total == n).all() and weight.sum() == pytest.approx(1.0, abs=1e-12)
            for top, found in zip(tops.astype(int).tolist(), weight.tolist(), strict=True):
                assert abs(found / mpmath.fsum(masses[before + 1 : top + 1]) - 1) < 1e-11
                before = top
            for found, true in zip(binomial_masses(n, share, block_edges(0, n, n + 1)), masses, strict=True):
                assert true < 1e-300 or abs(found / true - 1) < 1e-11


def test_the_mass_of_nearly_all_heads_keeps_its_digits():
    """By mpmath, at forty digits."""
    assert pair_profile(ClonePair(0.95, 0.05, 0.5), 1000, 1e-290)(2.9163749849355753) >= 1.6405e-300


@pytest.mark.parametrize(("n", "k"), [(10**8, 49890411), (4917359696000, 2458641285365), (10**15, 499999429322666)])
def test_what_scipy_rounds_of_a_fair_binomial_is_charged(n, k):
    """Among the worst of millions of k with a mass above 1e-300."""
    with mpmath.workdps(45):
        ways = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
        off = binom.pmf(float(k), float(n), 0.5) / mpmath.exp(ways - n * mpmath.log(2)) - 1
    assert abs(off) < generic._ROUNDING * math.sqrt(n / generic._COINS)


def test_a_trillion_users_are_charged_for_their_rounding():
    """The exact figure is a quadrature of the incomplete beta integral, at fifty digits."""
    found = pair_profile(ClonePair(0.55, 0.45, 0.5), 10**12, 1e-12)(4.73372030833873e-06)
    assert 3.1975258222e-132 <= found <= 3.1977e-132


def test_an_epsilon_that_float64_does_not_tell_from_0_is_not_amplified():
    for epsilon in (1e-16, LEAST_EPSILON / 2):
        assert variation_ratio(epsilon, 1.0, 1000, 1e-12) is None
    assert variation_ratio(2 * LEAST_EPSILON, 1.0, 1000, 1e-12) is not None
