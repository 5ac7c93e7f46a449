"""Randomized response: k-ary for labels and for a model's answers, and with a public prior for labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.facts import EPSILONS, Facts
from mechanisms.guarantee import Guarantee
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.categorical import cap_blanket, cap_loss, prior_blanket, pure_loss
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.mechanism import Uniforms
from mechanisms.streams import Points

MAX_CLASSES = 10_000


@dataclass(frozen=True)
class _OfLabels:
    """Base of randomized response: parameters and theorem."""

    epsilon: float
    classes: int

    channel: ClassVar[str] = "label"
    grid: ClassVar[None] = None
    name: ClassVar[str]
    facts: ClassVar[Facts] = Facts(tried={"epsilon": EPSILONS, "classes": (2, 12)})

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "classes", checks.integer(self.name, "classes", self.classes, 2, MAX_CLASSES))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        delta = categorical.exact_delta(self.classes)
        return Guarantee(self.epsilon, "discrete", 1.0, "label", numeric_delta=delta)


@dataclass(frozen=True)
class RandomizedResponse(_OfLabels):
    """Release of the true label with probability e^ε/(e^ε + K - 1), else another, uniformly: ε-LDP (Warner 1965).

    Attributes:
        epsilon: 0..1000.
        classes: K, 2..10,000.
    """

    name: ClassVar[str] = "randomized-response"
    needs_prior: ClassVar[bool] = False

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw once for each label, (n,) -> (n,) int64; one uniform a row."""
        x = checks.labels(self.name, x, self.classes)
        points = Points.drawn(rng, x.shape, 1)
        weights = np.zeros((len(x), self.classes))
        weights[np.arange(len(x)), x] = self.epsilon
        return categorical.sample(weights, points)

    def blanket(self) -> BlanketCells:
        """Return the blanket and any two different labels, in cells: see mechanisms.losses.categorical."""
        return cap_blanket(self.epsilon, -math.log(self.classes))

    def log_prob(self, y: IntArray, x: IntArray) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,)."""
        gain = np.where(np.asarray(y) == np.asarray(x), 0.0, -self.epsilon)
        return gain - math.log1p((self.classes - 1) * math.exp(-self.epsilon))

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the exact loss of any two labels; `distance` is 0 (the same label), 1 or None (they differ)."""
        differ = checks.differs(self.name, distance)
        return cap_loss(self.epsilon, -math.log(self.classes)) if differ else no_loss()


@dataclass(frozen=True)
class RandomizedAnswer(RandomizedResponse):
    """Release of a public model's class of a text with probability e^ε/(e^ε + K - 1), else another of K, uniformly.

    It is ε-LDP for any two texts (Warner 1965). The class is a function of the text and of public parameters. So two
    texts are distinguished as two labels are, or, if of one class, not at all. Unless some other class is beforehand
    more than e^ε times as likely, the released class is the likeliest one: P(c | y) is proportional to
    P(c)·e^(ε[c = y]). A reader takes it as it is.

    Only the input differs from `RandomizedResponse`, so the name is the same: the channel of a catalogue's spec decides
    which is meant. It is a class rather than a parameter. A parameter would change the digest of every label, and
    records would be released, and charged, again.

    Attributes:
        epsilon: 0..1000.
        classes: K, 2..10,000.
    """

    channel: ClassVar[str] = "answer"

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem, of a sequence."""
        return replace(super().guarantee, protects="sequence")


@dataclass(frozen=True)
class RandomizedResponsePrior(_OfLabels):
    """RRWithPrior: randomized response on the k likeliest labels of a public prior (Ghazi et al. 2021).

    k maximizes e^ε/(e^ε + k - 1)·(prior mass of the k likeliest), the probability that the output is the true label. No
    ε-LDP mechanism does better for this prior (their Algorithms 2, 3 and optimality theorem). A true label outside the
    k gives one of them uniformly. It is ε-LDP for every prior that does not depend on the label. Ties in the prior go
    to the lower label.

    Attributes:
        epsilon: 0..1000.
        classes: K, 2..10,000.
    """

    name: ClassVar[str] = "randomized-response-prior"
    needs_prior: ClassVar[bool] = True

    def sample(self, x: NDArray[Any], *, prior: FloatArray, rng: Uniforms) -> IntArray:
        """Draw once for each label, (n,) -> (n,) int64, under public priors (n, K); one uniform a row."""
        x = checks.labels(self.name, x, self.classes)
        weights = self._log_weights(x, prior)
        return categorical.sample(weights, Points.drawn(rng, x.shape, 1))

    def log_prob(self, y: IntArray, x: IntArray, *, prior: FloatArray) -> FloatArray:
        """Return the log probability of y given x, (n,) -> (n,); -inf where the prior leaves y out."""
        x = checks.labels(self.name, x, self.classes)
        normal = categorical.log_normalize(self._log_weights(x, prior))
        log_probability: FloatArray = normal[np.arange(len(x)), np.asarray(y)]
        return log_probability

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss of binary randomized response, which dominates any two labels under any prior.

        It dominates every ε-LDP mechanism, and a prior that keeps two labels attains it. `distance` is 0, 1 or None
        (1).
        """
        return pure_loss(self.epsilon) if checks.differs(self.name, distance) else no_loss()

    def blanket(self) -> BlanketCells:
        """Return a pair above all, whatever the priors, in cells: see mechanisms.losses.categorical.

        It is for the release together with the source of its prior: alone, users do not have one randomizer.
        """
        return prior_blanket(self.epsilon, self.classes)

    def kept(self, prior: FloatArray) -> BoolArray:
        """Return a mask of the labels that can come out, priors (n, K) -> (n, K).

        Raises:
            ValueError: A row is not a distribution.
        """
        prior = np.asarray(prior, dtype=np.float64)
        if prior.ndim != 2 or prior.shape[1] != self.classes:
            raise ValueError(f"{self.name}: expected priors of {self.classes} classes, got {prior.shape}")
        bad = ~((prior >= 0).all(axis=1) & (np.abs(prior.sum(axis=1) - 1.0) <= 1e-6))
        if bad.any():
            raise ValueError(f"{self.name}: the prior of row {int(np.argmax(bad))} is not a distribution")
        order = np.argsort(-prior, axis=1, kind="stable")
        # e^ε/(e^ε + k - 1) for k = 1..K
        keep = 1.0 / (1.0 + np.arange(self.classes) * math.exp(-self.epsilon))
        size = np.argmax(keep * np.cumsum(np.take_along_axis(prior, order, axis=1), axis=1), axis=1) + 1
        kept = np.zeros(prior.shape, dtype=np.bool_)
        np.put_along_axis(kept, order, np.arange(self.classes) < size[:, None], axis=1)
        return kept

    def _log_weights(self, x: IntArray, prior: FloatArray) -> FloatArray:
        kept = self.kept(prior)
        if len(kept) != len(x):
            raise ValueError(f"{self.name}: {len(x)} labels but {len(kept)} priors")
        weights = np.where(kept, 0.0, -np.inf)
        rows = np.arange(len(x))
        weights[rows, x] = np.where(kept[rows, x], self.epsilon, -np.inf)
        return weights
