"""Loss cells of a pair that a reflection exchanges, from the two tails of its loss under x.

**Mirror (proved).** Let an isometry of the outputs exchange x and x'. It turns the loss into its negative and the law
under x into that under x', so Q(a <= L <= b) = P(-b <= L <= -a). So on a grid of losses that is symmetric about 0, the
masses under x' are those under x, read backwards.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mechanisms.arrays import FloatArray
from mechanisms.losses.loss import LossCells
from mechanisms.losses.quadrature import mirrored_edges

Tails = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

#: Cells where the mass is, cells over the whole range, and the mass that is left to the latter.
_FINE, _COARSE, _SMALL = 1536, 384, 1e-36
#: Largest relative error of a tail.
_ROUNDED = 1e-14
#: Masses below this have lost digits to underflow.
_UNDERFLOW = 1e-280


def mirrored_cells(tails: Tails, largest: float) -> LossCells:
    """Return cells of a loss within [-largest, largest] nats, symmetric under exchange of its inputs.

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
