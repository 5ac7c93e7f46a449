"""Composition by convolution of loss distributions, tilted exponentially so that rounding does not exceed a tiny δ.

A Fourier transform returns every entry of a convolution with an error of about 1e-15 of the largest. δ(ε) is a sum of
small entries: at δ = 1e-12 that error is larger than δ itself. So the distribution is tilted first (Esscher).

**Theorem.** Let p_i be the law of a release's loss on the grid, k_i its number of releases, L the sum of all, and
M_i(θ) = Σ_j p_i(j)·e^(θ·j). Put p_i'(j) = p_i(j)·e^(θ·j)/M_i(θ), and let q be the convolution of all p_i'. Then
P(L = j) = Π M_i(θ)^k_i·e^(-θ·j)·q(j): both sides are Σ Π p_i(j_i) over j_1 + j_2 + ... = j. Hence

    δ(ε) = P(L = ∞) + Σ_(j > ε) w(j)·q(j),   w(j) = Π M_i(θ)^k_i·e^(-θ·j)·(1 - e^(ε - j)).

Choose θ such that q has its mean at ε. The largest weight is then Chernoff's bound of P(L > ε), and the q(j) that count
are those in the middle of q. An error of q counts in proportion to δ, not to 1.

*Rounding.* With N points, u = 2^-53 and η = 8·u·log2 N, the transform of p_i' is off by η·|p_i'|·√N at most in the
Euclidean norm (Higham 2002, Theorem 24.2). Entries of the exact transform lie in the unit disk. The computed ones are
moved into it, which brings them no further away. In the disk |a^k - b^k| <= k·|a - b|. A product of two complex numbers
is off by √5·u of itself (Brent, Percival and Zimmermann 2007), and the inverse transform by η of its norm. By Parseval
q is off by E = η·Σ k_i·|p_i'| + (√5·u·Σ k_i + 2η)·min |p_i'| at most, and δ(ε) by |w|·E (Cauchy and Schwarz). Entries
below 0 count as 0, which is closer to the true value. The rounding of exponentials is a factor of each mass and bounded
separately.

*Window.* N points are a window of all sums. Sums outside appear inside at another place, which only adds to the entries
of the window. So with P'(L above the window) <= t under q, the sums above it have a probability of Π
M_i(θ)^k_i·e^(-θ·top)·t at most, which counts as unbounded loss. The result is an upper bound of δ(ε) for every ε in the
window. t is Chernoff's bound.

*Rényi.* e^(-θ·x)·(1 - e^-x) is at most θ^θ/(1 + θ)^(1 + θ). So δ(ε) is at most that number times Π M_i(θ)^k_i·e^(-θ·ε):
the conversion of Canonne, Kamath and Steinke 2020 at order 1 + θ. The result is the smaller of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from mechanisms import checks
from mechanisms.accounting.solve_epsilon import solve_epsilon
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.losses.loss import LossCells, check_delta

#: Points of the widest distribution, before or after composition, that an adaptive interval aims at. A tilted one may
#: take twice as many.
_POINTS = 2**18
#: Mass that discretization may cut off at either end, to the safe side.
_CUT = 1e-18
#: Half a unit in the last place of 1.
_UNIT = 2.0**-53
#: Error of a transform of N points as a share of its norm, for each power of two in N.
_FFT = 8 * _UNIT
#: Sums of at most this number of places are all in the window.
_FEW = 2**17
#: Most points of a transform. A wider window leaves only the Rényi bound.
_MOST = 2**22
#: Largest mass of a tilted distribution outside its window.
_OUTSIDE = 1e-20
#: Atoms of the coarse distribution that chooses θ. Every θ gives a bound.
_COARSE = 2048
#: Largest exponent of e for one step of the grid. Above it only the top atom counts.
_STEEPEST = 50.0
#: Slopes of Chernoff's bound of that mass, in those of a normal law, and the width of a window, in its spreads, that
#: needs no other slope.
_SLOPES, _NEAR = (1.0, 0.4, 0.15, 0.06, 2.0), 24.0
#: A transform made for another ε is reused if its error is at most this share of δ.
_SHARE = 1e-6
#: Steps of the search for θ.
_LOOKS = 60


@dataclass(frozen=True, eq=False)
class _Coarse:
    """Approximation of a law by few atoms, for the choice of θ.

    Each atom stands for neighbours: at their mean, with their mass. `within` is the variance among them.
    """

    at: FloatArray
    log_mass: FloatArray
    within: FloatArray
    times: int

    @classmethod
    def of(cls, at: FloatArray, masses: FloatArray, times: int) -> _Coarse:
        """Merge atoms (`at` rising) that are close to each other, unless together they have much of the mass."""
        reach = max(float(at[-1] - at[0]), 1e-300)
        share = np.cumsum(masses) - masses
        cell = (_COARSE / reach * (at - at[0])).astype(np.int64) + (_COARSE * share).astype(np.int64)
        total = np.bincount(cell, weights=masses)
        mask = total > 0
        mean = np.bincount(cell, weights=masses * at)[mask] / total[mask]
        back = np.cumsum(mask) - 1
        within = np.bincount(back[cell], weights=masses * np.square(at - mean[back[cell]])) / total[mask]
        return cls(mean, np.log(total[mask]), within, times)

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Return log Σ mass·e^(θ·at), mean and variance of the tilted law, for all `times` releases together."""
        exponents = self.log_mass + theta * self.at
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        mean = float(weights @ self.at) / total
        variance = float(weights @ (np.square(self.at - mean) + self.within)) / total
        return self.times * (top + math.log(total)), self.times * mean, self.times * variance


def _moments(parts: Sequence[_Coarse], theta: float) -> tuple[float, float, float]:
    """Return `_Coarse.moments` of the sum of all parts."""
    log_sum, mean, variance = (sum(terms) for terms in zip(*(part.moments(theta) for part in parts), strict=True))
    return log_sum, mean, variance


@dataclass(frozen=True, eq=False)
class _Atoms:
    """Law of one release's loss on the grid: places of its atoms, rising from 0, and the logs of their masses."""

    place: IntArray
    log_mass: FloatArray
    times: int

    @property
    def span(self) -> int:
        return int(self.place[-1])

    @cached_property
    def coarse(self) -> _Coarse:
        """Return the same law with few atoms, at places minus the span."""
        return _Coarse.of((self.place - self.span).astype(np.float64), np.exp(self.log_mass), self.times)

    def log_sum(self, theta: float) -> float:
        """Return log Σ mass·e^(θ·(place - span)) of one release."""
        exponents = self.log_mass + theta * (self.place - self.span)
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))


@dataclass(frozen=True, eq=False)
class _Tilted:
    """Tilted law q of the sums, in a window that begins at place `first`.

    Weights Π M^k·e^(-θ·place) are e^(log_scale - θ·(place - top)). `error` is E of the module's proof, and `outside` is
    t. `factor` is the log of the relative error of masses.
    """

    theta: float
    first: int
    q: FloatArray
    log_scale: float
    error: float
    outside: float
    factor: float


@dataclass(frozen=True, eq=False)
class ComposedLoss:
    """Privacy loss distribution of independent releases together.

    Attributes:
        parts: Atoms of each kind of release.
        interval: Nats between atoms.
        base: A sum of atoms at place j is a loss of (base + step·j)·interval.
        step: As for base.
        infinite: Mass of unbounded loss.
    """

    parts: tuple[_Atoms, ...]
    interval: float
    base: int
    step: int
    infinite: float
    _made: list[_Tilted | None] = field(default_factory=list)

    def delta(self, epsilon: float) -> float:
        """Return δ(ε) of the composition, in [0, 1].

        Raises:
            ValueError: epsilon is not a number.
        """
        if math.isnan(epsilon):
            raise ValueError("epsilon is not a number")
        # places are whole numbers, and a loss is off by two roundings
        margin = 4 * _UNIT * self.interval * (abs(self.base) + self.step * self._top)
        epsilon -= margin
        if not self.parts or epsilon >= self._loss(self._top):
            return min(1.0, self.infinite)
        for tilted in self._made:
            if tilted is not None and (tilted.theta == 0 or epsilon >= self._loss(tilted.first)):
                delta, error = self._sum(tilted, epsilon)
                if error <= _SHARE * delta < math.inf:
                    return self._safe(delta, error)
        theta = self._theta(epsilon)
        tilted = self._tilt(theta)
        self._made.append(tilted)
        renyi = self._renyi(theta, epsilon)
        if tilted is None or (theta > 0 and epsilon < self._loss(tilted.first)):
            return min(1.0, self.infinite + renyi)
        return min(self._safe(*self._sum(tilted, epsilon)), self.infinite + renyi)

    def _safe(self, found: float, error: float) -> float:
        return min(1.0, self.infinite + found + error)

    def epsilon(self, delta: float) -> float:
        """Return the least ε >= 0 with δ(ε) <= delta, within 1e-9 relatively on the safe side, or inf."""
        check_delta(delta)
        if self.infinite > delta:
            return math.inf
        top = self._loss(self._top) if self.parts else 0.0
        if top <= 0 or self.delta(0.0) <= delta:
            return 0.0

        def excess(epsilon: float) -> float:
            value = self.delta(epsilon)
            if min(value, delta) <= 0:  # 0 has no logarithm
                return 1.0 if value > delta else -1.0
            return math.log(value) - math.log(delta)

        end = top * (1 + 1e-12)
        guess, fall = self._guess(max(delta, 1e-300))
        bracket = solve_epsilon(excess, min(max(guess, 1e-6 * top), 0.999 * top), end, fall=fall, tolerance=1e-9)
        if bracket is None:  # it crosses very close to the end, or at no place that was evaluated
            bracket = 0.0, 1.0
            while self.delta(bracket[1]) > delta:
                bracket = bracket[1], 2 * bracket[1]
                if bracket[1] > 1e12:
                    return math.inf
        return bracket[1]

    @property
    def _top(self) -> int:
        """Return the place of the largest sum. The smallest is at 0."""
        return sum(part.times * part.span for part in self.parts)

    def _loss(self, place: int) -> float:
        return (self.base + self.step * place) * self.interval

    def _moments(self, theta: float) -> tuple[float, float, float]:
        """Approximate the moments of the sum of all releases, at places minus the top, tilted by θ."""
        return _moments([part.coarse for part in self.parts], theta)

    def _theta(self, epsilon: float) -> float:
        """Choose θ, per step of the grid, so that the tilted mean is near ε; 0 if the mean itself is larger."""
        place = (epsilon / self.interval - self.base) / self.step - self._top
        if self._moments(0.0)[1] >= place:
            return 0.0
        return self._solve(lambda theta: self._moments(theta)[1] >= place)

    def _guess(self, delta: float) -> tuple[float, float]:
        """Estimate by a saddle point the ε with δ(ε) = delta, and the slope of log δ there."""
        nats = self.step * self.interval

        def small(theta: float) -> bool:
            log_sum, mean, variance = self._moments(theta)
            height = log_sum - theta * mean
            width = math.sqrt(2 * math.pi * max(variance, 1e-300)) * theta * (1 + theta / nats)
            return height - math.log(max(width, 1.0)) <= math.log(delta)

        theta = self._solve(small)
        mean = self._top + self._moments(theta)[1]
        return (self.base + self.step * mean) * self.interval, max(theta / nats, 1e-3)

    def _solve(self, beyond: Callable[[float], bool]) -> float:
        """Find the smallest θ that is `beyond` (all larger ones are too); _STEEPEST if none is."""
        low, high = 0.0, 2.0**-40
        while not beyond(high):
            low, high = high, 4 * high
            if high >= _STEEPEST:
                return _STEEPEST
        for _ in range(_LOOKS):
            middle = math.sqrt(low * high) if low else high / 2
            if high - low <= 1e-3 * high:
                break
            low, high = (low, middle) if beyond(middle) else (middle, high)
        return high

    def _log_sum(self, theta: float) -> float:
        return math.fsum(part.times * part.log_sum(theta) for part in self.parts)

    def _renyi(self, theta: float, epsilon: float) -> float:
        """Return the Rényi bound of δ(ε), without the mass of unbounded loss."""
        order = theta / (self.step * self.interval)
        place = (epsilon / self.interval - self.base) / self.step
        exponent = self._log_sum(theta) + theta * (self._top - place)
        if order > 0:
            exponent -= order * math.log1p(1 / order) + math.log1p(order)
        size = abs(self._log_sum(theta)) + theta * abs(self._top - place) + 64
        return math.exp(min(0.0, exponent + 16 * _UNIT * size))

    def _window(self, theta: float, log_sum: float) -> tuple[int, int] | None:
        """Find places such that q has at most _OUTSIDE below the first and above the last; None if too many."""
        if self._top < _FEW or sum(part.times for part in self.parts) == 1:
            return 0, self._top
        _, _, variance = self._moments(theta)
        log_outside = math.log(_OUTSIDE)
        spread = math.sqrt(max(variance, 1e-300))
        usual = math.sqrt(-2 * log_outside) / spread
        first, last = 0, self._top
        for share in _SLOPES:  # any s gives a bound
            s = share * usual
            rise = self._log_sum(theta + s) - log_sum  # of sums minus the top
            last = min(last, self._top + math.ceil((rise - log_outside) / s))
            fall = self._log_sum(theta - s) - log_sum
            first = max(first, self._top - math.ceil((fall - log_outside) / s))
            if last - first < _NEAR * spread:
                break
        return (first, last) if last - first < _MOST else None

    def _tilt(self, theta: float) -> _Tilted | None:
        """Convolve the tilted laws, or return None if this takes too many points or releases."""
        releases = sum(part.times for part in self.parts)
        if self.step * self._top + abs(self.base) >= 2**52 or releases > 2**40:
            return None
        sums = [part.log_sum(theta) for part in self.parts]
        log_scale = math.fsum(part.times * log_sum for part, log_sum in zip(self.parts, sums, strict=True))
        window = self._window(theta, log_scale)
        if window is None:
            return None
        first, last = window
        n = max(2, 1 << (last - first).bit_length())
        complete = first == 0 and last == self._top
        spectrum: NDArray[np.complex128] | None = None
        norms, grown = [], 0.0
        off = 8 * _UNIT * (abs(log_scale) + theta * (self._top - first) + n)  # of weights, and of a sum of n
        for part, log_sum in zip(self.parts, sums, strict=True):
            plain = part.log_mass + theta * (part.place - part.span)
            masses = np.bincount(part.place % n, weights=np.exp(plain - log_sum), minlength=n).astype(np.float64)
            kept = plain - log_sum > -745.0
            off += part.times * (3 * float(np.abs(plain[kept]).max()) + abs(log_sum) + 16) * _UNIT
            total = float(masses.sum()) * (1 + 64 * _UNIT)
            grown += part.times * max(0.0, math.log(total))
            norms.append(float(np.linalg.norm(masses)))
            if releases == 1:
                return _Tilted(theta, 0, masses, log_scale, 0.0, 0.0, off)
            transform = rfft(masses)
            size = np.abs(transform)
            transform *= np.where(size > total, total / np.maximum(size, total), 1.0)
            powered = _power(transform, part.times)
            spectrum = powered if spectrum is None else spectrum * powered
        assert spectrum is not None
        q = np.maximum(irfft(spectrum, n), 0.0)
        eta = _FFT * math.log2(n)
        error = eta * sum(part.times * norm for part, norm in zip(self.parts, norms, strict=True))
        error = 1.01 * math.exp(grown) * (error + (2.5 * releases * _UNIT + 2 * eta) * min(norms))
        return _Tilted(theta, first, np.roll(q, -(first % n)), log_scale, error, 0.0 if complete else _OUTSIDE, off)

    def _sum(self, tilted: _Tilted, epsilon: float) -> tuple[float, float]:
        """Return Σ w·q over the window, and a bound on its error."""
        start = math.floor((epsilon / self.interval - self.base) / self.step) - 1 - tilted.first
        start = max(0, start)
        places = np.arange(start, len(tilted.q)) + tilted.first
        places = places[places <= self._top]
        q = tilted.q[start : start + len(places)]
        exponents = tilted.log_scale + tilted.theta * (self._top - places)
        if len(places) and exponents[0] > 300.0:  # made for another ε, far above
            return math.inf, math.inf
        gains = np.maximum(-np.expm1(epsilon - (self.base + self.step * places) * self.interval), 0.0)
        weights = gains * np.exp(exponents)
        delta, error = float(weights @ q), float(np.linalg.norm(weights)) * tilted.error
        if tilted.outside:
            last = tilted.first + len(tilted.q) - 1
            error += tilted.outside * math.exp(min(700.0, tilted.log_scale + tilted.theta * (self._top - last)))
            error += tilted.outside if tilted.theta == 0 else 0.0  # below the window, which may contain ε
        return delta, error + math.expm1(min(700.0, tilted.factor)) * (delta + error)


def compose(
    losses: Sequence[tuple[LossCells, int]],
    *,
    interval: float | None = None,
    tail: float = 1e-15,
) -> ComposedLoss:
    """Return the loss of independent releases about the same two inputs (or records made of such).

    Atoms move to the two multiples of the interval around them, both masses kept. `losses.loss` proves that this only
    raises every result of every composition. Mass above the last atom counts as unbounded, and mass below the first
    moves up to it. n at once and n one by one are the same distribution, up to `tail` and rounding.

    Args:
        losses: Loss of each kind of release with its number of releases.
        interval: Nats between atoms. None: as fine as 2^18 points of the widest distribution.
        tail: Mass that a composition may cut off, to the safe side.

    Raises:
        ValueError: There is nothing to compose, a number of times is not whole and above 0, interval is not above 0, or
            cells describe one direction only.
    """
    if not losses:
        raise ValueError("loss distribution: nothing to compose; give at least one release")
    grouped: dict[LossCells, int] = {}
    for cells, times in losses:
        grouped[cells] = grouped.get(cells, 0) + checks.times("loss distribution", times)
        if not cells.symmetric:
            raise ValueError("loss distribution: cells of one direction only; give those of a symmetric pair")
    if interval is not None and not 0 < interval < math.inf:
        raise ValueError(f"loss distribution: interval must be a number above 0, got {interval}")
    cut = min(_CUT, tail / (4 * sum(grouped.values())))
    trimmed = [(_trimmed(cells, cut), times) for cells, times in grouped.items()]
    finite = [(losses, masses, times) for (losses, masses, _), times in trimmed if len(losses)]
    bounded = math.fsum(times * math.log1p(-min(infinite, 1 - 1e-16)) for (_, _, infinite), times in trimmed)
    infinite = 1.0 if len(finite) < len(trimmed) else -math.expm1(bounded)
    if infinite == 1.0:  # a value passes through unprotected, and with it the whole: there is nothing to convolve
        return ComposedLoss((), interval or 1.0, 0, 1, 1.0)
    width = _interval(finite, tail) if interval is None else interval
    placed = [(*_placed(losses, masses, width), times) for losses, masses, times in finite]
    step = math.gcd(*(int(np.gcd.reduce(place - place[0])) for place, _, _ in placed)) or 1
    parts = tuple(_Atoms((place - place[0]) // step, np.log(mass), times) for place, mass, times in placed)
    base = sum(times * int(place[0]) for place, _, times in placed)
    return ComposedLoss(parts, width, base, step, infinite)


def _trimmed(cells: LossCells, cut: float) -> tuple[FloatArray, FloatArray, float]:
    """Return atoms without their far ends, and the mass of unbounded loss."""
    losses, masses = cells.pessimistic
    infinite = cells.infinite + cells.left_out
    bounded = np.isfinite(losses)
    infinite += float(masses[np.isposinf(losses)].sum())
    bottom = float(masses[np.isneginf(losses)].sum())
    losses, masses = losses[bounded], masses[bounded].copy()
    if not len(losses):
        return losses, masses, infinite
    first = int(np.searchsorted(np.cumsum(masses), cut, side="right"))
    last = len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), cut, side="right"))
    first = min(first, last - 1)
    below, above = float(masses[:first].sum()) + bottom, float(masses[last:].sum())
    losses, masses = losses[first:last], masses[first:last]
    masses[0] += below
    return losses, masses, infinite + above


def _placed(losses: FloatArray, masses: FloatArray, interval: float) -> tuple[IntArray, FloatArray]:
    """Return whole multiples of the interval, rising, and their masses, all above 0."""
    # rounding of loss/interval could move an atom by a whole step, so atoms within 1e-12 of a place stay there
    steps = losses / interval
    near = np.round(steps)
    steps = np.where(np.abs(steps - near) <= 1e-12 * np.maximum(1.0, np.abs(steps)), near, steps)
    floor = np.floor(steps)
    share = -np.expm1((floor - steps) * interval) / -math.expm1(-interval)
    place = np.concatenate([floor, floor + 1])
    masses = np.concatenate([masses * (1.0 - share), masses * share])
    lowest = int(place.min())
    weights = np.bincount((place - lowest).astype(np.int64), weights=masses).astype(np.float64)
    atoms = np.flatnonzero(weights).astype(np.int64)
    return atoms + lowest, weights[atoms]


def _interval(finite: Sequence[tuple[FloatArray, FloatArray, int]], tail: float) -> float:
    """Return the smallest interval of which the largest loss is a multiple and that is wide enough.

    2^18 intervals span a release, the bulk of the composition, and a third of its bulk tilted to where `tail` is left.
    """
    top = max(float(losses[-1]) for losses, _, _ in finite)
    widest = max(float(losses[-1] - losses[0]) for losses, _, _ in finite)
    parts = [_Coarse.of(*release) for release in finite]
    width = max(widest, 16.0 * math.sqrt(_moments(parts, 0.0)[2]))
    theta, most = 1e-3 / max(width, 1e-6), 1e3 * _COARSE / max(widest, 1e-9)
    while theta < most:
        log_sum, mean, variance = _moments(parts, theta)
        width = max(width, 3.0 * math.sqrt(variance))
        if log_sum - theta * mean < math.log(tail):
            break
        theta *= 1.5
    interval = max(width, 1e-6) / _POINTS
    return top / math.ceil(top / interval) if top > 0 else interval


def _power(values: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """Return values^times by repeated squaring, at most `times` - 1 roundings deep."""
    result, square = None, values
    while True:
        if times & 1:
            result = square if result is None else result * square
        times >>= 1
        if not times:
            assert result is not None
            return result
        square = square * square
