"""The clone bounds' pair against the law of its counts, written out at forty digits: where masses are below all that
differences of tails keep, and where δ is."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest

from mechanisms.accounting.generic import (
    LEAST_EPSILON,
    ClonePair,
    _split,
    binomial_masses,
    block_edges,
    fair_binomial_pmf,
    pair_profile,
    variation_pair,
    variation_ratio,
)


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(40):
        yield


def counts(pair: ClonePair, users: int, swapped: bool) -> dict[tuple[int, int, int], mpmath.mpf]:
    """The law of (N0, N1, N2): the target's output and the clones' among users - 1."""
    clone, shared = mpmath.mpf(pair.clone), mpmath.mpf(pair.shared_clone)
    target = [mpmath.mpf(pair.high), mpmath.mpf(pair.low), mpmath.mpf(pair.shared)]
    if swapped:
        target[0], target[1] = target[1], target[0]
    law: dict[tuple[int, int, int], mpmath.mpf] = {}
    others = users - 1
    for at in product(range(users), repeat=3):
        if sum(at) > others:
            continue
        rest = others - sum(at)
        ways = mpmath.factorial(others) / mpmath.fprod(mpmath.factorial(n) for n in (*at, rest))
        mass = ways * clone ** (at[0] + at[1]) * shared ** at[2] * (1 - 2 * clone - shared) ** rest
        for i, own in enumerate(target):
            key = tuple(n + (i == j) for j, n in enumerate(at))
            law[key] = law.get(key, mpmath.mpf(0)) + mass * own
    return law


def true_delta(pair: ClonePair, users: int, epsilon: float) -> mpmath.mpf:
    first, second = (counts(pair, users, swapped) for swapped in (False, True))
    factor = mpmath.exp(epsilon)
    return mpmath.fsum(max(p - factor * second.get(at, 0), 0) for at, p in first.items())


@pytest.mark.parametrize(
    ("epsilon_0", "clone_epsilon", "beta", "users", "at"),
    [
        (0.01, 0.0071248276558413415, 4.128259316736194e-09, 12, 0.0033394384063648226),
        (0.01, 0.006626674646249984, 1.7106267080624997e-07, 12, 0.004988239184473927),
        (0.01, 0.01, 1.2649101098851482e-09, 12, 0.002610602192711665),
        (0.01, 0.01, 9.497366268940568e-08, 12, 0.0037239664875737505),
        (0.01, 0.007681224627849057, 2.3563693651878747e-07, 8, 0.0039791820127441846),
        (0.1, 0.1, 1e-5, 10, 0.05),
        (0.69, 0.69, 0.1, 10, 0.4),
    ],
)
def test_deltas_far_below_any_difference_of_tails_are_those_of_the_counts(
    epsilon_0: float, clone_epsilon: float, beta: float, users: int, at: float
) -> None:
    """A clone of Q0 or Q1 is rare, and what a lower tail left of several of them was 0, or rounding: the first five
    were 1e-4 to .82 of δ too low, as a random search found them."""
    pair = variation_pair(math.exp(epsilon_0), beta, math.exp(clone_epsilon))
    for epsilon in (at / 4, at / 2, at, 1.1 * at):
        true = float(true_delta(pair, users, epsilon))
        found = pair_profile(pair, users, true)(epsilon)
        assert true * (1 - 1e-12) <= found <= true * (1 + 1e-5)


def test_masses_of_few_among_many_keep_their_digits() -> None:
    for n, share in ((12, 1e-4), (400, 0.01), (900, 0.3), (60, 0.999)):
        total, tops, weight, _ = _split(np.array([float(n)]), np.ones(1), share, 1e-60)
        p, before = mpmath.mpf(share), -1
        masses = [mpmath.binomial(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1)]
        assert (total == n).all() and weight.sum() == pytest.approx(1.0, abs=1e-12)
        for top, found in zip(tops.astype(int).tolist(), weight.tolist(), strict=True):
            true = mpmath.fsum(masses[before + 1 : top + 1])
            assert abs(found / true - 1) < 1e-11
            before = top
        edges = block_edges(0, n, n + 1)
        for found, true in zip(binomial_masses(n, share, edges), masses, strict=True):
            assert true < 1e-300 or abs(found / true - 1) < 1e-11


def test_the_mass_of_nearly_all_heads_is_right_to_eleven_digits() -> None:
    """Stirling's series was taken of 1, which was 26 % too little."""
    for n in (999, 1000, 1010, 10**6, 10**10, 10**12):
        for k in (*range(n, n - 50, -1), *(int(n / 2 + z * math.sqrt(n) / 2) for z in (0, 1, 10, 30))):
            if not 0 <= k <= n:
                continue
            true = mpmath.exp(
                mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1) - n * mpmath.log(2)
            )
            for heads in (k, n - k):
                found = fair_binomial_pmf(np.array([float(n)]), np.array([float(heads)]))[0]
                assert true < 1e-300 or abs(found / true - 1) < 1e-11
    pair = ClonePair(0.95, 0.05, 0.5)
    assert pair_profile(pair, 1000, 1e-290)(2.9163749849355753) >= 1.6405e-300  # by mpmath, at forty digits


def test_a_trillion_users_are_charged_for_their_rounding() -> None:
    """The exact figure is a quadrature of the incomplete beta integral, at fifty digits."""
    found = pair_profile(ClonePair(0.55, 0.45, 0.5), 10**12, 1e-12)(4.73372030833873e-06)
    assert 3.1975258222e-132 <= found <= 3.1976e-132


def test_an_epsilon_that_float64_does_not_tell_from_0_is_not_amplified() -> None:
    for epsilon in (1e-16, 1e-9, LEAST_EPSILON / 2):
        for users in (1, 2, 1000):
            for share in (1.0, epsilon / 4):
                assert variation_ratio(epsilon, share, users, 1e-12) is None
    assert variation_ratio(2 * LEAST_EPSILON, 1.0, 1000, 1e-12) is not None
