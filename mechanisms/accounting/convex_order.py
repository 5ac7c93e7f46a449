"""Laws above a given law in the convex order, with fewer atoms or on a grid.

A law is above another in the convex order if E[f] is no less for every convex f. Sums of independent copies keep the
order. A value that is spread on two around it with its mean kept is above.
"""

from __future__ import annotations

import math

import numpy as np

from mechanisms.arrays import FloatArray, IntArray


def thinned(values: FloatArray, masses: FloatArray, bins: int) -> tuple[FloatArray, FloatArray]:
    """Return fewer atoms in the safe direction: on the ends of bins."""
    largest = float(np.abs(values).max()) or 1.0  # squares of values above 1e154 would overflow
    spread = largest * math.sqrt(float(masses @ (values / largest) ** 2) / float(masses.sum()))
    # bins are narrow near 0 and wide far out: 1/bins of the spread plus of the value itself
    scaled = np.arcsinh(values / spread) * bins
    place = np.floor(scaled)
    first = place.min()
    slot = (place - first).astype(np.int64)
    size = int(slot.max()) + 2
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


def _binned(place: IntArray, masses: FloatArray, size: int) -> FloatArray:
    """Return the masses in each of `size` bins."""
    mass: FloatArray = np.bincount(place, weights=masses, minlength=size).astype(np.float64, copy=False)
    return mass
