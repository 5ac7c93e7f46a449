"""Liars of the benchmark on made-up features: other shares of the constant, and directions that liars choose."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.liars import World, constants, rows
from mechanisms.accounting.liars import moved
from mechanisms.projection import constant_share

DIM, USERS = 12, 3000


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
