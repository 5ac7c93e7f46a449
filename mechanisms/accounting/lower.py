"""Lower bounds of the shuffled ε from explicit data sets: what no analysis can go below.

Let the other n - 1 users' outputs be independent draws from h, a mixture of the densities p_z of inputs z. Then
(shuffled outputs determine the multiset only, and given it every user is equally likely to have sent each)

    δ(ε) = E_{Y ~ h^n}[(Σ_i (p_x - e^ε·p_x')(Y_i)/h(Y_i))_+]/n

exactly. A mixture h stands for random inputs; by joint convexity the average over them is at most the δ of one
fixed data set, so the figure is a lower bound for the worst data set too. It has the form of the blanket bound with
γ = 1 and ω = h, and is computed by its optimistic twin: a lower bound with all rounding errors subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.blanket import least_epsilon
from mechanisms.losses.blanket_cells import BlanketCells

FloatArray = NDArray[np.float64]

#: Others at these shares of (x, x'); with "spread" they are spread evenly over all inputs.
_SHARES = {"all_at_x": (1.0, 0.0), "all_at_x_prime": (0.0, 1.0), "half_half": (0.5, 0.5)}


def lower_bounds(mechanisms: Sequence[Any], n: int, delta: float) -> dict[str, float]:
    """ε that no (ε, δ) of n shuffled joint releases of `mechanisms` can be below, by data set.

    "all_at_x", "all_at_x_prime", "half_half": the others hold the target's inputs. "spread": evenly spread over all
    inputs, for mechanisms whose average output is then the blanket's law (sphere and k-RR). Of a mechanism whose
    blanket's pair is above every one that there is, one that is `attained`. ValueError where a mechanism has no
    blanket, n < 1 or δ not in (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"lower bounds: delta must be above 0 and below 1, got {delta}")
    parts = [getattr(mechanism, "attained", mechanism.blanket)() for mechanism in mechanisms]
    if not parts:
        raise ValueError("lower bounds: no mechanism given")
    cells = reduce(BlanketCells.product, parts)
    local = cells.loss().epsilon(delta)
    laws = {name: mixture(cells, *shares) for name, shares in _SHARES.items()}
    if all(_spread_is_blanket(mechanism) for mechanism in mechanisms):
        laws["spread"] = others(cells, cells.log_w)
    epsilons = {name: least_epsilon(law, n, delta, local, pessimistic=False) for name, law in laws.items()}
    return {name: 0.0 if epsilon is None else epsilon for name, epsilon in epsilons.items()}


def mixture(cells: BlanketCells, at_x: float, at_x_prime: float) -> BlanketCells:
    """The pair seen against others of whom a share is at x and a share at x', the rest drawing the blanket's law."""
    rest = 1.0 - at_x - at_x_prime
    with np.errstate(divide="ignore"):
        terms = [np.log(at_x) + cells.log_p, np.log(at_x_prime) + cells.log_q, np.log(max(rest, 0.0)) + cells.log_w]
    return others(cells, np.logaddexp(np.logaddexp(terms[0], terms[1]), terms[2]))


def others(cells: BlanketCells, log_h: FloatArray) -> BlanketCells:
    """The pair seen against others whose outputs have log masses log_h (J,) in the cells; for lower bounds only.

    U and V are the cells' mean ratios, as their low and their high bound.
    """
    log_u, log_v = cells.log_p - log_h, cells.log_q - log_h
    return BlanketCells(
        log_gamma=0.0,
        log_w=log_h,
        log_p=cells.log_p,
        log_q=cells.log_q,
        log_u_low=log_u,
        log_u_high=log_u,
        log_v_low=log_v,
        log_v_high=log_v,
        tail=cells.tail,
    )


def _spread_is_blanket(mechanism: Any) -> bool:
    return mechanism.channel == "label" or bool(getattr(mechanism, "normalize", mechanism.name == "purkayastha"))
