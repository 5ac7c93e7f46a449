"""Blankets of x + noise in R^m for unit inputs x: raw planar Laplace and Gaussian.

For |y| = r the farthest unit input is -y/r, at distance r + 1, so inf_x p_x(y) is the noise's density at r + 1.

- Planar Laplace: γ·ω(y) = C·e^(-ε(r+1)): ω is the mechanism's output at the origin, γ = e^(-ε), and U = exp(-ε(|w - x|
  - |w|)), at most e^ε.
- Gaussian: ω ∝ exp(-(r+1)²/2σ²), γ its integral, U = γ·exp((<w, x> + r)/σ²), unbounded.

**The antipodal pair dominates.** Given |w| = r, U is a rising function of the cosine t between w and x, with one law
for every x. So the argument of mechanisms.losses.sphere_blanket applies given r, and the convex order survives mixing
over r.

**Gaussian in many dimensions.** That γ falls as e^(-√m/σ). ω = N(0, σ²I) does not depend on m: with t = <w, x>/σ, log U
= t/σ - 1/(2σ²), where t ~ N(0, 1) under ω, N(1/σ, 1) under x and N(-1/σ, 1) under -x. U has one law for every x and
rises in t, so the antipodal pair dominates by the same argument. U has no positive lower bound, so γ = 0, and only
`accounting.truncated` makes a bound of these cells.

**Cells of r and t.** Under ω, t and r are independent, and (1 + t)/2 ~ Beta((m-1)/2, (m-1)/2). Outputs are cut into
cells r x t. U rises in both, V rises in r and falls in t, so corners bound them. A radius beyond R, or a t so near ±1
that no input makes it, lies in no cell. Its mass under x is bounded: beyond R by Pr[|noise| > R - 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaln, gammainccinv, gammaincinv, gammaln, logsumexp

from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.gaussian import log_masses
from mechanisms.losses.quadrature import gauss_legendre

FloatArray = NDArray[np.float64]
#: (radii, cosines) -> log density ratio of the output to the blanket's, log U; rising in both.
LogRatio = Callable[[FloatArray, FloatArray], FloatArray]

_RADII, _COSINES = 160, 320
#: Gauss nodes along a side of a cell: of the first pass, of the second, and of later passes over the cells left.
_LEAST, _MORE, _MOST = 4, 8, 14
#: Largest difference of two rules, as a share of the cell's mass, and largest number of quarterings of a cell.
_AGREE, _DEPTH = 1e-13, 24
#: Rectangles processed at once.
_AT_ONCE = 4096
_TAIL = 1e-24
#: Cells along a line, and standard deviations that they reach beyond either input.
_LINE, _REACH = 1536, 12.0


@lru_cache(maxsize=8)
def planar_laplace(dim: int, epsilon: float) -> BlanketCells:
    """Return blanket cells of the antipodal pair of raw planar Laplace in R^dim, dim >= 2, ε > 0 per unit length."""
    constant = dim * math.log(epsilon) - float(gammaln(dim))

    def log_radius(r: FloatArray) -> FloatArray:
        return constant + (dim - 1) * np.log(r) - epsilon * r

    def log_ratio(r: FloatArray, t: FloatArray) -> FloatArray:
        # |w - x| - |w| = (1 - 2rt)/(|w - x| + |w|), without cancellation at large r
        return -epsilon * (1 - 2 * r * t) / (np.sqrt((r - t) ** 2 + (1 - t) * (1 + t)) + r)

    # U is at most e^ε, so this ball has mass at most _TAIL under any input
    first = float(gammaincinv(dim, _TAIL * math.exp(-min(epsilon, 600.0)))) / epsilon
    last = 1 + float(gammainccinv(dim, _TAIL)) / epsilon
    return _cells(dim, -epsilon, log_radius, log_ratio, first, last, 2 * _TAIL)


@lru_cache(maxsize=8)
def line(ratio: float) -> BlanketCells:
    """Return blanket cells, with γ = 0, of the antipodal pair of N(x, σ²I) over N(0, σ²I), in any dimension.

    ratio > 0 is |x|/σ, with one |x| for all inputs. The two outermost cells have no end.
    """
    half = np.linspace(0.0, ratio + _REACH, _LINE // 2)
    edges = np.concatenate([[-np.inf], -half[:0:-1], half, [np.inf]])
    log_u = ratio * edges - ratio**2 / 2
    log_v = log_u[::-1]
    return BlanketCells(
        log_gamma=-math.inf,
        log_w=log_masses(edges),
        log_p=log_masses(edges - ratio),
        log_q=log_masses(edges + ratio),
        log_u_low=log_u[:-1],
        log_u_high=log_u[1:],
        log_v_low=log_v[1:],
        log_v_high=log_v[:-1],
    )


@lru_cache(maxsize=8)
def gaussian(dim: int, sigma: float) -> BlanketCells:
    """Return blanket cells of the antipodal pair of x + N(0, σ²I) in R^dim, dim >= 1."""
    last = 1 + sigma * math.sqrt(2 * float(gammainccinv(dim / 2, _TAIL)))
    constant = math.log(2) - dim / 2 * math.log(2 * sigma**2) - float(gammaln(dim / 2))

    def log_part(r: FloatArray) -> FloatArray:  # γ times the density of r under ω
        return constant + (dim - 1) * np.log(r) - ((r + 1) / sigma) ** 2 / 2

    # The peak of (m-1)·log r - (r+1)²/2σ² and its neighbourhood hold γ
    peak = max((-1 + math.sqrt(1 + 4 * (dim - 1) * sigma**2)) / 2, 0.0)
    nodes, weights = gauss_legendre(64)
    edges = np.linspace(max(peak - 15 * sigma, 0.0), peak + 15 * sigma, 61)
    points = edges[:-1, None] + np.diff(edges)[:, None] * nodes
    log_gamma = float(logsumexp(log_part(points), b=np.diff(edges)[:, None] * weights))

    def log_radius(r: FloatArray) -> FloatArray:
        return log_part(r) - log_gamma

    def log_ratio(r: FloatArray, t: FloatArray) -> FloatArray:
        return log_gamma + r * (1 + t) / sigma**2

    # the density is at most (2πσ²)^(-m/2): the ball of this radius has mass at most _TAIL under any input
    log_first = (math.log(_TAIL) + dim / 2 * math.log(2) + float(gammaln(dim / 2 + 1))) / dim
    first = sigma * math.exp(log_first)
    return _cells(dim, log_gamma, log_radius, log_ratio, first, last, 2 * _TAIL)


def _cells(
    dim: int,
    log_gamma: float,
    log_radius: Callable[[FloatArray], FloatArray],
    log_ratio: LogRatio,
    first: float,
    last: float,
    tail: float,
) -> BlanketCells:
    """Return cells of radii in [first, last] by cosines. log_radius is the log density of r under ω."""
    r_edges = _radii(log_radius, log_ratio, first, last)
    if first < 1 < last:  # the input's own radius, where planar Laplace has its corner, is an edge
        r_edges[1 + int(np.argmin(np.abs(r_edges[1:-1] - 1)))] = 1.0
    if dim == 1:  # the sphere is two points
        t_low = t_high = np.array([-1.0, 1.0])
        log_share = np.full(2, -math.log(2))
        sides = [_masses(partial(_beside, log_radius, log_ratio, t), r_edges) for t in t_low]
        log_p = np.stack(sides, axis=1) + log_share
    else:
        a_edges, cut = _angles(dim, float(log_ratio(np.array([last]), np.array([1.0]))[0]))
        # t = cos(angle): (1 - t²)^((m-3)/2) dt = sin^(m-2) d(angle)
        log_norm = (dim - 2) * math.log(2) + float(betaln((dim - 1) / 2, (dim - 1) / 2))

        def log_angle(a: FloatArray) -> FloatArray:
            return (dim - 2) * np.log(np.sin(a)) - log_norm

        def log_joint(r: FloatArray, a: FloatArray) -> FloatArray:
            return log_radius(r) + log_angle(a) + log_ratio(r, np.cos(a))

        log_p = cell_masses(log_joint, r_edges, a_edges, 2.0**-50 * (10 * dim + abs(log_gamma)))
        log_share = _masses(log_angle, a_edges)
        t_low, t_high = np.cos(a_edges[1:]), np.cos(a_edges[:-1])
        tail += cut
    log_w = _masses(log_radius, r_edges)[:, None] + log_share[None, :]
    # the difference of the quadrature to 1 counts as mass in no cell
    tail += 2 * abs(float(np.exp(log_p).sum()) - 1)
    low = log_ratio(r_edges[:-1, None], t_low[None, :])
    high = log_ratio(r_edges[1:, None], t_high[None, :])
    return BlanketCells(
        log_gamma=log_gamma,
        log_w=((log_w + log_w[:, ::-1]) / 2).ravel(),
        log_p=log_p.ravel(),
        log_q=log_p[:, ::-1].ravel(),
        log_u_low=low.ravel(),
        log_u_high=high.ravel(),
        log_v_low=low[:, ::-1].ravel(),
        log_v_high=high[:, ::-1].ravel(),
        tail=min(1.0, tail),
    )


def _masses(log_density: Callable[[FloatArray], FloatArray], edges: FloatArray) -> FloatArray:
    """Return log integrals between (J + 1,) edges, (J,), of a density without a corner there."""
    nodes, weights = gauss_legendre(_MOST)
    at, width = edges[:-1, None] + np.diff(edges)[:, None] * nodes, np.diff(edges)[:, None]
    masses: FloatArray = logsumexp(log_density(at), b=width * weights, axis=1)
    return masses


def _beside(log_radius: Callable[[FloatArray], FloatArray], log_ratio: LogRatio, t: float, r: FloatArray) -> FloatArray:
    """Return the log density under x at r, on the side t = 1 of the input or t = -1."""
    density: FloatArray = log_radius(r) + log_ratio(r, np.full_like(r, t))
    return density


def cell_masses(log_density: LogRatio, r_edges: FloatArray, a_edges: FloatArray, rounding: float = 0.0) -> FloatArray:
    """Return log integrals over cells, edges (R + 1,), (A + 1,) -> (R, A), each to 1e-12 of itself.

    Two Gauss rules must agree so far. A cell on which they do not is quartered, down to a corner of the density.
    `rounding` is float64's error of log densities, which quartering does not reduce.
    """
    shape = (len(r_edges) - 1, len(a_edges) - 1)
    r_low, r_width = (np.repeat(part, shape[1]) for part in (r_edges[:-1], np.diff(r_edges)))
    a_low, a_width = (np.tile(part, shape[0]) for part in (a_edges[:-1], np.diff(a_edges)))
    owner = np.arange(shape[0] * shape[1])
    total = np.full(len(owner), -np.inf)
    scale = np.empty(0)  # log mass of a whole cell, by the first pass
    for depth in range(_DEPTH):
        rules = (_LEAST, _MORE) if depth == 0 else (_MORE, _MOST)
        rough, fine = (_tensor(log_density, r_low, r_width, a_low, a_width, count) for count in rules)
        scale = fine if depth == 0 else scale
        open_ = np.abs(np.exp(fine - scale[owner]) - np.exp(rough - scale[owner])) > _AGREE + rounding
        open_ &= depth < _DEPTH - 1
        np.logaddexp.at(total, owner[~open_], fine[~open_])
        if not open_.any():
            break
        owner = np.tile(owner[open_], 4)
        r_width, a_width = r_width[open_] / 2, a_width[open_] / 2
        r_low = np.concatenate([r_low[open_], r_low[open_], r_low[open_] + r_width, r_low[open_] + r_width])
        a_low = np.concatenate([a_low[open_], a_low[open_] + a_width, a_low[open_], a_low[open_] + a_width])
        r_width, a_width = np.tile(r_width, 4), np.tile(a_width, 4)
    return total.reshape(shape)


def _tensor(
    log_density: LogRatio, r_low: FloatArray, r_width: FloatArray, a_low: FloatArray, a_width: FloatArray, count: int
) -> FloatArray:
    """Return log integrals over rectangles, (J,) each, by count x count nodes."""
    nodes, weights = gauss_legendre(count)
    log_weights = np.log(weights)[:, None] + np.log(weights)[None, :]
    masses = np.empty(len(r_low))
    for at in range(0, len(r_low), _AT_ONCE):
        row = slice(at, at + _AT_ONCE)
        r, a = r_low[row, None] + r_width[row, None] * nodes, a_low[row, None] + a_width[row, None] * nodes
        logs = log_density(r[:, :, None], a[:, None, :]) + log_weights
        peak = logs.max(axis=(1, 2))
        masses[row] = peak + np.log(np.exp(logs - peak[:, None, None]).sum(axis=(1, 2)))
    return masses + np.log(r_width) + np.log(a_width)


def _radii(
    log_radius: Callable[[FloatArray], FloatArray], log_ratio: LogRatio, first: float, last: float
) -> FloatArray:
    """Return edges of radii: a third each by mass under ω, by mass under x at the best cosine, and uniform."""
    fine = np.linspace(first, last, 8 * _RADII + 2)[1:]
    log_w = log_radius(fine)
    density = np.full(len(fine), 1.0 / len(fine))
    for log_density in (log_w, log_w + log_ratio(fine, np.zeros_like(fine))):
        mass = np.exp(log_density - log_density.max())
        density += mass / mass.sum()
    share = np.concatenate([[0.0], np.cumsum(density)])
    edges: FloatArray = np.interp(np.linspace(0, share[-1], _RADII + 1), share, np.concatenate([[first], fine]))
    return edges


def _angles(dim: int, log_largest: float) -> tuple[FloatArray, float]:
    """Return edges of angles, symmetric about π/2, and a bound on the mass under x that they leave out at the poles."""
    half = (dim - 1) / 2
    low, high = 1e-9, math.pi / 2
    for _ in range(60):
        middle = math.sqrt(low * high)
        mass = float(betainc(half, half, math.sin(middle / 2) ** 2))
        low, high = (low, middle) if math.log(max(mass, 1e-320)) + log_largest > math.log(_TAIL) else (middle, high)
    start = low if low > 1e-3 and log_largest < 600 else 0.0
    cut = 2 * float(betainc(half, half, math.sin(start / 2) ** 2)) * math.exp(min(log_largest, 600.0))
    fine = np.linspace(start, math.pi - start, 8 * _COSINES + 1)
    with np.errstate(divide="ignore"):
        log_mass = (dim - 2) * np.log(np.sin(fine)) if dim > 2 else np.zeros_like(fine)
    density = np.exp(log_mass - log_mass.max())
    density = density / density.sum() + 1.0 / len(fine)
    share = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    edges = np.interp(np.linspace(0, share[-1], _COSINES + 1), share, fine)
    edges = (edges + math.pi - edges[::-1]) / 2
    return edges, cut
