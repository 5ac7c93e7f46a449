"""Addition of the samplers' numerical error to δ.

**Theorem.** Let P, Q be (ε, δ')-indistinguishable, and let the samplers' P~, Q~ be within t of them in total variation.
Then P~(O) <= P(O) + t <= e^ε·Q(O) + δ' + t <= e^ε·Q~(O) + δ' + (1 + e^ε)·t for every event O. For n users t is n times
one user's, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Least and largest share of δ that is set aside for the samplers. The least moves no ε by 1e-5 of itself, and usually
#: suffices: a repeated search takes as long as the first.
_LEAST, MOST = 1e-5, 0.5


def with_sampler_error(bound: Callable[[float], float | None], delta: float, lost: float) -> float | None:
    """Return ε at δ of a bound (δ' -> ε, or None), with samplers whose total variation t is `lost` included.

    It is None if the bound has none, or the samplers take more than half of δ.
    """
    if lost == 0:
        return bound(delta)
    share = min(MOST, max(_LEAST, price(1.0, lost) / delta))  # enough for ε up to 1, or the most that is allowed
    while share <= MOST:
        epsilon = bound(delta * (1 - share))
        if epsilon is None or price(epsilon, lost) <= share * delta:
            return epsilon
        share = max(2 * share, 1.1 * price(epsilon, lost) / delta)
    return None


def price(epsilon: float, lost: float) -> float:
    """Return what samplers within `lost` add to δ(ε): (1 + e^ε)·lost."""
    return (1.0 + math.exp(min(epsilon, 700.0))) * lost
