"""The search for the ε at which a profile crosses δ: a bracket that was seen, in few looks, whatever falls how."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mechanisms.accounting.solve_epsilon import solve_epsilon
from mechanisms.guarantee import gaussian_delta, gaussian_epsilon


def looked(excess: Callable[[float], float], guess: float, top: float, fall: float, tolerance: float = 1e-4) -> int:
    """How many looks it took, after what was found was held to what was seen."""
    seen: dict[float, float] = {}

    def watched(epsilon: float) -> float:
        assert epsilon not in seen and 0 <= epsilon <= top
        seen[epsilon] = excess(epsilon)
        return seen[epsilon]

    found = solve_epsilon(watched, guess, top, fall=fall, tolerance=tolerance)
    assert found is not None
    low, high = found
    assert seen[low] > 0 >= seen[high] and 0 < high - low <= tolerance * high
    return len(seen)


@pytest.mark.parametrize("ratio", [1e-3, 0.05, 0.7, 9.0])
@pytest.mark.parametrize("off", [0.4, 0.93, 0.9999, 1.0, 1.02, 2.5])
@pytest.mark.parametrize("wrong", [0.05, 1.0, 20.0])
def test_a_gaussian_takes_few_looks(ratio: float, off: float, wrong: float) -> None:
    delta = 1e-7
    root = gaussian_epsilon(ratio, delta)

    def excess(epsilon: float) -> float:
        return math.log(max(gaussian_delta(ratio, epsilon), 1e-300)) - math.log(delta)

    fall = (excess(root) - excess(1.001 * root)) / (1e-3 * root)
    assert looked(excess, off * root, 10 * root, wrong * fall) <= 14
    if wrong == 1.0 and 0.9 < off < 1.1:
        assert looked(excess, off * root, 10 * root, fall) <= 6


@pytest.mark.parametrize("root", [1e-5, 0.3, 1.0, 2.9])
@pytest.mark.parametrize(
    "shape",
    [
        lambda e, root: 12.0 if e < root else -690.0,  # a cliff at both ends of which nothing is learnt
        lambda e, root: 40 * (root - e) / root if e < root else -690.0,  # a slope that ends in one
        lambda e, root: (root - e) ** 3 * 1e5,  # flat where it crosses
        lambda e, root: (root - e) / root * 5 + 1e-3 * math.sin(1e5 * e / root),  # with noise on it
    ],
)
def test_no_shape_takes_it_from_its_bracket(shape: Callable[[float, float], float], root: float) -> None:
    for guess in (0.01 * root, 0.9 * root, min(2.9, 1.7 * root)):
        assert looked(lambda e: shape(e, root), guess, 3.0, 1 / guess, 1e-4) <= 60


def test_where_there_is_nothing_to_find() -> None:
    assert solve_epsilon(lambda e: 1.0 - 0.1 * e, 0.5, 3.0, fall=0.1, tolerance=1e-4) is None
    assert solve_epsilon(lambda e: -1.0 - e, 0.5, 3.0, fall=1.0, tolerance=1e-4) == (0.0, 0.0)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_a_number_is_above(broken: float) -> None:
    """Nobody knows that δ is small enough there, so no ε is claimed that rests on it."""
    assert solve_epsilon(lambda e: broken, 1.0, 4.0, fall=1.0, tolerance=1e-4) is None
    # at 0, and around where it crosses: the bracket's far end was seen to be a number, and not above 0
    for hole in (lambda e: e == 0, lambda e: e < 1.2, lambda e: 0.7 < e < 1.3, lambda e: 1.1 < e < 1.2):
        seen: dict[float, float] = {}

        def excess(e: float, hole: Callable[[float], bool] = hole, seen: dict[float, float] = seen) -> float:
            seen[e] = broken if hole(e) else 1.0 - e
            return seen[e]

        for guess in (0.3, 1.0, 1.15, 2.9):
            seen.clear()
            found = solve_epsilon(excess, guess, 4.0, fall=1.0, tolerance=1e-4)
            assert found is not None and seen[found[1]] <= 0 < found[1]
