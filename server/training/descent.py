"""Linear heads by noisy gradient descent: a baseline for a server that users trust with their records.

Neighbouring data sets differ in one user's record, replaced by any other. A user has one record, so users are the
units. The number of users is public. The noise is the least with which all steps together cost (ε, δ), by
`mechanisms.accounting.descent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanisms import checks
from mechanisms.accounting.descent import least_noise
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import parameters

#: weight (d, K), bias (K,)
Head = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class DPSGD:
    """DP-SGD: clipped and noised gradients of the log loss over Poisson samples, by Opacus' optimizer.

    The parameters are fixed in advance. On the built-in reviews, with 20,000 users and ε from .25 to 8, learning rates
    of 4 (ε < 1) and 8 (above) are within .003 of the best of six, from .5 to 16, each with clips of .25, .5 and 1.

    Source: Abadi et al. 2016.

    Args:
        epsilon: Central ε of a user, for all steps together.
        delta: δ of a user, for all steps together.
        clip: C, the length to which a user's contribution to a step is clipped. Features have length about 1.
        learning_rate: Learning rate of a step.
        momentum: Momentum of a step.
        rate: Probability with which a user is in a step, drawn anew for each user and step.
        steps: Number of steps.
    """

    epsilon: float
    delta: float
    clip: float = 0.5
    learning_rate: float = 4.0
    momentum: float = 0.9
    rate: float = 0.25
    steps: int = 50

    name: ClassVar[str] = "dp-sgd"

    def __post_init__(self) -> None:
        limits = {
            "epsilon": (1e-6, 1000.0),
            "delta": (1e-300, 1 - 1e-12),
            "clip": (1e-6, 1e6),
            "learning_rate": (1e-6, 1e6),
            "momentum": (0.0, 0.999),
            "rate": (1e-6, 1.0),
        }
        for field, (low, high) in limits.items():
            object.__setattr__(self, field, checks.real(self.name, field, getattr(self, field), low, high))
        object.__setattr__(self, "steps", checks.integer(self.name, "steps", self.steps, 1, 100_000))

    def head(self, features: FloatArray, labels: IntArray, public: FloatArray, start: Head, *, seed: int) -> Head:
        """Return the head after all steps.

        Args:
            features: Features (n, d) of users, n >= 1.
            labels: Labels (n,) of 0..K-1.
            public: Features (N, d) of public text. Their second moments whiten all features, with the ridge of the
                closed form.
            start: Head from public labels; zeros if there are none.
            seed: Seed of samples and noise.
        """
        from server.training.statistic_head import RIDGE  # loads torch, which a description does not need

        values, vectors = np.linalg.eigh(np.cov(public, rowvar=False))
        values = np.maximum(values, 1e-12)
        root = np.sqrt(values + RIDGE * values.mean())
        root *= np.sqrt((values / root**2).sum())  # makes the mean square length of whitened features 1
        mean = public.mean(axis=0)
        weight, bias = start
        began = root[:, None] * (vectors.T @ weight), bias + mean @ weight
        weight, bias = self.descend((features - mean) @ vectors / root, labels, began, seed=seed)
        weight = vectors @ (weight / root[:, None])
        return weight, bias - mean @ weight

    def noise_of_mean(self, size: int, users: int) -> float:
        """Return the noise variance of a mean of user vectors, if one release spent all of (ε, δ).

        The number of features is chosen by it.

        Args:
            size: Coordinates of a user vector.
            users: Number of users.
        """
        return (Gaussian.calibrated(self.epsilon, self.delta, 1).sigma / users) ** 2

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise in each coordinate of a step's sum, in units of `clip`."""
        return least_noise(self.epsilon, rate=self.rate, steps=self.steps, delta=self.delta)

    def sampled(self, n: int, rng: np.random.Generator) -> IntArray:
        """Return the rows of one step."""
        return np.flatnonzero(rng.random(n) < self.rate)

    def describe(self) -> str:
        """Return the parameters and the noise in words."""
        listed = ", ".join(f"{name} {value:g}" for name, value in parameters(self).items() if name != "mechanism")
        return f"{self.name}, {listed}, noise {self.noise:.4g}"

    def descend(self, x: FloatArray, labels: IntArray, start: Head, *, seed: int) -> Head:
        """Return the head after all steps, from features (n, d) as they are."""
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
            noise_multiplier=self.noise,
            max_grad_norm=self.clip,
            expected_batch_size=self.rate * len(x),
            generator=torch.Generator().manual_seed(seed),
        )
        features, target = torch.from_numpy(x.astype(np.float32)), torch.tensor(labels)
        rng = np.random.default_rng(seed)
        for _ in range(self.steps):
            rows = torch.from_numpy(self.sampled(len(x), rng))
            optimizer.zero_grad()
            # the mean over the sample: Opacus undoes the division for each row's own gradient
            loss = torch.nn.functional.cross_entropy(module(features[rows]), target[rows])
            with warnings.catch_warnings():  # about hooks, because features have no gradients of their own
                warnings.simplefilter("ignore", UserWarning)
                loss.backward()
            optimizer.step()
        return linear.weight.detach().numpy().T.astype(np.float64), linear.bias.detach().numpy().astype(np.float64)
