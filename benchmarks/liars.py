"""Dishonest users of one-vector arms on SST-2, or another folder of its form: accuracy against the share of liars.

    python -m benchmarks.liars FOLDER [--seeds 1 2 3 4 5] [--epsilon 3] [--out FOLDER] [--set KEY=VALUE ...]

Liars replace users of the experiment sst2-statistics. They want to flip all predictions (the opposite of the users'
mean), or to move the threshold, and send one point each, draws of the mechanism, or, if they know the defence and the
users' texts and labels, the messages of which most of these texts get a wrong class. With the goal `any` they know the
model too and choose their direction by the same count. One row a seed, goal, strategy and share: accuracy on the device
without and with the defence. The rows are also written to liars.json, from which `figure` draws.

    python -m benchmarks.liars FOLDER --worlds [--seeds 1] [--set KEY=VALUE ...]

Lower bound for every server: two populations of the folder's texts whose messages liars make alike. In the second one
the labels nearest to the honest head's threshold are those of the other class. Whatever the server computes, it errs in
one of them on half of the texts whose labels differ. One row an arm, share and direction, with the accuracy that honest
users have in both.

    python -m benchmarks.liars FOLDER --constants [SHARE ...] [--seeds 1 2 3 4 5] [--set KEY=VALUE ...]

The same adaptive liars against vectors whose constant has the product's least share of the squared length, each of
these, and no least one, which is 1/(d + 1); and where the server knows that classes are equally frequent.

    python -m benchmarks.liars counts [--seeds 1 2 3 4 5]

20,000 users' labels of K classes under randomized response; 1 % liars send the rarest class. Its share moves by what
the theorem says. The maximum-likelihood shares, 0 or more, are no better unless a class is next to absent.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.special import betainc, betaln, expit
from scipy.stats import binom

from benchmarks.teaching import prepared
from mechanisms import projection
from mechanisms.accounting.liars import moved
from mechanisms.privunit import PrivUnit
from mechanisms.projection import LEAST_CONSTANT, statistic_vectors
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.streams import SeededUniforms
from server.training.principal import pca_maps
from server.training.robust_mean import RobustMean, honest_moment, robust_mean
from server.training.statistic_head import Prospects, linear_head, mean_noise, of_users, simplex_codes
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
#: Probability that random liars are more than their share: see `confusable`.
CONFUSED = 1e-3
#: Angles and cosines at which the overlap of two caps is computed, and rows multiplied at once.
ANGLES, COSINES, AT_ONCE = 400, 2001, 1024
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class World:
    """Users, public text and test texts of one seed, and the users' releases.

    Args:
        features: Features (N, d) of public text.
        held: Features (n, d) of users' texts.
        labels: Their labels (n,), 0 or 1.
        asked: Features of test texts.
        truth: Their labels.
        arm: Parameters of PrivUnit.
        seed: Seed of the draws.
        equal: Whether the server knows that classes are equally frequent.
    """

    features: Array
    held: Array
    labels: Array
    asked: Array
    truth: Array
    arm: dict[str, float]
    seed: int
    equal: bool = False

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
        return statistic_vectors(self.held, self.labels, self.codes)

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
        if self.equal:
            evidence = replace(evidence, constant=np.zeros(1), constant_noise=0.0)
        weight, bias = linear_head(self.features, self.codes, users=evidence)
        return (features @ weight + bias) @ np.array([-1.0, 1.0])

    def accuracy(self, mean: Array, users: int) -> float:
        """Return the accuracy on test texts of the head of a mean of so many users."""
        return float(np.mean((self.margins(mean, users, self.asked) > 0) == self.truth))

    def robust_accuracy(self, released: Array) -> float:
        """Return the accuracy on test texts of the head of the robust mean of a batch."""
        found = self.robust(released)
        return self.accuracy(found.mean, int(found.kept.sum()))

    @cached_property
    def goals(self) -> dict[str, Array]:
        """Return the directions in which liars push: against the users' mean, and along the label's constant."""
        mean, constant = self.vectors.mean(axis=0), np.eye(self.vectors.shape[1])[-1]
        return {"flip": -mean / np.linalg.norm(mean), "threshold": np.sign(mean[-1]) * constant}

    def wrong(self, released: Array) -> float:
        """Return the share of users' own texts that the head of the robust mean of a batch gets wrong."""
        found = self.robust(released)
        margins = self.margins(found.mean, int(found.kept.sum()), self.held)
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
        some, sign = self.held[:TRIED], 1.0 - 2.0 * self.labels[:TRIED]

        def harm(shift: Array) -> float:
            margins = sign * self.margins(mean + shift, self.users, some)
            return float(expit(STEEP * margins / np.median(np.abs(margins))).mean())

        between = [-threshold, *(each / np.linalg.norm(each) for each in (flip + threshold, flip - threshold))]
        share = count / self.users
        reach = share * unseen(share, self.users, self.mechanism.dim) / self.mechanism.scale
        found = worst_direction(harm, between, self.honest, reach)
        return max([*tried, *(self.adaptive(each, count) for each in (*between, found))], key=self.wrong)


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
        best = max(best, (harm(reach * root @ at), root @ at), key=lambda found: found[0])
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
            said = {
                strategy: np.concatenate([make(world.mechanism, direction, count, world.seed), others])
                for strategy, make in (("point", points), ("imitating", imitations))
            }
            adaptive.append(world.adaptive(direction, count))
            for strategy, batch in (said | {"adaptive": adaptive[-1]}).items():
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


def confusable(share: float, users: int) -> float:
    """Return a distance t: of two populations whose messages differ by t or less, no server knows which one it has.

    Let the laws of one honest message be P and Q, with TV(P, Q) <= t = b/(1 - b). If every message is a liar's with
    probability b, liars send what the other law has more of, and all messages have the same law in both worlds (Huber
    1965). The number of liars is Binomial(n, b); b is the largest one at which it exceeds a·n with probability CONFUSED
    or less. So the batches of n messages, with a·n liars at most, differ in total variation by 2·CONFUSED at most.

    Args:
        share: a, from 0 to below 1.
        users: n.
    """
    low, high, most = 0.0, share, math.floor(share * users)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if binom.sf(most, users, middle) <= CONFUSED else (low, middle)
    return low / (1 - low)


def apart(mechanism: PrivUnit, vectors: Array, others: Array) -> float:
    """Return an upper bound of the total variation of the messages of two groups' users.

    A message of x has the density outer + h·1[<x, y> >= γ] by the uniform law. So the product of two densities has the
    mean h²·A(<x, x'>) and what cancels, where A is the uniform mass of two caps' overlap. That gives the distance of
    two mixtures in L2, and half of it bounds the total variation (Jensen). Groups of many different vectors are far
    nearer to each other than their users: noise hides all but what a group has in common.

    Args:
        mechanism: PrivUnit.
        vectors: Unit vectors (n, D) of a group, from which users are drawn.
        others: Those (m, D) of the other group.
    """
    c, p = math.exp(mechanism.log_mass), mechanism.cap_probability
    assert p is not None
    height = p / c - (1 - p) / (1 - c)
    cosines = np.sin(np.linspace(-np.pi / 2, np.pi / 2, COSINES))
    shared = _overlap(mechanism, cosines)

    def mean(x: Array, y: Array) -> float:
        blocks = (x[at : at + AT_ONCE] @ y.T for at in range(0, len(x), AT_ONCE))
        return float(sum(np.interp(block, cosines, shared).sum() for block in blocks)) / len(x) / len(y)

    squared = mean(vectors, vectors) + mean(others, others) - 2 * mean(vectors, others)
    return min(1.0, 0.5 * height * math.sqrt(max(0.0, squared)))


def _overlap(mechanism: PrivUnit, cosines: Array) -> Array:
    """Return the uniform mass of the overlap of two caps whose centres have these cosines (k,)."""
    dim, gamma = mechanism.dim, mechanism.threshold
    nodes, weights = np.polynomial.legendre.leggauss(ANGLES)
    end = math.acos(gamma)
    angles = (nodes + 1) * end / 2  # to the first centre
    density = np.exp((dim - 2) * np.log(np.sin(angles)) - betaln(0.5, (dim - 1) / 2)) * weights * end / 2
    sine = np.sqrt(np.maximum(1 - cosines**2, 1e-30))[:, None] * np.sin(angles)
    # coordinate of the rest of y, uniform on the sphere of one dimension less, towards the second centre
    needed = np.clip((gamma - cosines[:, None] * np.cos(angles)) / sine, -1, 1)
    half = 0.5 * betainc((dim - 2) / 2, 0.5, 1 - needed**2)
    mass: Array = np.where(needed >= 0, half, 1 - half) @ density
    return mass


def worlds(world: World) -> Iterator[dict[str, Any]]:
    """Yield, for 3 and 10 % liars and either class, what no server can have in both of two populations."""
    own = world.vectors.mean(axis=0)
    theirs, asked = (world.margins(own, world.users, features) for features in (world.held, world.asked))
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
                accuracies = (honest, float(np.mean((world.margins(mean, world.users, world.asked) > 0) == truth)))
                at_most = 1 - float(np.mean(truth != world.truth)) / 2
                row |= {
                    "changed": float(changed),
                    "apart": distance,
                    "honest": accuracies,
                    "at most": at_most,
                    "lost": float(np.mean(accuracies)) - at_most,
                }
            yield row


def constants(world: World, shares: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield the accuracy under adaptive liars for least shares of the constant, the product's first.

    Args:
        world: Users and texts.
        shares: Other least shares, beside none.
    """
    for least, equal in ((LEAST_CONSTANT, False), *((each, False) for each in (0.0, *shares)), (LEAST_CONSTANT, True)):
        with patch.object(projection, "LEAST_CONSTANT", least):
            own = replace(world, equal=equal)
            row: dict[str, Any] = {
                "constant": projection.constant_share(world.features.shape[1]),
                "equal": equal,
                "honest": own.robust_accuracy(own.released),
            }
            for share in (0.03, 0.1):
                count = round(share * own.users)
                found = {goal: own.adaptive(direction, count) for goal, direction in own.goals.items()}
                found["any"] = own.worst(list(found.values()), count)
                row |= {f"{goal} {share}": own.robust_accuracy(batch) for goal, batch in found.items()}
            yield row


def figure(found: Sequence[dict[str, Any]], arms: Sequence[str]) -> Any:
    """Return the figure: accuracy against the share of liars, without and with the defence, a panel an arm and goal."""
    from simulations.output.figures import COLOURS, MARKERS, new_figure

    goals = ("flip", "threshold", "any")
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
                    if (key == "plain") if strategy == "adaptive" else (goal == "any"):
                        continue  # adaptive liars answer to the defence, and the worst direction is theirs
                    at = [0.0005, *SHARES]
                    of = [
                        [r[key] for r in own if (r["goal"], r["strategy"], r["share"]) == (goal, strategy, share)]
                        for share in SHARES
                    ]
                    axes.plot(
                        at,
                        [start[key], *(np.mean(each) for each in of)],
                        style,
                        color=COLOURS[k],
                        marker=MARKERS[k],
                        markersize=4,
                        linewidth=1.3,
                        label=f"{strategy}, {'with' if key == 'robust' else 'without'} the defence",
                    )
            axes.set_xscale("log")
            axes.set_xticks([0.0005, *SHARES], ["0", *(f"{100 * share:g}" for share in SHARES)], fontsize=7)
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
            "epsilon": epsilon,
            "shares": list(true),
            "plain": means[0],
            "plain error": spread[0],
            "likeliest": means[1],
            "likeliest error": spread[1],
            "theorem": moved(mechanism, share) - share * true[-1],
        }


def world_of(folder: str, seed: int, arm: dict[str, float], overrides: Sequence[str]) -> World:
    """Return the world of a seed."""
    _, (public, held, _) = prepared("sst2-statistics", folder, seed, "shuffle.enabled=false", *overrides)
    codes, users = simplex_codes(2), len(held.train.labels)
    dim, _ = Prospects(public.embeddings, codes).best(
        lambda size: mean_noise(PrivUnit(size, **arm), users=users), users=users
    )
    maps = pca_maps(public.embeddings, dim=dim, classes=2)
    every = np.arange(users), np.arange(len(held.test.labels))
    return World(
        maps.project(public.embeddings),
        maps.project(np.asarray(held.train_embeddings[every[0]])),
        held.train.labels,
        maps.project(np.asarray(held.test_embeddings[every[1]])),
        held.test.labels,
        arm,
        seed,
    )


def main() -> None:
    """Run the arms and seeds of the command line, and write rows and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--worlds", action="store_true", help="lower bound for every server, in place of attacks")
    parser.add_argument(
        "--constants", type=float, nargs="*", metavar="SHARE", help="other shares of the constant, in place of attacks"
    )
    args = parser.parse_args()
    if args.folder == "counts":
        for row in counts(args.seeds):
            print(json.dumps(row, ensure_ascii=False))
        return
    found: list[dict[str, Any]] = []
    for seed in args.seeds:
        for arm in args.arms:
            world = world_of(args.folder, seed, ARMS[arm], args.set)
            other = None if args.constants is None else constants(world, args.constants)
            for row in worlds(world) if args.worlds else rows(world) if other is None else other:
                found.append({"arm": arm, "seed": seed} | row)
                print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    if args.worlds or args.constants is not None:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "liars.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    figure(found, args.arms).savefig(args.out / "liars.png", dpi=150)


if __name__ == "__main__":
    main()
