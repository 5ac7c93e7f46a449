"""A linear head by noisy gradient descent: what is done by habit, by a server that users trust with their records.

Neighbouring data sets differ in one user's record, replaced by any other; a user has one record, so users are the
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
    """Gradient descent on what users have. epsilon, delta: of a user, central: of all steps together.

    clip: C, the length to which what a user adds to a step is clipped; features are of length about 1. learning_rate,
    momentum: of a step. They are fixed in advance: see each kind.
    """

    epsilon: float
    delta: float
    clip: float = 0.5
    learning_rate: float = 4.0
    momentum: float = 0.9

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        limits = {
            "epsilon": (1e-6, 1000.0), "delta": (1e-300, 1 - 1e-12), "clip": (1e-6, 1e6), "learning_rate": (1e-6, 1e6),
            "momentum": (0.0, 0.999),
        }  # fmt: skip
        for field, (low, high) in limits.items():
            object.__setattr__(self, field, checks.real(self.name, field, getattr(self, field), low, high))

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

    def noise_of_mean(self, size: int, users: int) -> float:
        """The variance that one release for all of (ε, δ) would leave in each coordinate of so many users' mean, of
        `size` coordinates: by it the number of features is chosen."""
        return (Gaussian.calibrated(self.epsilon, self.delta, 1).sigma / users) ** 2

    def told(self) -> str:
        """Its parameters in words."""
        return f"{self.name}, " + ", ".join(
            f"{name} {value:g}" for name, value in parameters(self).items() if name != "mechanism"
        )


@dataclass(frozen=True)
class NoisySteps(Descent):
    """What a trusted server does with records in clear: sums of clipped vectors over Poisson samples, with Gaussian
    noise. rate: the probability with which a user is in a step, anew for each user and step. steps: how many.

    On the built-in reviews, with 20,000 users and ε from .25 to 8, learning rates of 4 (ε < 1) and 8 (above) are within
    .003 of the best of six, from .5 to 16, each with clips of .25, .5 and 1; for both kinds.
    """

    rate: float = 0.25
    steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rate", checks.real(self.name, "rate", self.rate, 1e-6, 1.0))
        object.__setattr__(self, "steps", checks.integer(self.name, "steps", self.steps, 1, 100_000))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in each coordinate of a step's sum, in units of `clip`."""
        return least_noise(self.epsilon, rate=self.rate, steps=self.steps, delta=self.delta)

    def sampled(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The rows of one step."""
        return np.flatnonzero(rng.random(n) < self.rate)

    def told(self) -> str:
        return f"{super().told()}, noise {self.noise:.4g}"


@dataclass(frozen=True)
class DPSGD(NoisySteps):
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
class DPFedAvg(NoisySteps):
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


@dataclass(frozen=True)
class LocalDPSGD(Descent):
    """Each user once sends one gradient of the head, clipped and drawn by PrivUnit; groups of users one after another,
    each at the head that those before have made, behind a shuffler. Nobody is trusted for the local ε.

    groups: how many; who is in which is public. users: in all, as expected; by them PrivUnit is planned, or by those
    who came where they are fewer: its local ε is the largest whose shuffled ε among one group's users is `epsilon` (a
    user is in one group, and only its batch depends on them).
    Of one group all gradients are at a head of zeros, the vectors of `mechanisms.projection.statistic_vectors`, and
    nothing descends. On the built-in reviews, with 20,000 users and ε of .25, 1 and 4, 5 groups are within .004 of the
    best of 5 and 10, four learning rates, two momenta and two clips.
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
        """What users draw by, but for its dimension. ValueError where nothing fits."""
        from mechanisms.accounting.planner import privunit_of  # takes its time to load

        best = privunit_of(self.epsilon, self.delta, self.users // self.groups)
        if best is None:
            raise ValueError(f"{self.name}: nothing fits epsilon {self.epsilon:g} among {self.users:,} users")
        return best

    def noise_of_mean(self, size: int, users: int) -> float:
        planned = self.planned
        return (1 / PrivUnit(size, planned.epsilon, planned.cap_probability).scale ** 2 - 1) / (users * size)

    def told(self) -> str:
        return f"{super().told()}, local epsilon {self.planned.epsilon:.4g}"

    def descend(self, x: FloatArray, labels: Labels, start: Head, *, seed: int) -> Head:
        from server.training.statistic_head import simplex_codes  # loads torch, which naming a curator need not

        n, d = x.shape
        codes = simplex_codes(len(start[1])).astype(np.float64)
        share = np.sqrt(d / (d + 1))  # of features and of the constant, as in a statistic
        rows = np.hstack([share * x, np.full((n, 1), 1 / np.sqrt(d + 1))])
        table = np.linalg.pinv(codes) @ np.vstack([start[0] / share, start[1] * np.sqrt(d + 1)]).T
        planned = replace(self, users=min(self.users, n)).planned  # where fewer answer than expected, they hide less
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
            # the direction, or with probability (1 - r)/2 the opposite one, of a gradient of r times the clip
            signs = np.where(rng.uniform(len(members), 1)[:, 0] < (1 + clipped) / 2, 1.0, -1.0)
            gradients[length[:, 0] < 1e-12], length[length < 1e-12] = np.eye(1, table.size), 1.0
            drawn = mechanism.sample(signs[:, None] * gradients / length, rng=rng)
            mean = mechanism.decoded_mean(mechanism.grid.encode(drawn)).reshape(table.shape)
            speed = self.momentum * speed + self.clip * mean
            table = table + self.learning_rate * speed
        head = codes @ table
        return head[:, :d].T * share, head[:, d] / np.sqrt(d + 1)


#: By the names that experiments give them.
DESCENTS = {kind.name: kind for kind in (DPSGD, DPFedAvg, LocalDPSGD)}
