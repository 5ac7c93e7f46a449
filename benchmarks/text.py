"""SanText against the published algorithm, on one core in one run: `python -m benchmarks.text [--full]`.

The data are the whole of SST-2 with the GloVe vectors of its vocabulary. Both sides start from vectors in memory and
end with drawn numbers. The published way computes all probabilities, one row of V for each word, and then calls
`numpy.random.choice` over the row of each token. Its tokens a second are measured on 20,000 tokens, or on all with
--full. Seconds are CPU seconds of the process, so that other load does not count; ours are the best of three. Before
that, memory and time of a vocabulary of 88,000 words are measured in another process. It skips if ../shared/data is
missing.
"""

from __future__ import annotations

import os

from tests.support.paths import DATA, ROOT

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: one core on both sides

import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.timing import streams
from client.models.vocabulary import read_vectors
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.custext import CusText
from mechanisms.words.distances import diameter
from mechanisms.words.santext import SanText

LARGE, SEEN = 88_000, 4_000
EPSILONS = (1.0, 2.0, 3.0)
REPEATS = 3


def glove() -> Vocabulary:
    """Return the GloVe vectors of SST-2's words."""
    return read_vectors(DATA / "glove" / "glove.840B.300d.sst2.txt.gz")


def phrases(vocabulary: Vocabulary) -> np.ndarray:
    """Return SST-2's training phrases as numbers, (n, longest), NOTHING after the end."""
    lines = (DATA / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [[vocabulary.word_id(word) for word in line.split("\t")[1].split()] for line in lines]
    x = np.full((len(rows), max(map(len, rows))), NOTHING)
    for row, numbers in zip(x, rows, strict=True):
        row[: len(numbers)] = numbers
    return x


def published(vectors: np.ndarray, tokens: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Return the seconds for the table of probabilities, and tokens drawn a second, of Yue et al.'s procedure."""
    from scipy.special import softmax
    from sklearn.metrics.pairwise import euclidean_distances

    start = time.process_time()
    table = softmax(-epsilon * euclidean_distances(vectors, vectors) / 2, axis=1)
    table_done = time.process_time()
    np.random.seed(0)  # noqa: NPY002 - as published
    for word in tokens:
        np.random.choice(table.shape[1], 1, p=table[word])  # noqa: NPY002
    return table_done - start, len(tokens) / (time.process_time() - table_done)


def seconds(kind: type, vocabulary: Vocabulary, x: np.ndarray, epsilon: float) -> float:
    """Return the seconds from vectors to drawn numbers, with random streams and without caches of earlier runs."""
    best = np.inf
    for repeat in range(REPEATS):
        # its own counts make it another vocabulary, without a cached table
        fresh = Vocabulary(vocabulary.words, vocabulary.vectors, np.full(len(vocabulary), repeat, dtype=np.int64))
        assert fresh.identity
        start = time.process_time()
        kind(epsilon, fresh).sample(x, rng=streams(len(x)))
        best = min(best, time.process_time() - start)
    return best


def large() -> None:
    """Print the resident memory of a process that sanitizes with 88,000 words."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((LARGE, 300), dtype=np.float32)
    vocabulary = Vocabulary(tuple(f"word{i}" for i in range(LARGE)), vectors)
    start = time.process_time()
    widest = diameter(vocabulary)
    measured = time.process_time()
    x = np.sort(rng.integers(0, LARGE // 20, SEEN)).reshape(-1, 8)
    SanText(1.0, vocabulary).sample(x, rng=streams(len(x)))
    done = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    words = len(np.unique(x))
    print(f"{LARGE:,} words of 300 dimensions: {memory:.2f} GB resident at most; diameter {widest:.3f} in")
    print(f"{measured - start:.1f} s; {x.size:,} tokens, {words:,} different words, in {done - measured:.1f} s")


def main() -> None:
    """Print the figures."""
    if not DATA.exists():
        print(f"skipped: {DATA} is missing (SST-2 and the GloVe vectors of its vocabulary)")
        return
    # first, because a child's peak starts at its parent's memory
    subprocess.run([sys.executable, "-m", "benchmarks.text", "--large"], check=True, cwd=ROOT)
    vocabulary = glove()
    x = phrases(vocabulary)
    tokens = x[x != NOTHING]
    print(f"SST-2: {len(x):,} phrases, {len(tokens):,} tokens, {len(vocabulary):,} words of 300 dimensions")
    points = vocabulary.points
    part = tokens if "--full" in sys.argv else np.random.default_rng(0).choice(tokens, 20_000)
    for epsilon in EPSILONS:
        table, speed = published(points, part, epsilon)
        slow = table + len(tokens) / speed
        fast = seconds(SanText, vocabulary, x, epsilon)
        print(
            f"ε={epsilon:g}  published {table:5.1f} s + {len(tokens):,} tokens at {speed:,.0f}/s = {slow:5.1f} s"
            f"   SanText {fast:5.2f} s   ratio {slow / fast:.0f}"
        )
    start = time.process_time()
    widest = diameter(Vocabulary(vocabulary.words, vocabulary.vectors, np.arange(len(vocabulary))))
    print(f"diameter {widest:.3f} in {time.process_time() - start:.2f} s")
    print(f"CusText, K=20, mapping included: {seconds(CusText, vocabulary, x, 3.0):.2f} s")


if __name__ == "__main__":
    large() if "--large" in sys.argv else main()
