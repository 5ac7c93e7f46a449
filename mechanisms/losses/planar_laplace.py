"""Loss of raw planar Laplace noise at a distance: Y = x + r·ξ, r ~ Gamma(m, 1/ε), ξ uniform on the sphere.

**Formulas.** With ψ the angle of Y - x to x' - x, (1 - cos ψ)/2 ~ Beta(a, a), a = (m - 1)/2. The loss is
ε(|Y - x'| - r), |Y - x'|² = r² - 2rd cos ψ + d². It is at most l = εs, -d <= s <= d, iff r >= (d - s)/2 = r- and

    (1 - cos ψ)/2 <= (d + s)(r - r-)/(2rd),  whose complement to 1 is (d - s)(2r + d + s)/(4rd):

products, no cancellation. The reflection that exchanges x and x' exchanges the laws of the loss.

**Distance d bounds all distances up to d, and 2 all unit vectors (proved).** On each line parallel to x' - x the
density g is log-concave. So its superlevel sets of log g(t) - log g(t - d) are half lines, and the hockey-stick
divergence there is sup_c F(c) - e^ε F(c - d), which grows with d. Integrate over lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from scipy.special import gammainc, gammainccinv, gammaincinv, gammaln

from mechanisms.arrays import FloatArray
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.losses.quadrature import beta_tails, gauss_legendre, mirrored_edges

Tails = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

#: Cells where the mass is, cells over the whole range, and the mass that is left to the latter.
_FINE, _COARSE, _SMALL = 1536, 384, 1e-36
#: Largest relative error of a tail.
_ROUNDED = 1e-14
#: Masses below this have lost digits to underflow.
_UNDERFLOW = 1e-280
_PANELS, _NODES = 16, 16
_TAIL = 1e-60


@lru_cache(maxsize=64)
def laplace_loss(dim: int, epsilon: float, distance: float) -> LossCells:
    """Return the loss of inputs `distance` apart under a density proportional to exp(-ε·|y - x|) in R^m, m = dim >= 2.

    The caller has checked that epsilon is above 0 and distance a finite number of at least 0.
    """
    if distance == 0 or epsilon == 0:
        return no_loss()
    return _mirrored_cells(partial(_tails, dim, epsilon * distance), epsilon * distance)


def _tails(m: int, d: float, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Pr[L <= l] and Pr[L > l] under x; all lengths in units of 1/ε, so that s = l and r ~ Gamma(m)."""
    a = (m - 1) / 2
    s = np.clip(losses, -d, d)
    start = (d - s) / 2
    far = float(gammainccinv(m, _TAIL))
    near = float(gammaincinv(m, 1e-300))
    below, above = np.zeros_like(s), gammainc(m, start)
    x, w = gauss_legendre(_NODES)
    # r = start + t⁴: half-integer powers at r- become smooth in t, and nodes are dense there, where the share changes
    # within r ~ d - s. The panels cover the bulk of Gamma(m).
    for row in range(0, len(s), 256):
        part = slice(row, row + 256)
        begin = start[part]
        # far beyond its mode the density falls at a rate near 1
        stop = np.maximum(far, begin + 20 * math.sqrt(m) + 200.0)
        low, high = np.maximum(near - begin, 0.0) ** 0.25, (stop - begin) ** 0.25
        width = (high - low) / _PANELS
        for panel in range(_PANELS):
            t = (low + panel * width)[:, None] + width[:, None] * x
            beyond = t**4
            r = begin[:, None] + beyond
            density = np.exp((m - 1) * np.log(r) - r - gammaln(m)) * 4 * t**3 * (width[:, None] * w)
            lower = (d + s[part])[:, None] * beyond / (2 * d * r)
            upper = (d - s[part])[:, None] * (2 * r + (d + s[part])[:, None]) / (4 * d * r)
            inside_below, inside_above = beta_tails(a, lower, upper)
            below[part] += np.sum(density * inside_below, axis=1)
            above[part] += np.sum(density * inside_above, axis=1)
    return below, above


def _mirrored_cells(tails: Tails, largest: float) -> LossCells:
    """Return cells of a loss within [-largest, largest] nats, symmetric under exchange of its inputs.

    **Mirror (proved).** Let an isometry of the outputs exchange x and x'. It turns the loss into its negative and the
    law under x into that under x', so Q(a <= L <= b) = P(-b <= L <= -a). So on a grid of losses that is symmetric about
    0, the masses under x' are those under x, read backwards.

    Args:
        tails: Function from rising losses (J,), from -largest to largest, to (below, above), (J,) each, probabilities
            under x: below = Pr[L <= l]; above = Pr[L > l], and at l = largest the atom there. Each is computed
            separately, so the smaller one has its own relative precision. There are atoms only at the two ends.
        largest: Largest loss in nats.
    """
    grid = _grid(tails, largest)
    below, above = tails(grid)
    # a difference is taken of the tail that is small there, and has that tail's rounding
    masses = np.where(below[1:] < above[:-1], np.diff(below), -np.diff(above))
    rounded = _ROUNDED * np.concatenate([[below[0]], np.minimum(below[1:], above[:-1]), [above[-1]]])
    masses = np.concatenate([[below[0]], np.maximum(masses, 0.0), [above[-1]]])
    low = np.concatenate([[-largest], grid[:-1], [largest]])
    high = np.concatenate([[-largest], grid[1:], [largest]])
    kept = (masses > 0) | (masses[::-1] > 0)
    masses /= masses.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, share = np.log(masses), rounded / masses
    log_q = log_p[::-1].copy()
    # Where the mirrored mass underflows, the mass under x counts at the upper end of its cell: the safe end.
    lost = (masses[::-1] < _UNDERFLOW) & (masses >= _UNDERFLOW)
    log_q[lost] = (log_p - high)[lost]
    doubt = np.where(lost | ~np.isfinite(share + share[::-1]), 0.0, share + share[::-1])
    return LossCells(low=low[kept], high=high[kept], log_p=log_p[kept], log_q=log_q[kept], doubt=doubt[kept])


def _grid(tails: Tails, largest: float) -> FloatArray:
    """Return losses from -largest to largest, symmetric about 0, close together where the mass under x or x' is."""
    coarse = np.linspace(-largest, largest, _COARSE + 1)
    for _ in range(3):  # the second and third pass search between the neighbours that the pass before has found
        below, above = tails(coarse)
        start = max(int(np.searchsorted(below, _SMALL)) - 1, 0)
        stop = min(int(np.searchsorted(-above, -_SMALL)), len(coarse) - 1)
        coarse = np.linspace(coarse[start], coarse[max(stop, start + 1)], _COARSE + 1)
    bulk = np.linspace(coarse[0], coarse[-1], _FINE + 1)
    return mirrored_edges(np.concatenate([np.linspace(-largest, largest, _COARSE + 1), bulk]), largest)
