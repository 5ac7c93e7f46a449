"""Public text of another domain, reweighed by what 20,000 users say: votes for the nearest sentence, or moments.

    python -m benchmarks.votes FOLDER [--seeds 5] [--users 20000]

It takes the experiment sst2-statistics-other-domain (built-in reviews as labelled public text, users of the folder).
Votes: each user releases the number of the nearest public text by the mechanism of least variance at central ε = 1,
δ = 1e-6; the likeliest shares are the weights. Moments: each user releases one PrivUnit vector of principal features at
the same central ε; weights are the ones of largest entropy whose mean feature is the users'. Weights are mixed with
equal ones. A logistic head is trained on the weighted public text. Topics are 20 clusters of users' and public text.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from benchmarks.teaching import prepared
from mechanisms.accounting.counting import of_central
from mechanisms.accounting.planner import Target, privunit_of
from mechanisms.privunit import PrivUnit
from mechanisms.projection import signed_directions
from mechanisms.streams import SeededUniforms
from server.counts import estimate
from server.training.principal import pca_maps

EXPERIMENT, DELTA, CENTRAL, TOPICS = "sst2-statistics-other-domain", 1e-6, 1.0, 20
#: Share of equal weights in a mixture, coordinates of the moments, and pull of their fit.
EVEN, WIDTH, PULL = 0.2, 32, 1e-3
Array = NDArray[np.float64]


def votes(public: Array, users: Array, *, private: bool, seed: int) -> Array:
    """Return the share of users whose nearest public text is each one, in clear or as it is estimated."""
    nearest = np.concatenate([(rows @ public.T).argmax(axis=1) for rows in np.array_split(users, 20)])
    shares: Array = np.bincount(nearest, minlength=len(public)) / len(users)
    if not private:
        return shares
    mechanism = of_central(len(public), Target(CENTRAL, DELTA, len(users)))
    assert mechanism is not None
    return estimate(mechanism, mechanism.sample(nearest, rng=SeededUniforms(seed))).shares


def moments(public: Array, users: Array, *, private: bool, seed: int) -> Array:
    """Return weights of largest entropy whose mean of WIDTH features is the users' mean, in clear or released."""
    mean = users.mean(axis=0)
    pull = PULL
    if private:
        best = privunit_of(CENTRAL, DELTA, len(users))
        assert best is not None
        drawn = PrivUnit(WIDTH, best.epsilon, cap_probability=best.cap_probability)
        rng = SeededUniforms(seed)
        unit = signed_directions(users, rng.uniform(len(users), 1)[:, 0])
        mean = drawn.decoded_mean(drawn.grid.encode(drawn.sample(unit, rng=rng)))
        pull += 1 / (drawn.scale**2 * len(users) * WIDTH)  # variance of a coordinate

    def dual(tilt: Array) -> tuple[float, Array]:
        scores = public @ tilt
        top = scores.max()
        weights = softmax(scores)
        value = top + np.log(np.exp(scores - top).mean()) - tilt @ mean + pull * (tilt @ tilt) / 2
        return float(value), weights @ public - mean + pull * tilt

    found = minimize(dual, np.zeros(public.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    weights: Array = softmax(public @ found.x)
    return weights


def main() -> None:
    """Print a line for each way: distance of topics, and accuracy, over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--users", type=int, default=20_000)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(1, given.seeds + 1):
        _, ready = prepared(EXPERIMENT, given.folder, seed, f"population.users={given.users}")
        assert ready.public.embeddings is not None and ready.public.labels is not None
        maps = pca_maps(np.asarray(ready.public.embeddings), dim=WIDTH, classes=2)
        held = np.asarray(ready.held.train_embeddings), np.asarray(ready.held.test_embeddings)
        public, users, test = (maps.project(rows) for rows in (ready.public.embeddings, *held))
        topic = KMeans(TOPICS, n_init=1, random_state=seed).fit(np.concatenate([public, users[: len(public)]]))
        mix = np.bincount(topic.predict(users), minlength=TOPICS) / len(users)
        of_public, even = topic.predict(public), np.full(len(public), 1 / len(public))
        ways = {"equal weights": even}
        for way in (votes, moments):
            for private in (False, True):
                drawn = way(public, users, private=private, seed=seed)
                ways[f"{way.__name__}, {'central ε = 1' if private else 'no noise'}"] = EVEN * even + (1 - EVEN) * drawn
        for name, weights in ways.items():
            apart = abs(np.bincount(of_public, weights=weights, minlength=TOPICS) - mix).sum() / 2
            head = LogisticRegression(C=10, max_iter=1000)
            head.fit(public, ready.public.labels, sample_weight=weights * len(public))
            found.setdefault(name, []).append((float(apart), float(head.score(test, ready.held.test.labels))))
        print(f"seed {seed}:", {name: [round(v, 4) for v in rows[-1]] for name, rows in found.items()}, flush=True)
    base = np.array(found["equal weights"])
    for name, rows in found.items():
        apart, accuracy = np.mean(rows, axis=0)
        gain = np.array(rows)[:, 1] - base[:, 1]
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
        print(f"{name}: topics {apart:.3f} apart, accuracy {accuracy:.3f}, gain {gain.mean():+.3f} ± {error:.3f}")


if __name__ == "__main__":
    main()
