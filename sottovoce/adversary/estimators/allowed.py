"""Upper bounds on the success of any attack on one release, from δ(ε) of the worst pair of inputs.

The bounds hold whatever the attack knows. Let every pair of inputs be (ε, δ)-indistinguishable under a release, at each
point of a curve.

**A guess among k values of frequencies f, which add to 1 (proved).** Let Y_x be the releases at which x is guessed, a_x
= Pr[Y_x | x] the success on x, m_x = min_x' Pr[Y_x | x'], M = Σ m_x. Then a_x <= e^ε·m_x + δ and a_x <= 1 - (M - m_x).
Let b_x = (a_x - δ)/(1 - δ), m'_x = m_x/(1 - δ) and M' = Σ m'_x. Then b_x <= e^ε·m'_x and b_x <= 1 - (M' - m'_x), the
linear programme of `tokens`. So

  success <= δ + (1 - δ)·max_k e^ε·F_k/(e^ε + k - 1),   F_k the sum of the k largest frequencies,

and the least value over the curve counts. An attribute's value stands for many texts. By convexity, (ε,
δ)-indistinguishability of all pairs of texts is that of all mixtures. At δ = 0 the bound is what ε-LDP allows. At k = 2
and ε = 0 it is (1 + TV)/2 for two equally likely values. Both are attained.

**F1 of words (proved).** Let word w be in a share q_w of texts, drawn independently. Let an attack guess it for a share
t_w of the texts that hold it, and for a share s_w of the others. Then t_w <= φ(s_w). φ is the least of 1, of e^ε·s_w +
δ, and of 1 - e^-ε·(1 - s_w - δ), over the curve; the last term holds because the same applies to not guessing the word.
F1, of expected counts, is 2·Σ q·t divided by Σ (q + q·t + (1 - q)·s). It is at least F if and only if

  Σ (2 - F)·q·t - F·(1 - q)·s >= F·Σ q.

The maximum of the left side, word by word over s, falls with F (φ is concave and piecewise linear, so a corner is
best). The bound is where it falls below the right side.

**An adversary who knows the counts (proved).** The bounds above are about guesses that look at one release at a time. q
and f may be known, and may be those of the attacked texts themselves. An adversary who knows *how many* of n texts have
each value, and looks at all releases together, can do better: a value that is taken makes another more likely. Let all
orders of the n texts be equally likely. Given that text i has value a, exchange its place with a random text of value
b. This gives all orders in which it has b, equally likely, and changes the inputs of two releases. So all n releases
together reveal i's value only within the curve of *two* releases, and the bounds hold with that curve in place of the
curve of one. For two texts of two values at the mechanism's worst pair, the bound is attained (tested). For membership
one curve is enough: to exchange a member with another user changes one release among those that the server has.

**Two releases of one input among n (proved).** To exchange two candidates changes the inputs of two releases. These are
(ε, δ)-indistinguishable at the curve of two releases together. The guess is one among n equally likely places.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from mechanisms.accounting import pld
from mechanisms.arrays import FloatArray
from mechanisms.losses.loss import LossCells
from sottovoce.adversary.estimators.tokens import randomized

_POINTS = 256
#: A larger e^ε is as good as no bound.
_MOST = 60.0


def curve(mechanism: Any, releases: int = 1) -> FloatArray:
    """Return points (ε, δ), (J, 2), at which every pair of inputs is indistinguishable.

    The samplers' numeric ε and δ are included. If each input is released several times, the curve is that of all
    releases together. A mechanism that promises nothing has no points.
    """
    theorem = mechanism.guarantee
    loss: LossCells = mechanism.privacy_loss()
    worst = loss.epsilon(0.0)
    if worst == math.inf and loss.delta(_MOST) >= 1:
        return np.zeros((0, 2))
    composition: Any = loss if releases == 1 else pld.compose([(loss, releases)])
    grid = np.linspace(0.0, min(releases * worst, _MOST), _POINTS)
    numeric = releases * theorem.numeric_delta * (1 + np.exp(grid))
    delta = np.array([composition.delta(float(e)) for e in grid])
    delta = np.minimum(1.0, delta * math.exp(releases * theorem.numeric_epsilon) + numeric)
    return np.column_stack([grid + releases * theorem.numeric_epsilon, delta])


def curves(mechanism: Any) -> list[FloatArray]:
    """Return the curves of one release and of two together: of two users who might be exchanged."""
    return [curve(mechanism, n) for n in (1, 2)]


def guess(points: FloatArray, frequencies: FloatArray) -> float:
    """Return the largest success of guessing one of several values of these frequencies, which add to 1."""
    if not len(points):
        return 1.0
    return float(min(1.0, *(d + (1 - d) * randomized(frequencies, e) for e, d in points)))


def f1(points: FloatArray, frequencies: FloatArray) -> float:
    """Return the largest F1 of guessing the words of a text; frequencies (V,) are shares of texts that hold each."""
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
    """Return the corners of the lower envelope φ of its lines, with its ends 0 and 1: s and φ(s), (C,) each."""
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
    """Return the s at which two lines (slope, offset) of different slopes meet."""
    return (b[1] - a[1]) / (a[0] - b[0])
