"""Counts of classes from shuffled releases: maximum likelihood, and intervals that hold for all classes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.counting import quantile, variance
from mechanisms.mechanism import CountMechanism

FloatArray = NDArray[np.float64]

#: Largest number of classes: the likelihood works on a table of its square.
MOST_CLASSES = 2_000
#: Log likelihood that the reported maximum may lack at most, in nats: a fiftieth of a standard error.
_GAP = 1e-3
_STEPS = 20_000
#: Largest condition number of a confusion matrix that is inverted.
_CONDITION = 1e3


@dataclass(frozen=True, eq=False)
class Confusion:
    """Classes that a model gives to labelled public text that it was not trained on.

    Attributes:
        counts: (K, K), number of texts of true class t that the model gives class c, at [t, c].

    Raises:
        ValueError: A class has no text, or the model does not tell classes apart.
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise ValueError(f"counts: a confusion matrix must be square and of whole numbers, got {counts.shape}")
        if len(missing := np.flatnonzero(counts.sum(axis=1) == 0)):
            raise ValueError(f"counts: no labelled public text is of class {int(missing[0])}; give some of each class")
        if not np.linalg.cond(self.shares) < _CONDITION:
            raise ValueError("counts: the model does not tell some classes apart; merge them, or use a better model")

    @classmethod
    def of(cls, labels: NDArray[np.int64], found: NDArray[np.int64], classes: int) -> Confusion:
        """Return the confusion of true labels (n,) and the model's classes (n,)."""
        return cls(np.bincount(labels * classes + found, minlength=classes**2).reshape(classes, classes))

    @cached_property
    def shares(self) -> FloatArray:
        """Return the estimated P(model's class c | true class t), (K, K)."""
        shares: FloatArray = self.counts / self.counts.sum(axis=1, keepdims=True)
        return shares

    @cached_property
    def inverse(self) -> FloatArray:
        """Return the inverse of `shares`: a row of shares of the model's classes times it estimates the true ones."""
        return np.asarray(np.linalg.inv(self.shares))

    def variance(self, shares: FloatArray) -> FloatArray:
        """Return the variance (K,) that the estimate of `shares` has, given these classes, in shares (K,) of true ones.

        By the delta method, d(f M^-1) = -s dM M^-1, with independent multinomial rows. Rows are smoothed by half a text
        a class, so that a confusion that was not seen counts.
        """
        size = self.counts.sum(axis=1)
        smoothed = (self.counts + 0.5) / (size + 0.5 * len(size))[:, None]
        spread = smoothed @ self.inverse**2 - (smoothed @ self.inverse) ** 2
        found: FloatArray = (shares**2 / size) @ np.maximum(spread, 0.0)
        return found


@dataclass(frozen=True, eq=False)
class Counts:
    """Estimated shares of K classes among n users.

    Attributes:
        users: n.
        shares: (K,), by maximum likelihood: at least 0, with sum 1.
        unbiased: (K,), unbiased estimates, which may be below 0. Without rounding they are the maximum likelihood's
            where randomized response gives all of them between 0 and 1.
        errors: (K,), standard errors of the unbiased estimates.
        low: (K,), lower ends of intervals that hold the true shares of these n users together.
        high: (K,), upper ends.
        confidence: Probability that all intervals hold.
    """

    users: int
    shares: FloatArray
    unbiased: FloatArray
    errors: FloatArray
    low: FloatArray
    high: FloatArray
    confidence: float


@dataclass(frozen=True, eq=False)
class Change:
    """Changes of K shares between two counts.

    Attributes:
        shares: (K,), unbiased estimates of later minus earlier shares.
        low: (K,), lower ends of intervals that hold the true changes together.
        high: (K,), upper ends.
    """

    shares: FloatArray
    low: FloatArray
    high: FloatArray


def change(earlier: Counts, later: Counts) -> Change:
    """Return the changes between two counts whose noise is drawn independently, at the confidence of the later one.

    Variances add up. If both counts are corrected by one confusion matrix, its errors partly cancel, and the intervals
    are wider than they need be.

    Raises:
        ValueError: The counts have different classes.
    """
    if earlier.unbiased.shape != later.unbiased.shape:
        raise ValueError("counts: a change is between counts of the same classes")
    shares = later.unbiased - earlier.unbiased
    width = quantile(later.confidence, len(shares)) * np.hypot(earlier.errors, later.errors)
    return Change(shares, np.maximum(shares - width, -1.0), np.minimum(shares + width, 1.0))


def estimate(
    mechanism: CountMechanism,
    released: NDArray[np.int64],
    *,
    confusion: Confusion | None = None,
    of: NDArray[np.int64] | None = None,
    one_of_many: bool = False,
    confidence: float = 0.95,
) -> Counts:
    """Return the shares of classes among the users of a batch. This is post-processing and costs no privacy.

    The unbiased estimate of class t is the mean of g_t(y), with g_t(y) = Σ_j B_jt ([y holds j] - miss)/(hit - miss). B
    is the identity; with a confusion matrix M its inverse, so that the estimate is of true classes; with `of` it adds
    up what belongs to one class. Its variance is
    (E g_t² - share_t)/n given the users' true classes, since g_t has mean [t is the true class]. It holds the draws of
    the mechanism and of the model; the uncertainty of M is added. Intervals are normal, with Bonferroni's correction
    for K classes, clipped to [0, 1] and widened to hold the maximum likelihood estimate.

    The shares of largest likelihood maximize Σ_y log Σ_t s_t P(y | t) on the simplex, where it is concave.

    Args:
        mechanism: Mechanism of the releases.
        released: (n,), outputs of the mechanism, one for each user.
        confusion: The model's confusion. With None, the classes are those that the model gives, on the device.
        of: (K,), the class to count for each of the mechanism's, which stand for answers to several questions
            (`answers_to`). With None each is counted.
        one_of_many: Whether a release is of one record, drawn at random, of a user of several. The estimate is then the
            mean of users' own shares h_i. Its variance is (E g_t² - mean h_it²)/n, and at most (E g_t² - share_t²)/n,
            which is taken.
        confidence: Probability with which all intervals hold together.

    Raises:
        ValueError: There is no release, there are too many classes, or an argument is out of range.
    """
    released, classes = np.asarray(released), mechanism.classes
    if released.ndim != 1 or not len(released):
        raise ValueError("counts: no release was delivered")
    if not 0 < confidence < 1:
        raise ValueError(f"counts: confidence must be between 0 and 1, got {confidence:g}")
    if classes > MOST_CLASSES:
        raise ValueError(f"counts: {classes:,} classes; at most {MOST_CLASSES:,} can be counted")
    if confusion is not None and len(confusion.counts) != classes:
        raise ValueError(f"counts: a confusion of {len(confusion.counts)} classes does not fit {classes}")
    gain = mechanism.hit - mechanism.miss
    if not gain > 0:
        raise ValueError("counts: at ε = 0 a release says nothing; take a larger one")
    n = len(released)
    seen = np.bincount(released, minlength=mechanism.outputs) / n
    held = mechanism.support(seen)
    each = (held - mechanism.miss) / gain
    columns = None if of is None else np.eye(int(of.max()) + 1)[of]
    if confusion is not None:
        columns = confusion.inverse
    if columns is None:
        unbiased, square = each, (held * (1 - 2 * mechanism.miss) + mechanism.miss**2) / gain**2
    else:
        unbiased, square = each @ columns, _squares(mechanism, seen, columns)
    own = np.clip(unbiased, 0.0, 1.0) ** 2 if one_of_many else unbiased
    spread, mix = np.maximum(square - own, 0.0) / n, None
    if confusion is not None:
        spread, mix = spread + confusion.variance(np.clip(unbiased, 0.0, 1.0)), confusion.shares
    if of is None:
        shares = likeliest(mechanism, seen, users=n, start=unbiased, mix=mix)
    else:
        shares = np.bincount(of, weights=likeliest(mechanism, seen, users=n, start=each))
    errors = np.sqrt(spread)
    width = quantile(confidence, len(unbiased)) * errors
    low, high = (np.clip(unbiased + side * width, 0.0, 1.0) for side in (-1, 1))
    return Counts(n, shares, unbiased, errors, np.minimum(low, shares), np.maximum(high, shares), confidence)


def _squares(mechanism: CountMechanism, seen: FloatArray, columns: FloatArray) -> FloatArray:
    """Return the mean of g_t(y)² of each column (K, K') of B, over shares of outputs."""
    gain = mechanism.hit - mechanism.miss
    return np.array(
        [seen @ ((mechanism.inside(column) - mechanism.miss * column.sum()) / gain) ** 2 for column in columns.T]
    )


@dataclass(frozen=True)
class Several:
    """Way to ask users several questions.

    Attributes:
        together: Whether each user releases one class for their answers to all of them. If not, each user answers one.
        mechanisms: The mechanism of that class, or one for each question.
        error: Expected squared error of all shares, times n.
    """

    together: bool
    mechanisms: tuple[CountMechanism, ...]
    error: float


def answers_to(classes: Sequence[int]) -> NDArray[np.int64]:
    """Return the answer to each of Q questions in each class of all answers together, (Q, K_1·...·K_Q)."""
    return np.stack([axis.ravel() for axis in np.indices(tuple(classes))])


def of_several(classes: Sequence[int], best: Callable[[int, int], CountMechanism | None]) -> Several | None:
    """Return the way with the least squared error of all shares, where all answers are as frequent.

    Users who answer one question each spend all of ε on it, but only every Q-th stands for all, which costs
    (Q - 1)·share·(1 - share)/n beside the noise. One class for all answers has no such error, and more noise. To split
    ε among questions is never the best of the three (docs/how-to/counts.md).

    Args:
        classes: Number of answers to each question.
        best: Function of a number of classes and Q', that returns the mechanism whose batch holds every Q'-th user; or
            None if there is none.
    """
    number, every, ways = len(classes), math.prod(classes), []
    known = [one for size in classes if (one := best(size, number)) is not None]
    if len(known) == number:
        noise = sum(number * size * variance(one) for one, size in zip(known, classes, strict=True))
        ways.append(Several(False, tuple(known), noise + sum((number - 1) * (1 - 1 / size) for size in classes)))
    if every <= MOST_CLASSES and (joint := best(every, 1)) is not None:
        ways.append(Several(True, (joint,), _marginal_error(joint, classes)))
    return min(ways, key=lambda way: way.error, default=None)


def _marginal_error(mechanism: CountMechanism, classes: Sequence[int]) -> float:
    """Return the variance of all answers' shares times n, where all classes of a joint mechanism are as frequent."""
    other = math.exp(-mechanism.epsilon)
    law = other + (1 - other) * mechanism.inside(np.full(mechanism.classes, 1 / mechanism.classes))
    law /= law.sum()
    return float(sum(_squares(mechanism, law, np.eye(int(of.max()) + 1)[of]).sum() - 1 for of in answers_to(classes)))


def likeliest(
    mechanism: CountMechanism, seen: FloatArray, *, users: int, start: FloatArray, mix: FloatArray | None = None
) -> FloatArray:
    """Return the shares (K,) of largest likelihood.

    Accelerated projected gradients, which restart where they go downhill (Nesterov 1983; O'Donoghue and Candès 2015,
    gradient scheme). For any shares, users·(largest partial derivative of the mean log likelihood - 1) bounds what the
    maximum has more, by concavity; the search ends where that is small.

    Args:
        mechanism: Mechanism of the releases.
        seen: (outputs,), share of each output among the releases.
        users: n.
        start: (K,), an estimate.
        mix: (K, K), P(model's class | true class); None if they are the same.

    Raises:
        ValueError: The search does not end.
    """
    other = float(np.exp(-mechanism.epsilon))  # P(y | x) is proportional to 1 where y holds x, else to this
    there = seen > 0

    def gradient(s: FloatArray) -> FloatArray | None:
        """Return the gradient of the mean log likelihood; None where it is -inf."""
        likely = other + (1 - other) * mechanism.inside(s if mix is None else s @ mix)
        if not (likely[there] > 0).all():
            return None
        ratio = np.divide(seen, likely, out=np.zeros(len(seen)), where=there)
        of_classes = other * ratio.sum() + (1 - other) * mechanism.support(ratio)
        return of_classes if mix is None else mix @ of_classes

    even = np.full(mechanism.classes, 1 / mechanism.classes)
    near = _on_simplex(start)
    return _maximum(gradient, even if gradient(near) is None else near, _GAP / users)


def _maximum(gradient: Callable[[FloatArray], FloatArray | None], start: FloatArray, gap: float) -> FloatArray:
    """Return a point of the simplex where a concave function is within `gap` of its maximum."""
    x = point = start
    slope = gradient(point)
    assert slope is not None
    if slope.max() - slope @ point <= gap:
        return point
    momentum, step = 1.0, 1.0
    for _ in range(_STEPS):
        while True:
            ahead = _on_simplex(point + step * slope)
            move, new = ahead - point, gradient(ahead)
            if new is not None and (slope - new) @ move <= move @ move / step:
                break
            step /= 2
        if new.max() - new @ ahead <= gap:
            return ahead
        again = slope @ (ahead - x) < 0
        following = 1.0 if again else (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        point = ahead if again else _on_simplex(ahead + (momentum - 1) / following * (ahead - x))
        found = gradient(point)
        point, slope = (ahead, new) if found is None else (point, found)
        x, momentum, step = ahead, following, step * 1.1
    raise ValueError("counts: the likelihood's maximum was not found")


def _on_simplex(values: FloatArray) -> FloatArray:
    """Return the nearest point of the simplex (Held, Wolfe and Crowder 1974)."""
    falling = np.sort(values)[::-1]
    excess = np.cumsum(falling) - 1
    last = np.flatnonzero(falling * np.arange(1, len(values) + 1) > excess)[-1]
    return np.maximum(values - excess[last] / (last + 1), 0.0)
