"""Dishonest users of one-vector arms on SST-2, or another folder of its form: accuracy against the share of liars.

    python -m benchmarks.liars FOLDER [--seeds 1 2 3 4 5] [--epsilon 3] [--out FOLDER] [--set KEY=VALUE ...]

Liars replace users of the experiment sst2-statistics. They want to flip all predictions (the opposite of the users'
mean), or to move the threshold, and send one point each, draws of the mechanism, or whatever harms most of what the
defence lets through. One row a seed, strategy and share: accuracy on the device without and with the defence. The
rows are also written to liars.json, from which `figure` draws.

    python -m benchmarks.liars FOLDER --worlds [--seeds 1] [--set KEY=VALUE ...]

Lower bound for every server: two populations of the folder's texts whose messages liars make alike. In the second one
the labels nearest to the honest head's threshold are those of the other class. Whatever the server computes, it errs in
one of them on half of the texts whose labels differ. One row an arm, share and direction, with the accuracy that honest
users have in both.

    python -m benchmarks.liars FOLDER --constants [--seeds 1 2 3 4 5] [--set KEY=VALUE ...]

The strongest liars against vectors whose constant has another share of the squared length, and the accuracy where the
server knows that classes are equally frequent.

    python -m benchmarks.liars counts [--seeds 1 2 3 4 5]

20,000 users' labels of K classes under randomized response; 1 % liars send the rarest class. Its share moves by what
the theorem says. The maximum-likelihood shares, 0 or more, are no better unless a class is next to absent.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.teaching import prepared
from mechanisms.accounting.liars import HonestLaw, apart, confusable, moved
from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.streams import SeededUniforms
from server.training.principal import pca_maps
from server.training.robust_mean import RobustMean, honest_moment, robust_mean
from server.training.statistic_head import (
    Evidence,
    best_features,
    linear_head,
    mean_noise,
    of_users,
    simplex_codes,
)  # fmt: skip
from sottovoce.adversary.estimators.poison import imitations, points, strongest

SHARES = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
#: Mechanisms by their name: local ε = 3, and the one of central ε = 1 for 20,000 users.
ARMS: dict[str, dict[str, float]] = {
    "ε = 3": {"epsilon": 3.0}, "central ε = 1": {"epsilon": 6.19, "cap_probability": 0.8}
}  # fmt: skip
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class World:
    """Users, public text and test texts of one seed, and the users' releases.

    Args:
        public: Embeddings (N, m) of public text.
        train: Embeddings (n, m) of users' texts.
        labels: Their labels (n,), 0 or 1.
        test: Embeddings of test texts.
        truth: Their labels.
        arm: Parameters of PrivUnit.
        seed: Seed of the draws.
    """

    public: Array
    train: Array
    labels: Array
    test: Array
    truth: Array
    arm: dict[str, float]
    seed: int

    @cached_property
    def maps(self) -> Any:
        """Return the maps from embeddings to features."""
        dim = best_features(
            self.public, self.codes, lambda size: mean_noise(self._mechanism(size), users=self.users), users=self.users
        )
        return pca_maps(self.public, dim=dim, classes=2)

    def _mechanism(self, dim: int) -> PrivUnit:
        return PrivUnit(dim, **self.arm)

    @property
    def codes(self) -> Array:
        """Return the codes of labels."""
        return simplex_codes(2)

    @property
    def users(self) -> int:
        """Return n."""
        return len(self.labels)

    @cached_property
    def features(self) -> Array:
        """Return the features of public text."""
        return self.maps.project(self.public)

    @cached_property
    def asked(self) -> Array:
        """Return the features of test texts."""
        return self.maps.project(self.test)

    @cached_property
    def vectors(self) -> Array:
        """Return users' vectors (n, D)."""
        return statistic_vectors(self.maps.project(self.train), self.labels, self.codes)

    @cached_property
    def mechanism(self) -> PrivUnit:
        """Return the mechanism."""
        return self._mechanism(self.vectors.shape[1])

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

    def accuracy(self, mean: Array, users: int) -> float:
        """Return the accuracy of the head of a mean of so many users."""
        noise = mean_noise(self.mechanism, users=users)
        weight, bias = linear_head(
            self.features, self.codes, users=of_users(mean, noise, users=users, codes=self.codes)
        )
        return float(np.mean((self.asked @ weight + bias).argmax(axis=1) == self.truth))

    @cached_property
    def goals(self) -> dict[str, Array]:
        """Return the directions in which liars push: against the users' mean, and along the label's constant."""
        mean, constant = self.vectors.mean(axis=0), np.eye(self.vectors.shape[1])[-1]
        return {"flip": -mean / np.linalg.norm(mean), "threshold": np.sign(mean[-1]) * constant}


def rows(world: World) -> Iterator[dict[str, Any]]:
    """Yield a row for each share of liars, goal and strategy, and one without liars."""
    plain, robust = world.mechanism.decoded_mean(world.released), world.robust(world.released)
    yield {
        "goal": "none", "strategy": "honest", "share": 0.0, "plain": world.accuracy(plain, world.users),
        "robust": world.accuracy(robust.mean, int(robust.kept.sum())), "excess": robust.excess,
        "dropped": robust.dropped, "moved": 0.0, "moved_robust": 0.0, "dim": world.mechanism.dim,
        "length": float(np.linalg.norm(world.vectors.mean(axis=0))),
    }  # fmt: skip
    for share in SHARES:
        count = round(share * world.users)
        others = world.released[count:]
        reference = world.mechanism.decoded_mean(others)

        for goal, direction in world.goals.items():

            def harm(lies: Array, direction: Array = direction, others: Array = others) -> float:
                return float(world.robust(np.concatenate([lies, others])).mean @ direction)

            said = {
                "point": points(world.mechanism, direction, count, world.seed),
                "imitating": imitations(world.mechanism, direction, count, world.seed),
                "adaptive": strongest(
                    world.mechanism, direction, count, world.seed, honest=world.honest, users=world.users, harm=harm
                ),
            }
            for strategy, lies in said.items():
                batch = np.concatenate([lies, others])
                plain, robust = world.mechanism.decoded_mean(batch), world.robust(batch)
                yield {
                    "goal": goal, "strategy": strategy, "share": share, "plain": world.accuracy(plain, world.users),
                    "robust": world.accuracy(robust.mean, int(robust.kept.sum())), "excess": robust.excess,
                    "dropped": robust.dropped, "moved": float(np.linalg.norm(plain - reference)),
                    "moved_robust": float(np.linalg.norm(robust.mean - reference)),
                }  # fmt: skip


def worlds(world: World) -> Iterator[dict[str, Any]]:
    """Yield, for 3 and 10 % liars and either class, what no server can have in both of two populations."""
    noise, own = mean_noise(world.mechanism, users=world.users), world.vectors.mean(axis=0)
    users = world.maps.project(world.train)

    def margins(mean: Array, features: Array) -> Array:
        evidence = of_users(mean, noise, users=world.users, codes=world.codes)
        weight, bias = linear_head(world.features, world.codes, users=evidence)
        return (features @ weight + bias) @ np.array([-1.0, 1.0])

    theirs, asked = margins(own, users), margins(own, world.asked)
    honest = float(np.mean((asked > 0) == world.truth))
    for share in (0.03, 0.1):
        for towards in (1, 0):
            side = 2 * towards - 1
            others = np.flatnonzero(world.labels != towards)
            nearest = others[np.argsort(-side * theirs[others])]
            row: dict[str, Any] = {"share": share, "towards": towards, "confusable": confusable(share, world.users)}
            for changed in np.arange(0.05, 0.45, 0.05):
                rows = nearest[: round(changed * world.users)]
                distance = apart(world.mechanism, world.vectors[rows], -world.vectors[rows])
                if len(rows) < round(changed * world.users) or changed * distance > row["confusable"]:
                    break
                truth = np.where(side * asked > side * theirs[rows[-1]], towards, world.truth)
                mean = own - 2 * (world.vectors[rows]).sum(axis=0) / world.users
                accuracies = (honest, float(np.mean((margins(mean, world.asked) > 0) == truth)))
                at_most = 1 - float(np.mean(truth != world.truth)) / 2
                row |= {
                    "changed": float(changed), "apart": distance, "honest": accuracies, "at most": at_most,
                    "lost": float(np.mean(accuracies)) - at_most,
                }  # fmt: skip
            yield row


def constants(world: World, shares: Sequence[float] = (0.05, 0.1, 0.16, 0.25)) -> Iterator[dict[str, Any]]:
    """Yield the accuracy under the strongest adaptive liars for shares of the constant, the own one first."""
    d, mechanism = world.features.shape[1], world.mechanism
    sign = world.codes[world.labels, 0].astype(np.float64)
    users = world.maps.project(world.train)
    for part in (1 / (d + 1), *shares):
        public, own = (
            np.hstack([x * np.sqrt(1 - part), np.full((len(x), 1), np.sqrt(part))]) for x in (world.features, users)
        )
        vectors = own * sign[:, None] / np.linalg.norm(own, axis=1)[:, None]
        released = mechanism.grid.encode(mechanism.sample(vectors, rng=SeededUniforms(world.seed)))
        honest = HonestLaw(mechanism).second_moment(public.T @ public / len(public), rows=len(public))

        def accuracies(found: RobustMean, part: float = part) -> tuple[float, float]:
            """With the classes' shares of users, and with equal ones."""
            noise = mean_noise(mechanism, users=int(found.kept.sum()))
            said = Evidence(
                found.mean[None, :d] / np.sqrt(1 - part), found.mean[d:] / np.sqrt(part), noise / (1 - part),
                noise / part, int(found.kept.sum()),
            )  # fmt: skip
            heads = (said, replace(said, constant=np.zeros(1), constant_noise=0.0))
            both = [linear_head(world.features, world.codes, users=each) for each in heads]
            right = [float(np.mean((world.asked @ w + b).argmax(axis=1) == world.truth)) for w, b in both]
            return right[0], right[1]

        row: dict[str, Any] = {"constant": part, "honest": accuracies(robust_mean(mechanism, released, honest, 1))}
        mean = vectors.mean(axis=0)
        goals = {"flip": -mean / np.linalg.norm(mean), "threshold": np.sign(mean[-1]) * np.eye(d + 1)[-1]}
        for share in (0.03, 0.1):
            count = round(share * world.users)
            others = released[count:]
            for goal, direction in goals.items():

                def harm(lies: Array, of: Array = direction, others: Array = others, law: Array = honest) -> float:
                    return float(robust_mean(mechanism, np.concatenate([lies, others]), law, 1).mean @ of)

                lies = strongest(mechanism, direction, count, world.seed, honest=honest, users=world.users, harm=harm)
                row[f"{goal} {share}"] = accuracies(robust_mean(mechanism, np.concatenate([lies, others]), honest, 1))
        yield row


def figure(found: Sequence[dict[str, Any]], arms: Sequence[str]) -> Any:
    """Return the figure: accuracy against the share of liars, without and with the defence, a panel an arm and goal."""
    from simulations.output.figures import COLOURS, MARKERS, new_figure

    goals = ("flip", "threshold")
    drawn, _ = new_figure(7.2, 5.2)
    drawn.clear()
    panels = drawn.subplots(len(arms), len(goals), sharex=True, sharey=True, squeeze=False)
    for i, arm in enumerate(arms):
        own = [row for row in found if row["arm"] == arm]
        start = {key: np.mean([r[key] for r in own if r["goal"] == "none"]) for key in ("plain", "robust")}
        for j, goal in enumerate(goals):
            axes = panels[i][j]
            for k, strategy in enumerate(("point", "imitating", "adaptive")):
                for key, style in (("plain", ":"), ("robust", "-")):
                    if key == "plain" and strategy == "adaptive":
                        continue
                    at = [0.0005, *SHARES]
                    of = [[r[key] for r in own if (r["goal"], r["strategy"], r["share"]) == (goal, strategy, share)]
                          for share in SHARES]  # fmt: skip
                    axes.plot(
                        at, [start[key], *(np.mean(each) for each in of)], style, color=COLOURS[k], marker=MARKERS[k],
                        markersize=4, linewidth=1.3,
                        label=f"{strategy}, {'with' if key == 'robust' else 'without'} the defence",
                    )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xticks([0.0005, *SHARES], ["0", *(f"{100 * share:g}" for share in SHARES)], fontsize=8)
            axes.minorticks_off()
            axes.set_ylim(0, 1)
            axes.set_title(f"{arm}, goal: {goal}", loc="left", fontsize=9)
            if i + 1 == len(arms):
                axes.set_xlabel("liars, % of 20,000 users")
            if j == 0:
                axes.set_ylabel("accuracy")
    lines, names = panels[0][0].get_legend_handles_labels()
    drawn.legend(lines, names, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return drawn


def most_likely(counts: Array, mechanism: RandomizedResponse, steps: int = 2000) -> Array:
    """Return the shares (K,) of true classes, 0 or more, under which counts of releases are likeliest (EM)."""
    rest = np.exp(-mechanism.epsilon)
    law = (np.full((len(counts),) * 2, rest) + (1 - rest) * np.eye(len(counts))) / (1 + (len(counts) - 1) * rest)
    shares = np.full(len(counts), 1 / len(counts))
    for _ in range(steps):
        shares = shares * (law @ (counts / (law @ shares))) / counts.sum()
    return shares


def counts(seeds: Sequence[int], users: int = 20_000, share: float = 0.01) -> Iterator[dict[str, Any]]:
    """Yield, for randomized response at some ε, by how much liars raise the share of a class, and the theorem."""
    for epsilon, true in ((1.0, (0.55, 0.45)), (3.0, (0.55, 0.45)), (1.0, (0.6, 0.38, 0.02)), (1.0, (0.6, 0.4, 0.0))):
        mechanism, gained = RandomizedResponse(epsilon, len(true)), []
        for seed in seeds:
            labels = np.random.default_rng(seed).choice(len(true), size=users, p=true)
            lies = round(share * users)
            others = np.bincount(mechanism.sample(labels[lies:], rng=SeededUniforms(seed)), minlength=len(true))
            lied = others + lies * np.eye(len(true), dtype=np.int64)[-1]
            contrast = (1 - np.exp(-epsilon)) / (1 + (len(true) - 1) * np.exp(-epsilon))
            plain = [(each[-1] / each.sum() - (1 - contrast) / len(true)) / contrast for each in (others, lied)]
            likely = [most_likely(each, mechanism)[-1] for each in (others, lied)]
            gained.append((plain[1] - plain[0], likely[1] - likely[0]))
        means, spread = np.mean(gained, axis=0), np.std(gained, axis=0, ddof=1) / np.sqrt(len(seeds))
        yield {
            "epsilon": epsilon, "shares": list(true), "plain": means[0], "plain error": spread[0],
            "likeliest": means[1], "likeliest error": spread[1], "theorem": moved(mechanism, share) - share * true[-1],
        }  # fmt: skip


def world_of(folder: str, seed: int, arm: dict[str, float], overrides: Sequence[str]) -> World:
    """Return the world of a seed."""
    _, (public, held, _) = prepared("sst2-statistics", folder, seed, "shuffle.enabled=false", *overrides)
    every = np.arange(len(held.train.labels)), np.arange(len(held.test.labels))
    return World(
        public.embeddings, np.asarray(held.train_embeddings[every[0]]), held.train.labels,
        np.asarray(held.test_embeddings[every[1]]), held.test.labels, arm, seed,
    )  # fmt: skip


def main() -> None:
    """Run the arms and seeds of the command line, and write rows and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--worlds", action="store_true", help="lower bound for every server, in place of attacks")
    parser.add_argument("--constants", action="store_true", help="other shares of the constant, in place of attacks")
    args = parser.parse_args()
    if args.folder == "counts":
        for row in counts(args.seeds):
            print(json.dumps(row, ensure_ascii=False))
        return
    found: list[dict[str, Any]] = []
    for seed in args.seeds:
        for arm in args.arms:
            world = world_of(args.folder, seed, ARMS[arm], args.set)
            for row in (worlds if args.worlds else constants if args.constants else rows)(world):
                found.append({"arm": arm, "seed": seed} | row)
                print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    if args.worlds or args.constants:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "liars.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    figure(found, args.arms).savefig(args.out / "liars.png", dpi=150)


if __name__ == "__main__":
    main()
