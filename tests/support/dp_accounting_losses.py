"""Loss distributions as dp-accounting holds them, made atom by atom: another way to compose them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from mechanisms.losses.loss import LossCells


def to_pld(cells: LossCells, interval: float) -> Any:
    """dp-accounting's PrivacyLossDistribution of one release: each atom split over the multiples of `interval` around
    it, both masses kept."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    losses, masses = cells.pessimistic
    infinite = cells.infinite + cells.left_out
    table: dict[int, float] = defaultdict(float)
    for loss, mass in zip(losses.tolist(), masses.tolist(), strict=True):
        if math.isinf(loss) or mass < 1e-18:
            infinite += mass
            continue
        steps = loss / interval
        floor = math.floor(steps)
        share = math.expm1((floor - steps) * interval) / math.expm1(-interval)
        table[floor] += mass * (1 - share)
        table[floor + 1] += mass * share
    made = pld_pmf.create_pmf(dict(table), interval, infinite, True)
    return privacy_loss_distribution.PrivacyLossDistribution(made)
