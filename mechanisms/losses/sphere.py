"""Losses and blankets of randomizers on the sphere whose density falls with the angle to the input.

**The antipodal pair dominates all pairs (proved).** Let p_x(y) = f(angle(x, y)), f falling, on S^(m-1), and ω the
uniform distribution. For a pair (x, x') put U = p_x(W)/ω(W), V = p_x'(W)/ω(W), W ~ ω. By rotation invariance U and V
have the same law for every pair. For convex φ and c >= 0, (u, v) -> φ(u - c·v) is submodular. So among all couplings of
two given marginals E φ(U - cV) is largest for the countermonotone one (Lorentz 1953; Tchen 1980, Theorem 2). For
x' = -x, U = f(θ)/ω falls and V = f(π - θ)/ω rises with θ: that is the countermonotone one. φ = (.)_+ gives every
hockey-stick divergence. Hence also L = U - e^ε·V of any pair is below that of the antipodal one in the convex order. So
are sums of independent copies, and the blanket bound, the expectation of a convex function of such a sum, is largest
for the antipodal pair. QED.

Its loss l(θ) = log f(θ) - log f(π - θ) falls with θ, so cells of angles are cells of losses. The reflection θ -> π - θ
exchanges the inputs.

**Blanket.** The angle to y is π at most, so inf_x p_x(y) = f(π) for every y: the blanket is uniform, of weight
γ = |S^(m-1)|·f(π).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp

from mechanisms.arrays import FloatArray
from mechanisms.losses.angle_table import log_angle_integral
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.losses.quadrature import gauss_legendre, log_panel_masses, mirrored_edges

LogDensity = Callable[[FloatArray], FloatArray]

#: Cells near the peak, cells over [0, π], and the log density relative to the peak that ends the former.
_FINE, _COARSE, _LOG_SMALL = 3072, 512, -80.0
#: Divisor of the number of panels of the radial integral, and the largest width of a panel.
_RADIAL_PANELS, _RADIAL_WIDTH = 20, 1.4
#: Largest ε at which the normalized planar Laplace is computed by its series.
SERIES_EPSILON = 1e-7
#: Largest error of `log_radial_ratio`, in nats (tests check it).
RADIAL_ERROR = 5e-13
#: Cells of a blanket in the angle; an even number, so that the reflection θ -> π - θ maps cells onto cells.
CELLS = 3072
#: Log of the largest mass under x that may lie in no cell.
_LOG_TAIL = -80.0
_NODES = 8


@lru_cache(maxsize=64)
def purkayastha_loss(dim: int, kappa: float) -> LossCells:
    """Return the loss of the antipodal pair under C·e^(-κ·angle) on S^(m-1), m = dim >= 2, κ >= 0."""
    if kappa == 0:
        return no_loss()
    return antipodal_cells(dim, lambda theta: -kappa * theta, kappa * math.pi)


@lru_cache(maxsize=64)
def normalized_laplace_loss(dim: int, epsilon: float) -> LossCells:
    """Return the worst-case loss of the normalized planar Laplace: its antipodal pair, at most 2ε.

    Its density at angle θ is proportional to ∫ r^(m-1) exp(-ε·sqrt(r² - 2r cos θ + 1)) dr. It falls with θ because the
    root rises, so the antipodal pair dominates (above).
    """
    if epsilon == 0:
        return no_loss()
    error = 4 * epsilon**2 / (dim - 1) if epsilon <= SERIES_EPSILON else RADIAL_ERROR
    return antipodal_cells(dim, lambda theta: log_radial_ratio(dim, epsilon, theta), 2 * epsilon, error)


def antipodal_cells(dim: int, log_f: LogDensity, largest: float, error: float = 0.0) -> LossCells:
    """Return loss cells of the antipodal pair.

    Args:
        dim: m of S^(m-1).
        log_f: Function from angles (N,) to log density up to a constant, falling on [0, π].
        largest: Proved bound on the loss, which rounding must not exceed.
        error: Nats by which log_f may be off.
    """

    def log_density(theta: FloatArray, at: FloatArray) -> FloatArray:
        if dim == 2:
            return log_f(at)
        with np.errstate(divide="ignore"):
            value: FloatArray = log_f(at) + (dim - 2) * np.log(np.sin(theta))
        return value

    edges = angle_edges(lambda theta: log_density(theta, theta))
    # the mass of x beyond π/2 is computed from angles below π/2, which keep more digits than those near π
    half = edges[: len(edges) // 2 + 1]
    near = log_panel_masses(lambda theta: log_density(theta, theta), half, nodes=4)
    far = log_panel_masses(lambda theta: log_density(theta, math.pi - theta), half, nodes=4)
    log_p = np.concatenate([near, far[::-1]])
    log_p -= np.logaddexp.reduce(log_p)
    # The loss at a mirrored edge is the exact negative, so both directions have equal losses
    height = log_f(edges)
    bounds = np.minimum.accumulate(height - height[::-1])
    low, high = (np.clip(ends, -largest, largest) for ends in (bounds[:0:-1] - 2 * error, bounds[-2::-1] + 2 * error))
    return LossCells(low=low, high=high, log_p=log_p[::-1], log_q=log_p.copy(), doubt=2 * error)


def angle_edges(log_angle_density: LogDensity) -> FloatArray:
    """Return edges of angle cells from 0 to π, symmetric about π/2, dense where either input has its mass.

    `log_angle_density` is the log density of θ up to a constant, with one peak.
    """
    theta = np.linspace(0.0, math.pi, 2049)
    low, high = 0.0, math.pi
    for _ in range(3):
        values = log_angle_density(theta)
        seen = np.flatnonzero(values > values.max() + _LOG_SMALL)
        low, high = theta[max(seen[0] - 1, 0)], theta[min(seen[-1] + 1, len(theta) - 1)]
        theta = np.linspace(low, high, 2049)
    fine = np.linspace(low, high, _FINE + 1)
    coarse = np.linspace(0.0, math.pi, _COARSE + 1)
    return math.pi / 2 + mirrored_edges(np.concatenate([fine, coarse]) - math.pi / 2, math.pi / 2)


def log_radial_ratio(dim: int, epsilon: float, theta: FloatArray) -> FloatArray:
    """Return the log density ratio of the normalized planar Laplace to the uniform law at angles (N,) -> (N,); ε > 0.

    Angles are those to the input. With r ~ Gamma(m, 1/ε) and g = r - sqrt(r² - 2r cos θ + 1) the ratio is E e^(εg), to
    `RADIAL_ERROR`.

    At most `SERIES_EPSILON` ε it is e^(ε cos θ). Proved: cos θ - (1 + cos θ)·min(1, 2/(1 + r)) <= g <= cos θ and
    E[1/r] = ε/(m - 1), so that (by Jensen) the logarithm lies between ε cos θ - 4ε²/(m - 1) and ε cos θ.

    Otherwise r^(m-1) e^(-εr + εg) is log-concave. Gauss-Legendre integrates it on panels about its peak, out to where
    it has cutoff by 50 nats (the rest is below e^-45 of the whole). It is taken relative to the Gamma law's own peak,
    at R = (m-1)/ε, so no large numbers cancel.
    """
    cosine, sine = np.cos(theta), np.sin(theta)
    if epsilon <= SERIES_EPSILON:
        flat: FloatArray = epsilon * cosine
        return flat
    power = dim - 1
    gamma_peak = power / epsilon

    def log_integrand(r: FloatArray, cosine: FloatArray, sine: FloatArray) -> FloatArray:
        share = r / gamma_peak
        gain = (2 * r * cosine - 1) / (r + np.hypot(r - cosine, sine))
        with np.errstate(divide="ignore"):
            return power * (np.log(share) - (share - 1)) + epsilon * gain

    def slope(r: FloatArray) -> FloatArray:
        shifted = r - cosine
        return power / r - epsilon * shifted / np.maximum(np.hypot(shifted, sine), 1e-300)

    # the peak: the slope falls from +inf, and is below 0 at 2 + (m-1)·2/ε
    low, high = np.zeros_like(theta), np.full_like(theta, 3.0 + 4.0 * dim / epsilon)
    for _ in range(45):
        middle = (low + high) / 2
        rising = slope(middle) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    peak = (low + high) / 2
    top = log_integrand(peak, cosine, sine)

    def cutoff(start: FloatArray, far: FloatArray) -> FloatArray:
        inside, outside = start, far
        for _ in range(12):
            middle = (inside + outside) / 2
            still = log_integrand(middle, cosine, sine) > top - 50.0
            inside, outside = np.where(still, middle, inside), np.where(still, outside, middle)
        return outside

    left = cutoff(peak, np.zeros_like(theta))
    right = cutoff(peak, peak + 2.0 + 200.0 * dim / epsilon)
    # r = cos θ + sin θ·sinh v smooths the corner that the root has at r = cos θ if sin θ is small
    scale = np.maximum(sine, 1e-9)
    first, last = np.arcsinh((left - cosine) / scale), np.arcsinh((right - cosine) / scale)
    # near the poles the range of v is wide
    panels = _RADIAL_PANELS * np.ceil((last - first) / (_RADIAL_PANELS * _RADIAL_WIDTH)).astype(np.int64)
    x, w = gauss_legendre(16)
    total = np.zeros_like(theta)
    for count in np.unique(panels):
        rows = panels == count
        start, width, around = first[rows], (last[rows] - first[rows]) / count, scale[rows, None]
        for panel in range(count):
            v = (start + panel * width)[:, None] + width[:, None] * x
            r = np.maximum(cosine[rows, None] + around * np.sinh(v), 1e-300)
            logs = log_integrand(r, cosine[rows, None], sine[rows, None]) - top[rows, None]
            total[rows] += width * scale[rows] * ((np.exp(logs) * np.cosh(v)) @ w)
    result: FloatArray = top + np.log(total / gamma_peak) - _log_peak_area(power)
    return result


def _log_peak_area(k: int) -> float:
    """Return log ∫ t^k e^(-k(t - 1)) dt = log Γ(k+1) + k - (k+1) log k; from k = 16 by Stirling's series, to 1e-14."""
    if k < 16:
        return math.lgamma(k + 1) + k - (k + 1) * math.log(k)
    series = 1 / (12 * k) - 1 / (360 * k**3) + 1 / (1260 * k**5) - 1 / (1680 * k**7)
    return math.log(2 * math.pi / k) / 2 + series


@lru_cache(maxsize=16)
def purkayastha_blanket(dim: int, kappa: float) -> BlanketCells:
    """Return blanket cells of the antipodal pair of Purkayastha on S^(dim-1), κ = kappa per radian.

    U = e^(-κθ)·F(0)/F(κ), F(κ) = ∫ sin^(m-2)(θ) e^(-κθ) dθ; γ = U(π).
    """
    constant = log_angle_integral(dim - 2, 0.0) - log_angle_integral(dim - 2, kappa)
    return blanket_cells(dim, lambda theta: constant - kappa * theta)


@lru_cache(maxsize=16)
def normalized_laplace_blanket(dim: int, epsilon: float) -> BlanketCells:
    """Return blanket cells of the antipodal pair of the normalized planar Laplace on S^(dim-1), ε per unit length."""
    if epsilon == 0:
        return blanket_cells(dim, np.zeros_like)
    return blanket_cells(dim, lambda theta: log_radial_ratio(dim, epsilon, theta))


def blanket_cells(dim: int, log_ratio: Callable[[FloatArray], FloatArray], count: int = CELLS) -> BlanketCells:
    """Return blanket cells of the antipodal pair for log_ratio(θ) = log(f(θ)·|S^(dim-1)|), decreasing on [0, π].

    `count` is even. Masses are by Gauss-Legendre quadrature with positive integrands in each cell (8 nodes). The ends
    of [0, π] that are left out have mass at most a·sin^(m-2)(a)/F under ω, so at most U(0) times this under x.
    """
    ends = log_ratio(np.array([0.0, math.pi]))
    log_total = log_angle_integral(dim - 2, 0.0)
    start = _start(dim, float(ends[0]), log_total)
    edges = _edges(dim, log_ratio, start, count)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    # the mass of x beyond π/2 is computed from angles below π/2, which keep more digits than those near π
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
    tail = 0.0
    if start > 0:
        log_tail = math.log(2 * start) + (dim - 2) * math.log(math.sin(start)) - log_total + float(ends[0])
        tail = math.exp(min(0.0, log_tail))
    log_w = np.concatenate([log_w, log_w[::-1]])
    return BlanketCells.mirrored(min(0.0, float(ends[1])), log_w, log_p, at_edges[1:], at_edges[:-1], tail)


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
