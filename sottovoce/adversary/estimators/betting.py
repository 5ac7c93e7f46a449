"""Sequential test of a privacy claim by betting: it may stop at any time, and looking at it costs nothing.

A fair coin chooses between the inputs x and x', and the mechanism draws once. Before each draw, the auditor fixes
functions a, b >= 0 of a draw, with disjoint supports. The draw y multiplies the auditor's wealth by

  1 + a(y) - e^ε·b(y) - δ·(sup a + sup b)/2   if the coin chose x, and
  1 + b(y) - e^ε·a(y) - δ·(sup a + sup b)/2   if it chose x'.

For an (ε, δ)-indistinguishable pair, E[a | x] <= e^ε·E[a | x'] + δ·sup a, and the same for b with the inputs exchanged.
So the factor has a mean of at most 1, whatever was learned from earlier draws, and P(the wealth ever reaches 1/alpha)
<= alpha (Ville 1939; Ramdas, Grünwald, Vovk and Shafer 2023). Neither the pair of inputs, the claimed point, the score
nor the number of draws needs to be fixed before.

For pure ε, the coin given y is x with probability at most k = e^ε/(1 + e^ε). If it is p > k, then a = p/k - 1 makes the
factor the likelihood ratio of p to the nearest claim, and no factor grows faster (Larsson, Ramdas and Ruf 2025). Here p
is the share of draws at x in an interval of a score. With δ > 0 this a is capped, at the height of fastest growth. A
curve of claims, such as μ-GDP, gives the point of fastest growth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from sottovoce.adversary.estimators.audit import Fit, Outputs, Score

Sides = IntArray

#: Shares of the draws with the highest scores, or the lowest, on which a bet may be placed.
_TAILS = (0.5, 0.35, 0.25, 0.15, 0.08, 0.04, 0.015, 0.008, 0.004)
#: Pseudo-draws at the claim, added to those in a tail, so that few examples bet little.
_CAUTION = 6.0
#: Heights of a and b to try, as shares of the largest.
_HEIGHTS = np.geomspace(0.02, 0.98, 16)
#: Shares of the best bet that are placed, each with wealth of its own.
_SIZES = (1.0, 0.4)
#: Fewest draws for a score; share of the draws to fit it on; growth in draws after which it is fitted again.
_MIN_DRAWS, _FIT_SHARE, _REFIT_GROWTH = 24, 0.6, 1.5


@dataclass(frozen=True, eq=False)
class Bet:
    """Factor of one draw: see the module's docstring.

    Args:
        epsilon: ε of the claim.
        delta: δ of the claim.
        edges: Edges between intervals of the score, (m - 1,), ascending.
        first: a in each interval, (m,).
        second: b in each interval, (m,).

    Raises:
        ValueError: A factor could be negative.
    """

    epsilon: float
    delta: float
    edges: FloatArray
    first: FloatArray
    second: FloatArray

    def __post_init__(self) -> None:
        a, b = self.first, self.second
        sound = a.shape == b.shape == (len(self.edges) + 1,) and (a >= 0).all() and (b >= 0).all()
        if (
            not sound
            or (a * b > 0).any()
            or self._smallest_factor < -1e-12
            or not 0 <= self.delta <= 1
            or self.epsilon < 0
        ):
            raise ValueError("audit: bet with invalid edges, a, b, ε or δ")

    @property
    def _price(self) -> float:
        return self.delta * float(self.first.max() + self.second.max()) / 2

    @property
    def _smallest_factor(self) -> float:
        return 1 - self._price - math.exp(self.epsilon) * float(max(self.first.max(), self.second.max()))

    def factors(self, scores: FloatArray, sides: Sides) -> FloatArray:
        """Return the factors of draws (n,) with these scores, at x (side 0) or at x' (side 1)."""
        at = np.searchsorted(self.edges, scores, side="right")
        own = np.where(sides == 0, self.first[at], self.second[at])
        other = np.where(sides == 0, self.second[at], self.first[at])
        return np.maximum(1 - self._price + own - math.exp(self.epsilon) * other, 0.0)


def best_bet(scores: FloatArray, sides: Sides, points: FloatArray) -> Bet:
    """Return the bet on a claimed point (J, 2) that would have grown fastest on earlier draws (n,), cautious if few.

    It is constant on the draws with the highest scores, and on those with the lowest: with more intervals the bet
    overfits.
    """
    epsilon, delta = points[:, 0], points[:, 1]
    exp_epsilon = np.exp(np.minimum(epsilon, 700.0))
    results = []
    for side, values in ((0, scores), (1, -scores)):
        cuts = np.unique(np.quantile(values, 1 - np.array(_TAILS), method="higher"))
        mask = values[:, None] >= cuts
        n, hits = mask.sum(axis=0), mask[sides == side].sum(axis=0)
        k = (1 / (1 + 1 / exp_epsilon))[:, None]
        share = (hits + _CAUTION * k) / (n + _CAUTION)  # (J, T)
        heights = (_HEIGHTS / (exp_epsilon + delta)[:, None])[:, None]  # (J, 1, H)
        price, mass = delta[:, None, None] * heights / 2, (n / len(scores))[None, :, None]
        log_growth = (
            mass * share[..., None] * np.log1p(heights - price)
            + mass * (1 - share[..., None]) * np.log1p(-exp_epsilon[:, None, None] * heights - price)
            + (1 - mass) * np.log1p(-price)
        )
        at = log_growth.reshape(len(points), -1).argmax(axis=1)
        best = log_growth.reshape(len(points), -1).max(axis=1)
        t, h = np.unravel_index(at, log_growth.shape[1:])
        results.append((np.maximum(best, 0.0), cuts[t], np.where(best > 0, heights[np.arange(len(points)), 0, h], 0.0)))
    (gain_high, high, a), (gain_low, low, b) = results
    j = int(np.argmax(gain_high + gain_low))
    edges = np.array([np.nextafter(-low[j], np.inf), high[j]])
    if edges[0] > edges[1]:  # the tails meet: the better one is placed
        a, b = (a, 0 * b) if gain_high[j] >= gain_low[j] else (0 * a, b)
        edges = np.sort(edges) if a[j] == b[j] else np.full(2, high[j] if a[j] > 0 else edges[0])
    limit = exp_epsilon[j] * max(a[j], b[j]) + delta[j] * (a[j] + b[j]) / 2  # at most 1
    scale = min(1.0, 0.999 / limit) if limit > 0 else 1.0
    first, second = np.array([0.0, 0.0, a[j] * scale]), np.array([b[j] * scale, 0.0, 0.0])
    return Bet(float(epsilon[j]), float(delta[j]), edges, first, second)


@dataclass
class Expert:
    """Bets on one kind of score, which is learned from the draws before each bet.

    Args:
        fit: Function that learns the score.
        points: Claimed points (ε, δ), (J, 2).
        log_wealth: Logarithms of the wealth of bets of each size.
    """

    fit: Fit
    points: FloatArray
    rows: list[Outputs] = field(default_factory=list)
    sides: list[Sides] = field(default_factory=list)
    log_wealth: FloatArray = field(default_factory=lambda: np.zeros(len(_SIZES)))
    score: Score | None = None
    bet: Bet | None = None
    _fitted: int = 0
    _scored: tuple[FloatArray, Sides] = (np.zeros(0), np.zeros(0, np.int64))

    def learn(self, rows: Outputs, sides: Sides) -> None:
        """Add draws to learn from: rows (n, f), and 0 or 1 for the input of each, (n,)."""
        self.rows.append(rows)
        self.sides.append(sides)
        total = sum(map(len, self.sides))
        if self.score is None or total >= _REFIT_GROWTH * self._fitted:
            self._learn_anew(total)
        elif self.score is not None:
            self._scored = tuple(  # type: ignore[assignment]
                np.concatenate(pair) for pair in zip(self._scored, (self.score(rows), sides), strict=True)
            )
        if self.score is not None:
            self.bet = best_bet(*self._scored, self.points)

    def _learn_anew(self, total: int) -> None:
        rows, sides = np.concatenate(self.rows), np.concatenate(self.sides)
        cut = int(total * _FIT_SHARE)
        if total < _MIN_DRAWS or min(np.bincount(sides[:cut], minlength=2)) < 4:
            return
        self.score = self.fit(rows[:cut][sides[:cut] == 0], rows[:cut][sides[:cut] == 1])
        self._scored = self.score(rows[cut:]), sides[cut:]
        self._fitted = total

    def stake(self, rows: Outputs, sides: Sides) -> None:
        """Multiply the wealth by the factors of new draws, and learn from these."""
        if self.bet is not None and self.score is not None:
            factors = self.bet.factors(self.score(rows), sides)
            for i, size in enumerate(_SIZES):
                self.log_wealth[i] += np.log1p(size * (factors - 1)).sum()
        self.learn(rows, sides)


def mixed_log_wealth(experts: Sequence[Expert]) -> float:
    """Return the logarithm of the wealth of experts who began with equal shares of 1."""
    wealth = np.concatenate([expert.log_wealth for expert in experts])
    maximum = float(wealth.max())
    return maximum + math.log(float(np.exp(wealth - maximum).mean())) if maximum > -math.inf else -math.inf
