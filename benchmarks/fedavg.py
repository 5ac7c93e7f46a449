"""Compare one vector a user with DP-FedAvg of Flower, whose server sees every update.

    python -m benchmarks.fedavg DATA [--seeds 1]

The same users of banking77's queues by topic (`benchmarks.tasks`), the same frozen encoder. DP-FedAvg trains a softmax
regression on principal components of public text. All users take part in every round: STEPS gradient steps on their
records, an update that Flower clips, averages and noises (`DifferentialPrivacyServerSideFixedClipping`). Its noise
multiplier is the least for which all rounds cost the central ε that the shuffled vectors have, for data sets that
differ in all of one user's data, δ = 1e-6. Of all rounds and clips of the grid the best on test texts is shown, which
favours DP-FedAvg. One line a row: users, records, local ε, central ε, accuracies of one vector and of DP-FedAvg.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from scipy.special import softmax

from benchmarks.tasks import EPSILONS, TASKS, World, frozen_encoder
from mechanisms.accounting.shuffle import amplify
from mechanisms.gaussian import Gaussian
from mechanisms.privunit import PrivUnit
from server.training.principal import pca_maps
from simulations.artifacts.public import CachedEncoder

TASK, SIZES, DELTA = "banking77, queues by topic", ((300, 20), (1_240, 51)), 1e-6
#: Components, gradient steps of a round on a user's records, and their size.
DIM, STEPS, RATE = 64, 5, 1.0
ROUNDS, CLIPS = (2, 5, 20), (0.1, 0.3, 1.0, 3.0)


def fedavg(
    features: np.ndarray, labels: np.ndarray, classes: int, *, rounds: int, clip: float, noise: float, seed: int
) -> np.ndarray:
    """Return the weights (d, K) after DP-FedAvg.

    Args:
        features: Features (u, m, d) of m records of each user.
        labels: Their labels (u, m).
        classes: Number of classes K.
        rounds: Number of rounds, in which all users take part.
        clip: Length at which a user's update is clipped.
        noise: Standard deviation of the noise of the updates' sum, in units of `clip`.
        seed: Seed of the noise.
    """
    users, truth = len(features), np.eye(classes)[labels]
    np.random.seed(seed)  # noqa: NPY002 - Flower draws its noise from NumPy's global generator
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), noise, clip, users)
    weights = np.zeros((features.shape[2], classes))
    for number in range(1, rounds + 1):
        strategy.current_arrays = ArrayRecord({"w": Array(weights)})
        own = np.repeat(weights[None], users, axis=0)
        for _ in range(STEPS):
            errors = softmax(features @ own, axis=2) - truth
            own -= RATE / features.shape[1] * features.transpose(0, 2, 1) @ errors
        arrays, _ = strategy.aggregate_train(number, [_reply(update, strategy) for update in own])
        weights = arrays["w"].numpy()
    return weights


def _reply(weights: np.ndarray, strategy: Any) -> Message:
    arrays, metrics = ArrayRecord({"w": Array(weights)}), MetricRecord({"num-examples": 1})
    request = Message(RecordDict({"arrays": strategy.current_arrays}), dst_node_id=1, message_type="train")
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=request)


def rows(data: Path, seed: int, encoder: CachedEncoder) -> Iterator[str]:
    """Yield the lines of a seed."""
    world = World(TASKS[TASK], data, seed, encoder)
    classes = len(world.classes)
    frame = pca_maps(world.public, dim=DIM, classes=classes)
    spread = frame.project(world.public).std(axis=0)
    train, test = (frame.project(embeddings) / spread / DIM**0.5 for embeddings in world.embedded)
    for (users, records), epsilon in product(SIZES, EPSILONS):
        model = world.model(users, records, partial(PrivUnit, epsilon=epsilon), records)
        mechanism = PrivUnit((classes - 1) * (model.asked.dim + 1), epsilon)
        central = amplify([mechanism], users=users, delta=DELTA).epsilon
        own = world.users(users, records)[0].reshape(users, records)
        sigma = Gaussian.calibrated(central, DELTA, 2).sigma  # of vectors at most 2 apart, as two users' updates are
        results = []
        for n, clip in product(ROUNDS, CLIPS):
            noise = sigma * n**0.5
            weights = fedavg(train[own], world.labels[own], classes, rounds=n, clip=clip, noise=noise, seed=seed)
            results.append((float(((test @ weights).argmax(axis=1) == world.truth).mean()), n, clip))
        best = max(results)
        yield (
            f"seed {seed}: {users:,} x {records}, local {epsilon:g}, central {central:.3g}: one vector "
            f"{world.accuracy(model):.3f}, DP-FedAvg {best[0]:.3f} ({best[1]} rounds, clip {best[2]:g})"
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fedavg", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.INFO)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what a server's process sets
    encoder = frozen_encoder("minilm")
    for seed in range(1, given.seeds + 1):
        for line in rows(given.data, seed, encoder):
            print(line, flush=True)


if __name__ == "__main__":
    main()
