"""The blanket of k-ary randomized response: uniform, of weight γ = K/(e^ε + K - 1) (Balle et al. 2019, section 3.1).

Any two different labels are the dominating pair: the laws of U and V are the same for every label, and U is high only
at x, V only at x', never together: countermonotone (see mechanisms.losses.sphere_blanket for the order).
"""

from __future__ import annotations

import math

import numpy as np

from mechanisms.losses.blanket_cells import BlanketCells


def randomized_response(epsilon: float, classes: int) -> BlanketCells:
    """Cells {x}, {x'} and all other labels, exact; epsilon >= 0, classes K >= 2."""
    log_gamma = -np.logaddexp(epsilon - math.log(classes), math.log1p(-1 / classes))
    log_w = -math.log(classes)
    sizes = np.log(np.array([1.0, 1.0, classes - 2.0][: min(classes, 3)]))
    log_u = float(log_gamma) + np.array([epsilon, 0.0, 0.0])[: len(sizes)]
    log_v = float(log_gamma) + np.array([0.0, epsilon, 0.0])[: len(sizes)]
    return BlanketCells(
        log_gamma=float(log_gamma),
        log_w=log_w + sizes,
        log_p=log_w + sizes + log_u,
        log_q=log_w + sizes + log_v,
        log_u_low=log_u,
        log_u_high=log_u,
        log_v_low=log_v,
        log_v_high=log_v,
    )
