"""First bound on amplification by shuffling (Erlingsson et al. 2019)."""

from __future__ import annotations

import math

from mechanisms.accounting.clone_pair import check_arguments


def erlingsson_2019(local_epsilon: float, users: int, delta: float) -> float | None:
    """Return ε <= 12·ε0·sqrt(log(1/δ)/n).

    Source: Erlingsson, Feldman, Mironov, Raghunathan, Talwar, Thakurta 2019, Corollary 9.

    Args:
        local_epsilon: ε0 of pure local differential privacy, in nats.
        users: n >= 1.
        delta: δ in (0, 1).

    Returns:
        ε, or None (no amplification) outside the conditions n >= 1000, 0 < ε0 < 1/2, δ < 1/100, or if ε is not below
        ε0.
    """
    check_arguments(local_epsilon, users, delta)
    if users < 1000 or not 0 < local_epsilon < 0.5 or delta >= 0.01:
        return None
    epsilon = 12 * local_epsilon * math.sqrt(math.log(1 / delta) / users)
    return epsilon if epsilon < local_epsilon else None
