"""Losses of randomizers on the sphere whose density falls with the angle to the input.

**The antipodal pair dominates all pairs (proved).** Let p_x(y) = f(angle(x, y)), f falling, on S^(m-1), and ω the
uniform distribution. For a pair (x, x') put U = p_x(W)/ω(W), V = p_x'(W)/ω(W), W ~ ω. By rotation invariance U and V
have the same law for every pair. For convex φ and c >= 0, (u, v) -> φ(u - c·v) is submodular. So among all couplings of
two given marginals E φ(U - cV) is largest for the countermonotone one (Lorentz 1953; Tchen 1980, Theorem 2). For
x' = -x, U = f(θ)/ω falls and V = f(π - θ)/ω rises with θ: that is the countermonotone one. φ = (.)_+ gives every
hockey-stick divergence. QED.

Its loss l(θ) = log f(θ) - log f(π - θ) falls with θ, so cells of angles are cells of losses. The reflection θ -> π - θ
exchanges the inputs.

**Purkayastha at an angle α.** Its hockey-stick divergence grows with the angle. Slice by circles about the plane
span(x, x'). Superlevel sets of the loss on a half circle are arcs symmetric about its middle, and the derivative with
respect to the angle is a difference g(b - α) - g(a - α) >= 0. So the pair at α dominates all within α. Given
θ = angle(x, Y) and the azimuth ψ of Y about x, with (1 - cos ψ)/2 ~ Beta(a, a), a = (m - 2)/2, the loss is κ(θ' - θ),
cos θ' = cos α cos θ + sin α sin θ cos ψ. It is at most l = κs iff cos θ' >= cos(θ + s). With θ- = (α - s)/2 and
θ+ = π - (α + s)/2 this is: never for θ < θ-, always for θ > θ+, and between them iff

    (1 - cos ψ)/2 <= sin((α + s)/2)·sin(θ - θ-)/(sin α sin θ),

whose complement to 1 is sin((α - s)/2)·sin(θ+ - θ)/(sin α sin θ): products, no cancellation. For m = 2, ψ is 0 or π,
and the loss has atoms at -κα and κα.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mechanisms.losses.angle_table import log_angle_integral
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.losses.mirrored import mirrored_cells
from mechanisms.losses.quadrature import beta_tails, gauss_legendre, log_panel_masses, mirrored_edges

FloatArray = NDArray[np.float64]
LogDensity = Callable[[FloatArray], FloatArray]

#: Cells where the mass is, cells over the whole half circle, and the log of the mass left to the latter.
_FINE, _COARSE, _LOG_SMALL = 3072, 512, -80.0
#: Panels of the integral over the radius, a multiple of this number, and their largest width.
_RADIAL_PANELS, _RADIAL_WIDTH = 20, 1.4
#: Largest ε at which the normalized planar Laplace is computed by its series.
SMALL = 1e-7
#: Largest error of `log_radial_ratio`, in nats (tests check it).
RADIAL_ERROR = 5e-13


@lru_cache(maxsize=64)
def purkayastha_loss(dim: int, kappa: float, angle: float = math.pi) -> LossCells:
    """Return the loss of two inputs at `angle` (0..π) under C·e^(-κ·angle) on S^(m-1), m = dim >= 2, κ >= 0."""
    if angle == 0 or kappa == 0:
        return no_loss()
    if angle == math.pi:
        return antipodal_cells(dim, lambda theta: -kappa * theta, kappa * math.pi)
    return mirrored_cells(_PurkayasthaTails(dim, kappa, angle), kappa * angle)


@lru_cache(maxsize=64)
def normalized_laplace_loss(dim: int, epsilon: float) -> LossCells:
    """Return the worst-case loss of the normalized planar Laplace: its antipodal pair, at most 2ε.

    Its density at angle θ is proportional to ∫ r^(m-1) exp(-ε·sqrt(r² - 2r cos θ + 1)) dr. It falls with θ because the
    root rises, so the antipodal pair dominates (above).
    """
    if epsilon == 0:
        return no_loss()
    error = 4 * epsilon**2 / (dim - 1) if epsilon <= SMALL else RADIAL_ERROR
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
    # x' has on the other half what x has on this one: next to π an angle keeps fewer digits than next to 0
    half = edges[: len(edges) // 2 + 1]
    near = log_panel_masses(lambda theta: log_density(theta, theta), half, nodes=4)
    far = log_panel_masses(lambda theta: log_density(theta, math.pi - theta), half, nodes=4)
    log_p = np.concatenate([near, far[::-1]])
    log_p -= np.logaddexp.reduce(log_p)
    # At the edges' mirror images the loss is the exact negative, so both directions are one
    height = log_f(edges)
    bounds = np.minimum.accumulate(height - height[::-1])
    low, high = (np.clip(ends, -largest, largest) for ends in (bounds[:0:-1] - 2 * error, bounds[-2::-1] + 2 * error))
    return LossCells(low=low, high=high, log_p=log_p[::-1], log_q=log_p.copy(), doubt=2 * error)


def angle_edges(log_angle_density: LogDensity) -> FloatArray:
    """Return edges of angle cells from 0 to π, symmetric about π/2, close together near the angle of either input.

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

    At most `SMALL` ε it is e^(ε cos θ). Proved: cos θ - (1 + cos θ)·min(1, 2/(1 + r)) <= g <= cos θ and
    E[1/r] = ε/(m - 1), so that (with Jensen below) the logarithm lies between ε cos θ - 4ε²/(m - 1) and ε cos θ.

    Above it, r^(m-1) e^(-εr + εg) is log-concave. Gauss-Legendre integrates it on panels about its peak, out to where
    it has fallen by 50 nats (the rest is below e^-45 of the whole). It is taken relative to the Gamma law's own peak,
    at R = (m-1)/ε, so no large numbers cancel.
    """
    cosine, sine = np.cos(theta), np.sin(theta)
    if epsilon <= SMALL:
        flat: FloatArray = epsilon * cosine
        return flat
    power = dim - 1
    usual = power / epsilon

    def log_integrand(r: FloatArray, cosine: FloatArray, sine: FloatArray) -> FloatArray:
        share = r / usual
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

    def fallen(start: FloatArray, far: FloatArray) -> FloatArray:
        inside, outside = start, far
        for _ in range(12):
            middle = (inside + outside) / 2
            still = log_integrand(middle, cosine, sine) > top - 50.0
            inside, outside = np.where(still, middle, inside), np.where(still, outside, middle)
        return outside

    left = fallen(peak, np.zeros_like(theta))
    right = fallen(peak, peak + 2.0 + 200.0 * dim / epsilon)
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
    result: FloatArray = top + np.log(total / usual) - _log_peak_area(power)
    return result


def _log_peak_area(k: int) -> float:
    """Return log ∫ t^k e^(-k(t - 1)) dt = log Γ(k+1) + k - (k+1) log k; from k = 16 by Stirling's series, to 1e-14."""
    if k < 16:
        return math.lgamma(k + 1) + k - (k + 1) * math.log(k)
    series = 1 / (12 * k) - 1 / (360 * k**3) + 1 / (1260 * k**5) - 1 / (1680 * k**7)
    return math.log(2 * math.pi / k) / 2 + series


class _PurkayasthaTails:
    """Pr[L <= l] and Pr[L > l] under x, for a pair at an angle below π (see the module's formulas)."""

    _PANELS, _NODES = 16, 16

    def __init__(self, dim: int, kappa: float, angle: float) -> None:
        self._dim, self._kappa, self._angle = dim, kappa, angle
        self._log_total = log_angle_integral(dim - 2, kappa)
        edges = angle_edges(self._log_angle_density)
        masses = np.exp(log_panel_masses(self._log_angle_density, edges))
        self._edges = edges
        self._below = np.concatenate([[0.0], np.cumsum(masses)])
        self._above = np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])

    def _log_angle_density(self, theta: FloatArray) -> FloatArray:
        value: FloatArray = -self._kappa * theta - self._log_total
        if self._dim == 2:
            return value
        with np.errstate(divide="ignore"):
            value += (self._dim - 2) * np.log(np.sin(theta))
        return value

    def _part(self, theta: FloatArray, upper: bool) -> FloatArray:
        """Return Pr[angle > theta] (upper) or Pr[angle < theta]: whole cells, and the rest of the one it lies in."""
        cell = np.clip(np.searchsorted(self._edges, theta, side="right") - 1, 0, len(self._edges) - 2)
        end = self._edges[cell + 1] if upper else self._edges[cell]
        x, w = gauss_legendre(8)
        points = theta[:, None] + (end - theta)[:, None] * x
        density = np.exp(self._log_angle_density(points.ravel())).reshape(points.shape)
        whole = self._above[cell + 1] if upper else self._below[cell]
        part: FloatArray = whole + np.abs(end - theta) * (density @ w)
        return part

    def __call__(self, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
        alpha = self._angle
        s = np.clip(losses / self._kappa, -alpha, alpha)
        start, stop = (alpha - s) / 2, math.pi - (alpha + s) / 2
        below, above = self._part(stop, upper=True), self._part(start, upper=False)
        # θ = start + (stop - start)·sin²(t/2): powers of half integers at the ends become smooth in t
        x, w = gauss_legendre(self._NODES)
        t = (math.pi * (np.arange(self._PANELS)[:, None] + x) / self._PANELS).ravel()
        weight = np.tile(w, self._PANELS) * math.pi / self._PANELS * np.sin(t) / 2
        share, rest = np.sin(t / 2) ** 2, np.cos(t / 2) ** 2
        for row in range(0, len(s), 256):
            part = slice(row, row + 256)
            width = (stop - start)[part, None]
            theta = start[part, None] + width * share
            density = np.exp(self._log_angle_density(theta.ravel())).reshape(theta.shape) * weight * width
            scale = math.sin(alpha) * np.sin(theta)
            lower = np.sin((alpha + s[part]) / 2)[:, None] * np.sin(width * share) / scale
            upper = np.sin((alpha - s[part]) / 2)[:, None] * np.sin(width * rest) / scale
            if self._dim == 2:
                inside_below = inside_above = np.full_like(theta, 0.5)
            else:
                inside_below, inside_above = beta_tails((self._dim - 2) / 2, lower, upper)
            below[part] += np.sum(density * inside_below, axis=1)
            above[part] += np.sum(density * inside_above, axis=1)
        return below, above
