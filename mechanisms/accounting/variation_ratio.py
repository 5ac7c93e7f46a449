"""Variation-ratio bound (Wang et al., VLDB 2024), in a form that holds for every randomizer.

Their parameters: p bounds R0/R1 and R1/R0 for the pair (x0, x1), β bounds the pair's total variation, q bounds R0/R(x)
and R1/R(x) for every x. With α = β/(p - 1) and s = 1 - (p + 1)·α, R0 = pα·Q0 + α·Q1 + s·Q2 and
R1 = α·Q0 + pα·Q1 + s·Q2, where α·Q0 = (R0 - R1)_+/(p - 1), α·Q1 = (R1 - R0)_+/(p - 1).

**What we do not take over.** The published reduction (arXiv 2304.05007, and the software beside it) clones Q0 and Q1
with r = pα/q. It lets the target's Q2 hide among all users who are not clones, as if their remainders held it evenly.
They need not, and then the counts of the other outputs reveal whether the target drew Q2. Take p = q = 3, R0 = (0.06,
0.02, 0.6, 0.32), R1 = (0.02, 0.06, 0.6, 0.32) and R(x) = (0.02, 0.02, 0.2, 0.76) for 14 others. The shuffled outputs
have δ(0.4) = 7.8e-5 by enumeration, the published pair 9.2e-6 (tests/mechanisms/accounting/test_shuffle.py). It is the
gap that the errata of arXiv 2208.04591 name in the proof of the stronger clone.

**What we use.** R(x) >= max(R0, R1)/q = (pα·Q0 + pα·Q1 + s·Q2)/q, so Q2 is cloned as well, with probability s/q:
`clone_pair` with a = pα, b = α, r = pα/q, t = s/q. It holds for every such randomizer.

**β may be an upper bound.** The pair's δ(ε) is E[(ΣT_i)_+]/n for n independent T, with c = e^ε equal to q·(1 - c/p) and
q·(1/p - c) with probability r each, q·(1 - c) with probability s/q, and else 0 (`clone_pair`, its divergence summed
over M). A larger β moves mass from the third value to the first two, keeping E[T]. A unit of E[R0] spent on the third
is q·(1 - c) with probability 1/q. On the first two it is either with probability p/(q·(p + 1)). The second is the
larger in convex order. Scale by q/p, so that the values are B: p(1 - c) w.p. 1/p, A: p - c and 1 - cp w.p. 1/(p + 1)
each, else 0; both means are 1 - c, and 1 <= c <= p. For k >= 0, E(B - k)_+ = 0. For k < 0,
E(k - B)_+ = (k - p + pc)_+/p, at most E(k - A)_+ >= (k + cp - 1)/(p + 1) for p - pc <= k <= 0: the difference is linear
in k, (p - 1)/(p + 1) at the one end and (p - c)/(p + 1) at the other. Sums of independent terms keep the convex order.
"""

from __future__ import annotations

import math

from mechanisms.accounting.clone_pair import LARGEST_EPSILON, LEAST_EPSILON, ClonePair, check_arguments, pair_epsilon


def variation_pair(p: float, beta: float, q: float) -> ClonePair:
    """Return the pair for (p, β, q): p > 1, 0 < β <= (p - 1)/(p + 1), q >= 1.

    Raises:
        ValueError: One of them is out of range.
    """
    largest = (p - 1) / (p + 1)
    if not (p > 1 and 0 < beta <= largest * (1 + 1e-9) and q >= 1):
        raise ValueError(f"variation ratio: needs p > 1, 0 < β <= (p - 1)/(p + 1) and q >= 1, got {p}, {beta}, {q}")
    alpha = min(beta, largest) / (p - 1)
    shared = 1 - (p + 1) * alpha
    if shared < 1e-9:  # rounding: the largest β, which the proof permits
        return ClonePair(high=p / (p + 1), low=1 / (p + 1), clone=p / (p + 1) / q)
    return ClonePair(high=p * alpha, low=alpha, clone=p * alpha / q, shared=shared, shared_clone=shared / q)


def variation_ratio(
    local_epsilon: float, total_variation: float, users: int, delta: float, *, clone_epsilon: float | None = None
) -> float | None:
    """Return the least ε of the pair above with p = e^ε0, found numerically within 1e-4 on the safe side.

    Args:
        local_epsilon: log p, the loss of the pair of inputs to be hidden, in nats.
        total_variation: β, or an upper bound of it.
        users: n >= 1.
        delta: δ in (0, 1).
        clone_epsilon: log q, the largest loss between either of the pair and any input (default: ε0).

    Returns:
        ε, or None (no amplification) if ε is not below ε0, β is 0, or ε0 is below 1e-5.
    """
    check_arguments(local_epsilon, users, delta)
    if not 0 <= total_variation <= 1:
        raise ValueError(f"variation ratio: total variation must be in [0, 1], got {total_variation}")
    largest = local_epsilon if clone_epsilon is None else clone_epsilon
    within = LEAST_EPSILON <= local_epsilon <= LARGEST_EPSILON and 0 <= largest <= LARGEST_EPSILON
    if not within or total_variation == 0:
        return None
    beta = min(total_variation, math.tanh(local_epsilon / 2))
    return pair_epsilon(variation_pair(math.exp(local_epsilon), beta, math.exp(largest)), users, delta)
