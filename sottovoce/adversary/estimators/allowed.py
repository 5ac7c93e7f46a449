"""What a theorem allows any attack on one release to reach, whatever it knows: from δ(ε) of the worst pair of inputs.

Let every pair of inputs be (ε, δ)-indistinguishable under a release, at each point of a curve.

**A guess among k values of frequencies f, which add to 1 (proved).** Let Y_x be the releases at which x is guessed, a_x
= Pr[Y_x | x] the success on x, m_x = min_x' Pr[Y_x | x'], M = Σ m_x. Then a_x <= e^ε·m_x + δ and a_x <= 1 - (M - m_x).
With b_x = (a_x - δ)/(1 - δ) and m'_x = m_x/(1 - δ), M' = Σ m'_x: b_x <= e^ε·m'_x and b_x <= 1 - (M' - m'_x), the linear
programme of `tokens`. So

    success <= δ + (1 - δ)·max_k e^ε·F_k/(e^ε + k - 1),   F_k the sum of the k largest frequencies,

and the least of it over the curve counts. An attribute's value stands for many texts: (ε, δ)-indistinguishability of
all pairs of texts is that of all mixtures, by convexity. At δ = 0 this is what ε-LDP allows, and at k = 2 and ε = 0 it
is (1 + TV)/2 for two values that are alike likely: both are attained.

**F1 of words (proved).** Let word w be in a share q_w of texts, drawn independently, and be guessed for a share t_w of
the texts that hold it and s_w of those that do not. Then t_w <= φ(s_w), the least of 1, of e^ε·s_w + δ and, as the same
holds of not guessing it, of 1 - e^-ε·(1 - s_w - δ), over the curve. F1, of expected counts, is 2·Σ q·t divided by
Σ (q + q·t + (1 - q)·s). It is at least F if and only if

    Σ (2 - F)·q·t - F·(1 - q)·s >= F·Σ q.

The left side at its largest, word by word over s (φ is concave and piecewise linear: a corner is best), falls with F,
and below the right side at the bound.

**Who knows the counts (proved).** The above is about guesses that look at one release at a time; q and f may be known,
and may be those of the very texts that are attacked. Who knows *how many* of n texts have each value, and looks at all
releases together, can do better: that one is taken makes the other more likely. Let all orders of the n texts be alike
likely. Given that text i has value a, its place in the order is exchanged with one of value b, picked by chance: that
gives all orders in which it has b, alike likely, and changes the inputs of two releases. So what all n releases say of
i's value is (ε, δ)-indistinguishable at the curve of *two* releases, and the bounds hold with that one in place of the
curve of one. For two texts of two values at the mechanism's worst pair it is attained (tested). Of membership it is
already so: to exchange a member with another changes one release among those that the server has.

**Two releases of one input among n (proved).** To exchange two candidates changes the inputs of two releases, which are
(ε, δ)-indistinguishable at the curve of two releases together; the guess is one among n places that are all alike.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import pld
from mechanisms.losses.loss import LossCells
from sottovoce.adversary.estimators.tokens import randomized

FloatArray = NDArray[np.float64]

_POINTS = 256
#: e^ε beyond this is as good as no bound.
_MOST = 60.0


def curve(mechanism: Any, releases: int = 1) -> FloatArray:
    """(J, 2) points (ε, δ) at which every pair of inputs is indistinguishable after so many releases of each, the
    samplers' numeric ε and δ included; none where nothing is promised."""
    theorem = mechanism.guarantee
    loss: LossCells = mechanism.privacy_loss()
    worst = loss.epsilon(0.0)
    if worst == math.inf and loss.delta(_MOST) >= 1:
        return np.zeros((0, 2))
    together: Any = loss if releases == 1 else pld.compose([(loss, releases)])
    grid = np.linspace(0.0, min(releases * worst, _MOST), _POINTS)
    numeric = releases * theorem.numeric_delta * (1 + np.exp(grid))
    delta = np.array([together.delta(float(e)) for e in grid])
    delta = np.minimum(1.0, delta * math.exp(releases * theorem.numeric_epsilon) + numeric)
    return np.column_stack([grid + releases * theorem.numeric_epsilon, delta])


def guess(points: FloatArray, frequencies: FloatArray) -> float:
    """The largest success of guessing one of several values of these frequencies, which add to 1."""
    if not len(points):
        return 1.0
    return float(min(1.0, *(d + (1 - d) * randomized(frequencies, e) for e, d in points)))


def f1(points: FloatArray, frequencies: FloatArray) -> float:
    """The largest F1 of guessing which words are in a text; frequencies (V,): the share of texts that hold each."""
    q = frequencies[frequencies > 0]
    if not len(points) or not len(q):
        return 1.0
    s, t = _corners(points)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        gains = (2 - middle) * q[:, None] * t - middle * (1 - q[:, None]) * s
        low, high = (middle, high) if gains.max(axis=1).sum() >= middle * q.sum() else (low, middle)
    return high


def _corners(points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where the lower envelope φ of its lines bends, and its ends 0 and 1: s and φ(s), (C,) each."""
    lines = [(0.0, 1.0)]
    for e, d in points:
        growth = math.exp(min(e, _MOST))
        lines += [(growth, float(d)), (1 / growth, 1 - (1 - float(d)) / growth)]
    hull: list[tuple[float, float]] = []
    for slope, offset in sorted(lines, key=lambda line: (-line[0], line[1])):
        if hull and hull[-1][0] == slope:  # parallel and above
            continue
        while hull and (
            offset <= hull[-1][1] or (len(hull) > 1 and _meet(hull[-2], (slope, offset)) <= _meet(hull[-2], hull[-1]))
        ):
            hull.pop()
        hull.append((slope, offset))
    s = np.array([0.0, *(_meet(a, b) for a, b in pairwise(hull)), 1.0])
    s = s[(s >= 0) & (s <= 1)]
    t = np.min([slope * s + offset for slope, offset in hull], axis=0)
    return s, np.minimum(1.0, t)


def _meet(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Where two lines (slope, offset) of different slopes meet."""
    return (b[1] - a[1]) / (a[0] - b[0])
