"""Errors and coverage of counts on made-up populations: python -m benchmarks.counts PART [--rounds N].

Parts: `coverage` simulates users' true classes, a model's confusion, labelled public text and releases, and counts the
rounds in which all intervals hold; `theory` compares squared errors with the variance; `best` compares the chosen
mechanism's variance with that of subset selection on exactly K classes; `weekly` looks for a change between two counts;
`speed` counts a million users.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.counting import of_change, of_local
from mechanisms.accounting.ladder import ladder
from mechanisms.mechanism import CountMechanism, share_variance
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.streams import SeededUniforms
from mechanisms.subset_selection import SubsetSelection
from server.counts import Confusion, change, estimate

#: ε of a genre's release at central ε = 1, 20,000 users and δ = 1e-6 (`sottovoce count`).
PLANNED = 6.177


def release(mechanism: CountMechanism, classes: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return a draw for each user. Randomized response is drawn by class, which is faster and has the same law."""
    if isinstance(mechanism, SubsetSelection):
        return mechanism.sample(classes, rng=SeededUniforms(seed))
    rng = np.random.default_rng([seed, 1])
    other = rng.integers(0, mechanism.classes - 1, len(classes))
    kept = rng.random(len(classes)) < mechanism.hit
    return np.where(kept, classes, other + (other >= classes))


def coverage(rounds: int, *, users: int = 20_000, classes: int = 12, labelled: int = 1_000) -> None:
    """Print the number of rounds in which all intervals hold, for three mechanisms, with and without confusion."""
    print("mechanism ε, confusion: rounds in which all intervals hold, mean width")
    for mechanism in (of_local(classes, 1.0), of_local(classes, 4.0), RandomizedAnswer(PLANNED, classes)):
        for confused in (False, True):
            held, width = 0, 0.0
            for seed in range(rounds):
                rng = np.random.default_rng([seed, classes])
                mix = 0.2 * rng.dirichlet(np.full(classes, 0.5), classes) + 0.8 * np.eye(classes)
                true = rng.choice(classes, users, p=rng.dirichlet(np.full(classes, 2.0)))
                found = (mix.cumsum(axis=1)[true] < rng.random(users)[:, None]).sum(axis=1) if confused else true
                confusion = None
                if confused:
                    public = np.arange(labelled) % classes
                    said = (mix.cumsum(axis=1)[public] < rng.random(labelled)[:, None]).sum(axis=1)
                    confusion = Confusion.of(public, said, classes)
                counts = estimate(mechanism, release(mechanism, found, seed), confusion=confusion)
                shares = np.bincount(true, minlength=classes) / users
                held += bool(((counts.low <= shares) & (shares <= counts.high)).all())
                width += float((counts.high - counts.low).mean()) / rounds
            name, mixed = type(mechanism).__name__, "confusion" if confused else "none"
            print(f"{name} {mechanism.epsilon:g}, {mixed}: {held} of {rounds}, {width:.4f}", flush=True)


def theory(rounds: int, *, users: int = 20_000, classes: int = 12) -> None:
    """Print the mean squared error of the unbiased estimate over its variance."""
    for epsilon in (1.0, 2.0, 4.0):
        mechanism, ratios, likely = of_local(classes, epsilon), [], []
        for seed in range(rounds):
            rng = np.random.default_rng([seed, 3])
            true = rng.choice(classes, users, p=rng.dirichlet(np.full(classes, 2.0)))
            shares = np.bincount(true, minlength=classes) / users
            counts = estimate(mechanism, release(mechanism, true, seed))
            variance = share_variance(mechanism.hit, mechanism.miss, shares).sum() / users
            ratios.append(((counts.unbiased - shares) ** 2).sum() / variance)
            likely.append(((counts.shares - shares) ** 2).sum() / variance)
        print(
            f"{type(mechanism).__name__} ε = {epsilon:g}: squared error over theory {np.mean(ratios):.3f} ± "
            f"{np.std(ratios) / math.sqrt(rounds):.3f}; of the likeliest shares {np.mean(likely):.3f}"
        )


def weekly(rounds: int, *, users: int = 20_000, classes: int = 12, moved: float = 0.02) -> None:
    """Print how often a change of one class is found, what it costs, and what repeated releases would show."""
    mechanism = of_change(classes, users=users, change=moved, power=0.8)
    found, false = 0, 0
    for seed in range(rounds):
        rng = np.random.default_rng([seed, 5])
        before = rng.choice(classes, users)
        after = before.copy()
        after[rng.choice(np.flatnonzero(before != 0), int(users * moved), replace=False)] = 0
        others = rng.permutation(np.flatnonzero(before != 0))[: users // 10]  # who change places, and no share
        after[others] = after[rng.permutation(others)]
        one, two = (estimate(mechanism, release(mechanism, each, seed + at)) for at, each in
                    ((0, before), (10**6, after)))  # fmt: skip
        change_of = change(one, two)
        share = (np.bincount(after, minlength=classes) - np.bincount(before, minlength=classes)) / users
        found += bool(change_of.low[0] > 0)
        false += bool(((share < change_of.low) | (share > change_of.high)).any())
    print(
        f"{type(mechanism).__name__} ε = {mechanism.epsilon:.3f}: a change of {moved:g} found in {found} of {rounds} "
        f"rounds; intervals failed in {false}"
    )
    for weeks in (1, 2, 4, 12, 52):
        rungs = {
            rung.name: rung.epsilon
            for rung in ladder(None, None, answer=mechanism, stages=weeks, users=users, delta=1e-6)  # type: ignore[arg-type]
        }
        print(f"{weeks} weeks: a user's ε = {rungs['user']:.3f}, behind the shuffler {rungs['shuffled']:.3f}")
    same = mechanism.hit**2 + (1 - mechanism.hit) ** 2 / (classes - 1)
    twice = 2 * mechanism.hit * mechanism.miss + (classes - 2) * mechanism.miss**2
    print(
        f"who links two weeks: repeated releases differ for {1 - twice:.0%} of users who changed and for none who did "
        f"not; fresh ones for {1 - twice:.0%} and {1 - same:.0%}"
    )


def best() -> None:
    """Print the largest excess of the chosen variance over subset selection's on exactly K classes."""
    for classes in (77, 1_000):
        excess = {}
        for epsilon in (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0):
            size = np.arange(1, classes // 2 + 1)
            hit = size / (size + (classes - size) * math.exp(-epsilon))
            miss = (hit * (size - 1) + (1 - hit) * size) / (classes - 1)
            known = share_variance(hit, miss, 1 / classes).min()
            mechanism = of_local(classes, epsilon)
            excess[epsilon] = share_variance(mechanism.hit, mechanism.miss, 1 / classes) / known - 1
        worst = max(excess, key=lambda each: excess[each])
        print(f"{classes} classes: at most {excess[worst]:.2%} above the best known, at ε = {worst:g}")


def speed(*, users: int = 1_000_000, classes: int = 1_000) -> None:
    """Print the seconds that drawing and counting take."""
    for epsilon in (1.0, 4.0):
        true = np.random.default_rng(0).integers(0, classes, users)
        mechanism, start = of_local(classes, epsilon), time.perf_counter()
        released = mechanism.sample(true, rng=SeededUniforms(1))
        drawn = time.perf_counter()
        estimate(mechanism, released)
        print(f"ε = {epsilon:g}: drawn in {drawn - start:.1f} s, counted in {time.perf_counter() - drawn:.1f} s")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("coverage", "theory", "weekly", "best", "speed"))
    parser.add_argument("--rounds", type=int, default=1_000)
    given = parser.parse_args()
    if given.part == "coverage":
        coverage(given.rounds)
    elif given.part in ("theory", "weekly"):
        {"theory": theory, "weekly": weekly}[given.part](given.rounds)
    else:
        {"best": best, "speed": speed}[given.part]()


if __name__ == "__main__":
    main()
