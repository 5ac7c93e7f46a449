"""Stronger clone (Feldman, McMillan and Talwar, SODA 2023), numerical, and its Rényi divergences.

**The claim.** With p0 = 1/(e^ε0 + 1), every user is a clone of either output of randomized response with probability p0
each: in `clone_pair` a = 1 - p0, b = p0, r = p0. The paper's proof for general randomizers has an error (errata of
arXiv 2208.04591: Lemma 3.5 for p < p0). Its theorems stand there for a restricted class only.

**Why we may use it.** For n users with the same ε0-locally private randomizer it holds, by another proof. The reduction
in `variation_ratio` is exact about the part that the paper's proof hides. It holds for every randomizer with its own
total variation β, and its δ(ε) grows with β for every ε. At the largest β, (e^ε0 - 1)/(e^ε0 + 1), it is the stronger
clone's pair. δ(ε) for every ε >= 0 and, the pair being symmetric, in both directions, orders all divergences that
processing does not increase, hence the Rényi divergences as well (Blackwell).

**Rényi.** Given N counts (`clone_pair`; N = C + 1), the likelihood ratio of either input to the clones' law is 1 ±
τ·D/N, τ = tanh(ε0/2), so exp((α - 1)·D_α) = E[(1 + τX)^α·(1 - τX)^(1-α)], X = D/N. The integrand is convex in X (the
perspective of t^α), so mass between two points counts as spread to them with its mean kept. It falls in N (processing),
so a block of C counts as its lowest. Beyond 14 standard deviations Chernoff's bound stands for the mass. The pair's own
δ(ε) is never worse for one round. The Rényi divergence is what adds up over rounds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import betainc, xlogy

from mechanisms.accounting.clone_pair import (
    LARGEST_EPSILON,
    LEAST_EPSILON,
    TOLERANCE,
    ClonePair,
    binomial_masses,
    binomial_range,
    block_edges,
    check_arguments,
    fair_binomial_pmf,
    pair_epsilon,
)

FloatArray = NDArray[np.float64]

_BLOCKS = 60
#: Mass of clone counts that Chernoff's bound replaces, on each side.
_TAIL = 1e-30
#: Ratio of the next blocks of fewer clones.
_SHRINK = 0.8
_NEAR = 14.0
_ROUNDING = 1e-6


def stronger_clone(local_epsilon: float, users: int, delta: float) -> float | None:
    """Return the least ε of the stronger clone's pair, found numerically within 1e-4 on the safe side.

    Args:
        local_epsilon: ε0 of pure local differential privacy, in nats.
        users: n >= 1, one randomizer for all.
        delta: δ in (0, 1).

    Returns:
        ε, or None (no amplification) if ε is not below ε0, or ε0 is below 1e-5.
    """
    check_arguments(local_epsilon, users, delta)
    if not LEAST_EPSILON <= local_epsilon <= LARGEST_EPSILON:
        return None
    return pair_epsilon(_pair(local_epsilon), users, delta)


def stronger_clone_renyi(local_epsilon: float, users: int, delta: float) -> float | None:
    """Return the least ε from the Rényi divergences of the stronger clone's pair, converted at the best order.

    Arguments and None are as in `stronger_clone`. The conversion is ε = D_α + log(1 - 1/α) - log(α·δ)/(α - 1) (Canonne,
    Kamath and Steinke 2020, Proposition 12).
    """
    check_arguments(local_epsilon, users, delta)
    if not LEAST_EPSILON <= local_epsilon <= LARGEST_EPSILON:
        return None

    def epsilon(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        divergence = renyi_divergence(local_epsilon, users, order)
        return divergence + math.log1p(-1 / order) - math.log(order * delta) / (order - 1)

    grid = np.arange(-3.0, 13.5, 0.75)
    values = [epsilon(x) for x in grid]
    best = float(grid[int(np.argmin(values))])
    minimum = minimize_scalar(epsilon, bounds=(best - 0.75, best + 0.75), method="bounded", options={"xatol": 1e-3})
    least = max(0.0, min(float(minimum.fun), *values))
    return least if least < local_epsilon * (1 - TOLERANCE) else None


def renyi_divergence(local_epsilon: float, users: int, order: float) -> float:
    """Return an upper bound of the Rényi divergence of order α > 1 of the stronger clone's pair, in nats.

    It is ε0 itself if ε0 is below 1e-5. It holds for the shuffled outputs of n = `users` users of one ε0-locally
    private randomizer.
    """
    check_arguments(local_epsilon, users, 0.5)
    if not 1 < order < math.inf:
        raise ValueError(f"Rényi divergence: the order must be above 1 and finite, got {order}")
    if not 0 <= local_epsilon <= LARGEST_EPSILON:
        raise ValueError(f"Rényi divergence: ε0 must be in [0, {LARGEST_EPSILON}], got {local_epsilon}")
    if local_epsilon < LEAST_EPSILON:
        return local_epsilon
    up, ratio, log_weight = _integrand(local_epsilon, users)
    # of either sign of X, at the height of its exponent: the smaller share is e^-(2α - 1)·log ratio times the other
    height = log_weight + up + (order - 1) * ratio
    top = float(height.max())
    terms = np.exp(height - top) * (1 + np.exp((1 - 2 * order) * ratio)) / 2
    log_moment = top + math.log(float(terms.sum()))
    return min(local_epsilon, (max(log_moment, 0.0) + _ROUNDING) / (order - 1))


def _pair(local_epsilon: float) -> ClonePair:
    low = 1 / (math.exp(local_epsilon) + 1)
    return ClonePair(high=1 - low, low=low, clone=low)


@lru_cache(maxsize=8)
def _integrand(local_epsilon: float, users: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log(1 + τX), log((1 + τX)/(1 - τX)) and the log weights of the points of `_points`, for any order."""
    x, log_weight = _points(local_epsilon, users)
    tilt = math.tanh(local_epsilon / 2)
    up = np.log1p(tilt * x)
    # 1 - τX at X = 1 is 1 - τ = 2/(e^ε0 + 1), lost to rounding at a large ε0
    down = np.log(2 / (math.exp(local_epsilon) + 1) + tilt * (1 - x))
    return up, up - down, log_weight


def _points(local_epsilon: float, users: int) -> tuple[FloatArray, FloatArray]:
    """Return points X >= 0 and log weights (adding up to 1) of a law of |D|/N above the pair's in convex order."""
    pair = _pair(local_epsilon)
    gamma = min(1.0, 2 * pair.clone)
    low, high, left_out = binomial_range(users - 1, gamma, _TAIL)
    edges = block_edges(low, high, _BLOCKS)
    clones, log_weights = list(edges[:-1]), list(_log(binomial_masses(users - 1, gamma, edges)))
    if left_out and high < users - 1:  # more clones than `high` count as `high`
        clones.append(float(high))
        log_weights.append(math.log(left_out))
    while low > 0:  # fewer than `low`: P(C < low) by Chernoff, all at the block's lowest
        fewest = math.floor(_SHRINK * low)
        log_weights.append(-(users - 1) * _divergence((low - 1) / (users - 1), gamma))
        clones.append(float(fewest))
        low = fewest
    parts = [_folded(c + 1, w) for c, w in zip(clones, log_weights, strict=True) if w > -math.inf]
    return np.concatenate([x for x, _ in parts]), np.concatenate([w for _, w in parts])


def _divergence(a: float, b: float) -> float:
    """Return the Kullback-Leibler divergence of coins of bias a and b, in nats; 0 < b < 1."""
    return float(xlogy(a, a / b) + xlogy(1 - a, (1 - a) / (1 - b)))


def _log(x: FloatArray) -> FloatArray:
    """Return log x, with -inf at 0."""
    with np.errstate(divide="ignore"):
        logs: FloatArray = np.log(x)
    return logs


def _folded(n: float, log_weight: float) -> tuple[FloatArray, FloatArray]:
    """Return points and log masses (times the weight) for |D|/n, D the sum of n fair signs.

    Masses are spread in bins, means kept.
    """
    deviation = math.sqrt(n)
    near = np.arange(0.0, _NEAR, 0.04) * deviation
    steps = math.ceil(math.log(max(deviation / _NEAR, 1.0)) / math.log(1.02)) + 1
    far = _NEAR * deviation * 1.02 ** np.arange(steps + 1)
    # numbers k of heads at which bins begin, from n/2 up; the last bin ends at n
    start = math.ceil(n / 2)
    k = np.unique(np.minimum(np.ceil((n + np.concatenate([near, far])) / 2), n))
    k = k[k >= start]
    if k[-1] < n:
        k = np.append(k, n)
    k = np.append(k, n + 1)
    inner = k[:-1]
    atom = fair_binomial_pmf(np.full_like(inner, n), inner)
    above = np.append(2 * betainc(inner, n - inner + 1, 0.5), 0.0)
    moment = np.append(2 * inner * atom / n, 0.0)
    if n % 2 == 0 and inner[0] == n / 2:
        above[0] -= atom[0]  # X = 0 is counted once
        moment[0] = 2 * (inner[0] * atom[0]) / n
    mass, mean = np.maximum(-np.diff(above), 0.0), np.maximum(-np.diff(moment), 0.0)
    left, right = (2 * inner - n) / n, (2 * np.minimum(k[1:], n) - n) / n
    spread = (right - left) * mass
    share = np.zeros_like(mass)  # share of a bin's mass that goes to its right end
    several = (k[1:] - inner > 1) & (spread > 0)
    share[several] = np.clip((mean - left * mass)[several] / spread[several], 0.0, 1.0)
    logs = np.concatenate([_log(mass * (1 - share)), _log(mass * share)])
    points = np.concatenate([left, right])
    # Chernoff for the rest: P(X >= x) <= exp(-n·kl), all of it at the bin's right end
    beyond = left * deviation >= _NEAR
    gap = np.array([_divergence((1 + x) / 2, 0.5) for x in left[beyond]])
    rest = np.concatenate([beyond, beyond])
    points, logs = points[~rest], logs[~rest]
    points = np.concatenate([points, right[beyond]])
    logs = np.concatenate([logs, math.log(2) - n * gap])
    kept = logs > -math.inf
    return points[kept], logs[kept] + log_weight
