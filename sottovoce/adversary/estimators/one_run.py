"""Audit of training in one run: many canaries, each in or out by its own coin, and guesses of which are in.

Of m canaries an adversary guesses r and abstains from the others; v guesses are right. A claim about a change of one
canary bounds the probability of v right guesses or more:

- (ε, δ): Pr[right >= v] <= β + 2mδ·max_i Pr[v > W >= v − i]/i, with W binomial of r trials at 1/(1 + e^(−ε)) and β =
  Pr[W >= v] (Steinke, Nasr and Jagielski 2023, Theorem 5.2).
- μ-GDP, f̄(x) = Φ(Φ⁻¹(x) + μ): let p_i be the probability of i right guesses. Turning the coin of canary j turns "j is
  guessed wrong, i − 1 are right" into "j is guessed right, i are right". By f-DP, averaged over canaries and coins (f̄
  is concave), Σ_{i>=t} i·p_i/m <= f̄(Σ_{i>=t} (r − i + 1)·p_{i−1}/m) for all t (Mahloujifar, Melis and Chaudhuri 2024).
  From Pr[right >= v] = α the least p_{v−1}, p_{v−2}, ... follow. If they sum to more than 1, that μ is refuted.

A value that is refuted with probability at most alpha if it is true is a lower bound of that confidence. Canaries may
be anything with independent coins, and the adversary may score them in any way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

FloatArray = NDArray[np.float64]

#: Largest values of the searches for bounds.
_STEEPEST_MU, _LARGEST_EPSILON = 20.0, 50.0


def right_guesses(scores: FloatArray, included: NDArray[np.bool_], guesses: int) -> int:
    """Return the number of right guesses among the highest and the lowest scores.

    The highest half of `guesses` is guessed to be in, the lowest half out.

    Args:
        scores: Scores (m,), high for canaries that are in.
        included: Whether each canary is in, (m,).
        guesses: Number of guesses.

    Raises:
        ValueError: The number of guesses is odd or above m.
    """
    if guesses % 2 or not 0 < guesses <= len(scores):
        raise ValueError(f"one run: {guesses} guesses of {len(scores)} canaries; an even number, at most all")
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    return int((~included[order[:half]]).sum() + included[order[-half:]].sum())


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability, at most 1, of at least `right` right guesses under (ε, δ)-private training."""
    p = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, p))
    if not delta or not right:
        return beta
    back = np.arange(1, right + 1)
    near = np.cumsum(binom.pmf(right - back, guesses, p)) / back
    return min(1.0, beta + 2 * canaries * delta * float(near.max()))


def lower_epsilon(canaries: int, guesses: int, right: int, delta: float, alpha: float) -> float:
    """Return a lower bound of ε at δ, at least 0, wrong with probability at most alpha."""
    return _largest(lambda e: chance(canaries, guesses, right, e, delta) <= alpha, _LARGEST_EPSILON)


def refuted(canaries: int, guesses: int, right: int, mu: float, alpha: float) -> bool:
    """Return True if under every μ-GDP training this number of right guesses or more is less likely than alpha."""
    won, lost = right * alpha / canaries, (guesses - right) * alpha / canaries
    for i in range(right - 1, -1, -1):
        more = max(0.0, float(ndtr(ndtri(min(won, 1.0)) - mu)) - lost)
        lost += more
        won += i * more / (guesses - i)
        if won + lost > guesses / canaries:
            return True
    return False


def lower_mu(canaries: int, guesses: int, right: int, alpha: float) -> float:
    """Return a lower bound of μ, at least 0, wrong with probability at most alpha."""
    return _largest(lambda mu: refuted(canaries, guesses, right, mu, alpha), _STEEPEST_MU)


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """Return the largest value with a property that holds for all values below it, by halving from below; else 0."""
    if not holds(0.0):
        return 0.0
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
