"""Dishonest users of one-vector arms on SST-2, or another folder of its form: accuracy against the share of liars.

    python -m benchmarks.liars FOLDER [--seeds 1 2 3 4 5] [--arms 'ε = 3'] [--set KEY=VALUE ...]

Liars replace users of the experiment sst2-statistics. They want to flip all predictions (the opposite of the users'
mean), or to move the threshold, and send one point each, draws of the mechanism, or, if they know the defence and the
users' texts and labels, the messages of which most of these texts get a wrong class. With the goal `any` they know the
model too and choose their direction by the same count. It prints one row a seed, goal, strategy and share: accuracy on
the device without and with the defence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import expit

from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from mechanisms.streams import SeededUniforms
from server.maps import pca_maps
from server.training.robust_mean import RobustMean, honest_moment, robust_mean
from server.training.statistic_head import Prospects, linear_head, mean_noise, of_users, simplex_codes
from simulations.experiment import load
from simulations.progress import progress_lines
from simulations.run.prepare import prepare
from sottovoce.adversary.estimators.poison import imitations, points, strongest, unseen

SHARES = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
#: Mechanisms by their name: local ε = 3, and the one of central ε = 1 for 20,000 users.
ARMS: dict[str, dict[str, float]] = {
    "ε = 3": {"epsilon": 3.0},
    "central ε = 1": {"epsilon": 6.19, "cap_probability": 0.8},
}
#: Users' texts by which a direction is judged, and how steeply the smooth count of wrong classes turns at the threshold
#: (in median margins). Twice as steep finds the same; a third as steep finds half of the harm.
TRIED, STEEP = 3000, 3.0
#: Ascents of a direction to the worst one, and the step of a coordinate in which a gradient is measured.
ASCENTS, STEP = 15, 0.15
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class World:
    """Users, public text and test texts of one seed, and the users' releases.

    Args:
        features: Features (N, d) of public text.
        own_features: Features (n, d) of users' texts.
        labels: Their labels (n,), 0 or 1.
        test_features: Features of test texts.
        truth: Their labels.
        arm: Parameters of PrivUnit.
        seed: Seed of the draws.
    """

    features: Array
    own_features: Array
    labels: Array
    test_features: Array
    truth: Array
    arm: dict[str, float]
    seed: int

    @property
    def codes(self) -> Array:
        """Return the codes of labels."""
        return simplex_codes(2)

    @property
    def users(self) -> int:
        """Return n."""
        return len(self.labels)

    @cached_property
    def vectors(self) -> Array:
        """Return users' vectors (n, D)."""
        return statistic_vectors(self.own_features, self.labels, self.codes)

    @cached_property
    def mechanism(self) -> PrivUnit:
        """Return the mechanism."""
        return PrivUnit(self.vectors.shape[1], **self.arm)

    @cached_property
    def honest(self) -> Array:
        """Return the second moment of honest reports."""
        return honest_moment(self.mechanism, self.features, 1)

    @cached_property
    def released(self) -> Array:
        """Return honest users' releases (n, D) on the grid."""
        return self.mechanism.grid.encode(self.mechanism.sample(self.vectors, rng=SeededUniforms(self.seed)))

    def robust(self, released: Array) -> RobustMean:
        """Return the robust mean of a batch."""
        return robust_mean(self.mechanism, released, self.honest, 1)

    def margins(self, mean: Array, users: int, features: Array) -> Array:
        """Return log-odds of class 1 for features, by the head of a mean of so many users."""
        evidence = of_users(mean, mean_noise(self.mechanism, users=users), users=users, codes=self.codes)
        weight, bias = linear_head(self.features, self.codes, users=evidence)
        return (features @ weight + bias) @ np.array([-1.0, 1.0])

    def accuracy(self, mean: Array, users: int) -> float:
        """Return the accuracy on test texts of the head of a mean of so many users."""
        return float(np.mean((self.margins(mean, users, self.test_features) > 0) == self.truth))

    @cached_property
    def goals(self) -> dict[str, Array]:
        """Return the directions in which liars push: against the users' mean, and along the label's constant."""
        mean, constant = self.vectors.mean(axis=0), np.eye(self.vectors.shape[1])[-1]
        return {"flip": -mean / np.linalg.norm(mean), "threshold": np.sign(mean[-1]) * constant}

    def wrong(self, released: Array) -> float:
        """Return the share of users' own texts that the head of the robust mean of a batch gets wrong."""
        robust = self.robust(released)
        margins = self.margins(robust.mean, int(robust.kept.sum()), self.own_features)
        return float(np.mean((margins > 0) != self.labels))

    def adaptive(self, direction: Array, count: int) -> Array:
        """Return a batch with liars who push in a direction and send what harms most in spite of the defence."""
        others = self.released[count:]
        lies = strongest(
            self.mechanism,
            direction,
            count,
            self.seed,
            honest=self.honest,
            users=self.users,
            harm=lambda lies: self.wrong(np.concatenate([lies, others])),
        )
        return np.concatenate([lies, others])

    def worst(self, tried: Sequence[Array], count: int) -> Array:
        """Return the worst batch, by `wrong`, of these and of those of liars who choose their direction.

        Directions are those between the goals, and what gradient ascent finds from there on a smooth count of some
        users' texts with a wrong class.
        """
        mean = self.mechanism.decoded_mean(self.released[count:])
        flip, threshold = self.goals.values()
        sample, sign = self.own_features[:TRIED], 1.0 - 2.0 * self.labels[:TRIED]

        def harm(shift: Array) -> float:
            margins = sign * self.margins(mean + shift, self.users, sample)
            return float(expit(STEEP * margins / np.median(np.abs(margins))).mean())

        between = [-threshold, *(each / np.linalg.norm(each) for each in (flip + threshold, flip - threshold))]
        share = count / self.users
        reach = share * unseen(share, self.users, self.mechanism.dim) / self.mechanism.scale
        steepest = worst_direction(harm, between, self.honest, reach)
        return max([*tried, *(self.adaptive(each, count) for each in (*between, steepest))], key=self.wrong)


def worst_direction(harm: Callable[[Array], float], starts: Sequence[Array], honest: Array, reach: float) -> Array:
    """Return the unit vector (D,) along which liars do most harm, after gradient ascent from several vectors.

    Shifts of the mean by `reach` standard deviations of honest reports are compared, all as visible as each other.

    Args:
        harm: Smooth function from a shift (D,) of the mean to the harm that it does.
        starts: Vectors (D,) to begin at.
        honest: Second moment (D, D) of honest reports.
        reach: Length of the shift, in standard deviations of honest reports before debiasing.
    """
    values, vectors = np.linalg.eigh(honest)
    root = vectors * np.sqrt(values) @ vectors.T
    steps, best = STEP * np.eye(len(root)), (-np.inf, starts[0])
    for start in starts:
        at = _unit(np.linalg.solve(root, start))
        for _ in range(ASCENTS):
            now = harm(reach * root @ at)
            gradient = np.array([harm(reach * root @ (at + step)) - now for step in steps])
            if not gradient.any():
                break
            at = _unit(at + 4 * STEP * _unit(gradient))
        best = max(best, (harm(reach * root @ at), root @ at), key=lambda pair: pair[0])
    return _unit(best[1])


def _unit(x: Array) -> Array:
    return x / np.linalg.norm(x)


def rows(world: World) -> Iterator[dict[str, Any]]:
    """Yield a row for each share of liars, goal and strategy, and one without liars."""
    plain, robust = world.mechanism.decoded_mean(world.released), world.robust(world.released)
    yield {
        "goal": "none",
        "strategy": "honest",
        "share": 0.0,
        "plain": world.accuracy(plain, world.users),
        "robust": world.accuracy(robust.mean, int(robust.kept.sum())),
        "excess": robust.excess,
        "dropped": robust.dropped,
        "moved": 0.0,
        "moved_robust": 0.0,
        "dim": world.mechanism.dim,
        "length": float(np.linalg.norm(world.vectors.mean(axis=0))),
    }
    for share in SHARES:
        count = round(share * world.users)
        others = world.released[count:]
        reference = world.mechanism.decoded_mean(others)

        adaptive = []
        for goal, direction in world.goals.items():
            batches = {
                strategy: np.concatenate([make(world.mechanism, direction, count, world.seed), others])
                for strategy, make in (("point", points), ("imitating", imitations))
            }
            adaptive.append(world.adaptive(direction, count))
            for strategy, batch in (batches | {"adaptive": adaptive[-1]}).items():
                yield {"goal": goal, "strategy": strategy, "share": share} | harmed(world, batch, reference)
        yield {"goal": "any", "strategy": "adaptive", "share": share} | harmed(
            world, world.worst(adaptive, count), reference
        )


def harmed(world: World, batch: Array, reference: Array) -> dict[str, float]:
    """Return the accuracy without and with the defence, and by how much either mean has moved."""
    plain, robust = world.mechanism.decoded_mean(batch), world.robust(batch)
    return {
        "plain": world.accuracy(plain, world.users),
        "robust": world.accuracy(robust.mean, int(robust.kept.sum())),
        "excess": robust.excess,
        "dropped": robust.dropped,
        "moved": float(np.linalg.norm(plain - reference)),
        "moved_robust": float(np.linalg.norm(robust.mean - reference)),
    }


def world_of(folder: str, seed: int, arm: dict[str, float], overrides: Sequence[str]) -> World:
    """Return the world of a seed."""
    fixed = [f"data.path={folder}", f"seed={seed}", "shuffle.enabled=false"]
    with progress_lines(clock=False):
        public, users_data, _ = prepare(load("sst2-statistics", [*fixed, *overrides]))
    codes, users = simplex_codes(2), len(users_data.train.labels)
    dim, _ = Prospects(public.embeddings, codes).best(
        lambda size: mean_noise(PrivUnit(size, **arm), users=users), users=users
    )
    maps = pca_maps(public.embeddings, dim=dim, classes=2)
    every = np.arange(users), np.arange(len(users_data.test.labels))
    return World(
        maps.project(public.embeddings),
        maps.project(np.asarray(users_data.train_embeddings[every[0]])),
        users_data.train.labels,
        maps.project(np.asarray(users_data.test_embeddings[every[1]])),
        users_data.test.labels,
        arm,
        seed,
    )


def main() -> None:
    """Print the rows of the arms and seeds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    for seed in args.seeds:
        for arm in args.arms:
            for row in rows(world_of(args.folder, seed, ARMS[arm], args.set)):
                print(json.dumps({"arm": arm, "seed": seed} | row, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
