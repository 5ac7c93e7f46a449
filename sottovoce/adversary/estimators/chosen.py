"""Maps of a malicious server that wants one attribute of a text, rather than to train.

A client answers under any maps, at the same ε. So an attack on the maps of a run's task shows only what an honest
server sees. Here the maps are learned from public text for the value of an attribute. They have a coordinate for each
value. Or they place the values around a circle, where noise confuses them less and two coordinates suffice. Simulation
on other public text chooses between the two, and the strength of smoothing. The guess is the value of largest posterior
probability, by the mechanism's density, over the public texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.projection import project
from mechanisms.streams import SimulationStreams
from sottovoce.adversary.estimators.likelihood import posterior

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Matrices = tuple[NDArray[np.float32], NDArray[np.float32]]

#: Ridge penalties for maps that separate values, in mean eigenvalues.
PENALTIES = (0.03, 0.3, 3.0, 30.0)
#: Public texts that a request is tried on.
_TRIED = 400


@dataclass(frozen=True, eq=False)
class Question:
    """Maps of a request, with the mechanism of the releases.

    Args:
        mean: Vector (m,).
        m1: Matrix (m, m').
        mechanism: Mechanism of the releases.
    """

    mean: NDArray[np.float32]
    m1: NDArray[np.float32]
    mechanism: Any

    def drawn(self, embeddings: NDArray[Any], *, seed: int, stage: str) -> FloatArray:
        """Return simulated releases for embeddings (n, m), on the public quantizer."""
        rows = np.arange(len(embeddings), dtype=np.int64)
        streams = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage=stage, channel="embedding")
        y: FloatArray = self.mechanism.sample(project(embeddings, self.mean, self.m1), rng=streams)
        grid = self.mechanism.grid
        return y if grid is None else grid.decode(grid.encode(y))

    def guessed(self, released: FloatArray, embeddings: NDArray[Any], values: IntArray, count: int) -> IntArray:
        """Return the likeliest value behind each release.

        Args:
            released: Releases (n, m').
            embeddings: Embeddings (p, m) of public texts.
            values: Their values (p,).
            count: Number of values.
        """
        shares = posterior(self.mechanism, released, project(embeddings, self.mean, self.m1))
        return (shares @ np.eye(count)[values]).argmax(axis=1)


def for_value(
    embeddings: NDArray[Any], values: IntArray, count: int, build: Callable[[int], Any], *, seed: int
) -> Question:
    """Return the maps that reveal a value best.

    Args:
        embeddings: Embeddings (p, m) of public texts.
        values: Their values (p,).
        count: Number of values.
        build: Function from the number of coordinates to the mechanism.
        seed: Seed of all random choices.

    Raises:
        ValueError: The mechanism's density is not known.
    """
    order = np.random.default_rng([seed, 16]).permutation(len(embeddings))
    fit_rows, test_rows = order[: len(order) // 2], order[len(order) // 2 :][:_TRIED]
    best: tuple[float, int] = (-1.0, 0)
    for number, (mean, m1) in enumerate(_arranged(embeddings[fit_rows], values[fit_rows], count)):
        question = Question(mean, m1, build(m1.shape[1]))
        releases = question.drawn(embeddings[test_rows], seed=seed, stage="attack-choice")
        guesses = question.guessed(releases, embeddings[fit_rows], values[fit_rows], count)
        best = max(best, (float((guesses == values[test_rows]).mean()), -number))
    mean, m1 = _arranged(embeddings, values, count)[-best[1]]  # the same maps, learned on all of them
    return Question(mean, m1, build(m1.shape[1]))


def _arranged(embeddings: NDArray[Any], values: IntArray, count: int) -> list[Matrices]:
    results = []
    angles = 2 * np.pi * np.arange(count) / count
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    for penalty in PENALTIES:
        mean, m1 = telling(embeddings, values, count, penalty)
        results.append((mean, m1))
        if count > 2:
            results.append((mean, (m1 @ circle).astype(np.float32)))
    return results


def telling(embeddings: NDArray[Any], values: IntArray, count: int, penalty: float) -> Matrices:
    """Return maps to a coordinate for each value, by least squares; rare values weigh as much as frequent ones.

    For two values there is one coordinate, and one that is 0.

    Args:
        embeddings: Embeddings (p, m) of public texts.
        values: Their values (p,).
        count: Number of values.
        penalty: Ridge penalty, in mean eigenvalues.
    """
    h = np.asarray(embeddings, np.float64)
    mean = h.mean(axis=0)
    deviations = h - mean
    target = np.eye(count)[values]
    target = (target - target.mean(axis=0)) / np.maximum(target.mean(axis=0), 1e-3)
    covariance = deviations.T @ deviations / len(h)
    ridge = penalty * np.trace(covariance) / len(covariance)
    m1 = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), deviations.T @ target / len(h))
    if count == 2:
        m1[:, 0] = 0.0
    m1 /= np.linalg.norm(m1, axis=0).max()
    return mean.astype(np.float32), m1.astype(np.float32)
