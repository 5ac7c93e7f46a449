"""Errors and coverage of counts on made-up populations, and votes: python -m benchmarks.counts PART [--rounds N].

Parts: `coverage` simulates users' true classes, a model's confusion, labelled public text and releases, and counts the
rounds in which all intervals hold; `theory` compares squared errors with the variance; `best` compares the chosen
mechanism's variance with that of subset selection on exactly K classes, that of users of many records with PrivUnit's,
and the way to ask several questions with an ε in equal parts; `weekly` looks for a change between two counts;
`speed` counts a million users.

`votes FOLDER [--users N] [--set KEY=VALUE]` (N rounds are seeds) reweighs public text of another domain by what users
of a folder like SST-2's say: each votes for the nearest public text, or releases a vector, from which the weights of
largest entropy are found whose mean feature is the users'. A logistic head is trained on the weighted labelled text.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from benchmarks.teaching import prepared
from mechanisms.accounting.counting import of_central, of_change, of_local
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target, privunit_of
from mechanisms.mechanism import CountMechanism, share_variance
from mechanisms.privunit import PrivUnit
from mechanisms.projection import signed_directions
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.streams import SeededUniforms
from mechanisms.subset_selection import SubsetSelection
from server.counts import Confusion, change, estimate, of_several
from server.training.principal import pca_maps

#: ε of a genre's release at central ε = 1, 20,000 users and δ = 1e-6 (`sottovoce count`).
PLANNED = 6.177
EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
#: Of votes: central ε and δ, share of equal weights, features, pull of the fit to moments, clusters that stand for
#: topics.
CENTRAL, DELTA, EVEN, FEATURES, PULL, TOPICS = 1.0, 1e-6, 0.5, 32, 1e-3, 20
Array = NDArray[np.float64]


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
        one, two = (
            estimate(mechanism, release(mechanism, each, seed + at)) for at, each in ((0, before), (10**6, after))
        )
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
        for epsilon in EPSILONS:
            size = np.arange(1, classes // 2 + 1)
            hit = size / (size + (classes - size) * math.exp(-epsilon))
            miss = (hit * (size - 1) + (1 - hit) * size) / (classes - 1)
            known = share_variance(hit, miss, 1 / classes).min()
            mechanism = of_local(classes, epsilon)
            excess[epsilon] = share_variance(mechanism.hit, mechanism.miss, 1 / classes) / known - 1
        worst = max(excess, key=lambda each: excess[each])
        print(f"{classes} classes: at most {excess[worst]:.2%} above the best known, at ε = {worst:g}")
    for classes in (3, 12, 77, 1_000):
        ratios = []
        for epsilon in EPSILONS:
            mechanism, vector = of_local(classes, epsilon), PrivUnit(classes - 1, epsilon)  # of K - 1 free coordinates
            noise, own = classes * share_variance(mechanism.hit, mechanism.miss, 1 / classes), 1 - 1 / classes
            # users of one class, and users whose records are spread evenly
            ratios += [own * (vector.scale**-2 - 1) / noise, own * vector.scale**-2 / (noise + own)]
        print(f"{classes} classes: PrivUnit's squared error over that of a random record is {min(ratios):.2f} at least")
    for sizes in ((2, 2), (2,) * 4, (2,) * 8, (4, 4, 4), (12, 12), (12, 12, 12)):
        ratios, together = [], []
        for epsilon in EPSILONS:
            way = of_several(sizes, lambda classes, every, epsilon=epsilon: of_local(classes, epsilon))
            assert way is not None
            parts = [of_local(size, epsilon / len(sizes)) for size in sizes]
            error = sum(one.classes * share_variance(one.hit, one.miss, 1 / one.classes) for one in parts)
            ratios.append(error / way.error)
            together += [epsilon] if way.together else []
        print(
            f"{sizes}: an ε in parts has {min(ratios):.2f} times the squared error at least; all answers in one class "
            f"from ε = {min(together, default=math.inf):g}"
        )


def speed(*, users: int = 1_000_000, classes: int = 1_000) -> None:
    """Print the seconds that drawing and counting take."""
    for epsilon in (1.0, 4.0):
        true = np.random.default_rng(0).integers(0, classes, users)
        mechanism, start = of_local(classes, epsilon), time.perf_counter()
        released = mechanism.sample(true, rng=SeededUniforms(1))
        drawn = time.perf_counter()
        estimate(mechanism, released)
        print(f"ε = {epsilon:g}: drawn in {drawn - start:.1f} s, counted in {time.perf_counter() - drawn:.1f} s")


def by_votes(public: Array, users: Array, *, seed: int | None) -> Array:
    """Return the share of users whose nearest public text is each one: estimated at CENTRAL, or without a seed true."""
    nearest = np.concatenate([(rows @ public.T).argmax(axis=1) for rows in np.array_split(users, 20)])
    if seed is None:
        return np.asarray(np.bincount(nearest, minlength=len(public)) / len(users))
    mechanism = of_central(len(public), Target(CENTRAL, DELTA, len(users)))
    assert mechanism is not None
    return estimate(mechanism, mechanism.sample(nearest, rng=SeededUniforms(seed))).shares


def by_moments(public: Array, users: Array, *, seed: int | None) -> Array:
    """Return weights of largest entropy whose mean is the users': released at CENTRAL, or without a seed true."""
    mean, pull = users.mean(axis=0), PULL
    if seed is not None:
        best = privunit_of(CENTRAL, DELTA, len(users))
        assert best is not None
        drawn = PrivUnit(FEATURES, best.epsilon, cap_probability=best.cap_probability)
        rng = SeededUniforms(seed)
        unit = signed_directions(users, rng.uniform(len(users), 1)[:, 0])
        mean = drawn.decoded_mean(drawn.grid.encode(drawn.sample(unit, rng=rng)))
        pull += 1 / (drawn.scale**2 * len(users) * FEATURES)  # variance of a coordinate

    def dual(tilt: Array) -> tuple[float, Array]:
        scores = public @ tilt
        value = logsumexp(scores) - tilt @ mean + pull * (tilt @ tilt) / 2
        return float(value), softmax(scores) @ public - mean + pull * tilt

    found = minimize(dual, np.zeros(FEATURES), jac=True, method="L-BFGS-B")
    return np.asarray(softmax(public @ found.x))


def votes(folder: str, seeds: int, users: int, changes: list[str]) -> None:
    """Print for each way of weighing the distance of topics, accuracy, and its gain over equal weights."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(1, seeds + 1):
        _, ready = prepared("sst2-statistics-other-domain", folder, seed, f"population.users={users}", *changes)
        labels, embeddings = ready.public.labels, np.asarray(ready.public.embeddings)
        assert labels is not None
        maps = pca_maps(embeddings, dim=FEATURES, classes=2)
        public, theirs, test = (
            maps.project(np.asarray(rows))
            for rows in (embeddings, ready.held.train_embeddings, ready.held.test_embeddings)
        )
        topics = KMeans(TOPICS, n_init=1, random_state=seed).fit(np.concatenate([public, theirs[: len(public)]]))
        mix = np.bincount(topics.predict(theirs), minlength=TOPICS) / len(theirs)
        ways = {"equal weights": np.full(len(public), 1 / len(public))}
        for name, way in (("votes", by_votes), ("moments", by_moments)):
            ways[f"{name}, no noise"] = way(public, theirs, seed=None)
            ways[f"{name}, central ε = {CENTRAL:g}"] = way(public, theirs, seed=seed)
        for name, drawn in ways.items():
            weights = EVEN / len(public) + (1 - EVEN) * drawn
            apart = abs(np.bincount(topics.predict(public), weights=weights, minlength=TOPICS) - mix).sum() / 2
            head = LogisticRegression(C=10.0, max_iter=1000).fit(public, labels, sample_weight=weights * len(public))
            found.setdefault(name, []).append((float(apart), float(head.score(test, ready.held.test.labels))))
    base = np.array(found["equal weights"])[:, 1]
    for name, rows in found.items():
        apart, accuracy = np.mean(rows, axis=0)
        gains = np.array(rows)[:, 1] - base
        error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        print(f"{name}: topics {apart:.3f} apart, accuracy {accuracy:.3f}, gain {gains.mean():+.3f} ± {error:.3f}")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("coverage", "theory", "weekly", "best", "speed", "votes"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    if given.part == "votes":
        if given.folder is None:
            parser.error("votes needs a folder")
        votes(given.folder, given.rounds, given.users, given.set)
    elif given.part == "coverage":
        coverage(given.rounds)
    elif given.part in ("theory", "weekly"):
        {"theory": theory, "weekly": weekly}[given.part](given.rounds)
    else:
        {"best": best, "speed": speed}[given.part]()


if __name__ == "__main__":
    main()
