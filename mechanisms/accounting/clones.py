"""Hiding among the clones: closed and numerical bounds (Feldman, McMillan and Talwar 2021)."""

from __future__ import annotations

import math

from mechanisms.accounting.clone_pair import LARGEST_EPSILON, LEAST_EPSILON, ClonePair, check_arguments, pair_epsilon


def clones_2021_closed(local_epsilon: float, users: int, delta: float) -> float | None:
    """Return ε <= log(1 + (e^ε0 - 1)/(e^ε0 + 1)·(8·sqrt(e^ε0·log(4/δ)/n) + 8·e^ε0/n)) (Theorem 3.1).

    Args:
        local_epsilon: ε0 of pure local differential privacy, in nats.
        users: n >= 1.
        delta: δ in (0, 1).

    Returns:
        ε, or None (no amplification) outside the condition ε0 <= log(n/(16·log(2/δ))) or if ε is not below ε0.
    """
    check_arguments(local_epsilon, users, delta)
    if local_epsilon == 0:
        return None
    if local_epsilon > math.log(users / (16 * math.log(2 / delta))):
        return None
    gain = math.exp(local_epsilon)
    spread = 8 * math.sqrt(gain * math.log(4 / delta) / users) + 8 * gain / users
    epsilon = math.log1p(math.tanh(local_epsilon / 2) * spread)
    return epsilon if epsilon < local_epsilon else None


def clones_2021(local_epsilon: float, users: int, delta: float) -> float | None:
    """Return the numerical bound: the exact divergence of the pair to which the theorem's proof reduces.

    R(x) >= e^-ε0·(R0 + R1)/2, and R0, R1 are the two outputs of randomized response with ε0, processed. So in
    `clone_pair` a = e^ε0/(e^ε0 + 1), b = 1 - a, r = e^-ε0/2. The bound holds for any randomizers of ε0-local
    differential privacy, from ε0 = 1e-5 on. Arguments and None are as in `clones_2021_closed`, without its condition.
    """
    check_arguments(local_epsilon, users, delta)
    if not LEAST_EPSILON <= local_epsilon <= LARGEST_EPSILON:
        return None
    low = 1 / (math.exp(local_epsilon) + 1)
    return pair_epsilon(ClonePair(high=1 - low, low=low, clone=math.exp(-local_epsilon) / 2), users, delta)
