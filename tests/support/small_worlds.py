"""Small worlds: few inputs, few outputs, few users, and the exact δ of a shuffled batch over every data set there is.

A world of a mechanism is its discrete cousin: K of its inputs, its outputs gathered in Y cells. Gathering is
post-processing and fewer inputs are fewer data sets, so a bound of the mechanism's holds in its cousin, whatever the
cells. Nothing of the accounting is used here: laws of histograms are convolved, and hockey-sticks summed, as defined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from mechanisms import Gaussian, PlanarLaplace, Purkayastha, RandomizedResponsePrior
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.mechanism import Mechanism
from mechanisms.privunit import PrivUnit

FloatArray = NDArray[np.float64]

#: Midpoints of angle and of radius where a density is integrated over a cell.
_ANGLES, _RADII = 2520, 400


@dataclass(frozen=True, eq=False)
class World:
    """Laws of the outputs, (K, Y), and what each input sends in clear beside its output, (K,)."""

    rows: FloatArray
    public: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        assert np.allclose(self.rows.sum(axis=1), 1.0, atol=1e-9) and (self.rows >= 0).all()

    @property
    def clear(self) -> tuple[Any, ...]:
        return self.public or (None,) * len(self.rows)

    def seen(self) -> FloatArray:
        """(K, P·Y): the laws of what is seen of one user, the output and beside it what is sent in clear."""
        parts = sorted(set(self.clear), key=repr)
        seen = np.zeros((len(self.rows), len(parts), self.rows.shape[1]))
        for at, part in enumerate(self.clear):
            seen[at, parts.index(part)] = self.rows[at]
        flat = seen.reshape(len(self.rows), -1)
        return flat[:, flat.any(axis=0)]


def largest_delta(world: World, users: int, epsilons: Sequence[float], *, crowd: int = 1) -> FloatArray:
    """δ(ε) at each ε of the worst pair of neighbours, over every data set of so many users: (E,).

    Neighbours differ in one user's input and agree in what it sends in clear; of the data sets only those count in
    which at least `crowd` users, that one included, send the same in clear.
    """
    seen, clear = world.seen(), np.array([repr(part) for part in world.clear])
    pairs = (clear[:, None] == clear[None, :]) & ~np.eye(len(clear), dtype=bool)
    worst = np.zeros(len(epsilons))
    for others, law in _batches(seen, users - 1):
        like = np.array([1 + sum(clear[o] == mine for o in others) for mine in clear])
        first, second = np.nonzero(pairs & (like >= crowd)[:, None])
        if not len(first):
            continue
        laws = np.array([_added(law, row, users - 1) for row in seen])
        for at, epsilon in enumerate(epsilons):
            gap = laws[first] - math.exp(epsilon) * laws[second]
            worst[at] = max(worst[at], float(np.maximum(gap, 0.0).sum(axis=1).max()))
    return worst


def _batches(rows: FloatArray, users: int) -> Iterator[tuple[tuple[int, ...], FloatArray]]:
    """Every multiset of so many inputs, and the law of the histogram of their outputs."""
    for chosen in itertools.combinations_with_replacement(range(len(rows)), users):
        yield chosen, shuffled(rows[list(chosen)])


def _added(law: FloatArray, row: FloatArray, users: int) -> FloatArray:
    """The law of a histogram of one user more."""
    place, size = _places(users, len(row))
    return np.bincount(place.ravel(), weights=np.outer(law, row).ravel(), minlength=size)


@lru_cache(maxsize=64)
def _places(users: int, outputs: int) -> tuple[NDArray[np.int64], int]:
    """Where each histogram of `users` outputs goes with one output more, (histograms, outputs); how many there are."""
    many = {h: i for i, h in enumerate(itertools.combinations_with_replacement(range(outputs), users + 1))}
    few = itertools.combinations_with_replacement(range(outputs), users)
    return np.array([[many[tuple(sorted((*h, y)))] for y in range(outputs)] for h in few]), len(many)


def shuffled(laws: Iterable[Any]) -> FloatArray:
    """The law of the histogram of independent outputs, one user with each of these laws (Y,)."""
    law = np.ones(1)
    for sent, row in enumerate(laws):
        law = _added(law, np.asarray(row), sent)
    return law


def hockey_stick(p: FloatArray, q: FloatArray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def reduced_pair(p: Any, q: Any, omega: Any, gamma: float, n: int, epsilon: float) -> float:
    """δ(ε) of the reduced pair by definition: the others send blanket samples, each with probability γ."""
    return sum(
        binom.pmf(m, n - 1, gamma) * hockey_stick(shuffled([p, *[omega] * m]), shuffled([q, *[omega] * m]), epsilon)
        for m in range(n)
    )


def joint(*worlds: World) -> World:
    """Independent releases of one user, every input with every other."""
    rows = np.ones((1, 1))
    for world in worlds:
        rows = np.einsum("ay,bz->abyz", rows, world.rows).reshape(len(rows) * len(world.rows), -1)
    return World(rows)


def with_labels(world: World, labels: int) -> World:
    """The same release with one of so many labels in clear beside it."""
    return World(np.repeat(world.rows, labels, axis=0), tuple(range(labels)) * len(world.rows))


def circle(mechanism: Mechanism, inputs: int, cells: int, *, ring: float | None = None) -> World:
    """The cousin of a mechanism of unit vectors in the plane: inputs at equal angles, outputs by their direction.

    Cells are arcs, the first of them centred on the first input; ring: a radius that cuts them in two.
    """
    angle = (np.arange(_ANGLES) + 0.5) * 2 * math.pi / _ANGLES
    cell = np.round(angle * cells / (2 * math.pi)).astype(int) % cells
    unit = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rows = []
    for at in np.arange(inputs) * 2 * math.pi / inputs:
        x = np.array([math.cos(at), math.sin(at)])
        if isinstance(mechanism, Purkayastha | PrivUnit):
            density = np.exp(mechanism.log_prob(unit, np.broadcast_to(x, unit.shape)))
            rows.append(np.bincount(cell, weights=density, minlength=cells))
            continue
        reach = 1 + (40 / mechanism.epsilon if isinstance(mechanism, PlanarLaplace) else 8 * mechanism.sigma)
        radius = (np.arange(_RADII) + 0.5) * reach / _RADII
        far = np.zeros(_RADII, dtype=int) if ring is None else (radius > ring).astype(int)
        y = unit[:, None, :] * radius[None, :, None]
        if isinstance(mechanism, PlanarLaplace):
            log_density = -mechanism.epsilon * np.linalg.norm(y - x, axis=2)
        else:
            assert isinstance(mechanism, Gaussian)
            log_density = -((y - x) ** 2).sum(axis=2) / (2 * mechanism.sigma**2)
        mass = np.exp(log_density) * radius
        place = cell[:, None] * 2 + far[None, :]
        rows.append(np.bincount(place.ravel(), weights=mass.ravel(), minlength=2 * cells))
    table = np.array(rows)
    table = table[:, table.any(axis=0)]
    return World(table / table.sum(axis=1, keepdims=True))


def with_priors(world: World, mechanism: RandomizedResponsePrior, priors: FloatArray) -> World:
    """Beside each release a label under the prior (Y, K) of the output that was released."""
    labels, rows = np.arange(mechanism.classes), []
    for row, label in itertools.product(world.rows, labels):
        chances = [
            np.exp(mechanism.log_prob(labels, np.full(len(labels), label), prior=np.tile(prior, (len(labels), 1))))
            for prior in priors
        ]
        rows.append((row[:, None] * np.array(chances)).ravel())
    table = np.array(rows)
    return World(table[:, table.any(axis=0)])


def discrete(mechanism: Any, inputs: int) -> World:
    """A mechanism of labels or words as it is: its inputs 0..K-1, its outputs the same."""
    every = np.arange(inputs)
    rows = [np.exp(mechanism.log_prob(every, np.full(inputs, x))) for x in every]
    return World(np.array(rows))


def ring(size: int, kappa: float) -> FloatArray:
    """A randomizer on a ring: p_z(y) ∝ exp(-κ·distance); rows are the laws of the inputs."""
    at = np.arange(size)
    distance = np.abs(at[:, None] - at[None, :])
    weights = np.exp(-kappa * np.minimum(distance, size - distance))
    return weights / weights.sum(axis=1, keepdims=True)


def ring_cells(size: int, kappa: float) -> BlanketCells:
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
