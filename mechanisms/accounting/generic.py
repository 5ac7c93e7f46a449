"""Generic bound: amplification by shuffling from ε0 and the total variation of the worst pair.

Mechanisms without a blanket have no other: the variation-ratio bound, by a pair of counts.

**The pair** (`ClonePair`). Write R0 = R(x0) and R1 = R(x1) over disjoint parts, R0 = a·Q0 + b·Q1 + s·Q2 and R1 = b·Q0 +
a·Q1 + s·Q2 with a > b and a + b + s = 1. Let every R(x) >= r·Q0 + r·Q1 + t·Q2 (t = 0 only if s = 0). Each of the other
n - 1 users is then a *clone*, which draws from Q0, Q1, Q2 with probabilities r, r, t. Otherwise the user draws from a
remainder of their own. The n shuffled outputs can be made from the three counts alone. The counts add up to C + 1, with
C the number of clones, whatever the target drew. So the users that are not clones are a uniformly random n - 1 - C of
the others. Hence the counts (N0, N1, N2) under x0 and x1 are at least as far apart as the shuffled outputs, for every
divergence that processing does not increase. This also holds for randomizers that differ between users.

**Its divergence.** Let γ = 2r + t and M = C + 1, C ~ Bin(n - 1, γ). Given M, draw all M from the clones' law. The
likelihood ratio of (N0, N1, N2) is (γ/M)·(N0·a/r + N1·b/r + N2·s/t) under x0. With N = N0 + N1 ~ Bin(M, 2r/γ) and
D = N0 - N1, a sum of N fair signs,

    δ_M(ε) = γ/(2rM)·E[(κ·D - θ)_+],  κ = (a - b)(1 + e^ε),  θ = (e^ε - 1)·((a + b)·N + g·(M - N)),  g = 2rs/t,

and E[(κ·D - θ)_+] = κ·k·b_N(k) - θ·P(N0 >= k). Here k is the least N0 at which it is positive, and b_N the mass of
Bin(N, 1/2), since E[D; N0 >= k] = k·b_N(k) (de Moivre). Exchanging x0 and x1 exchanges N0 and N1, so one direction
suffices.

**Safe side.** δ_M falls in M: with one clone less, add a draw of the clones' law, which is processing. Given M, the
expectation rises in N if g >= a + b (θ falls, D spreads). So a block of M counts as its lowest, and a block of N as its
highest. Binomial tails that are left out are added in full. Rounding of the special functions is charged. For fair
coins it is charged at 1e-10 of each term before it cancels (measured at 4e-11 up to N = 2.5e7, 3e-8 at 5e12). For M
and N it is charged at 1e-7 of the sum (measured at 5e-9 of either tail, however small, up to 1e12, and 6e-8 at 1e15).
Beyond 2.5e7 users both charges grow with the root of their number. a - b has rounding of its own, so no ε0 below 1e-5
is amplified.

**Variation ratio** (Wang et al., VLDB 2024), in a form that holds for every randomizer.

Their parameters, with one bound for both ratios: p bounds R0/R1 and R1/R0 for the pair (x0, x1), and R0/R(x) and
R1/R(x) for every x; β bounds the pair's total variation. With α = β/(p - 1) and s = 1 - (p + 1)·α,
R0 = pα·Q0 + α·Q1 + s·Q2 and R1 = α·Q0 + pα·Q1 + s·Q2, where α·Q0 = (R0 - R1)_+/(p - 1), α·Q1 = (R1 - R0)_+/(p - 1).

**What we do not take over.** The published reduction (arXiv 2304.05007, and the software beside it) clones Q0 and Q1
with r = α, and lets the target's Q2 hide among all users who are not clones, as if their remainders held it evenly.
They need not, and then the counts of the other outputs reveal whether the target drew Q2. Take p = 3, R0 = (0.06, 0.02,
0.6, 0.32), R1 = (0.02, 0.06, 0.6, 0.32) and R(x) = (0.02, 0.02, 0.2, 0.76) for 14 others. The shuffled outputs have
δ(0.4) = 7.8e-5 by enumeration, the published pair 9.2e-6 (tests/mechanisms/accounting/test_generic.py). It is the gap
that the errata of arXiv 2208.04591 name in the proof of the stronger clone.

**What we use.** R(x) >= max(R0, R1)/p = α·Q0 + α·Q1 + s/p·Q2, so Q2 is cloned as well: the pair has a = pα, b = α,
r = α, t = s/p. It holds for every such randomizer.

**β may be an upper bound.** The pair's δ(ε) is E[(ΣT_i)_+]/n for n independent T, with c = e^ε equal to p - c and
1 - cp with probability α each, p·(1 - c) with probability s/p, and else 0 (the divergence above, summed over M). A
larger β moves mass from the third value to the first two, keeping E[T]. A unit of E[R0] spent on the third, B, is
p·(1 - c) with probability 1/p, else 0. On the first two, A, it is either with probability 1/(p + 1). Both means are
1 - c, and A is the larger in convex order. For k >= 0, E(B - k)_+ = 0. For k < 0, E(k - B)_+ = (k - p + pc)_+/p, at
most E(k - A)_+ >= (k + cp - 1)/(p + 1) for p - pc <= k <= 0: the difference is linear in k, (p - 1)/(p + 1) at the one
end and (p - c)/(p + 1) at the other. Sums of independent terms keep the convex order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc
from scipy.stats import binom

from mechanisms.arrays import FloatArray

#: Mass of clone counts left out and added to δ, as a fraction of the requested δ.
_TAIL = 1e-7
#: Relative error allowed to the incomplete beta function and the binomial mass, up to this number of coins.
_ROUNDING, _COINS = 1e-10, 2.5e7
#: The same for tails of the numbers of clones. Abel summation carries it over to δ.
_MASS_ROUNDING = 1e-7
#: ε is found to this relative accuracy, on the safe side.
TOLERANCE = 1e-4
#: Range of ε0. Above it, a clone has probability below 1e-217, and no number of users amplifies. Below it, float64 does
#: not distinguish a from b to 1e-10.
LEAST_EPSILON, LARGEST_EPSILON = 1e-5, 500.0
_BLOCKS = 1500
_BLOCKS_2D = 160


@dataclass(frozen=True)
class ClonePair:
    """Weights of the pair in the module's docstring.

    Attributes:
        high: a of the target.
        low: b of the target.
        clone: r.
        shared: s of the target.
        shared_clone: t.
    """

    high: float
    low: float
    clone: float
    shared: float = 0.0
    shared_clone: float = 0.0

    @property
    def rate(self) -> float:
        """Return g = 2rs/t of the divergence, or 0 if nothing is shared."""
        return 2 * self.clone * self.shared / self.shared_clone if self.shared else 0.0


#: Smallest δ that is accounted for. The shares set aside from it must still be numbers.
LEAST_DELTA = 1e-290


def check_arguments(local_epsilon: float, users: int, delta: float) -> None:
    """Check that ε0 >= 0 (infinity is allowed), n is a whole number of at least 1, and δ is in (0, 1).

    Raises:
        ValueError: One of them is out of range.
    """
    if not local_epsilon >= 0:
        raise ValueError(f"shuffle: the local epsilon must be at least 0, got {local_epsilon}")
    if isinstance(users, bool) or users != users or users < 1 or users != int(users):
        raise ValueError(f"shuffle: users must be a whole number of at least 1, got {users}")
    if not 0 < delta < 1:
        raise ValueError(f"shuffle: delta must be above 0 and below 1, got {delta}")


def variation_pair(p: float, beta: float) -> ClonePair:
    """Return the pair of a randomizer of (p, β), p > 1 and 0 < β <= (p - 1)/(p + 1)."""
    alpha = beta / (p - 1)
    shared = 1 - (p + 1) * alpha
    if shared < 1e-9:  # rounding: the largest β, which the proof permits
        return ClonePair(high=p / (p + 1), low=1 / (p + 1), clone=1 / (p + 1))
    return ClonePair(high=p * alpha, low=alpha, clone=alpha, shared=shared, shared_clone=shared / p)


def variation_ratio(local_epsilon: float, total_variation: float, users: int, delta: float) -> float | None:
    """Return the least ε of the pair above with p = e^ε0, found numerically within 1e-4 on the safe side.

    Args:
        local_epsilon: log p, the largest loss of any two inputs, in nats.
        total_variation: β, or an upper bound of it.
        users: n >= 1.
        delta: δ in (0, 1).

    Returns:
        ε, or None (no amplification) if ε is not below ε0, β is 0, or ε0 is below 1e-5.
    """
    check_arguments(local_epsilon, users, delta)
    if not 0 <= total_variation <= 1:
        raise ValueError(f"variation ratio: total variation must be in [0, 1], got {total_variation}")
    if not LEAST_EPSILON <= local_epsilon <= LARGEST_EPSILON or total_variation == 0:
        return None
    beta = min(total_variation, math.tanh(local_epsilon / 2))
    pair = variation_pair(math.exp(local_epsilon), beta)
    # beyond ε = 30, κ and θ agree to the last bits of float64, and their rounding would look like δ = 0
    return least_epsilon(pair_profile(pair, users, delta), delta, min(local_epsilon, 30.0))


def pair_profile(pair: ClonePair, users: int, delta: float) -> Callable[[float], float]:
    """Return the function from ε to an upper bound of the pair's δ(ε).

    It includes what is left out, at most 1e-7 of `delta`.
    """
    gamma = min(1.0, 2 * pair.clone + pair.shared_clone)
    low, high, left_out = binomial_range(users - 1, gamma, _TAIL * delta)
    edges = block_edges(low, high, _BLOCKS if pair.shared == 0 else _BLOCKS_2D)
    mass = binomial_masses(users - 1, gamma, edges)
    total = edges[:-1] + 1.0
    if pair.shared == 0:
        fair, weight = total, mass
    else:
        total, fair, weight, lost = _split(total, mass, 2 * pair.clone / gamma, _TAIL * delta)
        left_out += lost
    scale = weight * gamma / (2 * pair.clone * total)
    more = math.sqrt(max(users / _COINS, 1.0))

    def delta_at(epsilon: float) -> float:
        kappa = (pair.high - pair.low) * (1 + math.exp(epsilon))
        theta = math.expm1(epsilon) * ((pair.high + pair.low) * fair + pair.rate * (total - fair))
        least = np.floor((fair + theta / kappa) / 2) + 1
        reached = least <= fair
        k, n = least[reached], fair[reached]
        gain = kappa * k * binom.pmf(k, n, 0.5)
        cost = theta[reached] * betainc(k, n - k + 1, 0.5)
        surplus = np.maximum(gain - cost, 0.0) + _ROUNDING * more * gain
        return min(1.0, float(scale[reached] @ surplus) * (1 + _MASS_ROUNDING * more) + left_out)

    return delta_at


def _split(
    total: FloatArray, mass: FloatArray, share: float, tail: float
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return flattened blocks of N ~ Bin(M, share) for every M, (M, N at the top, mass), and the mass left out."""
    if share >= 1:
        return total, total, mass, 0.0
    log_tail = math.log(2 / tail)
    radius = np.sqrt(2 * total * share * (1 - share) * log_tail) + 2 / 3 * log_tail
    first = np.maximum(np.floor(total * share - radius), 0.0)
    last = np.minimum(np.ceil(total * share + radius), total)
    step = np.linspace(0.0, 1.0, _BLOCKS_2D + 1)
    # tops of the blocks: whole numbers from `first` to `last`; a block is (previous top, this top]
    tops = np.floor(first[:, None] + step * (last - first)[:, None])
    wide = np.broadcast_to(total[:, None], tops.shape)
    edges = np.concatenate([np.zeros((len(total), 1)), tops + 1], axis=1)
    weight = mass[:, None] * binomial_masses(total[:, None], share, edges)
    kept = weight > 0
    return wide[kept], tops[kept], weight[kept], tail


def least_epsilon(delta_at: Callable[[float], float], delta: float, limit: float) -> float | None:
    """Return the least ε in (0, limit) with delta_at(ε) <= delta, within 1e-4 relatively on the safe side, or None.

    `delta_at` must be non-increasing. The returned ε was evaluated, so it holds whatever path the search took.
    """
    low, high = 0.0, limit
    at_zero = delta_at(0.0)
    if at_zero <= delta:
        return 0.0
    gap_low, gap_high = math.log(at_zero / delta), -math.inf
    holds = False
    for step in range(200):
        if high - low <= TOLERANCE * high or high < 1e-12:
            break
        # secant on log δ, a little above its root so that the upper end moves; bisection if that fails
        middle = math.sqrt(low * high) if low > 0 and high > 4 * low else (low + high) / 2
        if math.isfinite(gap_high) and step % 3:
            secant = low + (high - low) * gap_low / (gap_low - gap_high)
            nudge = TOLERANCE / 3 * high
            middle = min(max(secant + (nudge if step % 3 == 1 else -nudge), low + nudge), high - nudge)
        value = delta_at(middle)
        gap = math.log(value / delta) if value > 0 else -math.inf
        if value <= delta:
            high, gap_high, holds = middle, gap, True
        else:
            low, gap_low = middle, gap
    return high if holds else None


def binomial_range(trials: int, p: float, tail: float) -> tuple[int, int, float]:
    """Return (low, high, bound): P(Bin(trials, p) outside low..high) <= bound <= tail, by Bernstein's inequality."""
    if trials == 0 or p >= 1:
        return trials, trials, 0.0
    log_tail = math.log(2 / tail)
    radius = math.sqrt(2 * trials * p * (1 - p) * log_tail) + 2 / 3 * log_tail
    low, high = max(0, math.floor(trials * p - radius)), min(trials, math.ceil(trials * p + radius))
    return low, high, 0.0 if (low, high) == (0, trials) else tail


def block_edges(low: int, high: int, blocks: int) -> FloatArray:
    """Return whole numbers low = e_0 < ... < e_k = high + 1, at most `blocks` blocks [e_i, e_{i+1})."""
    edges: FloatArray = np.unique(np.floor(np.linspace(low, high + 1, min(blocks, high + 1 - low) + 1)))
    return edges


def binomial_masses(trials: int | FloatArray, p: float, edges: FloatArray) -> FloatArray:
    """Return P(e_j <= Bin(trials, p) < e_{j+1}) for each block along the last axis of edges.

    Up to the mean these are differences of the lower tail, beyond it of the upper one. So masses far out keep their
    digits. `trials` is one number for all rows, or has shape (rows, 1).
    """
    beyond = edges[..., 1:] > trials * p
    return np.where(
        beyond, -np.diff(binom.sf(edges - 1, trials, p), axis=-1), np.diff(binom.cdf(edges - 1, trials, p), axis=-1)
    )
