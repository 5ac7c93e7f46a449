"""TEM against the published algorithm, word by word, on one core: `python -m benchmarks.words`.

The words are the 10,543 GloVe words of SST-2, or as many generated ones if ../shared/data is missing. The published
side is the paper's algorithm in the form of its program, a word at a time. It measures the distances to all words
(float32), draws Gumbel noise for each word within γ and for the rest, and draws a word of the rest if the rest wins.
Seconds are CPU seconds of the process. Ours are medians, with random streams and without caches of draws.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: one core on both sides

import math
import time
from collections.abc import Callable

import numpy as np

from benchmarks.timing import seconds, streams
from client.models.vocabulary import read_vectors
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.santext import Tem
from tests.support.paths import DATA

ROWS, FEW = 200_000, 400
EPSILON = 3.0


def words() -> Vocabulary:
    """Return the vocabulary."""
    file = DATA / "glove" / "glove.840B.300d.sst2.txt.gz"
    if file.exists():
        return read_vectors(file)
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(10_543, 300)) * 0.6 * (1 + np.arange(300)) ** -0.15).astype(np.float32)
    return Vocabulary(tuple(f"word{i}" for i in range(len(vectors))), vectors)


def published_tem(vectors: np.ndarray, x: np.ndarray, epsilon: float, gamma: float) -> np.ndarray:
    """Return draws of Carvalho et al. 2021, one word after the other."""
    rng = np.random.default_rng(0)
    drawn = np.empty(len(x), dtype=np.int64)
    for i, word in enumerate(x):
        apart = np.linalg.norm(vectors - vectors[word], axis=1)
        near = np.flatnonzero(apart <= gamma)
        rest = len(vectors) - len(near)
        scores = [-apart[j] + rng.gumbel(0, 2 / epsilon) for j in near]
        scores.append(-gamma + 2 * math.log(rest) / epsilon + rng.gumbel(0, 2 / epsilon) if rest else -math.inf)
        best = int(np.argmax(scores))
        drawn[i] = near[best] if best < len(near) else rng.choice(np.flatnonzero(apart > gamma))
    return drawn


def compare(
    name: str, x: np.ndarray, published: Callable[[np.ndarray], np.ndarray], ours: Callable[[], np.ndarray]
) -> None:
    """Print words a second of both, and the share of unchanged words, which must agree."""
    start = time.process_time()
    drawn = published(x[:FEW])
    slow = FEW / (time.process_time() - start)
    fast, mine = len(x) / seconds(ours), ours()
    print(
        f"{name:<22} published {slow:>9,.0f} words/s, stay {(drawn == x[:FEW]).mean():.3f}   "
        f"ours {fast:>11,.0f} words/s, stay {(mine == x).mean():.3f}   ratio {fast / slow:,.0f}"
    )


def main() -> None:
    """Print the figures."""
    vocabulary = words()
    x = np.random.default_rng(1).integers(0, len(vocabulary), ROWS)
    print(f"{len(vocabulary):,} words of {vocabulary.vectors.shape[1]} dimensions, ε = {EPSILON:g}, one core")
    for gamma in (None, 8.0):
        tem = Tem(EPSILON, vocabulary, gamma)
        compare(
            f"TEM, γ = {tem.radius:.3g}",
            x,
            lambda few, tem=tem: published_tem(vocabulary.vectors, few, EPSILON, tem.radius),
            lambda tem=tem: tem.sample(x, rng=streams(ROWS)),
        )


if __name__ == "__main__":
    main()
