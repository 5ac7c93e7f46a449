"""Blankets of mechanisms with finitely many outputs: gamma = Σ_y min_x p(y | x), and one pair above every pair.

**One pair for all (proved).** For an input x let U_x = p_x(W)/ω(W), W ~ ω. Its stop-loss is π_x(t) = E(U_x - t)_+. The
greatest of these over x is convex, falls, and is 1 - t at small t. So it is that of a law U* of mean 1, the least one
above every U_x in the convex order. Any pair (U_x, V_x') is below a pair with both marginals U* (dilate each on its
own). Of all such pairs the countermonotone one is the largest for φ(u - c·v), φ convex
(`mechanisms.losses.sphere_blanket`). So its cells serve for every two inputs, alone and in any product. They also serve
if the law of a draw depends on the draws before, as long as each U is below U* given those. Consider several groups of
inputs with blankets of their own, where all users of a crowd share one group. They have the greatest stop-loss of them
all, and the least weight.

Between the points at which stop-losses are taken, chords are above a convex function: more than U*, never less. Below
t = 1, E(t - U)_+ is taken instead, which has the same second differences: neither has a difference of near numbers.

**A choice by weights (proved).** Let p(y | x) be proportional to any weights in [1, e^c] on V outputs (the exponential
mechanism with bounded scores: SanText with c = ε·diameter/2, CusText and logits with c = ε/2). The least that p(y | x)
can be is 1/(1 + (V - 1)·e^c): ω is uniform. Such p make a polytope, π is convex in p, and a vertex has k outputs of a
weight e^c, the others of weight 1. So π(t) is the greatest, over k, of 1 - t and (k/V)·(V·e^c/(V + k·(e^c - 1)) - t).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from mechanisms.losses.blanket_cells import BlanketCells

FloatArray = NDArray[np.float64]
#: Tables of log probabilities (inputs, outputs), a few inputs at a time, the same ones at every call.
Blocks = Callable[[], Iterable[FloatArray]]

#: Points at which stop-losses are taken, evenly in log t.
_POINTS = 384
#: Rows processed at once.
_AT_ONCE = 4096
#: Largest share that rounding may take from a stop-loss.
_ROUNDING = 1e-12


def table(blocks: Blocks, most: float) -> BlanketCells | None:
    """Return cells above every two inputs of a table, or None if some output is impossible for an input.

    `most` bounds the loss of any two inputs.
    """
    least: FloatArray | None = None
    for rows in blocks():
        lowest = rows.min(axis=0)
        least = lowest if least is None else np.minimum(least, lowest)
    if least is None or not np.isfinite(least).all():
        return None
    log_gamma = float(logsumexp(least))
    log_omega = least - log_gamma
    return _above(((rows, np.broadcast_to(log_omega, rows.shape)) for rows in blocks()), log_gamma, most)


def grouped(rows: FloatArray, group: NDArray[np.int64], most: float) -> BlanketCells:
    """Return cells above every two inputs of one group, of a crowd that shares it.

    Args:
        rows: (I, K) log probabilities. Outputs are the group's own, -inf if it has fewer. Each is possible for every
            input of the group.
        group: (I,) group of each row.
        most: Bound on the loss of any two inputs.
    """
    least = np.full((int(group.max()) + 1, rows.shape[1]), np.inf)
    np.minimum.at(least, group, rows)
    there = np.isin(np.arange(len(least)), group)
    log_gamma = logsumexp(np.where(there[:, None], least, 0.0), axis=1)
    log_omega = (least - log_gamma[:, None])[group]
    blocks = ((rows[at : at + _AT_ONCE], log_omega[at : at + _AT_ONCE]) for at in range(0, len(rows), _AT_ONCE))
    return _above(blocks, float(log_gamma[there].min()), most)


def _above(blocks: Iterable[tuple[FloatArray, FloatArray]], log_gamma: float, most: float) -> BlanketCells:
    """Return cells above all rows of log p(y | x) over log ω(y) of the row's group."""
    t, edges = _points(log_gamma, most)
    greatest = np.zeros(len(t))
    for rows, log_omega in blocks:
        shape = (len(rows), len(t))
        with np.errstate(invalid="ignore"):
            log_u = np.where(np.isfinite(rows), rows - log_omega, 0.0)
        place = np.clip(np.searchsorted(edges, log_u, side="right") - 1, 0, len(t) - 1)
        place = (place + np.arange(len(rows))[:, None] * len(t)).ravel()
        p, w = (_binned(place, masses, math.prod(shape)).reshape(shape) for masses in (rows, log_omega))
        greatest = np.maximum(greatest, _one_sided(t, p, w).max(axis=0))
    return cells_above(log_gamma, t, greatest)


def choice(log_ratio: float, outputs: int) -> BlanketCells:
    """Return cells above every two choices among `outputs` by weights in [1, e^log_ratio]."""
    log_gamma = -float(np.logaddexp(-math.log(outputs), math.log1p(-1 / outputs) + log_ratio))
    t, _ = _points(log_gamma, 2 * log_ratio)
    share = np.arange(outputs + 1) / outputs
    high = np.exp(log_ratio - np.log1p(share * math.expm1(log_ratio)))
    low = high * math.exp(-log_ratio)
    parts = [
        np.where(at > 1, share * np.maximum(high - at, 0.0), (1 - share) * np.maximum(at - low, 0.0)).max() for at in t
    ]
    return cells_above(log_gamma, t, np.array(parts))


def together(parts: list[BlanketCells]) -> BlanketCells:
    """Return cells above those of several groups. Users of a crowd share a group."""
    log_gamma = min(part.log_gamma for part in parts)
    top = max(float(part.log_u_high.max()) for part in parts)
    t, edges = _points(log_gamma, top - log_gamma)
    stop_losses = [np.zeros(len(t))]
    for part in parts:
        place = np.clip(np.searchsorted(edges, part.log_p - part.log_w, side="right") - 1, 0, len(t) - 1)
        p, w = (_binned(place, masses, len(t))[None] for masses in (part.log_p, part.log_w))
        stop_losses.append(_one_sided(t, p, w)[0])
    return cells_above(log_gamma, t, np.max(stop_losses, axis=0))


def cells_above(log_gamma: float, t: FloatArray, one_sided: FloatArray) -> BlanketCells:
    """Return the countermonotone pair of the law U with the given one-sided expectations.

    Args:
        log_gamma: Log of the blanket's weight γ.
        t: (J,) rising, 1 among them; no U is outside.
        one_sided: (J,), E(t - U)_+ below t = 1, and E(U - t)_+ above.
    """
    middle = int(np.searchsorted(t, 1.0))
    slope = np.abs(np.diff(one_sided * (1 + _ROUNDING))) / np.diff(t)
    mass = np.zeros(len(t))
    mass[:middle] = np.diff(slope[:middle], prepend=0.0)
    mass[middle + 1 :] = -np.diff(slope[middle:], append=0.0)
    mass = np.maximum(mass, 0.0)
    mass[middle] = max(0.0, 1.0 - mass.sum())
    t, mass = t[mass > 0], mass[mass > 0]
    from_below, from_above = np.cumsum(mass), np.cumsum(mass[::-1])
    ends = np.unique(np.concatenate([from_below, from_above, [0.5]]))
    ends = ends[ends <= 0.5]
    start = np.concatenate([[0.0], ends[:-1]])
    inside = (start + ends) / 2
    u = np.log(t[::-1][np.minimum(np.searchsorted(from_above, inside), len(t) - 1)])
    v = np.log(t[np.minimum(np.searchsorted(from_below, inside), len(t) - 1)])
    log_w = np.log(np.tile(ends - start, 2))
    log_u, log_v = np.concatenate([u, v]), np.concatenate([v, u])
    return BlanketCells(
        log_gamma=min(0.0, log_gamma),
        log_w=log_w,
        log_p=log_w + log_u,
        log_q=log_w + log_v,
        log_u_low=log_u,
        log_u_high=log_u,
        log_v_low=log_v,
        log_v_high=log_v,
    )


def _points(log_gamma: float, most: float) -> tuple[FloatArray, FloatArray]:
    """Return points t that contain every U, 1 among them, and their logarithms: U is in [γ, γ·e^most]."""
    edges = np.unique(np.append(np.linspace(log_gamma - 1e-9, max(log_gamma + most, 0.0) + 1e-9, _POINTS), 0.0))
    return np.exp(edges), edges


def _binned(place: NDArray[np.int64], log_masses: FloatArray, size: int) -> FloatArray:
    """Return masses (size,) by their places."""
    return np.bincount(place, weights=np.exp(log_masses).ravel(), minlength=size).astype(np.float64)


def _one_sided(t: FloatArray, p: FloatArray, w: FloatArray) -> FloatArray:
    """Return E(t - U)_+ below t = 1, E(U - t)_+ above.

    `p` and `w` (I, J) are masses under x and ω of the outputs from each t upwards.
    """
    below = t * (np.cumsum(w, axis=1) - w) - (np.cumsum(p, axis=1) - p)
    above = np.cumsum(p[:, ::-1], axis=1)[:, ::-1] - t * np.cumsum(w[:, ::-1], axis=1)[:, ::-1]
    return np.maximum(np.where(t < 1, below, above), 0.0)
