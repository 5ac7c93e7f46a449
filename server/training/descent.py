"""A linear head by noisy gradient descent, for users who trust a server with their records: what is done by habit.

Neighbouring data sets differ in one user's record, replaced by any other; a user has one record, so users are the
units. The number of users is public. The noise is the least with which all steps together cost (ε, δ), by
`mechanisms.accounting.descent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.accounting.descent import least_noise
from mechanisms.mechanism import parameters

FloatArray = NDArray[np.float64]
Labels = NDArray[np.int64]
#: weight (d, K), bias (K,)
Head = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Descent:
    """How a trusted server trains on users' records in clear. epsilon, delta: what all its steps cost together.

    rate: the probability with which a user is in a step, anew for each user and step. steps: how many. clip: C, the
    length to which what a user adds to a step is clipped; features are of length about 1. learning_rate, momentum: of
    a step. They are fixed in advance, on the built-in reviews: with 20,000 users and ε from .25 to 8, learning rates of
    4 (ε < 1) and 8 (above) are within .003 of the best of six, from .5 to 16, each with clips of .25, .5 and 1.
    """

    epsilon: float
    delta: float
    rate: float = 0.25
    steps: int = 50
    clip: float = 0.5
    learning_rate: float = 4.0
    momentum: float = 0.9

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        limits = {
            "epsilon": (1e-6, 1000.0), "delta": (1e-300, 1 - 1e-12), "rate": (1e-6, 1.0), "clip": (1e-6, 1e6),
            "learning_rate": (1e-6, 1e6), "momentum": (0.0, 0.999),
        }  # fmt: skip
        for field, (low, high) in limits.items():
            object.__setattr__(self, field, checks.real(self.name, field, getattr(self, field), low, high))
        object.__setattr__(self, "steps", checks.integer(self.name, "steps", self.steps, 1, 100_000))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in each coordinate of a step's sum, in units of `clip`."""
        return least_noise(self.epsilon, rate=self.rate, steps=self.steps, delta=self.delta)

    def head(self, features: FloatArray, labels: Labels, public: FloatArray, start: Head, *, seed: int) -> Head:
        """The head after all steps, from users' features (n, d) and labels (n,) of 0..K-1, n >= 1.

        public: features (N, d) of public text, by whose second moments all are whitened, with the ridge of the
        closed form. start: the head that public labels make, zeros where there are none.
        """
        from server.training.statistic_head import RIDGE  # loads torch, which naming a curator need not

        values, vectors = np.linalg.eigh(np.cov(public, rowvar=False))
        values = np.maximum(values, 1e-12)
        root = np.sqrt(values + RIDGE * values.mean())
        root *= np.sqrt((values / root**2).sum())  # the mean square length of what is whitened is 1
        mean = public.mean(axis=0)
        weight, bias = start
        began = root[:, None] * (vectors.T @ weight), bias + mean @ weight
        weight, bias = self.descend((features - mean) @ vectors / root, labels, began, seed=seed)
        weight = vectors @ (weight / root[:, None])
        return weight, bias - mean @ weight

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        """The head after all steps, from features (n, d) as they are."""
        raise NotImplementedError

    def sampled(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The rows of one step."""
        return np.flatnonzero(rng.random(n) < self.rate)

    def told(self) -> str:
        """Its parameters in words."""
        said = ", ".join(f"{name} {value:g}" for name, value in parameters(self).items() if name != "mechanism")
        return f"{self.name}, {said}, noise {self.noise:.4g}"


@dataclass(frozen=True)
class DPSGD(Descent):
    """Clipped and noised gradients of the log loss (Abadi et al. 2016), by Opacus' optimizer."""

    name: ClassVar[str] = "dp-sgd"

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        import warnings

        import torch
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        linear = torch.nn.Linear(x.shape[1], len(start[1]))
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(start[0].T))
            linear.bias.copy_(torch.from_numpy(start[1]))
        module = GradSampleModule(linear)
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=self.learning_rate, momentum=self.momentum),
            noise_multiplier=self.noise, max_grad_norm=self.clip, expected_batch_size=self.rate * len(x),
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        features, target = torch.from_numpy(x.astype(np.float32)), torch.tensor(labels)
        rng = np.random.default_rng(seed)
        for _ in range(self.steps):
            rows = torch.from_numpy(self.sampled(len(x), rng))
            optimizer.zero_grad()
            # the mean over the sample: Opacus undoes the division, for each row's own gradient
            loss = torch.nn.functional.cross_entropy(module(features[rows]), target[rows])
            with warnings.catch_warnings():  # of hooks, since features have no gradients of their own
                warnings.simplefilter("ignore", UserWarning)
                loss.backward()
            optimizer.step()
        return linear.weight.detach().numpy().T.astype(np.float64), linear.bias.detach().numpy().astype(np.float64)


@dataclass(frozen=True)
class DPFedAvg(Descent):
    """Users train the head on their own record, and the server adds up their clipped changes and noise (McMahan et al.
    2018, Algorithm 1, with server momentum).

    local_steps, local_rate: of a user's own gradient descent.
    """

    local_steps: int = 5
    local_rate: float = 0.5

    name: ClassVar[str] = "dp-fedavg"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "local_rate", checks.real(self.name, "local_rate", self.local_rate, 1e-6, 1e6))
        object.__setattr__(self, "local_steps", checks.integer(self.name, "local_steps", self.local_steps, 1, 1000))

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        rng = np.random.default_rng(seed)
        rows = np.hstack([x, np.ones((len(x), 1))])
        head, speed = np.vstack([start[0], start[1]]), np.zeros((rows.shape[1], len(start[1])))
        truth = np.eye(len(start[1]))[labels]
        for _ in range(self.steps):
            taken = self.sampled(len(x), rng)
            total = self._changes(rows[taken], truth[taken], head)
            total += self.noise * self.clip * rng.normal(size=total.shape)
            speed = self.momentum * speed + total / (self.rate * len(x))
            head = head + self.learning_rate * speed
        return head[:-1], head[-1]

    def _changes(self, rows: FloatArray, truth: FloatArray, head: FloatArray) -> FloatArray:
        """The sum of users' clipped changes of the head: rows (n, d + 1), truth (n, K), head (d + 1, K).

        Every gradient of a user of one row x is x ⊗ (truth - softmax), and so is their whole change: x ⊗ a.
        """
        square = (rows**2).sum(axis=1, keepdims=True)
        logits, change = rows @ head, np.zeros_like(truth)
        for _ in range(self.local_steps):
            z = logits + square * change
            likely = np.exp(z - z.max(axis=1, keepdims=True))
            change += self.local_rate * (truth - likely / likely.sum(axis=1, keepdims=True))
        length = np.sqrt(square * (change**2).sum(axis=1, keepdims=True))
        return rows.T @ (change * np.minimum(1.0, self.clip / np.maximum(length, 1e-12)))


#: By the names that experiments give them.
DESCENTS = {kind.name: kind for kind in (DPSGD, DPFedAvg)}
