"""The referee of every shuffled ε: lower bounds from explicit data sets, which no analysis can go below.

Let the other n - 1 users' outputs be independent draws from h, a mixture of the densities p_z of inputs z. Shuffled
outputs determine the multiset only. Given it, every user is equally likely to have sent each. So

    δ(ε) = E_{Y ~ h^n}[(Σ_i (p_x - e^ε·p_x')(Y_i)/h(Y_i))_+]/n

exactly. A mixture h stands for random inputs. By joint convexity the average over them is at most the δ of one fixed
data set, so the figure is a lower bound for the worst data set too. Outputs are gathered in three cells first, by their
loss: a function of the outputs, which only lowers δ.

**Others far from both.** Let x and x' be likely in one cell each, and all others hold one third input that is unlikely
in both (`apart`). Their outputs there have density γ·ω, as the blanket's own samples. With n the δ of this data set
comes to the blanket bound, so that bound is asymptotically exact. Randomized response has such an input from three
labels on. For PrivUnit take x, x' and the third at angles of 120°. Where two caps {<x, y> >= t} and {<z, y> >= t} meet,
<x + z, y> >= 2t, and x + z has length 1: the overlap o is at most the mass of a cap at 2t. Points of the caps of x and
x' in another's cap count as in no cell (post-processing). The two cells then have the share 1 - 2o/c of their caps, as
the three caps have no common point (x + x' + z = 0).

**Up to three cells (randomized response, PrivUnit), for any n.** A grid fine enough for three values and a hundred
million users does not exist, and none is needed. Fix the number of outputs in the rarest cell. Of the rest, those in
the higher of the other two cells are N ~ Bin(m, p), and the sum is c + d·N with d > 0, positive for N >= k. Then

    E[(c + d·N)_+] = (c + d·m·p)·Pr[N >= k] + d·k·(1 - p)·Pr[N = k].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import binom

from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse

FloatArray = NDArray[np.float64]

#: Largest number of cells whose sum is known in closed form.
_FEW = 3
#: Standard deviations of the rarest cell's count that are summed. The rest is left out, which only lowers the result.
_REACH = 9.0
#: Relative error of binomial probabilities and of their cancellation.
_ARITHMETIC = 1e-6
#: Shares of the other users at (x, x').
_SHARES = {"all_at_x": (1.0, 0.0), "all_at_x_prime": (0.0, 1.0), "half_half": (0.5, 0.5)}


def least(cells: LossCells) -> LossCells:
    """Each cell at its mean ratio: a merging of outputs, whose δ and whose compositions are no larger."""
    ratio = np.clip(cells.log_p - cells.log_q, cells.low, cells.high)
    return LossCells(ratio, ratio, cells.log_p, cells.log_q, cells.infinite, cells.symmetric)


def lower_bounds(mechanisms: Sequence[Any], n: int, delta: float) -> dict[str, float]:
    """By data set, an ε that no (ε, δ) of n shuffled joint releases of `mechanisms` can be below.

    In "all_apart" the others hold a third input, for mechanisms with an `apart_share` above 0.
    """
    parts = [mechanism.blanket() for mechanism in mechanisms]
    cells = reduce(BlanketCells.product, parts)
    local = cells.loss().epsilon(delta)
    laws = {name: mixture(gathered(cells), *shares) for name, shares in _SHARES.items()}
    shares = [apart_share(mechanism) for mechanism in mechanisms]
    if min(shares) > 0:
        laws["all_apart"] = gathered(reduce(BlanketCells.product, map(apart, parts, shares)))
    return {name: _largest(law, n, delta, local) for name, law in laws.items()}


def gathered(cells: BlanketCells) -> BlanketCells:
    """The outputs in three cells at most: of a loss above a third of the largest, below minus that, and others."""
    if len(cells.log_w) <= _FEW and not cells.tail:
        return cells
    loss = cells.log_p - cells.log_q
    edge = float(np.abs(loss[np.exp(cells.log_p) > 1e-6]).max()) / 3

    def masses(logs: FloatArray) -> FloatArray:
        ends = np.array([np.exp(logs[loss > edge]).sum(), np.exp(logs[loss < -edge]).sum()])
        return np.log(np.append(ends, max(1.0 - ends.sum(), 1e-300)))

    log_w, log_p, log_q = map(masses, (cells.log_w, cells.log_p, cells.log_q))
    u, v = log_p - log_w, log_q - log_w
    return replace(
        cells, log_w=log_w, log_p=log_p, log_q=log_q, log_u_low=u, log_u_high=u, log_v_low=v, log_v_high=v, tail=0.0
    )


def _largest(law: BlanketCells, n: int, delta: float, local: float) -> float:
    """The largest ε whose δ(ε) against these others exceeds δ, within 5e-4 of itself from below, or 0."""
    low, high = 0.0, local
    while high - low > 5e-4 * high and high > 1e-9:
        middle = (low + high) / 2 if low else high / 2
        low, high = (middle, high) if few_cells_delta(law, n, middle) > delta else (low, middle)
    return low


def apart_share(mechanism: Any) -> float:
    """The least share of each of two likely cells outside the other and outside a third: see `apart`; 0 if none.

    k-RR has a third label from k = 3 on. The three inputs of PrivUnit are at angles of 120°.
    """
    if isinstance(mechanism, RandomizedResponse):
        return float(mechanism.classes > 2)
    if not isinstance(mechanism, PrivUnit):
        return 0.0
    half, twice = (mechanism.dim - 1) / 2, 2 * mechanism.threshold
    overlap = float(betainc(half, half, max(0.0, (1 - twice) / 2)))
    return 1 - 2 * overlap * (1 + 1e-9) / math.exp(mechanism.log_mass) - 1e-9


def few_cells_delta(law: BlanketCells, n: int, epsilon: float) -> float:
    """Return δ(ε) of n users against others whose law is ω, of one, two or three cells without a tail; from below."""
    mass = np.exp(law.log_w)
    mass = mass / mass.sum()
    value = np.exp(law.log_p - law.log_w) - np.exp(epsilon + law.log_q - law.log_w)
    order = np.argsort(mass)  # the rarest first; with fewer than three cells none is rare
    mass, value = (np.concatenate([np.zeros(_FEW - len(order)), part[order]]) for part in (mass, value))
    low, high = (1, 2) if value[1] < value[2] else (2, 1)
    p = mass[high] / (mass[low] + mass[high])
    d = max(value[high] - value[low], 1e-300)  # two cells of one value may be counted in any way
    spread = _REACH * math.sqrt(n * mass[0] * (1 - mass[0])) + _REACH
    rare = np.arange(max(0, math.floor(n * mass[0] - spread)), min(n, math.ceil(n * mass[0] + spread)) + 1)
    m = n - rare
    c = rare * value[0] + m * value[low]
    with np.errstate(over="ignore"):
        k = np.clip(np.floor(-c / d) + 1, 0, m + 1)
    inner = (c + d * m * p) * binom.sf(k - 1, m, p) + d * k * (1 - p) * binom.pmf(k, m, p)
    total = float(binom.pmf(rare, n, mass[0]) @ np.maximum(inner, 0.0))
    return total / n * (1 - _ARITHMETIC)


def mixture(cells: BlanketCells, at_x: float, at_x_prime: float) -> BlanketCells:
    """Return the pair against others of whom one share is at x, one at x', and the rest draws the blanket's law."""
    rest = 1.0 - at_x - at_x_prime
    with np.errstate(divide="ignore"):
        terms = [np.log(at_x) + cells.log_p, np.log(at_x_prime) + cells.log_q, np.log(max(rest, 0.0)) + cells.log_w]
    return others(cells, np.logaddexp(np.logaddexp(terms[0], terms[1]), terms[2]))


def others(cells: BlanketCells, log_h: FloatArray) -> BlanketCells:
    """Return the pair against others whose outputs have log masses log_h (J,) in the cells; for lower bounds only.

    U and V are the cells' mean ratios, as their low and their high bound.
    """
    log_u, log_v = cells.log_p - log_h, cells.log_q - log_h
    return BlanketCells(
        log_gamma=0.0,
        log_w=log_h,
        log_p=cells.log_p,
        log_q=cells.log_q,
        log_u_low=log_u,
        log_u_high=log_u,
        log_v_low=log_v,
        log_v_high=log_v,
        tail=cells.tail,
    )


def apart(cells: BlanketCells, share: float) -> BlanketCells:
    """Return the pair of the cells {likely for x}, {likely for x'}, {neither} against others at a third input.

    Args:
        cells: Three blanket cells, the first the likely one of x, the last that of x'.
        share: Share of each of the two, under all inputs, in which the third input is unlikely, in (0, 1].
    """

    def cut(log_mass: FloatArray, log_share: float) -> FloatArray:
        likely = log_mass[[0, -1]] + log_share
        return np.append(likely, math.log1p(-float(np.exp(likely).sum())))

    log_share = math.log(share)
    likely = replace(cells, log_p=cut(cells.log_p, log_share), log_q=cut(cells.log_q, log_share))
    return others(likely, cut(cells.log_w, log_share + cells.log_gamma))
