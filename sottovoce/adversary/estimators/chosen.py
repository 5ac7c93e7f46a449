"""Maps that a server would ask for embeddings by if it wanted to know one thing of a text, rather than to train.

A client answers whatever maps it is asked by, under the same ε, so an attack on the maps that serve a run's task says
what an honest server sees and no more. Here maps are learned from public text for the value of an attribute: a
coordinate for each value, or the values around a circle, where little noise comes between them and their number of
coordinates is 2. Which, and how strongly smoothed, is chosen by simulation on public text that they were not learned
on; the guess is the value of largest posterior probability, by the mechanism's density, over the public texts.
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

#: In mean eigenvalues, what is added before maps that tell values apart are solved for.
PENALTIES = (0.03, 0.3, 3.0, 30.0)
#: Public texts that a question is tried on.
_TRIED = 400


@dataclass(frozen=True, eq=False)
class Question:
    """mean (m,), m1 (m, m'): the maps asked by; mechanism: of the releases."""

    mean: NDArray[np.float32]
    m1: NDArray[np.float32]
    mechanism: Any

    def drawn(self, embeddings: NDArray[Any], *, seed: int, stage: str) -> FloatArray:
        """What users would release for embeddings (n, m), on the public grid."""
        rows = np.arange(len(embeddings), dtype=np.int64)
        streams = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage=stage, channel="embedding")
        y: FloatArray = self.mechanism.sample(project(embeddings, self.mean, self.m1), rng=streams)
        grid = self.mechanism.grid
        return y if grid is None else grid.decode(grid.encode(y))

    def guessed(self, released: FloatArray, embeddings: NDArray[Any], values: IntArray, count: int) -> IntArray:
        """The likeliest of `count` values behind each release (n, m'), under public texts (p, m) of these values."""
        shares = posterior(self.mechanism, released, project(embeddings, self.mean, self.m1))
        return (shares @ np.eye(count)[values]).argmax(axis=1)


def for_value(
    embeddings: NDArray[Any], values: IntArray, count: int, build: Callable[[int], Any], *, seed: int
) -> Question:
    """The maps that serve a question for a value best: embeddings (p, m) of public texts, values (p,). build: the
    mechanism by its number of coordinates. ValueError where its density is not known."""
    order = np.random.default_rng([seed, 16]).permutation(len(embeddings))
    learnt, tried = order[: len(order) // 2], order[len(order) // 2 :][:_TRIED]
    best: tuple[float, int] = (-1.0, 0)
    for which, (mean, m1) in enumerate(_arranged(embeddings[learnt], values[learnt], count)):
        question = Question(mean, m1, build(m1.shape[1]))
        released = question.drawn(embeddings[tried], seed=seed, stage="attack-choice")
        guesses = question.guessed(released, embeddings[learnt], values[learnt], count)
        best = max(best, (float((guesses == values[tried]).mean()), -which))
    mean, m1 = _arranged(embeddings, values, count)[-best[1]]  # the same question, learned on all of them
    return Question(mean, m1, build(m1.shape[1]))


def _arranged(embeddings: NDArray[Any], values: IntArray, count: int) -> list[Matrices]:
    found = []
    angles = 2 * np.pi * np.arange(count) / count
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    for penalty in PENALTIES:
        mean, m1 = telling(embeddings, values, count, penalty)
        found.append((mean, m1))
        if count > 2:
            found.append((mean, (m1 @ circle).astype(np.float32)))
    return found


def telling(embeddings: NDArray[Any], values: IntArray, count: int, penalty: float) -> Matrices:
    """Maps to a coordinate for each value (two values: one, and one that is 0): least squares for which it is, rare
    values weighing as much as others."""
    h = np.asarray(embeddings, np.float64)
    mean = h.mean(axis=0)
    away = h - mean
    target = np.eye(count)[values]
    target = (target - target.mean(axis=0)) / np.maximum(target.mean(axis=0), 1e-3)
    covariance = away.T @ away / len(h)
    ridge = penalty * np.trace(covariance) / len(covariance)
    m1 = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), away.T @ target / len(h))
    if count == 2:
        m1[:, 0] = 0.0
    m1 /= np.linalg.norm(m1, axis=0).max()
    return mean.astype(np.float32), m1.astype(np.float32)
