"""Laws above or below a given law in the convex order, with fewer atoms or on a grid.

A law is above another in the convex order if E[f] is no less for every convex f. Sums of independent copies keep the
order. A value that is spread on two around it with its mean kept is above. Values gathered at their mean are below.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def thinned(values: FloatArray, masses: FloatArray, pessimistic: bool, bins: int) -> tuple[FloatArray, FloatArray]:
    """Return fewer atoms in the safe direction: on the ends of bins, or at their means (optimistic)."""
    largest = float(np.abs(values).max()) or 1.0  # squares of values above 1e154 would overflow
    spread = largest * math.sqrt(float(masses @ (values / largest) ** 2) / float(masses.sum()))
    # bins are narrow near 0 and wide far out: 1/bins of the spread plus of the value itself
    scaled = np.arcsinh(values / spread) * bins
    place = np.floor(scaled)
    first = place.min()
    slot = (place - first).astype(np.int64)
    size = int(slot.max()) + 2
    if not pessimistic:
        mass = _binned(slot, masses, size)
        moment = _binned(slot, masses * values, size)
        used = mass > 0
        return moment[used] / mass[used], mass[used]
    edge = np.sinh((first + np.arange(size)) / bins) * spread
    low, high = np.minimum(edge[slot], values), np.maximum(edge[slot + 1], values)
    share = (values - low) / (high - low)
    mass = _binned(slot, masses * (1 - share), size)
    mass += _binned(slot + 1, masses * share, size)
    used = mass > 0
    return edge[used], mass[used]


def spread_on_grid(values: FloatArray, masses: FloatArray, step: float) -> tuple[IntArray, FloatArray]:
    """Return (index, mass) of each value on its two neighbours k·step, mean kept: larger in the convex order."""
    scaled = values / step
    index = np.floor(scaled)
    share = scaled - index
    first = int(index.min())
    place = (index - first).astype(np.int64)
    size = int(place.max()) + 2
    if size <= 2**23:
        mass = _binned(place, masses * (1 - share), size)
        mass += _binned(place + 1, masses * share, size)
        used = np.flatnonzero(mass)
        return (used + first).astype(np.int64, copy=False), mass[used]
    return np.concatenate([place, place + 1]) + first, np.concatenate([masses * (1 - share), masses * share])


def gathered_near(
    values: FloatArray, masses: FloatArray, step: float
) -> tuple[float, tuple[IntArray, FloatArray, float]]:
    """Return a step, at most a quarter wider, and `gathered_on_grid` on it.

    For a few atoms, the step is chosen such that they lie near grid points.
    """
    if len(values) > 8:
        return step, gathered_on_grid(values, masses, step)
    steps = step * np.linspace(1.0, 1.25, 4001)
    scaled = values / steps[:, None]
    step = float(steps[np.argmin(((scaled - np.floor(scaled)) @ masses) * steps)])
    index = np.floor(values / step)
    return step, (index.astype(np.int64), masses, float(masses @ (values - index * step)))


def gathered_on_grid(values: FloatArray, masses: FloatArray, step: float) -> tuple[IntArray, FloatArray, float]:
    """Return (index, mass, lost) of runs of values whose mean is a grid point: smaller in the convex order.

    Runs start at the largest value. The last run ends where the values do, and its mean is rounded down by `lost`.
    """
    lost = 0.0
    order = np.argsort(-values)
    value = (values[order] / step).tolist()
    mass = masses[order].tolist()
    indices: list[int] = []
    sizes: list[float] = []
    at, left, count = 0, mass[0], len(mass)
    while at < count:
        target = math.floor(value[at])
        size, moment = 0.0, 0.0  # moment: Σ mass·(value - target), above 0 until the run is balanced
        balanced = False
        while at < count:
            gap = value[at] - target
            if gap < 0 and moment + left * gap <= 0:
                used = min(left, moment / -gap)
                size, left, balanced = size + used, left - used, True
                break
            size, moment = size + left, moment + left * gap
            at += 1
            left = mass[at] if at < count else 0.0
            if moment <= 0:
                balanced = True
                break
        if size > 0:
            indices.append(target)
            sizes.append(size)
            lost += 0.0 if balanced else moment * step
        if at < count and left <= 0:
            at += 1
            left = mass[at] if at < count else 0.0
    return np.array(indices, dtype=np.int64), np.array(sizes), lost


def _binned(place: IntArray, masses: FloatArray, size: int) -> FloatArray:
    """Return the masses in each of `size` bins."""
    mass: FloatArray = np.bincount(place, weights=masses, minlength=size).astype(np.float64, copy=False)
    return mass
