"""Linear heads by noisy gradient descent: baselines for a server that users trust with their records.

Neighbouring data sets differ in one user's record, replaced by any other. A user has one record, so users are the
units. The number of users is public. The noise is the least with which all steps together cost (ε, δ), by
`mechanisms.accounting.descent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.accounting.descent import least_noise
from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import parameters
from mechanisms.privunit import PrivUnit
from mechanisms.streams import SimulationStreams

FloatArray = NDArray[np.float64]
Labels = NDArray[np.int64]
#: weight (d, K), bias (K,)
Head = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Descent:
    """Gradient descent on users' records.

    The parameters are fixed in advance: each subclass states how.

    Args:
        epsilon: Central ε of a user, for all steps together.
        delta: δ of a user, for all steps together.
        clip: C, the length to which a user's contribution to a step is clipped. Features have length about 1.
        learning_rate: Learning rate of a step.
        momentum: Momentum of a step.
    """

    epsilon: float
    delta: float
    clip: float = 0.5
    learning_rate: float = 4.0
    momentum: float = 0.9

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        limits = {
            "epsilon": (1e-6, 1000.0),
            "delta": (1e-300, 1 - 1e-12),
            "clip": (1e-6, 1e6),
            "learning_rate": (1e-6, 1e6),
            "momentum": (0.0, 0.999),
        }
        for field, (low, high) in limits.items():
            object.__setattr__(self, field, checks.real(self.name, field, getattr(self, field), low, high))

    def head(self, features: FloatArray, labels: Labels, public: FloatArray, start: Head, *, seed: int) -> Head:
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

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        """Return the head after all steps, from features (n, d) as they are."""
        raise NotImplementedError

    def noise_of_mean(self, size: int, users: int) -> float:
        """Return the noise variance of a mean of user vectors, if one release spent all of (ε, δ).

        The number of features is chosen by it.

        Args:
            size: Coordinates of a user vector.
            users: Number of users.
        """
        return (Gaussian.calibrated(self.epsilon, self.delta, 1).sigma / users) ** 2

    def told(self) -> str:
        """Return the parameters in words."""
        return f"{self.name}, " + ", ".join(
            f"{name} {value:g}" for name, value in parameters(self).items() if name != "mechanism"
        )


@dataclass(frozen=True)
class NoisySteps(Descent):
    """Descent of a trusted server: sums of clipped vectors over Poisson samples, with Gaussian noise.

    On the built-in reviews, with 20,000 users and ε from .25 to 8, learning rates of 4 (ε < 1) and 8 (above) are within
    .003 of the best of six, from .5 to 16, each with clips of .25, .5 and 1. This holds for both subclasses.

    Args:
        rate: Probability with which a user is in a step, drawn anew for each user and step.
        steps: Number of steps.
    """

    rate: float = 0.25
    steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rate", checks.real(self.name, "rate", self.rate, 1e-6, 1.0))
        object.__setattr__(self, "steps", checks.integer(self.name, "steps", self.steps, 1, 100_000))

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise in each coordinate of a step's sum, in units of `clip`."""
        return least_noise(self.epsilon, rate=self.rate, steps=self.steps, delta=self.delta)

    def sampled(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows of one step."""
        return np.flatnonzero(rng.random(n) < self.rate)

    def told(self) -> str:
        """Return the parameters and the noise in words."""
        return f"{super().told()}, noise {self.noise:.4g}"


@dataclass(frozen=True)
class DPSGD(NoisySteps):
    """DP-SGD: clipped and noised gradients of the log loss, by Opacus' optimizer.

    Source: Abadi et al. 2016.
    """

    name: ClassVar[str] = "dp-sgd"

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
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


@dataclass(frozen=True)
class DPFedAvg(NoisySteps):
    """DP-FedAvg: users train the head on their own record, and the server adds up their clipped changes and noise.

    Args:
        local_steps: Steps of a user's own gradient descent.
        local_rate: Learning rate of these steps.

    Source: McMahan et al. 2018, Algorithm 1, with server momentum.
    """

    local_steps: int = 5
    local_rate: float = 0.5

    name: ClassVar[str] = "dp-fedavg"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "local_rate", checks.real(self.name, "local_rate", self.local_rate, 1e-6, 1e6))
        object.__setattr__(self, "local_steps", checks.integer(self.name, "local_steps", self.local_steps, 1, 1000))

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        """Return the head after all steps, from features (n, d) as they are."""
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
        """Return the sum of users' clipped changes of the head.

        Every gradient of a user with one row x is x ⊗ (truth - softmax), and so is their whole change: x ⊗ a.

        Args:
            rows: Rows (n, d + 1).
            truth: One-hot labels (n, K).
            head: Head (d + 1, K).
        """
        square = (rows**2).sum(axis=1, keepdims=True)
        logits, change = rows @ head, np.zeros_like(truth)
        for _ in range(self.local_steps):
            z = logits + square * change
            likely = np.exp(z - z.max(axis=1, keepdims=True))
            change += self.local_rate * (truth - likely / likely.sum(axis=1, keepdims=True))
        length = np.sqrt(square * (change**2).sum(axis=1, keepdims=True))
        return rows.T @ (change * np.minimum(1.0, self.clip / np.maximum(length, 1e-12)))


@dataclass(frozen=True)
class LocalDPSGD(Descent):
    """Local DP-SGD: each user sends one gradient of the head once, clipped and drawn by PrivUnit.

    Groups of users answer one after another behind a shuffler, each at the head that earlier groups made. The local ε
    needs no trust.

    With one group, all gradients are at a head of zeros, and nothing descends. They are the vectors of
    `mechanisms.projection.statistic_vectors`, except that the constant has a share of 1/(d + 1) of the squared length.
    With a tenth of it the threshold overshoots: SST-2, MiniLM, central ε = 8, .60 in place of .79. On the built-in
    reviews, with 20,000 users and ε of .25, 1 and 4, 5 groups are within .004 of the best of 5 and 10, four learning
    rates, two momenta and two clips.

    Args:
        groups: Number of groups; membership is public.
        users: Expected number of users in all. PrivUnit is planned for them, or for the actual users if there are
            fewer. Its local ε is the largest whose shuffled ε among one group's users is `epsilon`. A user is in one
            group, and only its batch depends on them.
    """

    clip: float = 1.0
    learning_rate: float = 1.0
    momentum: float = 0.5
    groups: int = 5
    users: int = 0

    name: ClassVar[str] = "local-dp-sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "groups", checks.integer(self.name, "groups", self.groups, 1, 1000))
        object.__setattr__(self, "users", checks.integer(self.name, "users", self.users, 1, 10**9))

    @property
    def planned(self) -> PrivUnit:
        """Return the mechanism of the users' draws, without its dimension.

        Raises:
            ValueError: No local ε fits.
        """
        from mechanisms.accounting.planner import privunit_of  # slow to load

        best = privunit_of(self.epsilon, self.delta, self.users // self.groups)
        if best is None:
            raise ValueError(f"{self.name}: nothing fits epsilon {self.epsilon:g} among {self.users:,} users")
        return best

    def noise_of_mean(self, size: int, users: int) -> float:
        """Return the noise variance of a mean of user vectors, under the planned mechanism.

        Args:
            size: Coordinates of a user vector.
            users: Number of users.
        """
        planned = self.planned
        return (1 / PrivUnit(size, planned.epsilon, planned.cap_probability).scale ** 2 - 1) / (users * size)

    def told(self) -> str:
        """Return the parameters and the local ε in words."""
        return f"{super().told()}, local epsilon {self.planned.epsilon:.4g}"

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        """Return the head after all steps, from features (n, d) as they are."""
        from server.training.statistic_head import simplex_codes  # loads torch, which a description does not need

        n, d = x.shape
        codes = simplex_codes(len(start[1])).astype(np.float64)
        share = np.sqrt(d / (d + 1))  # share of features against the constant, in lengths
        rows = np.hstack([share * x, np.full((n, 1), 1 / np.sqrt(d + 1))])
        table = np.linalg.pinv(codes) @ np.vstack([start[0] / share, start[1] * np.sqrt(d + 1)]).T
        planned = replace(self, users=min(self.users, n)).planned  # fewer users than expected make a smaller crowd
        mechanism = PrivUnit(table.size, planned.epsilon, planned.cap_probability)
        order, speed = np.random.default_rng(seed).permutation(n), np.zeros_like(table)
        for number, members in enumerate(np.array_split(order, self.groups)):
            if not len(members):
                continue
            rng = SimulationStreams(seed).rows(members, np.zeros_like(members), stage=f"{number}", channel="statistic")
            logits = rows[members] @ (codes @ table).T
            likely = np.exp(logits - logits.max(axis=1, keepdims=True))
            residual = codes[labels[members]] - likely / likely.sum(axis=1, keepdims=True) @ codes
            gradients = (residual[:, :, None] * rows[members][:, None, :]).reshape(len(members), -1)
            length = np.linalg.norm(gradients, axis=1, keepdims=True)
            clipped = np.minimum(length / self.clip, 1.0)[:, 0]
            # the direction of a gradient with length r·clip, or with probability (1 - r)/2 the opposite direction
            signs = np.where(rng.uniform(len(members), 1)[:, 0] < (1 + clipped) / 2, 1.0, -1.0)
            gradients[length[:, 0] < 1e-12], length[length < 1e-12] = np.eye(1, table.size), 1.0
            drawn = mechanism.sample(signs[:, None] * gradients / length, rng=rng)
            mean = mechanism.decoded_mean(mechanism.grid.encode(drawn)).reshape(table.shape)
            speed = self.momentum * speed + self.clip * mean
            table = table + self.learning_rate * speed
        head = codes @ table
        return head[:, :d].T * share, head[:, d] / np.sqrt(d + 1)


#: Methods by the name that experiments use.
DESCENTS = {kind.name: kind for kind in (DPSGD, DPFedAvg, LocalDPSGD)}
