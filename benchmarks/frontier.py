"""Compare what users teach under four kinds of trust, at the level of users: figure users-frontier.png.

    python -m benchmarks.frontier DATA [--out frontier.jsonl] [--figure FILE]

The users and the frozen encoder are those of `benchmarks.tasks`; points are means over the seeds of PANELS. Central ε
covers all of a user's data, δ = 1e-6, and is that of one shuffled vector a user under each local ε.

- "one vector": the product. Its local ε covers a user who trusts nobody.
- "trusted mean": the same vectors in clear at a trusted curator, who adds Gaussian noise to their sum.
- "DP-FedAvg": Flower's own (`DifferentialPrivacyServerSideFixedClipping`) at a trusted server, all users in each
  round. With one step a round it is DP-SGD whose unit is the user. Its noise is the least at which all rounds cost ε.
- "local DP-SGD": a softmax regression as well. Each user is in one round, and releases their clipped gradient by
  PrivUnit at the same local ε. It is drawn at the central ε of one vector, which favours it: in four rounds a user
  hides among a quarter of the users, and pays more (1,240 users, local ε = 3: 1.38, for .614 in one).

Of the last two the best setting of a grid on test texts is shown, which favours them. Points are kept in --out, a line
of JSON each, and not measured again. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from scipy.special import softmax

from benchmarks.tasks import TASKS, TEACHERS, World, frozen_encoder, in_clear
from mechanisms.accounting.shuffle import amplify
from mechanisms.gaussian import Gaussian
from mechanisms.privunit import PrivUnit
from mechanisms.projection import signed_directions
from mechanisms.streams import SeededUniforms
from server.maps import pca_maps
from simulations.artifacts.public import CachedEncoder
from simulations.output.figures import COLOURS, MARKERS, new_figure, save

#: Task, users, records of each, and number of seeds: popquorn has few testers.
PANELS = (
    ("banking77, queues by topic", 300, 20, 1),
    ("banking77, queues by topic", 1_240, 51, 1),
    ("POPQUORN, offensive to me", TEACHERS, 33, 5),
)
EPSILONS, DELTA = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0), 1e-6
#: Components of softmax regressions.
DIM = 64
#: Rounds, gradient steps of a round, and clips of DP-FedAvg; its steps' size.
ROUNDS, STEPS, CLIPS, RATE = (2, 5, 20), (1, 5), (0.1, 0.3, 1.0), 1.0
#: Rounds, clips and step sizes of local DP-SGD.
LOCAL_ROUNDS, LOCAL_CLIPS, LOCAL_RATES = (1, 4), (0.1, 0.3, 1.0), (3.0, 10.0, 30.0)
#: Ticks of central ε.
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ARMS = ("one vector", "trusted mean", "DP-FedAvg", "local DP-SGD")


class Regression:
    """Softmax regression on records that users hold.

    Args:
        world: Public text, records and tests.
        users: Number of users.
        records: Records of each, where the data name no users.
    """

    def __init__(self, world: World, users: int, records: int) -> None:
        frame = pca_maps(world.public, dim=DIM, classes=len(world.classes))
        spread = frame.project(world.public).std(axis=0) * DIM**0.5
        rows, starts = world.users(users, records)
        train, self.test = (frame.project(embeddings) / spread for embeddings in world.embedded)
        counts = np.diff(starts)
        real = np.arange(counts.max()) < counts[:, None]  # users of fewer records are padded
        own = np.zeros(real.shape, np.int64)
        own[real] = rows
        self.features, self.share = train[own], real / counts[:, None]
        self.truth, self.classes = np.eye(len(world.classes))[world.labels[own]], len(world.classes)
        self.answers = world.truth

    def gradients(self, weights: np.ndarray, users: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the gradient (u, d, K) of each user's mean loss at weights (d, K), or (u, d, K)."""
        features = self.features[users]
        errors = (softmax(features @ weights, axis=2) - self.truth[users]) * self.share[users][:, :, None]
        return features.transpose(0, 2, 1) @ errors

    def accuracy(self, weights: np.ndarray) -> float:
        """Return the accuracy on test texts."""
        return float(((self.test @ weights).argmax(axis=1) == self.answers).mean())


def fedavg(data: Regression, *, rounds: int, steps: int, clip: float, noise: float, seed: int) -> np.ndarray:
    """Return the weights (d, K) after DP-FedAvg.

    Args:
        data: Users' records.
        rounds: Number of rounds, in which all users take part.
        steps: Gradient steps of a user in a round.
        clip: Length at which a user's update is clipped.
        noise: Standard deviation of the noise of the updates' sum, in units of `clip`.
        seed: Seed of the noise.
    """
    users = len(data.features)
    np.random.seed(seed)  # noqa: NPY002 - Flower draws its noise from NumPy's global generator
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), noise, clip, users)
    weights = np.zeros((DIM, data.classes))
    for number in range(1, rounds + 1):
        strategy.current_arrays = ArrayRecord({"w": Array(weights)})
        own = np.repeat(weights[None], users, axis=0)
        for _ in range(steps):
            own -= RATE * data.gradients(own)
        arrays, _ = strategy.aggregate_train(number, [_reply(update, strategy) for update in own])
        weights = arrays["w"].numpy()
    return weights


def _reply(weights: np.ndarray, strategy: Any) -> Message:
    arrays, metrics = ArrayRecord({"w": Array(weights)}), MetricRecord({"num-examples": 1})
    request = Message(RecordDict({"arrays": strategy.current_arrays}), dst_node_id=1, message_type="train")
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=request)


def local_sgd(data: Regression, *, rounds: int, clip: float, rate: float, epsilon: float, seed: int) -> np.ndarray:
    """Return the weights (d, K) after steps on gradients that users release by PrivUnit, each user in one round."""
    weights, mechanism = np.zeros((DIM, data.classes)), PrivUnit(DIM * data.classes, epsilon)
    order = np.random.default_rng([seed, rounds]).permutation(len(data.features))
    for number, group in enumerate(np.array_split(order, rounds)):
        means = data.gradients(weights, group).reshape(len(group), -1) / clip
        rng = np.random.default_rng([seed, rounds, number])
        drawn = mechanism.sample(
            signed_directions(means, rng.random(len(group))), rng=SeededUniforms(seed * 100 + number)
        )
        weights = weights - rate * clip * (drawn.mean(axis=0) / mechanism.scale).reshape(weights.shape)
    return weights


def points(
    task: str, users: int, records: int, seed: int, world: World, done: set[tuple[str, float]]
) -> Iterator[dict[str, Any]]:
    """Yield the points of a panel under a seed that are not done: (arm, local ε)."""
    data = Regression(world, users, records)

    def point(arm: str, accuracy: float, local: float = 0.0, central: float = 0.0, setting: Any = "") -> dict[str, Any]:
        cost = {"local": local, "central": central}
        return {"task": task, "users": users, "seed": seed, "arm": arm, "accuracy": accuracy, "setting": setting} | cost

    base = {
        "commonest class": world.majority,
        "class names": world.by_names,
        "no noise": lambda: world.accuracy(world.model(users, records, in_clear, records)),
        "all labels": world.centrally,
    }
    for name, accuracy in base.items():
        if (name, 0.0) not in done:
            yield point(name, accuracy())
    for epsilon in EPSILONS:
        if all((arm, epsilon) in done for arm in ARMS):
            continue
        model = world.model(users, records, partial(PrivUnit, epsilon=epsilon), records)
        mechanism = PrivUnit((len(world.classes) - 1) * (model.asked.dim + 1), epsilon)
        central = amplify([mechanism], users=users, delta=DELTA).epsilon
        trusted = world.model(users, records, in_clear, records, Gaussian.calibrated(central, DELTA, 1))
        sigma = Gaussian.calibrated(central, DELTA, 2).sigma  # of vectors at most 2 apart, as two users' updates are
        averaged = [
            (data.accuracy(fedavg(data, rounds=n, steps=s, clip=c, noise=sigma * n**0.5, seed=seed)), (n, s, c))
            for n, s, c in product(ROUNDS, STEPS, CLIPS)
        ]
        local = [
            (data.accuracy(local_sgd(data, rounds=n, clip=c, rate=r, epsilon=epsilon, seed=seed)), (n, c, r))
            for n, c, r in product(LOCAL_ROUNDS, LOCAL_CLIPS, LOCAL_RATES)
        ]
        results = (world.accuracy(model), ""), (world.accuracy(trusted), ""), max(averaged), max(local)
        for arm, (accuracy, setting) in zip(ARMS, results, strict=True):
            yield point(arm, accuracy, epsilon, central, setting)


def means(lines: Sequence[dict[str, Any]], task: str, users: int, arm: str) -> list[tuple[float, float]]:
    """Return (central ε, accuracy) of an arm, means over seeds, by ascending local ε."""
    mine = [line for line in lines if (line["task"], line["users"], line["arm"]) == (task, users, arm)]
    values = [[(p["central"], p["accuracy"]) for p in mine if p["local"] == local] for local in (*EPSILONS, 0.0)]
    return [tuple(np.mean(of, axis=0).tolist()) for of in values if of]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown: a row for each panel and local ε."""
    rows = [f"| task | users × records | local ε | central ε | {' | '.join(ARMS)} |", "|" + " --- |" * (4 + len(ARMS))]
    for task, users, records, _ in PANELS:
        arms = [means(lines, task, users, arm) for arm in ARMS]
        for local, *cells in zip(EPSILONS, *arms, strict=True):
            accuracies = " | ".join(f"{accuracy:.3f}" for _, accuracy in cells)
            rows.append(f"| {task} | {users:,} × {records} | {local:g} | {cells[0][0]:.3g} | {accuracies} |")
    return "\n".join(rows)


def figure(lines: Sequence[dict[str, Any]]) -> Any:
    """Return the figure: accuracy against central ε, a panel a task."""
    drawn, first = new_figure(4.6, 8.4)
    first.remove()
    for at, (task, users, records, _) in enumerate(PANELS):
        axes = drawn.add_subplot(len(PANELS), 1, at + 1)
        for k, arm in enumerate(ARMS):
            shuffled = arm in ("one vector", "local DP-SGD")
            label = f"{arm}, {'shuffler' if shuffled else 'server'} trusted"
            x, y = zip(*means(lines, task, users, arm), strict=True)
            style = {"marker": MARKERS[k], "color": COLOURS[k], "linestyle": "-" if shuffled else "--", "label": label}
            axes.plot(x, y, markersize=4, linewidth=1.2, **style)
        levels = {name: means(lines, task, users, name)[0][1] for name in ("all labels", "no noise")}
        levels["class names or commonest class"] = max(
            means(lines, task, users, name)[0][1] for name in ("class names", "commonest class")
        )
        for (name, level), linestyle in zip(levels.items(), (":", "-.", "-"), strict=True):
            axes.axhline(level, color="#777777", linewidth=0.8, linestyle=linestyle, label=name)
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_xlim(0.1, 10)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.set_title(f"{task}: {users:,} users × {records} records", fontsize=8)
        axes.set_ylabel("accuracy", fontsize=8)
        axes.set_xlabel("central ε of all of a user's data, δ = 10⁻⁶", fontsize=8)
    drawn.legend(*axes.get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("frontier.jsonl"))
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    logging.disable(logging.INFO)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what a server's process sets
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    encoder: CachedEncoder = frozen_encoder("minilm")
    for task, users, records, seeds in PANELS:
        for seed in range(1, seeds + 1):
            mine = [line for line in lines if (line["task"], line["users"], line["seed"]) == (task, users, seed)]
            done = {(line["arm"], line["local"]) for line in mine}
            world = World(TASKS[task], given.data, seed, encoder)
            for point in points(task, users, records, seed, world, done):
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(point, ensure_ascii=False) + "\n")
                lines.append(point)
                print(json.dumps(point, ensure_ascii=False), flush=True)
    print(table(lines))
    if given.figure is not None:
        save(figure(lines), given.figure)


if __name__ == "__main__":
    main()
