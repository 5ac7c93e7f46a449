"""Larger blanket at a price in δ: the sphere's density is cut off beyond an angle τ.

inf_z p_z is f(π), and the caps around -z that make it so small are hardly ever reached. With ω uniform and γ' = U(τ),
U = f/ω, p_z covers γ'·ω except on the cap of angles beyond τ. Let p~_z be p_z with the missing mass

    η = ∫_{θ > τ} (U(τ) - U(θ)) dω

moved there from elsewhere: it contains γ'·ω and is at total-variation distance η from p_z. Replace the other n - 1
users' draws by p~. Either side of the hockey-stick moves by at most (n - 1)·η in total variation. The target's own draw
is untouched, and Lemma 5.3 of Balle et al. 2019 holds for any target with p_x, p_x' << ω. Hence (proved)

    δ(ε) <= blanket bound(γ', exact U and V of the target) + (1 + e^ε)·(n - 1)·η.

**Samplers (proved).** Let densities be those of the cells up to e^(±a/2), but for a factor C <= e^(a/2) of all of them.
Then p_z covers γ'·ω except for η taken with U·e^-a, and U - e^ε·V is at most C·e^(a/2) times that of the cells at
ε - a, of either sign. So what is proved of the cells at (ε - a, δ·e^-a) holds of the samplers at (ε, δ), since
e^a·(1 + e^(ε-a)) >= 1 + e^ε. (Losses within a and densities within e^(±a) would not do: where U - e^ε·V is negative, a
smaller density is nearer to 0.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mechanisms.accounting.blanket import SLACK, blanket_delta, least_epsilon
from mechanisms.losses.blanket_cells import BlanketCells

#: Shares of δ spent on the others' truncation.
_SHARES = (0.5, 0.2, 0.8)
#: Relative tolerance of ε until the best truncation is known.
_ROUGH = 1e-3


def truncated(cells: BlanketCells, log_gamma: float) -> tuple[BlanketCells, float]:
    """Return the same cells under a blanket of weight γ' >= γ, and the mass η by which one user's output may differ.

    η = Σ (γ'·w - p)_+ over cells. U is bounded by its low end in each, and both by the samplers' error. Outputs in no
    cell are counted whole: as U >= γ, their mass under ω is at most `tail`/γ.
    """
    if not cells.log_gamma <= log_gamma <= 0:
        raise ValueError(f"truncated blanket: log_gamma must be from {cells.log_gamma:g} to 0, got {log_gamma:g}")
    least = np.exp(cells.log_u_low - cells.numeric)
    shortfall = np.exp(cells.log_w) * np.maximum(math.exp(log_gamma) - least, 0.0)
    outside = min(1.0, cells.tail * math.exp(min(700.0, -cells.log_gamma)))
    eta = float(shortfall.sum()) * (1 + 1e-10) + outside * math.exp(log_gamma)
    return replace(cells, log_gamma=log_gamma), eta


@dataclass(frozen=True)
class TruncatedBlanket:
    """Truncated blanket.

    Attributes:
        cells: Its cells.
        eta: Price of each of the n - 1 others.
        epsilon: ε that it gives at its δ, in nats.
    """

    cells: BlanketCells
    eta: float
    epsilon: float

    def price(self, n: int, epsilon: float) -> float:
        """Return what truncation adds to δ(ε) for n users: (1 + e^ε)·(n - 1)·η, at most 1."""
        return min(1.0, (1.0 + math.exp(min(epsilon, 700.0))) * (n - 1) * self.eta)


def truncated_epsilon(cells: BlanketCells, n: int, delta: float) -> float | None:
    """Return the least ε at δ of `best_truncation`, or None if none is below the local ε."""
    cut = best_truncation(cells, n, delta)
    return None if cut is None else cut.epsilon


def fits_truncated(cells: BlanketCells, n: int, epsilon: float, delta: float) -> bool:
    """Return True if a truncation proves δ(ε) <= delta for n >= 2 users.

    It takes a δ at a known ε for each share of `best_truncation`, which searches for an ε.
    """
    weight = math.exp(-np.logaddexp(0.0, epsilon))  # 1/(1 + e^ε)
    for share in _SHARES:
        log_gamma = _weight(cells, share * delta * weight / (n - 1))
        if log_gamma is None:
            continue
        cut, eta = truncated(cells, log_gamma)
        rest = delta - (n - 1) * eta / weight
        if rest > 0 and blanket_delta(cut, n, epsilon, slack=rest * SLACK) <= rest:
            return True
    return False


def best_truncation(cells: BlanketCells, n: int, delta: float) -> TruncatedBlanket | None:
    """Return the truncation of least ε at δ, over a few shares of δ spent on it, or None if none is below the local ε.

    The result is never worse than `blanket_epsilon` by more than the price if the latter is an answer. It is often much
    better: γ' can be many times γ. `cells` must be of a randomizer whose U has one law for every input, as all
    mechanisms here are.

    Raises:
        ValueError: n < 1, or δ is not in (0, 1).
    """
    if not 0 < delta < 1 or n < 1:
        raise ValueError(f"truncated blanket: need 0 < delta < 1 and n >= 1, got delta {delta} and n {n}")
    local = cells.loss().epsilon(delta)
    if not math.isfinite(local) or n == 1:
        return None
    best: TruncatedBlanket | None = None
    ceiling, under, spare = local, local, delta  # the ceiling above `best`, and the δ of its blanket
    for share in _SHARES:
        # the price at a ceiling on ε is certified for every ε below it; a few passes lower the ceiling
        for again in range(3):
            weight = math.exp(-np.logaddexp(0.0, ceiling))  # 1/(1 + e^ε)
            log_gamma = _weight(cells, share * delta * weight / (n - 1))
            if log_gamma is None:
                break
            cut, eta = truncated(cells, log_gamma)
            rest = delta - (n - 1) * eta / weight
            near = None if best is None else ceiling * (0.9 if again else 1 - 2 * _ROUGH)
            epsilon = least_epsilon(cut, n, rest, ceiling, near=near, tolerance=_ROUGH)
            if epsilon is None or epsilon >= ceiling:
                break
            settled = epsilon > ceiling * 0.97
            best, under, spare, ceiling = TruncatedBlanket(cut, eta, epsilon), ceiling, rest, epsilon
            if epsilon == 0:
                return best
            if settled:
                break
    if best is None:
        return None
    near = best.epsilon * (1 - _ROUGH / 2)
    epsilon = least_epsilon(best.cells, n, spare, under, near=near)
    return best if epsilon is None or epsilon >= best.epsilon else replace(best, epsilon=epsilon)


def _weight(cells: BlanketCells, eta: float) -> float | None:
    """Return the log of the largest γ' whose η is at most `eta`, within 1e-9 below it, or None if even γ has more.

    η is linear between the cells' least U: the root is solved for, and `truncated` verifies it.
    """
    if truncated(cells, cells.log_gamma)[1] > eta:
        return None
    least, mass = np.exp(cells.log_u_low - cells.numeric), np.exp(cells.log_w)
    order = np.argsort(least)
    least, mass = least[order], mass[order]
    covered, below = np.cumsum(mass), np.cumsum(mass * least)
    slope = covered + min(1.0, cells.tail * math.exp(min(700.0, -cells.log_gamma)))
    last = int(np.searchsorted(np.maximum.accumulate(slope * least - below), eta, side="right")) - 1
    if last < 0:
        return cells.log_gamma
    log_gamma = min(0.0, math.log((eta + float(below[last])) / float(slope[last])))
    step = 1e-10
    while log_gamma > cells.log_gamma and truncated(cells, log_gamma)[1] > eta:
        log_gamma, step = log_gamma - step, 2 * step
    return max(log_gamma, cells.log_gamma)
