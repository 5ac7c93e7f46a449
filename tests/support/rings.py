"""Brute force over the data sets of a few users on a ring of a few places."""

import math

import numpy as np
from scipy.stats import binom

from mechanisms.losses.blanket_cells import BlanketCells


def shuffled(laws):
    """The law of the histogram of independent outputs with these laws: {counts: probability}, the possible ones."""
    size = len(laws[0])
    table = {(0,) * size: 1.0}
    for law in laws:
        following = {}
        for counts, mass in table.items():
            for at, chance in enumerate(law):
                if chance:
                    key = (*counts[:at], counts[at] + 1, *counts[at + 1 :])
                    following[key] = following.get(key, 0.0) + mass * chance
        table = following
    return table


def hockey_stick(p, q, epsilon):
    return sum(max(0.0, mass - math.exp(epsilon) * q.get(key, 0.0)) for key, mass in p.items())


def reduced_pair(p, q, omega, gamma, n, epsilon):
    """δ(ε) of the reduced pair by definition: the others send blanket samples, each with probability γ."""
    return sum(
        binom.pmf(m, n - 1, gamma) * hockey_stick(shuffled([p, *[omega] * m]), shuffled([q, *[omega] * m]), epsilon)
        for m in range(n)
    )


def ring(size, kappa):
    """A randomizer on a ring: p_z(y) ∝ exp(-κ·distance); rows are the laws of the inputs."""
    at = np.arange(size)
    distance = np.abs(at[:, None] - at[None, :])
    weights = np.exp(-kappa * np.minimum(distance, size - distance))
    return weights / weights.sum(axis=1, keepdims=True)


def ring_cells(size, kappa):
    laws = ring(size, kappa)
    omega = np.full(size, 1 / size)
    u, v = np.log(laws[0] / omega), np.log(laws[size // 2] / omega)
    return BlanketCells(
        log_gamma=float(np.log(laws.min(axis=0).sum())),
        log_w=np.log(omega),
        log_p=np.log(laws[0]),
        log_q=np.log(laws[size // 2]),
        log_u_low=u,
        log_u_high=u,
        log_v_low=v,
        log_v_high=v,
    )
