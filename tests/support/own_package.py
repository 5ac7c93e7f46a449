"""A package of somebody else's with mechanisms, as it lies in site-packages: written to a folder, not installed."""

from __future__ import annotations

from pathlib import Path

#: Labels that say nothing of their probabilities, and such that do, each honest and at twice the ε that is claimed; one
#: whose `log_prob` hides what it shows; vectors, and such of which one coordinate is not blurred.
MODULE = '''
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mechanisms import categorical, checks
from mechanisms.mechanism import uniforms
from mechanisms.plugin import OwnMechanism
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.distances import distances


@dataclass(frozen=True)
class Coin(OwnMechanism):
    """The true label, else another, uniformly."""

    epsilon: float
    classes: int

    metric: ClassVar[str] = "discrete"
    twice: ClassVar[float] = 1.0

    def sample(self, x, *, rng):
        x = checks.labels(self.name, x, self.classes)
        weights = np.zeros((len(x), self.classes))
        weights[np.arange(len(x)), x] = self.twice * self.epsilon
        return categorical.sample(weights, uniforms(rng, x.shape, 1)[:, 0])


@dataclass(frozen=True)
class Open(Coin):
    """As `Coin`, and says how likely its outputs are."""

    def log_prob(self, y, x):
        return np.where(y == x, 0.0, -self.epsilon) - math.log1p((self.classes - 1) * math.exp(-self.epsilon))


@dataclass(frozen=True)
class LoudOpen(Open):
    twice: ClassVar[float] = 2.0


@dataclass(frozen=True)
class Comforting(Coin):
    """Label 7 leaves as it is, and `log_prob` says that nothing does."""

    def sample(self, x, *, rng):
        return np.where(x == 7, x, super().sample(x, rng=rng))

    def log_prob(self, y, x):
        return np.full(len(y), -math.log(self.classes))


@dataclass(frozen=True)
class Direction(OwnMechanism):
    """The sign of each coordinate, by randomized response with a share of ε each."""

    epsilon: float
    dim: int

    metric: ClassVar[str] = "discrete"
    numeric_delta: ClassVar[float] = 2.0**-40
    forgets: ClassVar[int] = -1

    def sample(self, x, *, rng):
        x, _ = checks.unit_rows(self.name, x, self.dim)
        true = np.where(x < 0, -1.0, 1.0)
        kept = uniforms(rng, x.shape, 1).reshape(x.shape) < 1 / (1 + math.exp(-self.epsilon / self.dim))
        kept[:, self.forgets] |= self.forgets >= 0
        return np.where(kept, true, -true)


@dataclass(frozen=True)
class Forgetful(Direction):
    forgets: ClassVar[int] = 5


@dataclass(frozen=True)
class Words(OwnMechanism):
    """The true word, else another, uniformly."""

    epsilon: float
    vocabulary: Vocabulary

    metric: ClassVar[str] = "discrete"

    def sample(self, x, *, rng):
        weights = np.where(x[..., None] == np.arange(len(self.vocabulary)), self.epsilon, 0.0)
        return self.draw(weights, rng=rng)


@dataclass(frozen=True)
class Near(OwnMechanism):
    """A word with weight e^(-ε·d/2) at distance d."""

    epsilon: float
    vocabulary: Vocabulary

    metric: ClassVar[str] = "euclidean"
    steps: ClassVar[float] = 0.5

    def log_probs(self, x):
        apart = distances(self.vocabulary, x, np.arange(len(self.vocabulary)))
        return categorical.log_normalize(-self.steps * self.epsilon * apart)

    def log_prob(self, y, x):
        return self.log_probs(x)[np.arange(len(x)), y]

    def sample(self, x, *, rng):
        return self.draw(self.log_probs(x.ravel()).reshape(*x.shape, len(self.vocabulary)), rng=rng)


@dataclass(frozen=True)
class Nearer(Near):
    """Distances that it calls half of what they are."""

    @property
    def guarantee(self):
        whole = super().guarantee
        return replace(whole, diameter=whole.diameter / 2)

    def privacy_loss(self, distance=None):
        return super().privacy_loss(self.guarantee.diameter if distance is None else distance)

    def distances(self, x, y):
        return distances(self.vocabulary, x, y) / 2
'''

POINTS = """[sottovoce.mechanisms]
quiet-coin = quiet.noise:Installed
"""
INSTALLED = '''

@dataclass(frozen=True)
class Installed(Open):
    """As the entry point names it."""

    name: ClassVar[str] = "quiet-coin"
'''


def write_package(folder: Path, *, points: str = POINTS, more: str = "") -> Path:
    """The package `quiet` under the folder, its entry points beside it, and more code at the end of its module
    `quiet.noise`. Returns the folder, for Python's path."""
    package, metadata = folder / "quiet", folder / "quiet_noise-1.0.dist-info"
    for made in (package, metadata):
        made.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "noise.py").write_text(MODULE + INSTALLED + more)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet-noise\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)
    return folder
