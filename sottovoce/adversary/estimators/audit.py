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

from mechanisms.arrays import FloatArray, IntArray

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
    """Return Clopper and Pearson's lower bound of a probability, wrong with probability at most alpha."""
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bound = betaincinv(k, trials - k + 1, alpha)
    return np.where(k > 0, bound, 0.0)


def high(successes: NDArray[Any] | int, trials: int, alpha: float) -> FloatArray:
    """Return Clopper and Pearson's upper bound of a probability, wrong with probability at most alpha."""
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bound = betainccinv(k + 1, trials - k, alpha)
    return np.where(k < trials, bound, 1.0)


def largest(draws: int, alpha: float) -> float:
    """Return the largest ε that an audit can show: that of a perfect attack."""
    half = draws - draws // 2
    return float(np.log(low(half, half, alpha / 2) / high(0, half, alpha / 2)))


@dataclass(frozen=True, eq=False)
class Scores:
    """S scores of draws under x and x', (S, n) each: on the part that chooses events, and on the reported one."""

    chosen: tuple[FloatArray, FloatArray]
    reported: tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Counts:
    """Number of times that an event occurred: `hits` in `own` draws of its input, `misses` in `other` of the other."""

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
    """Lower bound of ε at δ, at least 0, and the counts, on the reported part, of the event that gives it."""

    epsilon: float
    counts: Counts


@dataclass(frozen=True)
class Excess:
    """Claimed point (ε, claimed δ) that looked worst, a lower bound of δ at that ε, and the counts that give it."""

    epsilon: float
    claimed: float
    measured: float
    counts: Counts

    @property
    def violated(self) -> bool:
        """Return True if the measured δ is above the claimed one."""
        return self.measured > self.claimed


def scores(first: Outputs, second: Outputs, *fits: Fit) -> Scores:
    """Return scores of n draws under each input, with the parts taken in order.

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

    chosen, reported = slice(quarter, half), slice(half, n)
    return Scores((all_of(first[chosen]), all_of(second[chosen])), (all_of(first[reported]), all_of(second[reported])))


def lower_epsilon(scores: Scores, delta: float, alpha: float) -> LowerBound:
    """Return a lower bound of ε at δ, wrong with probability at most alpha."""
    _, counts = _best_event(scores, alpha, lambda a, b: np.log(np.maximum(a - delta, 0.0) / b)[None])
    at_least, at_most = counts.bounds(alpha)
    ratio = (at_least - delta) / at_most
    return LowerBound(math.log(ratio) if ratio > 1 else 0.0, counts)


def lower_mu(scores: Scores, alpha: float) -> float:
    """Return a lower bound of μ, at least 0, wrong with probability at most alpha.

    μ is the least for which a Gaussian trade-off bounds the pair. The bound is Φ⁻¹(a) − Φ⁻¹(b) of an event.

    Source: Nasr et al. 2023, for μ-GDP of Dong, Roth and Su 2022.
    """
    _, counts = _best_event(
        scores, alpha, lambda a, b: np.nan_to_num(ndtri(a) - ndtri(b), nan=-math.inf, neginf=-math.inf)[None]
    )
    at_least, at_most = counts.bounds(alpha)
    return max(0.0, float(ndtri(at_least) - ndtri(at_most))) if at_least > 0 and at_most < 1 else 0.0


def excess(scores: Scores, points: FloatArray, alpha: float) -> Excess:
    """Test the claim that the pair is (ε, δ)-indistinguishable at every point, (J, 2), by one measurement.

    If every claim is true, the result is `violated` with probability at most alpha.
    """
    epsilons, deltas = points[:, 0], points[:, 1]
    n, growth = scores.chosen[0].shape[1], np.exp(np.minimum(epsilons, 700.0))[:, None]

    def significance(a: FloatArray, b: FloatArray) -> FloatArray:
        margin: FloatArray = a - growth * b - deltas[:, None]
        # pick the point that is violated most surely, in standard deviations, not by the largest measured value
        return margin / np.sqrt((a * (1 - a) + growth**2 * b * (1 - b) + 1 / n) / n) if len(points) > 1 else margin

    point, counts = _best_event(scores, alpha, significance)
    epsilon = float(epsilons[point])
    return Excess(epsilon, float(deltas[point]), excess_of(counts, epsilon, alpha), counts)


def excess_of(counts: Counts, epsilon: float, alpha: float) -> float:
    """Return a lower bound of δ at ε from counts, at least 0, wrong with probability at most alpha."""
    a, b = counts.bounds(alpha)
    return max(0.0, a - math.exp(min(epsilon, 700.0)) * b)


def _best_event(
    scores: Scores, alpha: float, value: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[int, Counts]:
    """Return the claim whose value is largest on the part that chooses events, and counts of its event on the other.

    An event is "a score is at least t", or "minus the score is at least t", which speaks for x'. `value` is a function
    from bounds (T,) of T events' probabilities, as `_rates` returns them, to values (J, T).
    """
    best, choice = -math.inf, None
    for number in range(len(scores.chosen[0])):
        for swapped in (False, True):
            thresholds, a, b = _rates(scores, number, swapped, alpha)
            with np.errstate(divide="ignore", invalid="ignore"):
                values = value(a, b)
            claim, at = np.unravel_index(int(np.argmax(values)), values.shape)
            if values[claim, at] > best or choice is None:
                best, choice = float(values[claim, at]), (int(claim), number, swapped, float(thresholds[at]))
    assert choice is not None
    claim_number, number, swapped, threshold = choice
    own, other = _directed(scores.reported, number, swapped)
    hits, misses = int((own >= threshold).sum()), int((other >= threshold).sum())
    return claim_number, Counts(hits, misses, len(own), len(other))


def _directed(parts: tuple[FloatArray, FloatArray], number: int, swapped: bool) -> tuple[FloatArray, FloatArray]:
    """Return a score under the event's own input and under the other one, (n,) each; high values are in the event."""
    first, second = parts[0][number], parts[1][number]
    return (-second, -first) if swapped else (first, second)


@lru_cache(maxsize=4)  # all figures of one game use the same rates, two for each score
def _rates(scores: Scores, of: int, swapped: bool, alpha: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a score's thresholds, with bounds of each event's probability on the part that chooses events.

    Events are "at least t" (swapped: "at most t", which speaks for x'). The bounds are a lower one under the event's
    own input, and an upper one under the other.
    """
    first_scores, second_scores = map(np.sort, _directed(scores.chosen, of, swapped))
    ranks = _ranks(len(first_scores))
    thresholds = np.unique(np.concatenate([first_scores[-ranks], second_scores[-ranks]]))
    hits = len(first_scores) - np.searchsorted(first_scores, thresholds, side="left")
    misses = len(second_scores) - np.searchsorted(second_scores, thresholds, side="left")
    return thresholds, low(hits, len(first_scores), alpha / 2), high(misses, len(second_scores), alpha / 2)


def _ranks(n: int) -> IntArray:
    """Return the ranks of the draws that are thresholds, 1 for the largest: half evenly spaced, half ever rarer."""
    count = _EVENTS // 4
    return np.unique(np.concatenate([np.geomspace(1, n, count), np.linspace(1, n, count)]).astype(np.int64))


# --- scores


def known(score: Score) -> Fit:
    """Return a score that needs no learning: a log-likelihood ratio, or a statistic that rises with it."""
    return lambda first, second: score


def learned(first: Outputs, second: Outputs) -> Score:
    """Learn a score from outputs under x and x', (n,) or (n, k) each.

    For whole numbers it is the log-ratio of frequencies; an output without examples has score 0. For other outputs it
    is a linear score (Fisher's).
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


#: Most outputs of each input that pairs of bits, and trees, are learned from.
_LEARNT, _GROWN = 2**15, 2**13
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

    def score(outputs: Outputs) -> FloatArray:
        starts = range(0, len(outputs), _AT_ONCE)
        return np.concatenate([features(outputs[at : at + _AT_ONCE]) @ axis for at in starts])

    return score


def finite(outcomes: Outputs, log_ratio: FloatArray) -> Fit:
    """Return the log-likelihood ratio (J,) of outcomes (J,), or whole numbers (J, k), as a score.

    An output that the law excludes is scored by the examples, above all outcomes.
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


def _frequencies(first: Outputs, second: Outputs) -> Score:
    counts: dict[Any, list[float]] = {}
    for side, part in enumerate((first, second)):
        distinct, inverse = _distinct(part)
        for key, count in zip(_keys(distinct), np.bincount(inverse, minlength=len(distinct)).tolist(), strict=True):
            counts.setdefault(key, [0.5, 0.5])[side] += count
    shift = math.log(len(second) / len(first))
    ratios = {key: math.log(a / b) + shift for key, (a, b) in counts.items()}

    def score(outputs: Outputs) -> FloatArray:
        distinct, inverse = _distinct(outputs)
        return np.array([ratios.get(key, 0.0) for key in _keys(distinct)])[inverse]

    return score


def frequencies(first: Outputs, second: Outputs) -> Score:
    """Learn a score from the frequency of each outcome; if most outcomes occur once, the score is 0."""
    if len(np.unique(first, axis=0)) > len(first) / 2:
        return lambda outputs: np.zeros(len(outputs))
    return learned(first, second)


def trees(first: Outputs, second: Outputs) -> Score:
    """Learn a score by gradient boosting of trees of depth 3, from at most 8,192 outputs of each input.

    Source: Friedman 2001; Ke et al. 2017 for the bins.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # a device, which states claims, has none

    first_rows, second_rows = (as_rows(part[:_GROWN]) for part in (first, second))
    x, sides = np.vstack([first_rows, second_rows]), np.repeat([1, 0], [len(first_rows), len(second_rows)])
    model = HistGradientBoostingClassifier(
        max_iter=24, max_depth=3, learning_rate=0.4, min_samples_leaf=4, l2_regularization=1.0, early_stopping=False
    ).fit(x, sides)

    def score(outputs: Outputs) -> FloatArray:
        return model.decision_function(as_rows(outputs))

    return score


def _distinct(outputs: Outputs) -> tuple[Outputs, IntArray]:
    """Return the distinct rows, and the number of each row among them."""
    distinct, inverse = np.unique(outputs, axis=0, return_inverse=True)
    return distinct, inverse.reshape(-1)


def _keys(outputs: Outputs) -> list[Any]:
    values = outputs.tolist()
    return values if outputs.ndim == 1 else [tuple(row) for row in values]
