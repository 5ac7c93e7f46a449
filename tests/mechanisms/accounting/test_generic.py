"""The generic amplification bound against enumeration, published figures and the clone pairs that it generalizes."""

from __future__ import annotations

import itertools
import math
from itertools import product

import mpmath
import numpy as np
import pytest

from mechanisms.accounting import generic
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
from tests.support.rings import hockey_stick, shuffled


def stronger_pair(epsilon):
    """The pair of the stronger clone (Feldman, McMillan and Talwar 2023): the largest total variation."""
    low = 1 / (math.exp(epsilon) + 1)
    return ClonePair(high=1 - low, low=low, clone=low)


def clones_pair(epsilon):
    """The pair of hiding among the clones (Feldman, McMillan and Talwar 2021)."""
    low = 1 / (math.exp(epsilon) + 1)
    return ClonePair(high=1 - low, low=low, clone=math.exp(-epsilon) / 2)


def pair_laws(pair, users):
    """The counts under x0 and x1, by enumeration: the fourth output is that of users who are not clones."""
    others = (pair.clone, pair.clone, pair.shared_clone, 1 - 2 * pair.clone - pair.shared_clone)
    rows = [others] * (users - 1)
    return [shuffled([*rows, (*target, pair.shared, 0.0)]) for target in ((pair.high, pair.low), (pair.low, pair.high))]


PAIRS = [
    stronger_pair(0.3),
    stronger_pair(2.0),
    clones_pair(1.5),
    variation_pair(math.exp(1.5), 0.3, math.exp(1.5)),
    variation_pair(math.exp(1.0), 0.2, math.exp(2.5)),
    variation_pair(3.0, 0.04, 3.0),
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


def parameters(rows):
    """(ε0, β) of a randomizer: its largest loss and its largest total variation."""
    loss = max(float(np.log(a / b).max()) for a, b in itertools.permutations(rows, 2))
    return loss, max(float(np.maximum(a - b, 0.0).sum()) for a, b in itertools.permutations(rows, 2))


@pytest.mark.parametrize("pair", PAIRS[1::2])
def test_wide_blocks_of_counts_are_on_the_safe_side(pair, monkeypatch):
    monkeypatch.setattr(generic, "_BLOCKS", 3)
    monkeypatch.setattr(generic, "_BLOCKS_2D", 3)
    first, second = pair_laws(pair, 7)
    for epsilon in (0.0, 0.3, 0.9):
        assert hockey_stick(first, second, epsilon) <= pair_profile(pair, 7, 1e-3)(epsilon) * (1 + 1e-12)


def test_published_variation_ratio_is_not_a_bound_for_every_randomizer():
    """Why `variation_ratio` differs from the paper: a randomizer of its parameters that is further apart."""
    p, alpha, s = 3.0, 0.02, 0.6
    rest = 1 - (p + 1) * alpha - s
    first, second = (p * alpha, alpha, s, rest), (alpha, p * alpha, s, rest)
    other = (alpha, alpha, s / p, 1 - 2 * alpha - s / p)
    epsilon_0, _ = parameters(np.array([first, second, other]))
    _, beta = parameters(np.array([first, second]))
    assert epsilon_0 == pytest.approx(math.log(p)) and beta == pytest.approx((p - 1) * alpha)
    users, epsilon = 15, 0.4
    exact = hockey_stick(*(shuffled([row] + [other] * (users - 1)) for row in (first, second)), epsilon)

    # the published pair: (A + Δ1, C - A + Δ2), the target's third output hidden among all who are not clones
    merged = (alpha, alpha, 1 - 2 * alpha)
    targets = [(a, b, 1 - a - b) for a, b in (first[:2], second[:2])]
    published = hockey_stick(*(shuffled([row] + [merged] * (users - 1)) for row in targets), epsilon)
    ours = pair_profile(variation_pair(p, beta, p), users, 1e-6)(epsilon)
    assert exact == pytest.approx(7.85e-5, rel=1e-3) and published == pytest.approx(9.16e-6, rel=1e-3)
    assert exact < ours < 5 * exact


def test_no_amplification_is_none():
    for epsilon, users, delta in ((0.0, 100, 1e-6), (30.0, 1000, 1e-6), (3.0, 1, 1e-9)):
        assert variation_ratio(epsilon, 1.0, users, delta) is None
    assert variation_ratio(math.inf, 1.0, 100, 1e-6) is None
    assert variation_ratio(1.0, 0.0, 100, 1e-6) is None


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
        (0.01, 0.006626674646249984, 1.7106267080624997e-07, 12, 0.004988239184473927),
        (0.01, 0.007681224627849057, 2.3563693651878747e-07, 8, 0.0039791820127441846),
        (0.69, 0.69, 0.1, 10, 0.4),
    ],
)
def test_deltas_far_below_any_difference_of_tails_are_those_of_the_counts(
    epsilon_0: float, clone_epsilon: float, beta: float, users: int, at: float
) -> None:
    """A clone of Q0 or Q1 is rare, and several of them are far rarer than a lower tail's rounding."""
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
