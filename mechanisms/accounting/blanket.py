"""Blanket bound for n shuffled users by FFT, with every error on the safe side.

**The bound** (Balle, Bell, Gascón and Nissim 2019, Lemma 5.3). One of the n users is the target. With L = U - e^ε·V
under W ~ ω (mechanisms.losses.blanket_cells),

    δ(ε) <= E[(Σ_{i<=M} L_i)_+]/(γ·n),  M ~ Bin(n, γ).

Equality holds for the reduced pair, in which the others send blanket samples or nothing. As (Σ L_i)_+ <= Σ (L_i)_+, the
bound is never above the local δ(ε). With γ = 1 and ω = h, a law that the others draw from, it is the exact δ(ε).

**Approximations and their directions.** In a cell, L has a known mean and lies in a known interval. In the convex
order, any law on an interval is below the two-point law on its ends with the same mean, and a value between two grid
points is below the mean-preserving law on the two. Sums of independent copies keep the order. So the law on the grid
gives an upper bound of E[(Σ L_i)_+]. Outputs in no cell count as L = 0. As (a + b)_+ <= a_+ + b_+, this costs at most
their mass under x. Outputs with log ω below -600, or log U or log V above 300, are left out in this way.

**The sum.** S = Σ B_i·L_i with B_i ~ Bern(γ). Tilt it by e^(θS), with θ at the saddle point. Then S has mean near 0 and
E[S_+] = M(θ)^n·E_θ[S_+·e^(-θS)]. The function in the expectation decays, so errors of the tilted distribution are
relative errors of the result. The FFT works modulo the window. Mass that wraps in only adds. Mass beyond the top of the
window is bounded by Chernoff and added. Rounding is bounded too: an output of an FFT of nonnegative numbers of sum s is
off by at most c·u·log2(N)·s (Higham 2002, section 24.1, with the constant c = 8). This error goes through the n-th
power by |a^n - b^n| <= n·|a - b|·max(|a|, |b|)^(n-1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from mechanisms.accounting.solve_epsilon import solve_epsilon
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.guarantee import gaussian_delta, gaussian_epsilon
from mechanisms.losses.blanket_cells import BlanketCells

#: Grid points in a standard deviation of the tilted L, if the window allows it.
_RESOLUTION = 32
_MAX_POINTS = 2**20
_UNIT = 2.0**-53
#: Share of δ spent on outputs with the largest U. It moves ε by about a ten-thousandth, and bounds L.
SLACK = 3e-3
#: Largest number of atoms that are not first gathered in narrow bins, and the narrowness of the bins (`thinned`).
_MANY, _NARROW = 2**14, 2048
#: The same for the law that chooses tilt and window, if no exponent is above _MODERATE. Any tilt and any window give a
#: bound.
_SOME, _WIDE, _MODERATE = 2**10, 64, 32.0
#: Largest exponent of a tilted mass. The exponential function overflows a little above it.
_EXPONENT = 700.0
#: Log of the probability, under the tilted law, that S leaves the window.
_LOG_OUTSIDE = -34.0
#: Rounding of a pairwise sum of up to a million numbers, as a share of the sum of their sizes.
_SUMMED = 32 * _UNIT
#: Relative error of scalar arithmetic, added to every answer.
_ARITHMETIC = 1e-10
#: Relative error allowed to masses, and so to U and V. L is of this order if the loss is close to 0.
_MASSES = 1e-12
#: Outputs with a smaller log ω, or a larger log U or log V, are left out: their squares would overflow or underflow.
_RAREST, _LARGEST = -600.0, 300.0
#: Result of `_log_positive_part` on overflow: no bound.
_NOTHING = math.inf, -math.inf
#: Fewer expected blanket samples than this hide nobody: the local bound is returned.
_FEWEST_SAMPLES = 1e-2


def blanket_delta(cells: BlanketCells, n: int, epsilon: float, *, slack: float = 1e-18) -> float:
    """Return an upper bound of δ(ε) of the blanket bound for n users.

    Args:
        cells: Cells of the local loss and of the blanket.
        n: Users, the target included.
        epsilon: ε in nats, in [0, 700].
        slack: Mass under x of the outputs with the largest U that may be left out. It is added to δ.

    Raises:
        ValueError: n < 1, or ε is not in [0, 700].
    """
    n = _users(n)
    if not 0 <= epsilon <= 700:
        raise ValueError(f"blanket: epsilon must be from 0 to 700, got {epsilon}")
    values, masses, outside = _atoms(cells, epsilon, slack)
    local = min(1.0, float(np.dot(masses, np.maximum(values, 0.0))) * (1 + _ARITHMETIC) + outside)
    gamma = math.exp(min(0.0, cells.log_gamma))
    if n * gamma < _FEWEST_SAMPLES:
        return local  # no transform distinguishes a sum of so few from none
    if gamma == 0.0 or not (values > 0).any():
        return outside
    if len(values) > _MANY:
        values, masses = thinned(values, masses, _NARROW)
    log_sum, log_error = _log_positive_part(values, masses, gamma, n)
    log_users = math.log(n) + math.log(gamma)
    total = math.exp(min(0.0, np.logaddexp(log_sum, log_error) - log_users))
    return min(local, total * (1 + _ARITHMETIC) + outside)


def blanket_epsilon(cells: BlanketCells, n: int, delta: float) -> float | None:
    """Return the least ε of the blanket bound for n users at δ, or None if it is not below the local ε.

    ε is within 1e-4 of itself on the safe side.

    Raises:
        ValueError: n < 1, or δ is not in (0, 1).
    """
    n = _users(n)
    if not 0 < delta < 1:
        raise ValueError(f"blanket: delta must be above 0 and below 1, got {delta}")
    return least_epsilon(cells, n, delta, cells.loss().epsilon(delta))


def least_epsilon(
    cells: BlanketCells,
    n: int,
    delta: float,
    local: float,
    *,
    near: float | None = None,
    tolerance: float = 1e-4,
) -> float | None:
    """Return `blanket_epsilon` if the local ε is already known. The search stays below it.

    Args:
        cells: Cells of the local loss and of the blanket.
        n: Users, the target included.
        delta: δ in (0, 1).
        local: Local ε at δ.
        near: First guess of ε, above 0 and below local. By default the Gaussian limit gives it.
        tolerance: Relative tolerance of ε. The result is on the safe side with any tolerance.
    """
    gamma = math.exp(min(0.0, cells.log_gamma))
    if n * gamma < _FEWEST_SAMPLES or local == 0.0:
        return None
    slack = delta * SLACK

    def excess(epsilon: float) -> float:
        value = blanket_delta(cells, n, epsilon, slack=slack)
        if math.isnan(value):  # `solve_epsilon` takes NaN for too much
            return math.nan
        return math.log(max(value, 1e-300)) - math.log(delta)

    top = min(local, 600.0)
    ratio = _gaussian_ratio(cells, n)
    guess = min(max(1e-6, gaussian_epsilon(ratio, delta)), 0.7 * top) if near is None else min(near, top)
    bracket = solve_epsilon(excess, guess, top, fall=_fall(ratio, guess), tolerance=tolerance)
    if bracket is None:
        return None
    _, high = bracket
    # closer to the local ε the crowd adds nothing of interest
    return high if high < top * (1 - tolerance) else None


def _gaussian_ratio(cells: BlanketCells, n: int) -> float:
    """Return shift over deviation of the Gaussian limit, at most 100. Its square is E[(U - V)²] under ω over γn."""
    keep = _held(cells)
    w = np.exp(cells.log_w[keep])
    difference = (np.exp(cells.log_p[keep]) - np.exp(cells.log_q[keep])) / w
    return min(math.sqrt(float(np.dot(w, difference**2)) / n * math.exp(-cells.log_gamma)), 100.0)


def _fall(ratio: float, epsilon: float) -> float:
    """Return the slope at which the Gaussian limit's log δ falls at ε, or 1/ε if it is 0 or close to it."""
    here, beyond = (gaussian_delta(ratio, e) for e in (epsilon, 1.001 * epsilon))
    return math.log(here / beyond) / (1e-3 * epsilon) if here > beyond > 0 else 1 / epsilon


def _users(n: int) -> int:
    if isinstance(n, bool) or int(n) != n or n < 1:
        raise ValueError(f"blanket: the number of users must be a whole number of at least 1, got {n}")
    return int(n)


def _held(cells: BlanketCells) -> BoolArray:
    return (cells.log_w > _RAREST) & (np.maximum(cells.log_u_high, cells.log_v_high) < _LARGEST)


def _atoms(cells: BlanketCells, epsilon: float, slack: float) -> tuple[FloatArray, FloatArray, float]:
    """Return the values of L, their masses under ω, and the mass outside them under x."""
    keep = _held(cells)
    order, by_v = cells.orders
    mass = np.exp(cells.log_p)
    keep[order[np.cumsum(mass[order]) <= slack]] = False
    outside = cells.tail + float(mass[~keep].sum())
    w = np.exp(cells.log_w[keep])
    u, v = np.exp(cells.log_p[keep] - cells.log_w[keep]), np.exp(cells.log_q[keep] - cells.log_w[keep] + epsilon)
    rounding = _MASSES * (u + v)
    low, high = cells.log_u_low[keep], cells.log_u_high[keep]
    low = np.exp(low) * (1 - _MASSES) - np.exp(cells.log_v_high[keep] + epsilon) * (1 + _MASSES)
    high = np.exp(high) * (1 + _MASSES) - np.exp(cells.log_v_low[keep] + epsilon) * (1 - _MASSES)
    share = np.clip((u - v + rounding - low) / (high - low), 0.0, 1.0)
    # Values far below 0 would stretch the grid. Raising them to a floor only adds.
    order = (np.cumsum(keep) - 1)[by_v[keep[by_v]]]
    rare = order[np.cumsum((w * v)[order]) <= 1e-7]
    if len(rare):
        low, high = (np.maximum(ends, -float(v[rare].min())) for ends in (low, high))
    return np.concatenate([low, high]), np.concatenate([w * (1 - share), w * share]), outside


@dataclass(frozen=True, eq=False)
class _Window:
    """Interval of S under the tilted law: from -below to above, except for a probability of e^_LOG_OUTSIDE.

    `spread` is the root mean square of a tilted value. `tilts` are the values added to θ at which Chernoff's bound is
    taken.
    """

    above: float
    below: float
    spread: float
    tilts: list[float]


def _log_positive_part(values: FloatArray, masses: FloatArray, gamma: float, n: int) -> tuple[float, float]:
    """Return log E[S_+] of the discretised S, and log of a bound on what it misses."""
    largest = float(values.max())
    # one value of -n·largest outweighs all others: values below it change no positive part
    values = np.maximum(values, -n * largest)
    theta, window = _placed(values, masses, gamma, n, largest)
    above, below = window.above, window.below
    if not math.isfinite(above):
        return _NOTHING
    if not math.isfinite(below):  # mass that wraps in from below only adds, and the tilt makes it negligible
        below = max(above, window.spread)
    step = max(window.spread / _RESOLUTION, (above + below) / (_MAX_POINTS - 64))
    index, mass = spread_on_grid(values, masses, step)  # above the law of L in the convex order

    # from here on: the tilted law on the grid
    point: FloatArray = np.multiply(index, step, dtype=np.float64)
    if theta * float(point.max()) > _EXPONENT:
        return _NOTHING
    tilted = mass * np.exp(theta * point)
    grown = gamma * mass * np.expm1(theta * point)
    rounded = _SUMMED * float(np.abs(grown).sum())
    # adds the rounding of the sum to the mass at 0: a law above the one on the grid
    excess = float(grown.sum()) + rounded
    if excess <= -1:
        return _NOTHING
    log_growth = math.log1p(excess)
    size = int(next_fast_len(math.ceil((above + below) / step) + 64, real=True))
    dense = np.bincount(_wrapped(index, size), weights=tilted, minlength=size)
    total = float(tilted.sum())
    scale = gamma * math.exp(-log_growth)
    factor = scale * (rfft(dense) - total)  # characteristic function minus 1, without cancellation near 1
    logs, power = _power(factor, n)
    law = irfft(power, size)

    bottom = -math.floor(below / step) - 16
    slots = np.arange(bottom, bottom + size)
    reached = slots * step
    first = int(np.searchsorted(reached, 0.0, side="right"))
    reached = reached[first:]
    weight = reached * np.exp(-theta * reached)
    chances = np.roll(law, -bottom)[first:]
    answer = float(np.maximum(chances, 0.0) @ weight)

    top = (bottom + size - 1) * step
    # Chernoff: log probability that S is beyond the top of the window
    growths = ((shift, _growth(mass, point, gamma, theta + shift) - log_growth) for shift in window.tilts)
    beyond = min(0.0, *(n * growth - shift * top for shift, growth in growths))
    missed = top * math.exp(-theta * top + beyond) if top * theta > 1 else math.exp(beyond - 1) / theta
    error = _rounding(factor, logs, power, scale, total, n, size) * float(weight.sum())
    error += missed
    base = n * log_growth
    return base + math.log(max(answer, 1e-300)), base + math.log(max(error, 1e-300))


def _wrapped(index: IntArray, size: int) -> IntArray:
    """Return index modulo size. Most indices lie near 0, where an addition is much faster than an integer remainder."""
    if not -size <= index.min() <= index.max() < size:
        index = np.mod(index, size)
    return np.where(index < 0, index + size, index)


def _placed(values: FloatArray, masses: FloatArray, gamma: float, n: int, largest: float) -> tuple[float, _Window]:
    """Return θ and the window, from a law of fewer atoms if that is as good."""
    rough = thinned(values, masses, _WIDE) if len(values) > _SOME else (values, masses)
    if float(rough[0].max()) > 2 * largest:  # values far below 0 make the bins around `largest` wider than it is
        rough = values, masses
    theta = _tilt(*rough, gamma, n, largest)
    if theta * largest > _MODERATE:
        rough = values, masses
        theta = _tilt(*rough, gamma, n, largest)
    return theta, _window(*rough, gamma, n, theta, largest)


def _tilt(values: FloatArray, masses: FloatArray, gamma: float, n: int, largest: float) -> float:
    """Return θ: the saddle point, or, if that is almost 0, a tilt that gains between a quarter and a half of a nat."""

    def growth(t: float) -> float:
        return _growth(masses, values, gamma, t)

    theta = _saddle(values, masses)
    if n * growth(theta) > -0.5:  # near a mean of 0 the tilt would vanish; half a nat of it keeps the weight decaying
        low, high = theta, theta + 1 / largest
        while n * growth(high) < 0.5:
            low, high = high, 2 * high
        for _ in range(200):  # heavy tails reach half a nat far below 1/largest
            middle = (low + high) / 2
            low, high = (middle, high) if n * growth(middle) < 0.5 else (low, middle)
            if n * growth(low) > 0.25:
                break
        theta = low
    return theta


def _window(values: FloatArray, masses: FloatArray, gamma: float, n: int, theta: float, largest: float) -> _Window:
    """Return the window of S under the law tilted by θ. `below` is inf if Chernoff gives no bound there."""

    def growth(t: float) -> float:
        return _growth(masses, values, gamma, t)

    tilted, here = masses * np.exp(theta * values), growth(theta)
    spread = math.sqrt(float(tilted @ values**2) / float(tilted.sum()))
    deviation = math.sqrt(n * gamma * float(tilted @ values**2) / math.exp(here))
    tilts = [t / deviation for t in (0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0)] + [
        t / largest for t in (1.0, 4.0, 16.0)
    ]

    def reach(sign: float) -> float:  # end at which Chernoff leaves e^_LOG_OUTSIDE
        best = math.inf
        for t in tilts:
            best = min(best, (n * (growth(theta + sign * t) - here) - _LOG_OUTSIDE) / t)
        return best

    return _Window(max(reach(1.0), 0.0), max(reach(-1.0), 0.0), spread, tilts)


def _power(factor: NDArray[np.complex128], n: int) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return log(1 + factor) and (1 + factor)^n, complex, in the shape of factor.

    Both are 0 where the power underflows. That is most of a long transform, and would take most of its time.
    """
    kept = _lives(np.abs(1 + factor), n)
    logs, power = np.zeros_like(factor), np.zeros_like(factor)
    logs[kept] = np.log1p(factor[kept])
    power[kept] = np.exp(n * logs[kept])
    return logs, power


def _lives(modulus: FloatArray, n: int) -> BoolArray:
    """Return True where modulus^n, modulus >= 0, is at least the smallest number above 0, e^-745.1."""
    return modulus > math.exp(-746.0 / max(n, 1))


def _rounding(
    factor: NDArray[np.complex128],
    logs: NDArray[np.complex128],
    power: NDArray[np.complex128],
    scale: float,
    total: float,
    n: int,
    size: int,
) -> float:
    """Bound the effect of the transforms' rounding on one probability of the sum of n tilted terms.

    `factor` is the characteristic function of a term minus 1, and `logs` and `power` are `_power` of it. `scale`
    multiplies the transform of a term of mass `total`.
    """
    fft_error = 8 * _UNIT * math.log2(size)
    off = 2 * fft_error * scale * total + 8 * _UNIT * np.abs(factor)
    largest = np.minimum(np.abs(1 + factor) + off, 1.0)
    alive = _lives(largest, n - 1)  # includes every place with a power: the power is no larger
    off, largest = off[alive], largest[alive]
    magnitude = np.abs(power[alive])
    wrong = n * off * largest ** (n - 1) + 4 * _UNIT * (1 + n * np.abs(logs[alive])) * magnitude + fft_error * magnitude
    return 2 * float(wrong.sum()) / size


def _growth(masses: FloatArray, values: FloatArray, gamma: float, t: float) -> float:
    """Return the log of the moment generating function of B·L at t, or inf if it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        excess = gamma * float(masses @ np.expm1(t * values))
    # a mean of almost 0 is lost in the rounding of 1 + excess, so no smaller value is claimed
    return math.log1p(max(excess, -1 + 1e-14)) if math.isfinite(excess) else math.inf


def _saddle(values: FloatArray, masses: FloatArray) -> float:
    """Return θ >= 0 with Σ masses·values·e^(θ·values) = 0, or 0 if the mean is not negative."""
    if float(masses @ values) >= 0:
        return 0.0
    largest = float(values.max())

    def slope(theta: float) -> float:  # scaled by e^(-θ·largest): no overflow
        return float((masses * values) @ np.exp(theta * (values - largest)))

    low, high = 0.0, 1.0 / largest
    while slope(high) < 0 and high * largest < 600:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        if high - low < 1e-6 * high:
            break
    return high


def thinned(values: FloatArray, masses: FloatArray, bins: int) -> tuple[FloatArray, FloatArray]:
    """Return fewer atoms in the safe direction: on the ends of bins.

    A law is above another in the convex order if E[f] is no less for every convex f. A value that is spread on two
    around it with its mean kept is above.
    """
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
