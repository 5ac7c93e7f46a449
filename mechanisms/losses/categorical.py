"""Losses of mechanisms with finitely many outputs, as atoms without discretization."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from mechanisms.arrays import FloatArray
from mechanisms.losses.loss import LossCells, no_loss


def pair_loss(log_p: FloatArray, log_q: FloatArray) -> LossCells:
    """Return the loss of one pair, from its log probabilities (outputs,) each: exact atoms, direction x to x' only."""
    log_p, log_q = _normalized(np.stack([np.asarray(log_p, np.float64), np.asarray(log_q, np.float64)]))
    finite = np.isfinite(log_p) & np.isfinite(log_q)
    loss = (log_p - log_q)[finite]
    alone = np.isfinite(log_p) & ~np.isfinite(log_q)
    return LossCells(
        low=loss,
        high=loss,
        log_p=log_p[finite],
        log_q=log_q[finite],
        infinite=min(1.0, float(np.exp(log_p[alone]).sum())),
        symmetric=False,
    )


def randomized_response_loss(epsilon: float, classes: int) -> LossCells:
    """Return the loss of two labels under k-ary randomized response: atoms at ε, 0 and -ε. Every pair has it."""
    if epsilon == 0:
        return no_loss()
    log_true = -math.log(1 + (classes - 1) * math.exp(-epsilon))
    log_other = log_true - epsilon
    loss = np.array([-epsilon, 0.0, epsilon])
    log_rest = math.log(classes - 2) + log_other if classes > 2 else -math.inf
    log_p = np.array([log_other, log_rest, log_true])
    kept = np.isfinite(log_p)
    return LossCells(low=loss[kept], high=loss[kept], log_p=log_p[kept], log_q=log_p[::-1][kept])


def pure_loss(epsilon: float) -> LossCells:
    """Return a loss that dominates every ε-LDP mechanism: binary randomized response (Kairouz, Oh, Viswanath 2015)."""
    return randomized_response_loss(epsilon, 2)


def from_profile(epsilons: FloatArray, deltas: FloatArray) -> LossCells:
    """Return atoms whose δ(ε) passes through the given points and lies above the profile between them.

    The profile serves both directions: at ε < 0 it is 1 - e^ε(1 - δ(-ε)), as for an exchanged pair.

    Args:
        epsilons: (J,), rising from 0.
        deltas: (J,), falling and convex in e^ε. Values that break this by rounding are raised.
    """
    epsilons, deltas = np.asarray(epsilons, np.float64), np.minimum.accumulate(np.asarray(deltas, np.float64))
    if deltas[0] == 0:
        return no_loss()
    if len(epsilons) == 1:
        return _with_infinite(float(deltas[0]))
    # chords in t = e^ε from ε_i to ε_(i+1): -slope·e^(ε_i) = drop/expm1(gap); slopes must not steepen
    gap = np.diff(epsilons)
    log_slope = np.log(np.maximum(-np.diff(deltas), 1e-320)) - epsilons[:-1] - np.log(np.expm1(gap))
    log_slope = np.maximum.accumulate(log_slope[::-1])[::-1]  # convex
    # an atom at ε_i holds under x' the change of slope there, and under x e^(ε_i) times as much
    following = np.concatenate([log_slope[1:], [-np.inf]])
    with np.errstate(divide="ignore"):
        change = log_slope + np.log(-np.expm1(np.minimum(following - log_slope, 0.0)))
    log_q = change
    log_p = log_q + epsilons[1:]
    infinite = float(deltas[-1])
    low_p, low_q = log_q, log_p  # the mirror images, at -ε
    losses = np.concatenate([-epsilons[:0:-1], [0.0], epsilons[1:]])
    rest = 1.0 - infinite - float(np.exp(log_p).sum() + np.exp(low_p).sum())
    log_rest = math.log(rest) if rest > 0 else -math.inf
    all_p = np.concatenate([low_p[::-1], [log_rest], log_p])
    all_q = np.concatenate([low_q[::-1], [log_rest], log_q])
    kept = np.isfinite(all_p)
    return LossCells(low=losses[kept], high=losses[kept], log_p=all_p[kept], log_q=all_q[kept], infinite=infinite)


def _with_infinite(mass: float) -> LossCells:
    rest = np.array([math.log1p(-mass)]) if mass < 1 else np.zeros(0)
    zero = np.zeros(len(rest))
    return LossCells(low=zero, high=zero, log_p=rest, log_q=rest, infinite=mass)


def _normalized(table: FloatArray) -> FloatArray:
    total = logsumexp(table, axis=1, keepdims=True)
    if not np.isfinite(total).all():
        raise ValueError(f"categorical loss: row {int(np.argmin(np.isfinite(total)))} has no probability")
    normal: FloatArray = table - total
    return normal
