"""Composition by convolution of loss distributions, on dp-accounting's objects (an optional dependency).

This is the one file of the folder that imports dp_accounting, and it does so when a function is called, not when
the module is imported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.accounting.crossing import crossing
from mechanisms.losses.loss import LossCells, check_delta

FloatArray = NDArray[np.float64]

#: Points of the widest distribution, before or after composition, that an adaptive interval aims at.
_POINTS = 2**18
#: Mass that discretization may cut off at either end; it goes to the safe side.
_CUT = 1e-18
#: Atoms above which dp-accounting keeps a distribution as an array: it makes one of a table by many look-ups.
_DENSE = 1000
#: Relative error of a fast Fourier transform of N points is below 8·u·log2 N (Higham 2002, Theorem 24.2).
_FFT = 8 * 2.0**-53


@dataclass(frozen=True, eq=False)
class ComposedLoss:
    """What independent releases cost together.

    pld: dp-accounting's PrivacyLossDistribution. interval: nats between its atoms. pessimistic: whether the
    figures are upper bounds (else lower ones). rounding: bound on the error of a δ by the Fourier transforms'
    rounding; it is on the safe side in every figure below.
    """

    pld: Any
    interval: float
    pessimistic: bool
    rounding: float

    def delta(self, epsilon: float) -> float:
        """δ(ε) of the composition, in [0, 1]; ValueError where epsilon is not a number."""
        if math.isnan(epsilon):
            raise ValueError("epsilon is not a number")
        error = self.rounding if self.pessimistic else -self.rounding
        return min(1.0, max(0.0, float(self.pld.get_delta_for_epsilon(epsilon)) + error))

    def epsilon(self, delta: float) -> float:
        """Least ε >= 0 with δ(ε) <= delta, to 1e-9 relative on the safe side; inf where there is none."""
        check_delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        if self.delta(math.inf) > delta:
            return math.inf
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
            if high > 1e12:
                return math.inf

        def excess(epsilon: float) -> float:
            found = self.delta(epsilon)
            if min(found, delta) <= 0:  # which has no logarithm
                return 1.0 if found > delta else -1.0
            return math.log(found) - math.log(delta)

        fall = -math.log(max(delta, 1e-300)) / high
        bracket = crossing(excess, (low + high) / 2, high, fall=max(fall, 1e-3), tolerance=1e-9)
        if bracket is not None:  # else it crosses within a hair of high; both ends were seen on their sides of δ
            low, high = bracket
        return high if self.pessimistic else low


def to_pld(cells: LossCells, interval: float, *, pessimistic: bool = True) -> Any:
    """dp-accounting's PrivacyLossDistribution of one release, its losses whole multiples of `interval` nats.

    pessimistic: atoms move to the two multiples around them, both masses kept (`accounting.loss` proves that
    this only raises every figure of every composition); the mass above the last atom is unbounded, that below
    the first moves up to it. Optimistic: each atom moves down to a multiple, which lowers every loss.

    ValueError unless interval is a number above 0, and where the cells speak for one direction only.
    """
    if not 0 < interval < math.inf:
        raise ValueError(f"loss distribution: interval must be a number above 0, got {interval}")
    if not cells.symmetric:
        raise ValueError("loss distribution: the cells speak for one direction only; give those of a symmetric pair")
    library, pmf = dp_accounting()
    losses, masses, infinite = _trimmed(cells, pessimistic)
    # a hair of rounding in loss/interval may move an atom by a whole step: by up to 1e-12 it is left where it is
    steps = losses / interval
    near = np.round(steps)
    steps = np.where(np.abs(steps - near) <= 1e-12 * np.maximum(1.0, np.abs(steps)), near, steps)
    floor = np.floor(steps)
    if pessimistic:
        share = -np.expm1((floor - steps) * interval) / -math.expm1(-interval)
        place = np.concatenate([floor, floor + 1])
        masses = np.concatenate([masses * (1.0 - share), masses * share])
    else:
        place = floor
    lowest = int(place.min()) if len(place) else 0
    weights = np.bincount((place - lowest).astype(np.int64), weights=masses) if len(place) else np.zeros(0)
    atoms = np.flatnonzero(weights)
    if len(atoms) > _DENSE:  # as `create_pmf` makes of such a table, number by number
        first, last = int(atoms[0]), int(atoms[-1])
        made = pmf.DensePLDPmf(interval, lowest + first, weights[first : last + 1], infinite, pessimistic)
    else:
        table = dict(zip((atoms + lowest).tolist(), weights[atoms].tolist(), strict=True)) or {0: 0.0}
        made = pmf.create_pmf(table, interval, infinite, pessimistic)
    return library.PrivacyLossDistribution(made)


def compose(
    losses: Sequence[tuple[LossCells, int]],
    *,
    interval: float | None = None,
    pessimistic: bool = True,
    tail: float = 1e-15,
) -> ComposedLoss:
    """Independent releases, each its number of times, about the same two inputs (or records made of such).

    interval: nats between atoms; None: as fine as 2^18 points of the widest distribution are. tail: mass that
    a composition may cut off, to the safe side. pessimistic: upper bounds, else lower ones.

    n at once and n one by one are the same distribution, up to `tail` and `rounding`. ValueError where there is
    nothing to compose or a number of times is not whole and above 0.
    """
    if not losses:
        raise ValueError("loss distribution: nothing to compose; give at least one release")
    grouped: dict[LossCells, int] = {}
    for cells, times in losses:
        grouped[cells] = grouped.get(cells, 0) + checks.times("loss distribution", times)
    if interval is None:
        interval = _interval(grouped)
    for cells in grouped:
        if not len(cells.low):  # a value passed through: so is the whole, and there is nothing to convolve
            return ComposedLoss(to_pld(cells, interval, pessimistic=pessimistic), interval, pessimistic, 0.0)
    total: Any = None
    norm, times_all = 0.0, 0
    for cells, times in grouped.items():
        pld = to_pld(cells, interval, pessimistic=pessimistic)
        norm, times_all = max(norm, _norm(cells, interval)), times_all + times
        if times > 1:
            pld = pld.self_compose(times, tail)
        total = pld if total is None else total.compose(pld, tail)
    rounding = 0.0
    if times_all > 1:
        points = max(2, _size(total))
        rounding = _FFT * (times_all + 1) * math.log2(points) * math.sqrt(points) * norm
    return ComposedLoss(total, interval, pessimistic, rounding)


def _trimmed(cells: LossCells, pessimistic: bool) -> tuple[FloatArray, FloatArray, float]:
    """Atoms without their far ends, and the mass of unbounded loss."""
    losses, masses = cells.pessimistic if pessimistic else cells.optimistic
    infinite = cells.infinite + (cells.left_out if pessimistic else 0.0)
    bounded = np.isfinite(losses)
    infinite += float(masses[np.isposinf(losses)].sum())
    bottom = float(masses[np.isneginf(losses)].sum())
    losses, masses = losses[bounded], masses[bounded].copy()
    if not len(losses):
        return losses, masses, infinite
    first = int(np.searchsorted(np.cumsum(masses), _CUT, side="right"))
    last = len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), _CUT, side="right"))
    first = min(first, last - 1)
    below, above = float(masses[:first].sum()) + bottom, float(masses[last:].sum())
    losses, masses = losses[first:last], masses[first:last]
    if pessimistic:
        masses[0] += below
        return losses, masses, infinite + above
    masses[-1] += above
    return losses, masses, infinite


def _interval(grouped: dict[LossCells, int]) -> float:
    """Nats between atoms: neither one release nor the composition's bulk spans more than 2^18 of them."""
    widest, variance = 0.0, 0.0
    for cells, times in grouped.items():
        losses, masses, _ = _trimmed(cells, True)
        if len(losses):
            widest = max(widest, float(losses[-1] - losses[0]))
            mean = float(losses @ masses)
            variance += times * float(np.square(losses - mean) @ masses)
    width = max(widest, 16.0 * math.sqrt(variance))
    return max(width, 1e-6) / _POINTS


def _norm(cells: LossCells, interval: float) -> float:
    """Euclidean norm of the atoms on the grid, from above: an atom is no larger than its neighbourhood's mass."""
    losses, masses, _ = _trimmed(cells, True)
    if not len(losses):
        return 0.0
    place = np.floor(losses / interval)
    weights = np.bincount((place - place[0]).astype(np.int64), weights=masses)
    return 2.0 * float(np.linalg.norm(weights))


def _size(pld: Any) -> int:
    return int(pld._pmf_remove.size)


def dp_accounting() -> tuple[Any, Any]:
    """dp-accounting's modules privacy_loss_distribution and pld_pmf. ValueError where it is not installed."""
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError as error:
        raise ValueError(
            "loss distributions are composed by dp-accounting, which is not installed; "
            "pip install 'sottovoce[accounting]'"
        ) from error
    return privacy_loss_distribution, pld_pmf
