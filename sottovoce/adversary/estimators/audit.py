"""Empirical lower bounds of ε and δ from draws of two inputs, at a stated confidence.

The adversary sees independent draws under an input x and under an input x'. It scores each output in one or several
ways; a high score speaks for x. Draws are in three parts. On the first quarter, a score may be learned. On the second
quarter, an event is chosen: "this score is at least t" or "at most t". Only the other half, on which nothing was
chosen, is reported. So several scores raise no more false alarms than one. For an event O and any (ε,
δ)-indistinguishable pair,

  Pr[O | x] <= e^ε·Pr[O | x'] + δ.

Clopper and Pearson (1934) give bounds a <= Pr[O | x] and b >= Pr[O | x'], each wrong with probability at most alpha/2.
So ε is at least ln((a - δ)/b), and δ(ε) at least a - e^ε·b. Both are wrong with probability at most alpha, whatever was
learned and chosen before (Jagielski, Ullman and Oprea 2020, for pure ε).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv, ndtri

FloatArray = NDArray[np.float64]
Outputs = NDArray[Any]
#: Function from outputs (n,) or (n, k) to scores (n,).
Score = Callable[[Outputs], FloatArray]
#: Function from outputs under x and under x' to a score; a known score ignores them.
Fit = Callable[[Outputs, Outputs], Score]

#: Least draws of each input for any measurement.
MIN_DRAWS = 2000
#: Most events to try of each kind: half of them evenly spaced, half ever rarer.
_EVENTS = 256
#: Score of an output that only one of the inputs can give. Twice this value marks an output that the law excludes.
_CERTAIN = 1e6


def low(successes: NDArray[Any] | int, trials: int, alpha: float) -> FloatArray:
    """Return Clopper and Pearson's lower bound of a probability, wrong with probability at most alpha.

    Args:
        successes: Number of successes, or an array of them.
        trials: Number of trials.
        alpha: Error probability.
    """
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bound = betaincinv(k, trials - k + 1, alpha)
    return np.where(k > 0, bound, 0.0)


def high(successes: NDArray[Any] | int, trials: int, alpha: float) -> FloatArray:
    """Return Clopper and Pearson's upper bound of a probability, wrong with probability at most alpha.

    Args:
        successes: Number of successes, or an array of them.
        trials: Number of trials.
        alpha: Error probability.
    """
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bound = betainccinv(k + 1, trials - k, alpha)
    return np.where(k < trials, bound, 1.0)


def largest(draws: int, alpha: float) -> float:
    """Return the largest ε that an audit can show: that of a perfect attack.

    Args:
        draws: Draws of each input.
        alpha: Error probability.
    """
    half = draws - draws // 2
    return float(np.log(low(half, half, alpha / 2) / high(0, half, alpha / 2)))


@dataclass(frozen=True, eq=False)
class Scores:
    """S scores of draws under x and x', (S, n) each.

    Args:
        chosen: Scores on the part that chooses events.
        reported: Scores on the part that is reported.
        fitted: Score functions, in the same order.
    """

    chosen: tuple[FloatArray, FloatArray]
    reported: tuple[FloatArray, FloatArray]
    fitted: tuple[Score, ...] = ()


@dataclass(frozen=True)
class Event:
    """Event that a score is at least a threshold.

    Args:
        of: Number of the score.
        swapped: True for the event that the score is at most minus the threshold, which speaks for x'.
        threshold: Threshold of the score.
    """

    of: int
    swapped: bool
    threshold: float

    def counted(self, first: FloatArray, second: FloatArray) -> Counts:
        """Return how often the event occurred, from scores (n,) under x and under x'."""
        first_scores, second_scores = (-second, -first) if self.swapped else (first, second)
        return Counts(
            int((first_scores >= self.threshold).sum()),
            int((second_scores >= self.threshold).sum()),
            len(first_scores),
            len(second_scores),
        )


@dataclass(frozen=True)
class Counts:
    """Number of times that an event occurred.

    Args:
        hits: Occurrences under its own input.
        misses: Occurrences under the other input.
        own: Draws of its own input.
        other: Draws of the other input.
    """

    hits: int
    misses: int
    own: int
    other: int

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Return a lower bound of the probability under its own input, and an upper bound under the other.

        Together they are wrong with probability at most alpha.
        """
        return float(low(self.hits, self.own, alpha / 2)), float(high(self.misses, self.other, alpha / 2))


@dataclass(frozen=True)
class LowerBound:
    """Lower bound of ε at δ.

    Args:
        epsilon: The bound in nats, at least 0.
        event: Event that gives the bound.
        counts: Its occurrences on the reported part.
    """

    epsilon: float
    event: Event
    counts: Counts


@dataclass(frozen=True)
class Excess:
    """Claimed point (ε, δ) that looked worst, with the δ measured at that ε.

    Args:
        epsilon: ε of the point.
        claimed: δ of the point.
        measured: Lower bound of δ at that ε.
        event: Event that gives the bound.
        counts: Its occurrences on the reported part.
    """

    epsilon: float
    claimed: float
    measured: float
    event: Event
    counts: Counts

    @property
    def violated(self) -> bool:
        """Return True if the measured δ is above the claimed one."""
        return self.measured > self.claimed


def scores(first: Outputs, second: Outputs, *fits: Fit) -> Scores:
    """Return scores of n draws under each input, with the parts taken in order.

    Args:
        first: Outputs under x.
        second: Outputs under x'.
        *fits: Functions that learn a score.

    Raises:
        ValueError: There are too few draws.
    """
    n = min(len(first), len(second))
    if n < MIN_DRAWS:
        raise ValueError(f"audit: {n} draws are too few; at least {MIN_DRAWS:,} of each input are needed")
    quarter, half = n // 4, n // 2
    functions = [fit(first[:quarter], second[:quarter]) for fit in fits]

    def all_of(outputs: Outputs) -> FloatArray:
        return np.stack([score(outputs) for score in functions])

    halves = all_of(first[quarter:half]), all_of(second[quarter:half])
    return Scores(halves, (all_of(first[half:n]), all_of(second[half:n])), tuple(functions))


def lower_epsilon(scores: Scores, delta: float, alpha: float) -> LowerBound:
    """Return a lower bound of ε at δ, wrong with probability at most alpha."""
    best, event = -math.inf, None
    for part_number, swap in _ways(scores):
        thresholds, a, b = _rates(scores, part_number, swap, alpha)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(np.maximum(a - delta, 0.0) / b)
        at = int(np.argmax(value))
        if value[at] > best or event is None:
            best, event = float(value[at]), Event(part_number, swap, float(thresholds[at]))
    assert event is not None
    counts = event.counted(*(part[event.of] for part in scores.reported))
    at_least, at_most = counts.bounds(alpha)
    ratio = (at_least - delta) / at_most
    return LowerBound(math.log(ratio) if ratio > 1 else 0.0, event, counts)


def lower_mu(scores: Scores, alpha: float) -> float:
    """Return a lower bound of μ, at least 0, wrong with probability at most alpha.

    μ is the least for which a Gaussian trade-off bounds the pair. The bound is Φ⁻¹(a) − Φ⁻¹(b) of an event.

    Source: Nasr et al. 2023, for μ-GDP of Dong, Roth and Su 2022.
    """
    best, event = -math.inf, None
    for part_number, swap in _ways(scores):
        thresholds, a, b = _rates(scores, part_number, swap, alpha)
        with np.errstate(invalid="ignore"):
            value = np.nan_to_num(ndtri(a) - ndtri(b), nan=-math.inf, neginf=-math.inf)
        at = int(np.argmax(value))
        if value[at] > best or event is None:
            best, event = float(value[at]), Event(part_number, swap, float(thresholds[at]))
    assert event is not None
    at_least, at_most = event.counted(*(part[event.of] for part in scores.reported)).bounds(alpha)
    return max(0.0, float(ndtri(at_least) - ndtri(at_most))) if at_least > 0 and at_most < 1 else 0.0


def excess(scores: Scores, points: FloatArray, alpha: float) -> Excess:
    """Test the claim that the pair is (ε, δ)-indistinguishable at every point, by one measurement.

    If every claim is true, the result is `violated` with probability at most alpha.

    Args:
        scores: Scores of the draws.
        points: Claimed points (J, 2).
        alpha: Error probability.
    """
    epsilons, deltas = points[:, 0], points[:, 1]
    best, choice = -math.inf, None
    for part_number, swap in _ways(scores):
        thresholds, a, b = _rates(scores, part_number, swap, alpha)
        n = scores.chosen[0].shape[1]
        growth = np.exp(np.minimum(epsilons, 700.0))[:, None]
        margin = a - growth * b - deltas[:, None]
        # pick the point that is violated most surely, in standard deviations, not by the largest measured value
        spread = np.sqrt((a * (1 - a) + growth**2 * b * (1 - b) + 1 / n) / n)
        significance = margin / spread if len(points) > 1 else margin
        at = np.unravel_index(int(np.argmax(significance)), significance.shape)
        if significance[at] > best or choice is None:
            best, choice = float(significance[at]), (int(at[0]), Event(part_number, swap, float(thresholds[at[1]])))
    assert choice is not None
    point, event = choice
    counts = event.counted(*(part[event.of] for part in scores.reported))
    lower_bound = excess_of(counts, float(epsilons[point]), alpha)
    return Excess(float(epsilons[point]), float(deltas[point]), lower_bound, event, counts)


def excess_of(counts: Counts, epsilon: float, alpha: float) -> float:
    """Return a lower bound of δ at ε from counts, at least 0, wrong with probability at most alpha."""
    a, b = counts.bounds(alpha)
    return max(0.0, a - math.exp(min(epsilon, 700.0)) * b)


def _ways(scores: Scores) -> list[tuple[int, bool]]:
    return [(number, swap) for number in range(len(scores.chosen[0])) for swap in (False, True)]


@lru_cache(maxsize=4)  # all figures of one game use the same rates, two for each score
def _rates(scores: Scores, of: int, swapped: bool, alpha: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a score's thresholds, with bounds of each event's probability on the part that chooses events.

    Events are "at least t" (swapped: "at most t", which speaks for x'). The bounds are a lower one under the event's
    own input, and an upper one under the other.
    """
    first, second = (part[of] for part in scores.chosen)
    first_scores, second_scores = (-second, -first) if swapped else (first, second)
    first_scores, second_scores = np.sort(first_scores), np.sort(second_scores)
    ranks = _ranks(len(first_scores))
    thresholds = np.unique(np.concatenate([first_scores[-ranks], second_scores[-ranks]]))
    hits = len(first_scores) - np.searchsorted(first_scores, thresholds, side="left")
    misses = len(second_scores) - np.searchsorted(second_scores, thresholds, side="left")
    return thresholds, low(hits, len(first_scores), alpha / 2), high(misses, len(second_scores), alpha / 2)


@lru_cache(maxsize=64)
def _ranks(n: int) -> NDArray[np.int64]:
    """Return the ranks of the draws that are thresholds, 1 for the largest: half evenly spaced, half ever rarer."""
    count = _EVENTS // 4
    return np.unique(np.concatenate([np.geomspace(1, n, count), np.linspace(1, n, count)]).astype(np.int64))


# --- scores


def known(score: Score) -> Fit:
    """Return a score that needs no learning: a log-likelihood ratio, or a statistic that rises with it."""
    return lambda first, second: score


def learned(first: Outputs, second: Outputs) -> Score:
    """Learn a score from examples.

    For whole numbers it is the log-ratio of frequencies; an output without examples has score 0. For other outputs it
    is a linear score (Fisher's).

    Args:
        first: Outputs under x, (n,) or (n, k).
        second: Outputs under x', of the same kind.
    """
    if first.dtype.kind in "iu":
        return _frequencies(first, second)
    return _fisher(first, second, as_rows)


def as_rows(outputs: Outputs) -> FloatArray:
    """Return outputs (n,) or (n, k) as rows of numbers, (n, 1) or (n, k)."""
    return np.asarray(outputs, dtype=np.float64).reshape(len(outputs), -1)


def looked_at(step: float) -> Fit:
    """Return a linear score (Fisher's) of everything visible in coordinates beside their likelihood.

    Its features are each coordinate, its square (and so the length of the vector), its magnitude, its sign, and the two
    lowest bits of its code. It finds leaks that a sound mechanism never shows.

    Args:
        step: Step of the quantizer.

    Returns:
        A score of outputs (n, k) of any kind.
    """

    def features(outputs: Outputs) -> FloatArray:
        z = np.asarray(outputs, dtype=np.float64)
        codes = np.rint(z / step).astype(np.int64)
        return np.hstack([z, z * z, np.abs(z), np.sign(z), codes & 1, (codes >> 1) & 1])

    return lambda first, second: _fisher(first, second, features)


def paired(step: float) -> Fit:
    """Return a score of signs and the two lowest bits of coordinates, one by one and in pairs.

    So it finds the exclusive or of two bits, where neither bit alone says anything. Bits are -1 or 1. The score is the
    sum of their products, each weighted by the difference of its means between the inputs, if that is four standard
    errors or more. It learns on at most 32,768 outputs of each input.

    Args:
        step: Step of the quantizer.

    Returns:
        A score of outputs (n, k) of any kind.
    """

    def bits(outputs: Outputs) -> NDArray[np.float32]:
        z = np.asarray(outputs, dtype=np.float64)
        codes = np.rint(z / step).astype(np.int64)
        columns = np.hstack([z > 0, codes & 1, (codes >> 1) & 1, np.ones((len(z), 1))])
        return (2 * columns - 1).astype(np.float32)

    def fit(first: Outputs, second: Outputs) -> Score:
        first_bits, second_bits = (bits(part[:_LEARNT]) for part in (first, second))
        association = first_bits.T @ first_bits / len(first_bits) - second_bits.T @ second_bits / len(second_bits)
        association[np.abs(association) < 4 * math.sqrt(1 / len(first_bits) + 1 / len(second_bits))] = 0.0

        def score(outputs: Outputs) -> FloatArray:
            b = bits(outputs)
            return ((b @ association) * b).sum(axis=1, dtype=np.float64)

        return score

    return fit


#: Most outputs of each input that pairs of bits are learned from.
_LEARNT = 2**15
#: Outputs whose features are computed at once.
_AT_ONCE = 2**14
#: Ridge added to the eigenvalues of features of variance 1 within either input. It gives a weight to features that
#: never vary there.
_RIDGE = 1e-9


def _fisher(first: Outputs, second: Outputs, features: Callable[[Outputs], FloatArray]) -> Score:
    """Return the linear score of features (n, f) whose mean differs most between inputs, in deviations within them."""
    means, seconds = [], []
    for part in (first, second):
        total, square = np.zeros(()), np.zeros(())
        shift = features(part[:1])  # brings the mean near 0, where squares do not cancel
        for at in range(0, len(part), _AT_ONCE):
            x = features(part[at : at + _AT_ONCE]) - shift
            total, square = total + x.sum(axis=0), square + x.T @ x
        mean = total / len(part)
        means.append(mean + shift[0])
        seconds.append(square / len(part) - np.outer(mean, mean))
    covariance, difference = (seconds[0] + seconds[1]) / 2, means[0] - means[1]
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale[scale < 1e-12] = 1.0
    covariance = covariance / scale / scale[:, None]
    axis = np.linalg.solve(covariance + _RIDGE * np.eye(len(covariance)), difference / scale) / scale

    return Linear(axis, features)


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear score of features of outputs.

    Args:
        axis: Weights (f,).
        features: Function from outputs to features (n, f).
    """

    axis: FloatArray
    features: Callable[[Outputs], FloatArray] = as_rows

    def __call__(self, outputs: Outputs) -> FloatArray:
        """Return the scores (n,) of outputs."""
        starts = range(0, len(outputs), _AT_ONCE)
        return np.concatenate([self.features(outputs[at : at + _AT_ONCE]) @ self.axis for at in starts])


def finite(outcomes: Outputs, log_ratio: FloatArray) -> Fit:
    """Return the log-likelihood ratio of finitely many outcomes as a score.

    An output that the law excludes is scored by the examples, above all outcomes.

    Args:
        outcomes: Outcomes (J,), or whole numbers (J, k).
        log_ratio: Log-likelihood ratios (J,).
    """
    ratios = np.clip(log_ratio, -_CERTAIN, _CERTAIN).tolist()
    table = dict(zip(_keys(outcomes), ratios, strict=True))

    def fit(first: Outputs, second: Outputs) -> Score:
        examples = _frequencies(first, second)

        def score(outputs: Outputs) -> FloatArray:
            distinct, inverse = _distinct(outputs)
            guesses = examples(distinct)
            values = [
                table[key] if key in table else 2 * _CERTAIN * float(np.sign(guess))
                for key, guess in zip(_keys(distinct), guesses, strict=True)
            ]
            return np.array(values)[inverse]

        return score

    return fit


@dataclass(frozen=True, eq=False)
class Table:
    """Score of discrete outcomes: a number each, or a row of numbers. Other outcomes have score 0.

    Args:
        values: Score of each outcome.
    """

    values: dict[Any, float]

    def __call__(self, outputs: Outputs) -> FloatArray:
        """Return the scores (n,) of outputs."""
        distinct, inverse = _distinct(outputs)
        return np.array([self.values.get(key, 0.0) for key in _keys(distinct)])[inverse]


def _frequencies(first: Outputs, second: Outputs) -> Score:
    counts: dict[Any, list[float]] = {}
    for side, part in enumerate((first, second)):
        distinct, inverse = _distinct(part)
        for key, count in zip(_keys(distinct), np.bincount(inverse, minlength=len(distinct)).tolist(), strict=True):
            counts.setdefault(key, [0.5, 0.5])[side] += count
    shift = math.log(len(second) / len(first))
    return Table({key: math.log(a / b) + shift for key, (a, b) in counts.items()})


def _distinct(outputs: Outputs) -> tuple[Outputs, NDArray[np.int64]]:
    """Return the distinct rows, and the number of each row among them."""
    distinct, inverse = np.unique(outputs, axis=0, return_inverse=True)
    return distinct, inverse.reshape(-1)


def _keys(outputs: Outputs) -> list[Any]:
    values = outputs.tolist()
    return values if outputs.ndim == 1 else [tuple(row) for row in values]
