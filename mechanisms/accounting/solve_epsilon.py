"""Search for the ε at which a falling privacy profile, log δ(ε) minus the log of the allowed δ, crosses 0.

A value takes milliseconds, so the search evaluates few. It uses inverse quadratic interpolation, each time a little
beyond the guess on the side of the far end, so that two good guesses are a bracket of the tolerance. If that does not
halve the bracket in two steps, as when a profile falls steeply, it takes the middle. The ends of the result were
evaluated on either side of 0, so the choice of points changes no direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

#: Share of the tolerance added to the guess on the side of the far end. Twice it is less than the whole.
_NUDGE = 0.3
#: Factor by which the first two steps towards the other side go beyond the root of the tangent or the chord.
_FURTHER = 1.3
_LOOKS = 200
#: Far above every log δ, and below the size at which products of a few such numbers overflow.
_HIGHEST = 1e6


def solve_epsilon(
    excess: Callable[[float], float], guess: float, top: float, *, fall: float, tolerance: float
) -> tuple[float, float] | None:
    """Return (low, high) in [0, top] with excess(low) > 0 >= excess(high) and high - low <= tolerance·high.

    Both are 0 if excess(0) <= 0. The result is None if excess(top) > 0.

    Args:
        excess: Falling function, or nearly; NaN counts as above 0.
        guess: Start of the search, above 0 and below top.
        top: Upper end of the search.
        fall: About -excess'(guess), above 0.
        tolerance: Relative width of the result.
    """
    low, high, step = 0.0, top, 1.25
    seen: list[tuple[float, float]] = []
    widths = [math.inf, math.inf]
    for _ in range(_LOOKS):
        value = _height(excess(guess))
        seen.append((guess, value))
        if value > 0:
            low = guess
        else:
            high = guess
        above, below = any(v > 0 for _, v in seen), any(v <= 0 for _, v in seen)
        if above and not below and guess >= top * (1 - 1e-9):
            return None
        if not above and len(seen) == 2 and _height(excess(0.0)) <= 0:
            return 0.0, 0.0
        if high - low <= tolerance * high or guess < 1e-9 * min(top, 1.0):
            break
        if above and below:
            guess = _between(seen, low, high, _NUDGE * tolerance * high)
            if high - low > widths[-2] / 2:
                guess = (low + high) / 2
            widths.append(high - low)
            continue
        if len(seen) > 1:
            (last, before), slope = seen[-2], fall
            if value != before:
                slope = (before - value) / (guess - last)
            fall = slope if slope > 0 else fall
        away = max(_FURTHER * abs(value) / fall, 1e-3 * guess)
        guess = min(top, guess + away, guess * step) if above else max(guess - away, guess / step)
        step *= step
    return low, high


def _height(value: float) -> float:
    """Return the value bounded by _HIGHEST, and _HIGHEST for NaN."""
    return _HIGHEST if math.isnan(value) else min(max(value, -_HIGHEST), _HIGHEST)


def _between(seen: Sequence[tuple[float, float]], low: float, high: float, nudge: float) -> float:
    """Return the next guess inside (low, high): the root of the points, and the nudge towards the far end."""
    by_height = sorted(seen, key=lambda point: abs(point[1]))[:3]
    root = _root(by_height)
    if not low < root < high:
        values = dict(seen)
        root = low + values[low] / (values[low] - values[high]) * (high - low)
    guess = root + nudge if root - low < high - root else root - nudge
    return min(max(guess, low + nudge), high - nudge)


def _root(points: Sequence[tuple[float, float]]) -> float:
    """Return the ε at which the inverse polynomial through the points (ε, value) is 0; nan if two values are equal."""
    total = 0.0
    for i, (x, y) in enumerate(points):
        share = 1.0
        for j, (_, other) in enumerate(points):
            if i != j:
                if y == other:
                    return math.nan
                share *= other / (other - y)
        total += share * x
    return total
