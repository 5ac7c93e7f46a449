"""Where a falling profile of privacy, log δ(ε) less the log of the δ that may be spent, crosses 0.

A value takes milliseconds, so few are asked for: by inverse quadratic interpolation, each time a little beyond the
guess on the side of the far end, so that two good guesses are a bracket of the tolerance. Where that does not halve the
bracket in two looks, as where a profile falls off a cliff, the middle is taken. What is returned was seen on either
side of 0: which points were tried changes no direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

#: Beyond the guess on the side of the far end: this share of the tolerance. Two of it are less than the whole.
_NUDGE = 0.3
#: The first two steps towards the other side: so much further than where the tangent or the chord crosses 0.
_FURTHER = 1.3
_LOOKS = 200
#: Far above every log δ there is, and below what products of a few such numbers overflow at.
_HIGHEST = 1e6


def solve_epsilon(
    excess: Callable[[float], float], guess: float, top: float, *, fall: float, tolerance: float
) -> tuple[float, float] | None:
    """(low, high) with excess(low) > 0 >= excess(high), high - low <= tolerance·high, in [0, top]; high is 0 where
    excess(0) <= 0, and low is then 0 too; None where excess(top) > 0.

    excess: falling, or nearly; what is not a number counts as above 0. guess: where to begin, above 0 and below top.
    fall: about -excess'(guess), above 0.
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
    """A value that can be reckoned with: no infinite one, and _HIGHEST in place of what is not a number."""
    return _HIGHEST if math.isnan(value) else min(max(value, -_HIGHEST), _HIGHEST)


def _between(seen: Sequence[tuple[float, float]], low: float, high: float, nudge: float) -> float:
    """The next guess inside (low, high): where the points crossed 0, and the nudge towards the far end."""
    by_height = sorted(seen, key=lambda point: abs(point[1]))[:3]
    root = _root(by_height)
    if not low < root < high:
        values = dict(seen)
        root = low + values[low] / (values[low] - values[high]) * (high - low)
    guess = root + nudge if root - low < high - root else root - nudge
    return min(max(guess, low + nudge), high - nudge)


def _root(points: Sequence[tuple[float, float]]) -> float:
    """ε where the inverse polynomial through the points (ε, value) is at 0; nan where two have one value."""
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
