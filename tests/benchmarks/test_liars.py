"""Liars of the benchmark on made-up features: other constants, chosen directions, and worlds that look the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.liars import CONFUSED, World, apart, confusable, constants, rows, worst_direction
from mechanisms.accounting.liars import moved
from mechanisms.privunit import PrivUnit
from mechanisms.projection import constant_share
from mechanisms.streams import SeededUniforms

DIM, USERS = 12, 3000


def units(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    x = rng.normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def world() -> World:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(USERS + 2000, DIM)) / np.sqrt(1 + np.arange(DIM))
    labels = (x[:, 0] + 0.5 * x[:, 1] + 0.3 * rng.normal(size=len(x)) > 0.1).astype(np.int64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    users, rest = slice(0, USERS), slice(USERS, None)
    return World(x[rest], x[users], labels[users], x[rest], labels[rest], {"epsilon": 4.0}, 1)


def test_other_shares_are_measured_with_the_code_of_the_product(world: World) -> None:
    found = list(constants(world, [0.5]))
    assert [(row["constant"], row["equal"]) for row in found] == [
        (0.1, False),
        (1 / (DIM + 1), False),
        (0.5, False),
        (0.1, True),
    ]
    assert constant_share(DIM) == 0.1
    assert len({row["threshold 0.1"] for row in found}) > 1
    assert all(0.8 < row["honest"] <= 1 for row in found)  # chance is about 1/2


def test_liars_who_choose_their_direction_do_most_harm_and_stay_within_the_theorem(world: World) -> None:
    found = list(rows(world))
    for row in found[1:]:
        for key in ("moved", "moved_robust"):
            assert row[key] <= moved(world.mechanism, row["share"]) + 0.01
    count = USERS // 10
    told = [world.adaptive(direction, count) for direction in world.goals.values()]
    worst = world.wrong(world.worst(told, count))
    assert worst >= max(world.wrong(batch) for batch in told) > world.wrong(world.released)
    last = {row["goal"]: row["robust"] for row in found if (row["share"], row["strategy"]) == (0.1, "adaptive")}
    assert set(last) == {"flip", "threshold", "any"} and last["any"] == min(last.values())


def test_random_liars_keep_their_share() -> None:
    """By summing the binomial law. Two thirds and three halves of the gap to the share do not have the probability."""
    for share, users in ((0.1, 50), (0.03, 2000), (0.3, 60)):
        within = confusable(share, users)
        b = within / (1 + within)

        def more(b: float, share: float = share, users: int = users) -> float:
            most = math.floor(share * users)
            return 1 - sum(math.comb(users, k) * b**k * (1 - b) ** (users - k) for k in range(most + 1))

        assert more(b) == pytest.approx(CONFUSED, rel=1e-6)
        assert more(share - (share - b) * 2 / 3) > CONFUSED > more(share - (share - b) * 3 / 2)
    assert confusable(0.0, 100) == 0.0
    assert confusable(0.1, 10**8) == pytest.approx(1 / 9, rel=2e-3)


def test_groups_are_no_farther_apart_than_the_bound() -> None:
    """The total variation of two groups' messages, by quadrature on the circle and by points of spheres.

    L2 is computed from the densities alone, within 1 %.
    """
    rng = np.random.default_rng(5)
    for dim, epsilon in ((2, 1.5), (3, 3.0), (9, 3.0)):
        mechanism = PrivUnit(dim, epsilon)
        grid = np.linspace(0, 2 * np.pi, 40_000, endpoint=False)
        y = np.stack([np.cos(grid), np.sin(grid)], axis=1) if dim == 2 else units(rng, 200_000, dim)
        for n in (1, 8):
            x, others = units(rng, n, dim), units(rng, n, dim)
            gap = np.zeros(len(y))
            for sign, group in ((1, x), (-1, others)):
                for row in group:
                    gap += sign / n * np.exp(mechanism.log_prob(y, np.broadcast_to(row, y.shape)))
            bound, norm = apart(mechanism, x, others), 0.5 * math.sqrt(np.mean(gap**2))
            assert bound == pytest.approx(min(1.0, norm), rel=1e-2)
            assert 0.5 * np.mean(np.abs(gap)) <= bound * 1.01
            assert apart(mechanism, x, x) == pytest.approx(0.0, abs=1e-6)


def test_a_band_of_latitude_and_its_opposite() -> None:
    """Vectors with one constant coordinate: what remains of the difference is along it, and the bound nearly tight."""
    dim, rng = 16, np.random.default_rng(6)
    mechanism = PrivUnit(dim, 3.0)
    x = np.hstack([units(rng, 2000, dim - 1) * math.sqrt(1 - 1 / dim), np.full((2000, 1), 1 / math.sqrt(dim))])
    drawn = [mechanism.sample(sign * x, rng=SeededUniforms(seed))[:, -1] for seed, sign in ((1, 1), (2, -1))]
    largest = max(abs(np.mean(drawn[0] > cut) - np.mean(drawn[1] > cut)) for cut in np.linspace(-0.5, 0.5, 21))
    bound = apart(mechanism, x, -x)
    # the sample's largest difference is at most .06 off the laws' (probability 1e-3: Dvoretzky, Kiefer and Wolfowitz)
    assert largest - 0.12 <= bound <= 1.5 * largest + 0.12
    assert bound < 0.4 * apart(mechanism, x[:1], -x[:1])


def test_the_worst_direction_is_that_of_equally_visible_ones() -> None:
    """Of a linear harm g it is known: H·g, where H is the second moment of honest reports."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(12, 12)) / 4 + np.eye(12)
    honest, gain = root @ root.T, rng.normal(size=12)
    reached = []

    def harm(shift: np.ndarray) -> float:
        reached.append(float(shift @ np.linalg.solve(honest, shift)))
        return float(np.tanh(gain @ shift))

    expected = honest @ gain / np.linalg.norm(honest @ gain)
    found = worst_direction(harm, (rng.normal(size=12), -gain), honest, 0.02)
    assert found @ expected > 0.995
    assert gain @ expected < 0.95 * np.linalg.norm(gain)  # the gradient alone is another direction
    np.testing.assert_allclose(reached[0], 0.02**2, rtol=1e-9)
