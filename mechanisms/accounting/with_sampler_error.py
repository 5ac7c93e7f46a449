"""A δ that holds the samplers.

**Theorem.** Let P, Q be (ε, δ')-indistinguishable, and P~, Q~, what samplers draw, within t of them in total variation.
Then P~(O) <= P(O) + t <= e^ε·Q(O) + δ' + t <= e^ε·Q~(O) + δ' + (1 + e^ε)·t for every event O. Of n users t is n times
one user's, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: The least and the largest share of δ that is set aside for the samplers. The least moves no ε by 1e-5 of itself, and
#: is enough for most: a search that has to be made again takes as long as the first.
_LEAST, MOST = 1e-5, 0.5


def with_sampler_error(bound: Callable[[float], float | None], delta: float, lost: float) -> float | None:
    """ε at δ of a bound (δ' -> ε, or None), with samplers whose total variation t is `lost` in it.

    None where the bound has none, or the samplers take more than half of δ.
    """
    if lost == 0:
        return bound(delta)
    share = min(MOST, max(_LEAST, price(1.0, lost) / delta))  # enough for ε up to 1, or what may be
    while share <= MOST:
        epsilon = bound(delta * (1 - share))
        if epsilon is None or price(epsilon, lost) <= share * delta:
            return epsilon
        share = max(2 * share, 1.1 * price(epsilon, lost) / delta)
    return None


def price(epsilon: float, lost: float) -> float:
    """What samplers within `lost` add to δ(ε): (1 + e^ε)·lost."""
    return (1.0 + math.exp(min(epsilon, 700.0))) * lost
