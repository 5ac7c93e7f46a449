"""Subset selection for the class of a text: a release names a set of classes, which probably holds the true one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.facts import EPSILONS, Absent, Facts, Pair
from mechanisms.guarantee import Guarantee
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.mechanism import Uniforms, share_variance
from mechanisms.randomized_response import MAX_CLASSES
from mechanisms.streams import Points

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class SubsetSelection:
    """Release of a set of d classes, e^ε times as likely if it holds the true class (Ye and Barg 2018).

    The published mechanism draws from all sets of d out of K. This one draws from sets that two numbers name. Let v be
    the least prime that is not below K. The output (a, b), 1 <= a < v and 0 <= b < v, stands for the set of all x with
    (a·x + b) mod v < d, and it is released as (a - 1)·v + b. Two different points of Z_v go to any two different places
    by exactly one of the maps x -> a·x + b. So one point is in the set for d·(v - 1) outputs and two points for
    d·(d - 1), as in the family of all sets. Whatever depends on two inputs is therefore that of the published mechanism
    on v classes: privacy loss, blanket, and variance. No ε-LDP mechanism has a smaller worst-case squared error as the
    number of users grows (Ye and Barg 2019). Local hashing is the same idea with independent hashes, and its variance
    is never smaller. With d = 1 this is randomized response of v classes.

    **Guarantee.** All inputs have the same normalizing sum d·e^ε + v - d, times v - 1, so no two laws differ by more
    than e^ε: ε-LDP for any two texts.

    Attributes:
        epsilon: 0..1000.
        classes: K, 2..10,000.
        subset: d, 1..v/2; 0 stands for the d of least variance at this ε, which is about v/(e^ε + 1).
    """

    epsilon: float
    classes: int
    subset: int = 0

    name: ClassVar[str] = "subset-selection"
    channel: ClassVar[str] = "answer"
    needs_prior: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(
        label="subset selection",
        tried={"epsilon": EPSILONS, "classes": (2, 12), "subset": (0, 1)},
        pair=Pair.LABELS,
        audits=({}, {"epsilon": 0.5, "classes": 50}),
        slider=Absent("whose release is a set of classes, for counts"),
    )

    def __post_init__(self) -> None:
        epsilon = checks.epsilon(self.name, self.epsilon)
        classes = checks.integer(self.name, "classes", self.classes, 2, MAX_CLASSES)
        subset = checks.integer(self.name, "subset", self.subset, 0, prime(classes) // 2)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "subset", subset or _best(epsilon, classes))

    @property
    def grid(self) -> None:
        """Return None: outputs are integers."""
        return None

    @property
    def points(self) -> int:
        """Return v."""
        return prime(self.classes)

    @property
    def outputs(self) -> int:
        """Return v·(v - 1), the number of outputs."""
        return self.points * (self.points - 1)

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        return Guarantee(
            epsilon=self.epsilon,
            metric="discrete",
            diameter=1.0,
            protects="sequence",
            numeric_delta=categorical.exact_delta(self.outputs),
        )

    @property
    def hit(self) -> float:
        """Return the probability that a release holds the true class."""
        return float(_rates(self.epsilon, self.points, self.subset)[0])

    @property
    def miss(self) -> float:
        """Return the probability that a release holds a given other class."""
        return float(_rates(self.epsilon, self.points, self.subset)[1])

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each class, (n,) -> (n,) int64; one uniform a row.

        The uniform decides a and the place of the true class, whatever this class is. The place gives b.
        """
        x, v, d = checks.labels(self.name, x, self.classes), self.points, self.subset
        likely = d * (v - 1)
        drawn = categorical.two_levels(likely, self.outputs - likely, self.epsilon, Points.drawn(rng, x.shape, 1))
        inside = drawn < likely
        width = np.where(inside, d, v - d)
        a, place = np.divmod(np.where(inside, drawn, drawn - likely), width)
        place += np.where(inside, 0, d)
        return a * v + (place - (a + 1) * x) % v

    def holds(self, y: IntArray, x: IntArray) -> NDArray[np.bool_]:
        """Return whether the set of y holds x."""
        a, b = np.divmod(np.asarray(y), self.points)
        held: NDArray[np.bool_] = ((a + 1) * np.asarray(x) + b) % self.points < self.subset
        return held

    def log_prob(self, y: IntArray, x: IntArray) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,)."""
        gain = np.where(self.holds(y, x), 0.0, -self.epsilon)
        others = (self.points - self.subset) * math.exp(-self.epsilon)
        found: FloatArray = gain - math.log(self.points - 1) - math.log(self.subset + others)
        return found

    def inside(self, shares: FloatArray) -> FloatArray:
        """Return the sum of values of the classes in each output's set, (K,) -> (outputs,)."""
        v = self.points
        values = np.zeros(v)
        values[: self.classes] = shares
        sums = _windows(values[_places(v)[0]], self.subset)
        return np.concatenate([sums[:, :1], sums[:, :0:-1]], axis=1).ravel()  # output b has the window from -b on

    def support(self, weights: FloatArray) -> FloatArray:
        """Return the sum of weights of the outputs whose set holds each class, (outputs,) -> (K,)."""
        v = self.points
        sums = _windows(np.asarray(weights, np.float64).reshape(v - 1, v), self.subset)
        found: FloatArray = sums.ravel()[_places(v)[1][:, : self.classes]].sum(axis=0)
        return found

    def blanket(self) -> BlanketCells:
        """Return the blanket and any two different classes, exact (mechanisms.losses.response_blanket)."""
        from mechanisms.losses import response_blanket

        return response_blanket.two_design(self.epsilon, self.points, self.subset)

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the exact loss of any two classes; `distance` is 0 (the same class), 1 or None (they differ)."""
        return self.blanket().loss() if checks.differs(self.name, distance) and self.epsilon else no_loss()


@lru_cache(maxsize=256)
def prime(least: int) -> int:
    """Return the least prime that is not below a number of at least 2."""
    while any(least % divisor == 0 for divisor in range(2, math.isqrt(least) + 1)):
        least += 1
    return least


def _rates(epsilon: float, points: int, size: Any) -> tuple[Any, Any]:
    """Return the probabilities that a set holds the true class and another one, for a size or an array of them."""
    hit = size / (size + (points - size) * math.exp(-epsilon))
    return hit, (hit * (size - 1) + (1 - hit) * size) / (points - 1)


@lru_cache(maxsize=1024)
def _best(epsilon: float, classes: int) -> int:
    """Return the size of least variance where all classes are equally frequent; the largest of several."""
    points = prime(classes)
    sizes = np.arange(points // 2, 0, -1)
    if not epsilon:
        return int(sizes[0])
    hit, miss = _rates(max(epsilon, 1e-6), points, sizes)
    return int(sizes[np.argmin(share_variance(hit, miss, 1 / classes))])


@lru_cache(maxsize=4)
def _places(points: int) -> tuple[IntArray, IntArray]:
    """Return for each a >= 1 the x of each place a·x, and the place of -a·x in a table (v - 1, v) for each x."""
    numbers = np.arange(points)
    products = numbers[1:, None] * numbers % points
    inverse = np.argsort(products, axis=1)
    return inverse, numbers[:-1, None] * points + (points - products) % points


def _windows(rows: FloatArray, width: int) -> FloatArray:
    """Return the sum of `width` values from each place on, around the end of each row."""
    v = rows.shape[1]
    total = np.zeros((len(rows), v + 1))
    np.cumsum(rows, axis=1, out=total[:, 1:])
    sums = np.empty_like(rows)
    np.subtract(total[:, width:v], total[:, : v - width], out=sums[:, : v - width])
    np.subtract(total[:, :width], total[:, v - width : v], out=sums[:, v - width :])
    sums[:, v - width :] += total[:, v:]
    return sums
