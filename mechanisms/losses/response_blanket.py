"""Blanket of k-ary randomized response: uniform, of weight γ = K/(e^ε + K - 1) (Balle et al. 2019, section 3.1).

Any two different labels are the dominating pair. The laws of U and V are the same for every label, and U is high only
at x, V only at x', never together: countermonotone (see mechanisms.losses.sphere for the order).

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
"""

from __future__ import annotations

import math

import numpy as np

from mechanisms.arrays import FloatArray
from mechanisms.losses.blanket_cells import BlanketCells

#: More labels than this are gathered where U* rises by less than a hundredth.
_SINGLE = 64


def with_prior(epsilon: float, classes: int) -> BlanketCells:
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

    def both(one: FloatArray, other: FloatArray) -> FloatArray:
        return np.concatenate([one, other])

    return BlanketCells(
        log_gamma=float(low),
        log_w=both(log_w, log_w),
        log_p=both(log_p, log_w + v),
        log_q=both(log_w + v, log_p),
        log_u_low=both(least, v),
        log_u_high=both(most, v),
        log_v_low=both(v, least),
        log_v_high=both(v, most),
    )


def randomized_response(epsilon: float, classes: int) -> BlanketCells:
    """Return cells {x}, {x'} and all other labels, exact; epsilon >= 0, classes K >= 2."""
    log_gamma = -float(np.logaddexp(epsilon - math.log(classes), math.log1p(-1 / classes)))
    log_w = np.log(np.array([1, 1, classes - 2][: 3 if classes > 2 else 2], dtype=np.float64)) - math.log(classes)
    log_u = log_gamma + np.array([epsilon, 0.0, 0.0])[: len(log_w)]
    log_v = log_gamma + np.array([0.0, epsilon, 0.0])[: len(log_w)]
    return BlanketCells(
        log_gamma=log_gamma,
        log_w=log_w,
        log_p=log_w + log_u,
        log_q=log_w + log_v,
        log_u_low=log_u,
        log_u_high=log_u,
        log_v_low=log_v,
        log_v_high=log_v,
    )
