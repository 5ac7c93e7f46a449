"""Losses and blankets of mechanisms with finitely many outputs, as atoms without discretization.

**K-ary randomized response** is a cap (below) of mass 1/K around each label: its blanket is uniform, of weight
γ = K/(e^ε + K - 1) (Balle et al. 2019, section 3.1), and any two different labels are the dominating pair.

**With priors (RRWithPrior), beside the source of the priors (proved).** The message is (z, y). z determines a set S of
k labels in any way. y is randomized response on S, uniform on S for a label outside it. Given z, with ω uniform on S:
k = 1 has U = 1, and U of a label in S is h_k = k·e^ε/(e^ε + k - 1) with probability 1/k, else l_k = k/(e^ε + k - 1); of
a label outside, 1. No density is below l_2 = 2/(e^ε + 1), the least of them, which is the blanket's weight for any k.
The stop-losses E(U - t)_+ are the lines (h_k - t)/k between l_k and h_k. Their greatest, over k = 1 to K, is that of
the law U* with atoms where lines k and k + 1 cross,

    t_k = (k + 1)·h_k - k·h_(k+1) = k·(k + 1)·e^ε/((e^ε + k - 1)·(e^ε + k)) of mass 1/(k·(k + 1)), k = 1 to K - 1,

and h_K of mass 1/K: the least law above every U in the convex order.

So given z (U, V) is below independent dilations with the marginals of U*. For the submodular function φ(u·U - c·v·V) of
shuffling, these are below the countermonotone pair of such marginals. t_1 = l_2 has mass a half, so one of the two is
always l_2. That pair serves for every prior and every two labels. K = 2: it is randomized response of two labels, of
which RRWithPrior then is a function of (z, y). K > 2: no single prior attains it.

**Caps (PrivUnit).** A density on the sphere that is high on a cap around x, of mass c <= 1/2 under the uniform law, and
e^ε times lower elsewhere is b·e^ε and b times the uniform one, c·e^ε·b + (1 - c)·b = 1. (Proved.) log p_x/p_x' is ε on
x's cap outside that of x', -ε the other way round, else 0: ε-DP. δ(ε') is (1 - e^(ε' - ε))·P_x(cap of x without that of
x'), which grows as the caps' overlap falls: antipodal caps, and any disjoint ones, dominate every pair.
inf_x p_x(y) = b for every y, as a cap of another x misses it: the blanket is uniform, of weight b. U is e^ε·b with
probability c, else b, for every x. For disjoint caps U and V are never high together, which is countermonotone, so no
pair is worse for shuffling (`sphere`).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from mechanisms.arrays import FloatArray
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells, no_loss

#: More labels than this are gathered where U* rises by less than a hundredth.
_SINGLE = 64


def pair_loss(log_p: FloatArray, log_q: FloatArray) -> LossCells:
    """Return the loss of one pair, from its log probabilities (outputs,) each: exact atoms, direction x to x' only."""
    table = np.stack([np.asarray(log_p, np.float64), np.asarray(log_q, np.float64)])
    total = logsumexp(table, axis=1, keepdims=True)
    if not np.isfinite(total).all():
        raise ValueError(f"categorical loss: row {int(np.argmin(np.isfinite(total)))} has no probability")
    log_p, log_q = table - total
    finite = np.isfinite(log_p) & np.isfinite(log_q)
    loss = (log_p - log_q)[finite]
    alone = np.isfinite(log_p) & ~np.isfinite(log_q)
    return LossCells(
        low=loss,
        high=loss,
        log_p=log_p[finite],
        log_q=log_q[finite],
        infinite=min(1.0, float(np.exp(log_p[alone]).sum())),
        symmetric=False,
    )


def pure_loss(epsilon: float) -> LossCells:
    """Return a loss that dominates every ε-LDP mechanism: binary randomized response (Kairouz, Oh, Viswanath 2015)."""
    return cap_loss(epsilon, -math.log(2))


def from_profile(epsilons: FloatArray, deltas: FloatArray) -> LossCells:
    """Return atoms whose δ(ε) passes through the given points and lies above the profile between them.

    The profile serves both directions: at ε < 0 it is 1 - e^ε(1 - δ(-ε)), as for an exchanged pair.

    Args:
        epsilons: (J,), rising from 0.
        deltas: (J,), falling and convex in e^ε. Values that break this by rounding are raised.
    """
    epsilons, deltas = np.asarray(epsilons, np.float64), np.minimum.accumulate(np.asarray(deltas, np.float64))
    if deltas[0] == 0:
        return no_loss()
    if len(epsilons) == 1:
        log_finite = np.array([math.log1p(-float(deltas[0]))] if deltas[0] < 1 else [])
        zero = np.zeros(len(log_finite))
        return LossCells(zero, zero, log_finite, log_finite, infinite=float(deltas[0]))
    # chords in t = e^ε from ε_i to ε_(i+1): -slope·e^(ε_i) = drop/expm1(gap); slopes must not steepen
    gap = np.diff(epsilons)
    log_slope = np.log(np.maximum(-np.diff(deltas), 1e-320)) - epsilons[:-1] - np.log(np.expm1(gap))
    log_slope = np.maximum.accumulate(log_slope[::-1])[::-1]  # convex
    # an atom at ε_i holds under x' the change of slope there, and under x e^(ε_i) times as much
    following = np.concatenate([log_slope[1:], [-np.inf]])
    with np.errstate(divide="ignore"):
        change = log_slope + np.log(-np.expm1(np.minimum(following - log_slope, 0.0)))
    log_q = change
    log_p = log_q + epsilons[1:]
    infinite = float(deltas[-1])
    low_p, low_q = log_q, log_p  # the mirror images, at -ε
    losses = np.concatenate([-epsilons[:0:-1], [0.0], epsilons[1:]])
    rest = 1.0 - infinite - float(np.exp(log_p).sum() + np.exp(low_p).sum())
    log_rest = math.log(rest) if rest > 0 else -math.inf
    all_p = np.concatenate([low_p[::-1], [log_rest], log_p])
    all_q = np.concatenate([low_q[::-1], [log_rest], log_q])
    kept = np.isfinite(all_p)
    return LossCells(low=losses[kept], high=losses[kept], log_p=all_p[kept], log_q=all_q[kept], infinite=infinite)


def prior_blanket(epsilon: float, classes: int) -> BlanketCells:
    """Return cells of U* over V* = l_2, and their mirror images; epsilon >= 0, classes K >= 2."""
    k = np.arange(1, classes + 1, dtype=np.float64)
    # t_2 ... t_(K-1), h_K; e^-ε goes with every factor, so nothing overflows
    shrink = np.exp(-epsilon)
    low = np.log(2 * shrink) - np.log1p(shrink)
    log_h = np.log(k) - np.log1p((k - 1) * shrink)
    log_u = np.append(log_h[1:-1] + np.log(k[2:]) - epsilon - np.log1p(k[1:-1] * shrink), log_h[-1])
    mass = np.append(1 / (k[1:-1] * k[2:]), 1 / classes)
    start = np.arange(len(mass))
    if len(mass) > _SINGLE:
        group = np.floor(np.log(k[1:]) * 100)
        start = np.flatnonzero(np.append(True, np.diff(group) > 0))
    log_p, log_w = np.log(np.add.reduceat(mass * np.exp(log_u), start)), np.log(np.add.reduceat(mass, start))
    least, most = np.minimum.reduceat(log_u, start), np.maximum.reduceat(log_u, start)
    v = np.full(len(start), low)

    def both(u: FloatArray, v: FloatArray) -> FloatArray:
        return np.concatenate([u, v[::-1]])

    return BlanketCells.mirrored(float(low), both(log_w, log_w), both(log_p, log_w + v), both(least, v), both(most, v))


def cap_loss(epsilon: float, log_mass: float) -> LossCells:
    """Return the exact loss of two inputs with disjoint caps. log_mass is log of c, at most log 1/2; epsilon >= 0."""
    if epsilon == 0:
        return no_loss()
    log_w, log_u = _cells(epsilon, log_mass)
    losses = np.array([epsilon, 0.0, -epsilon] if len(log_w) == 3 else [epsilon, -epsilon])
    log_p = log_w + log_u
    return LossCells(low=losses, high=losses, log_p=log_p, log_q=log_p[::-1].copy())


def cap_blanket(epsilon: float, log_mass: float) -> BlanketCells:
    """Return blanket and dominating pair: cells {x's cap}, {neither}, {the other cap}, exact."""
    log_w, log_u = _cells(epsilon, log_mass)
    return BlanketCells.mirrored(min(0.0, float(log_u[-1])), log_w, log_w + log_u, log_u, log_u)


def _cells(epsilon: float, log_mass: float) -> tuple[FloatArray, FloatArray]:
    """Return log masses of the cells under ω, and log U there: (3,), or (2,) if both caps cover everything."""
    log_base = -float(np.logaddexp(np.log1p(-np.exp(log_mass)), log_mass + epsilon))  # log b
    with np.errstate(divide="ignore"):
        log_rest = float(np.log1p(-min(1.0, 2 * np.exp(log_mass))))
    log_w = np.array([log_mass, log_rest, log_mass])
    kept = np.isfinite(log_w)
    return log_w[kept], (log_base + np.array([epsilon, 0.0, 0.0]))[kept]
