"""Loss and blanket of a density on the sphere that takes two values: high on a cap around x, low elsewhere.

The cap's mass c under the uniform law is at most a half, and the densities' ratio is e^ε (times the uniform density
they are e^ε·b and b, where c·e^ε·b + (1 - c)·b = 1).

**Loss (proved).** log p_x/p_x' is ε on x's cap outside that of x', -ε the other way round, else 0: ε-DP. δ(ε') of the
pair is (1 - e^(ε' - ε))·P_x(cap of x without that of x'), which grows as the caps' overlap falls. Antipodal caps do not
overlap (c <= 1/2), so that pair dominates every pair, as does any with disjoint caps.

**Blanket (proved).** inf_x p_x(y) is b times the uniform density for every y (a cap of another x misses y). So the
blanket is uniform, of weight b. U = p_x/ω takes two values, e^ε·b with probability c, else b, one law for every x. For
disjoint caps U and V are never high together, which is countermonotone for two-valued laws with c <= 1/2. So the
antipodal pair is the largest in the convex order, as in `mechanisms.losses.sphere`. The cells are exact: it is
randomized response with 1/c labels, a number that need not be whole (`mechanisms.losses.response_blanket`).
"""

from __future__ import annotations

import numpy as np

from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells


def cap_loss(epsilon: float, log_mass: float) -> LossCells:
    """Return the exact loss of two inputs with disjoint caps. log_mass is log of c, at most log 1/2; epsilon >= 0."""
    losses, log_p, log_q = _atoms(epsilon, log_mass)
    return LossCells(low=losses, high=losses, log_p=log_p, log_q=log_q)


def cap_blanket(epsilon: float, log_mass: float) -> BlanketCells:
    """Return blanket and dominating pair: cells {x's cap}, {the other cap}, {neither}, exact."""
    log_base = _log_base(epsilon, log_mass)
    _, log_p, log_q = _atoms(epsilon, log_mass)
    log_u = log_base + np.array([epsilon, 0.0, 0.0])
    log_v = log_base + np.array([0.0, epsilon, 0.0])
    kept = np.isfinite(log_p)  # at c = 1/2 both caps cover everything
    return BlanketCells(
        log_gamma=min(0.0, log_base),
        log_w=np.array([log_mass, log_mass, _log_outside(log_mass)])[kept],
        log_p=log_p[kept],
        log_q=log_q[kept],
        log_u_low=log_u[kept],
        log_u_high=log_u[kept],
        log_v_low=log_v[kept],
        log_v_high=log_v[kept],
    )


def _atoms(epsilon: float, log_mass: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses of the three cells, and their log masses under x and x'."""
    high, low = log_mass + epsilon + _log_base(epsilon, log_mass), log_mass + _log_base(epsilon, log_mass)
    outside = _log_outside(log_mass) + _log_base(epsilon, log_mass)
    return np.array([epsilon, -epsilon, 0.0]), np.array([high, low, outside]), np.array([low, high, outside])


def _log_base(epsilon: float, log_mass: float) -> float:
    """Return log b of the low density, relative to the uniform one, 1/(1 - c + c·e^ε)."""
    return -float(np.logaddexp(np.log1p(-np.exp(log_mass)), log_mass + epsilon))


def _log_outside(log_mass: float) -> float:
    """Return log(1 - 2c), of the outputs in neither cap."""
    with np.errstate(divide="ignore"):
        return float(np.log1p(-min(1.0, 2 * np.exp(log_mass))))
