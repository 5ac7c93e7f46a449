"""Blankets of randomizers on the sphere whose density falls with the angle to the input.

p_x(y) = f(angle(x, y)) on S^(m-1), f decreasing. The angle to y is π at most, so inf_x p_x(y) = f(π) for every y: the
blanket ω is uniform and γ = |S^(m-1)|·f(π).

**The antipodal pair dominates every pair, in the order that shuffling needs (proved).** Let φ be convex and c >= 0. (u,
v) -> φ(u - c·v) is submodular, so among all couplings of two given laws E φ(U - cV) is largest for the countermonotone
one (Lorentz 1953; Tchen 1980, Theorem 2). By rotation invariance U = p_x(W)/ω(W) has one law for every x, so every pair
x, x' is a coupling of the same two laws. For x' = -x U = f(θ)/ω falls and V = f(π - θ)/ω rises with the angle θ to x:
countermonotone. Hence L = U - e^ε·V of any pair is below that of the antipodal one in the convex order. So are sums of
independent copies, and the blanket bound, the expectation of a convex function of such a sum, is largest for the
antipodal pair. One copy and φ = (.)_+: locally too. QED.

Purkayastha: f = C·e^(-κθ). Normalized planar Laplace: f(θ) ∝ ∫ r^(m-1) exp(-ε·sqrt(r² - 2r·cos θ + 1)) dr, which falls
since the root rises in θ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import logsumexp

from mechanisms.arrays import FloatArray
from mechanisms.losses.angle_table import log_angle_integral
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.sphere import log_radial_ratio

#: Cells in the angle; an even number, so that the reflection θ -> π - θ maps cells onto cells.
CELLS = 3072
#: Log of the largest mass under x that may lie in no cell.
_LOG_TAIL = -80.0
_NODES = 8


@lru_cache(maxsize=16)
def purkayastha(dim: int, kappa: float) -> BlanketCells:
    """Return blanket cells of the antipodal pair of Purkayastha on S^(dim-1), κ = kappa per radian.

    U = e^(-κθ)·F(0)/F(κ), F(κ) = ∫ sin^(m-2)(θ) e^(-κθ) dθ; γ = U(π).
    """
    constant = log_angle_integral(dim - 2, 0.0) - log_angle_integral(dim - 2, kappa)
    return cells(dim, lambda theta: constant - kappa * theta)


@lru_cache(maxsize=16)
def planar_laplace(dim: int, epsilon: float) -> BlanketCells:
    """Return blanket cells of the antipodal pair of the normalized planar Laplace on S^(dim-1), ε per unit length."""
    if epsilon == 0:
        return cells(dim, np.zeros_like)
    return cells(dim, lambda theta: log_radial_ratio(dim, epsilon, theta))


def cells(dim: int, log_ratio: Callable[[FloatArray], FloatArray], count: int = CELLS) -> BlanketCells:
    """Return blanket cells of the antipodal pair for log_ratio(θ) = log(f(θ)·|S^(dim-1)|), decreasing on [0, π].

    `count` is even. Masses are by Gauss-Legendre quadrature with positive integrands in each cell (8 nodes). The ends
    of [0, π] that are left out have mass at most a·sin^(m-2)(a)/F under ω, so at most U(0) times this under x.
    """
    ends = log_ratio(np.array([0.0, math.pi]))
    log_total = log_angle_integral(dim - 2, 0.0)
    start = _start(dim, float(ends[0]), log_total)
    edges = _edges(dim, log_ratio, start, count)
    nodes, weights = leggauss(_NODES)
    # x' has on the other half what x has on this one: next to π an angle keeps fewer digits than next to 0
    first = edges[: count // 2 + 1]
    half = np.diff(first) / 2
    theta = first[:-1, None] + half[:, None] * (1 + nodes)
    log_w = (dim - 2) * np.log(np.sin(theta)) - log_total + np.log(weights * half[:, None])
    near, far = (
        logsumexp(log_w + log_ratio(angle.ravel()).reshape(theta.shape), axis=1) for angle in (theta, math.pi - theta)
    )
    log_p = np.concatenate([near, far[::-1]])
    log_w = logsumexp(log_w, axis=1)
    at_edges = log_ratio(edges)
    low, high = at_edges[1:], at_edges[:-1]
    tail = 0.0
    if start > 0:
        log_tail = math.log(2 * start) + (dim - 2) * math.log(math.sin(start)) - log_total + float(ends[0])
        tail = math.exp(min(0.0, log_tail))
    return BlanketCells(
        log_gamma=min(0.0, float(ends[1])),
        log_w=np.concatenate([log_w, log_w[::-1]]),
        log_p=log_p,
        log_q=log_p[::-1].copy(),
        log_u_low=low,
        log_u_high=high,
        log_v_low=low[::-1].copy(),
        log_v_high=high[::-1].copy(),
        tail=tail,
    )


def _start(dim: int, log_largest: float, log_total: float) -> float:
    """Return the start of the cells, or 0 if near: mass at most e^_LOG_TAIL under any input is nearer to a pole."""
    low, high = 1e-9, math.pi / 2
    for _ in range(60):
        middle = math.sqrt(low * high)
        log_mass = math.log(2 * middle) + (dim - 2) * math.log(math.sin(middle)) - log_total
        if log_mass + log_largest > _LOG_TAIL:
            high = middle
        else:
            low = middle
    return low if low > 1e-3 else 0.0


def _edges(dim: int, log_ratio: Callable[[FloatArray], FloatArray], start: float, count: int) -> FloatArray:
    """Return count + 1 edges from start to π - start, symmetric: half by mass under ω, x and x', half uniform."""
    fine = np.linspace(start, math.pi - start, 4 * count + 1)
    with np.errstate(divide="ignore"):
        log_w = (dim - 2) * np.log(np.sin(fine)) if dim > 2 else np.zeros_like(fine)
    log_u = log_ratio(fine)
    density = np.full(len(fine), 1.0 / len(fine))
    for log_density in (log_w, log_w + log_u, log_w + log_u[::-1]):
        mass = np.exp(log_density - log_density.max())
        density += mass / mass.sum() / 3
    share = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    edges = np.interp(np.linspace(0, share[-1], count + 1), share, fine)
    edges = (edges + math.pi - edges[::-1]) / 2
    edges[0], edges[-1] = start, math.pi - start
    result: FloatArray = edges
    return result
