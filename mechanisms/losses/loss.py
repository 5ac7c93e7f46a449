"""Privacy loss of one pair of inputs, in cells: bounds of the loss, and its mass under either input.

**Why cells (proved).** Write the outputs' loss as L = log p/q for densities p under x and q under x'. The hockey-stick
divergence is δ(ε) = E_q φ(e^L) with the convex φ(t) = (t - e^ε)_+. In a cell with masses P and Q, e^L has mean P/Q
under q and lies in [e^low, e^high]. Among all such laws the two-point law on the ends is the largest in convex order,
the point mass at the mean the least (Jensen). So moving every cell to its ends, both masses kept, only raises every
δ(ε). This holds alone and in any composition (a convex function of a product of independent e^L is convex in each).
Collapsing a cell to its mean ratio, a merging of outputs, only lowers them. This is the "connect the dots" of
Doroshenko et al. 2022 (arXiv 2207.04380), cell by cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from mechanisms.arrays import FloatArray

#: Rounding of the log of a mass by float64, as a share of it.
_ROUNDED = 2.0**-50


@dataclass(frozen=True, eq=False)
class LossCells:
    """Privacy loss of a pair (x, x') of inputs that dominates a set of pairs.

    Attributes:
        low: (J,) nats. The loss log p_x/p_x' of every output in cell j lies in [low_j, high_j]; -inf and inf are
            allowed.
        high: As for low.
        log_p: (J,) log masses of the cell under x; -inf for a cell that x never reaches.
        log_q: (J,) log masses of the cell under x'.
        infinite: Mass under x of outputs that x' never makes.
        symmetric: Whether the exchanged pair (x', x) has the same law of its loss, so that one direction serves for
            both.
        left_out: Mass under x of unknown loss. It counts as unbounded in pessimistic results and as nothing in
            optimistic ones.
        doubt: Nats, a number or (J,): error of log_p - log_q beside the rounding of float64. If a cell is no wider, as
            at the least ε, its mass goes to the safe end.

    Raises:
        ValueError: The arrays differ in length, low > high, or masses add up to more than 1 (to 1e-9).
    """

    low: FloatArray
    high: FloatArray
    log_p: FloatArray
    log_q: FloatArray
    infinite: float = 0.0
    symmetric: bool = True
    left_out: float = 0.0
    doubt: FloatArray | float = 0.0

    def __post_init__(self) -> None:
        for name in ("low", "high", "log_p", "log_q"):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64)))
        if not self.low.shape == self.high.shape == self.log_p.shape == self.log_q.shape or self.low.ndim != 1:
            raise ValueError("loss cells: low, high, log_p and log_q must be rows of one length")
        if not (self.low <= self.high).all():
            raise ValueError("loss cells: every cell needs low <= high; one has not, or holds not-a-number")
        if not (self.infinite >= 0 and self.left_out >= 0):
            raise ValueError(f"loss cells: masses must be at least 0, got {self.infinite} and {self.left_out}")
        total = float(np.exp(self.log_p).sum()) + self.infinite + self.left_out
        if not total <= 1 + 1e-9:
            raise ValueError(f"loss cells: masses under x make {total:.12g}, more than 1; check log_p")

    def delta(self, epsilon: float) -> float:
        """Return δ(ε), from above: the hockey-stick divergence with every cell moved to its ends. epsilon is any real.

        Raises:
            ValueError: epsilon is not a number.
        """
        losses, masses = self.pessimistic
        return min(1.0, self.infinite + self.left_out + _hockey_stick(losses, masses, epsilon))

    def delta_optimistic(self, epsilon: float) -> float:
        """Return δ(ε), from below: the hockey-stick divergence with every cell at its mean ratio."""
        losses, masses = self.optimistic
        return min(1.0, self.infinite + _hockey_stick(losses, masses, epsilon))

    def epsilon(self, delta: float) -> float:
        """Return the least ε >= 0 whose pessimistic δ(ε) is at most delta in [0, 1), or inf."""
        if delta == 0:  # not even a mass too small for float64 may have a larger loss
            if self.infinite + self.left_out > 0:
                return math.inf
            return float(self._atoms[0].max(initial=0.0))
        losses, masses = self.pessimistic
        return _least_epsilon(losses, masses, self.infinite + self.left_out, delta)

    def epsilon_optimistic(self, delta: float) -> float:
        """Return the least ε >= 0 whose optimistic δ(ε) is at most delta in [0, 1): no true ε is below it."""
        losses, masses = self.optimistic
        return _least_epsilon(losses, masses, self.infinite, delta)

    @cached_property
    def pessimistic(self) -> tuple[FloatArray, FloatArray]:
        """Return the atoms that dominate: losses rising (A,), and masses under x (A,). Losses may be inf."""
        losses, log_masses = self._atoms
        return losses, np.exp(log_masses)

    @cached_property
    def optimistic(self) -> tuple[FloatArray, FloatArray]:
        """Return the atoms that are dominated: losses rising (A,), and masses under x (A,)."""
        losses, log_masses = _sorted(self._ratio(-1), self.log_p)
        return losses, np.exp(log_masses)

    @cached_property
    def _atoms(self) -> tuple[FloatArray, FloatArray]:
        """Return the atoms of `pessimistic`, with the logs of their masses."""
        ratio = self._ratio(1)
        # Of x's mass the upper end gets (1 - e^(low - ratio))/(1 - e^(low - high)), so that the mass under x' is kept
        # too, and the lower end the rest, e^(low - ratio)·(1 - e^(ratio - high))/(1 - e^(low - high)).
        with np.errstate(invalid="ignore", divide="ignore"):
            width = np.log(-np.expm1(self.low - self.high))
            upper = np.log(-np.expm1(self.low - ratio)) - width
            lower = self.low - ratio + np.log(-np.expm1(ratio - self.high)) - width
        single = ~(self.low < self.high) | np.isnan(upper) | np.isnan(lower)  # all of it to the safe end
        upper, lower = np.where(single, 0.0, upper), np.where(single, -np.inf, lower)
        losses = np.concatenate([self.low, self.high])
        return _sorted(losses, np.concatenate([self.log_p + lower, self.log_p + upper]))

    def _ratio(self, side: int) -> FloatArray:
        """Return the log of each cell's mean ratio P/Q, from above (side 1) or below (-1), within the cell's bounds."""
        with np.errstate(invalid="ignore"):
            ratio = self.log_p - self.log_q
            off = self.doubt + _ROUNDED * (8 + np.abs(self.log_p) + np.abs(self.log_q))
            ratio = np.where(np.isfinite(self.high), ratio + side * off, ratio)
        # a cell without mass under x may be put anywhere
        losses: FloatArray = np.clip(np.where(np.isnan(ratio), self.low, ratio), self.low, self.high)
        return losses


def no_loss() -> LossCells:
    """Return the loss of two equal inputs: none."""
    zero = np.zeros(1)
    return LossCells(low=zero, high=zero, log_p=zero, log_q=zero)


def unbounded_loss() -> LossCells:
    """Return the loss of a value that passes unprotected: every output distinguishes the inputs."""
    none = np.zeros(0)
    return LossCells(low=none, high=none, log_p=none, log_q=none, infinite=1.0)


def checked_distance(owner: str, distance: float | None, diameter: float) -> float:
    """Return `distance`, or the diameter if it is None.

    Raises:
        ValueError: It is not in [0, diameter] (to 1e-12).
    """
    if distance is None:
        return diameter
    if not 0 <= distance <= diameter * (1 + 1e-12) or math.isinf(distance):
        raise ValueError(f"{owner}: distance must be from 0 to {diameter:g}, got {distance}")
    return min(float(distance), diameter)


def tighter(first: LossCells, second: LossCells) -> LossCells:
    """Return the second of two dominating losses if its total variation and largest loss are no larger.

    Else return the first.
    """
    better = second.delta(0.0) <= first.delta(0.0) and second.epsilon(0.0) <= first.epsilon(0.0)
    return second if better else first


def check_delta(delta: float) -> float:
    """Return `delta` as a float.

    Raises:
        ValueError: It is not in [0, 1).
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), got {delta}")
    return float(delta)


def _sorted(losses: FloatArray, log_masses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the atoms with mass, by rising loss."""
    kept = np.isfinite(log_masses)
    losses, log_masses = losses[kept], log_masses[kept]
    order = np.argsort(losses, kind="stable")
    return losses[order], log_masses[order]


def _hockey_stick(losses: FloatArray, masses: FloatArray, epsilon: float) -> float:
    """Return the sum of masses·(1 - e^(ε - loss))_+ of atoms with rising losses."""
    if math.isnan(epsilon):
        raise ValueError("epsilon is not a number")
    if epsilon == math.inf:
        return float(masses[np.isposinf(losses)].sum())
    above = int(np.searchsorted(losses, epsilon, side="right"))
    return float(np.dot(masses[above:], -np.expm1(epsilon - losses[above:])))


def _least_epsilon(losses: FloatArray, masses: FloatArray, infinite: float, delta: float) -> float:
    """Return the least ε >= 0 with infinite + δ(ε) <= delta: between two atoms δ is A - e^ε·B, which is inverted."""
    check_delta(delta)

    def excess(epsilon: float) -> float:
        return infinite + _hockey_stick(losses, masses, epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(math.inf) > 0:
        return math.inf
    finite = losses[np.isfinite(losses)]
    left, right = int(np.searchsorted(finite, 0.0, side="right")), len(finite) - 1
    if left > right or excess(float(finite[right])) > 0:
        # only unbounded losses lie above the last atom, and they alone are within delta, so this can only be rounding
        return math.inf if left > right else float(finite[right]) * (1 + 1e-12) + 1e-12
    while left < right:  # searches for the first atom at which δ is small enough
        middle = (left + right) // 2
        if excess(float(finite[middle])) <= 0:
            right = middle
        else:
            left = middle + 1
    upper = float(finite[right])
    lower = max(0.0, float(finite[right - 1])) if right else 0.0
    above = slice(right, None)
    weight = infinite + float(masses[above].sum()) - delta
    with np.errstate(divide="ignore"):
        log_b = float(logsumexp(np.log(masses[above]) - losses[above]))
    root = math.log(weight) - log_b if weight > 0 and math.isfinite(log_b) else upper
    root = min(max(root, lower), upper)
    step = 1e-15 * max(1.0, root)
    while root < upper and excess(root) > 0:  # rounding goes to the safe side
        root, step = root + step, 2 * step
    return min(root, upper)
