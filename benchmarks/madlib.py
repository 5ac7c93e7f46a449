"""Words a second of MADLIB on one core: `OMP_NUM_THREADS=1 python -m benchmarks.madlib [PYTHON]`.

33,860 words of 300 dimensions, against two baselines on the same vectors. Figures are medians of repeated runs, in CPU
seconds of one thread, because other processes may use the machine.

- The published algorithm, one word at a time: noise, then the distances to all words (float32), brute force.
- `mldp-text` 0.1.2 (MultivariateCalibrated, an approximate index of faiss). It needs NumPy below 2, and so its own
  environment: PYTHON is that environment's interpreter. Without it the peer is left out, and the vectors are generated:
  standard normal ones with a spectrum that falls like GloVe's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import seconds, streams
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.madlib import Madlib
from mechanisms.words.madlib_syntax import MadlibSyntax

WORDS, WIDTH, EPSILON, ROWS, SLOW_ROWS, REPEATS = 33_860, 300, 10.0, 8192, 100, 3

# Runs in the peer's environment: prints the words a second of each repeat, and saves its vectors.
PEER = """
import json, sys, time
import faiss, numpy as np
faiss.omp_set_num_threads(1)
from mldp_text import MultivariateCalibrated
epsilon, rows, repeats, out = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
mechanism = MultivariateCalibrated(epsilon)
np.save(out, mechanism.embedding_matrix.vectors)
words = mechanism.embedding_matrix.index_to_key
chosen = [words[i] for i in np.random.default_rng(1).integers(0, len(words), rows)]
speeds = []
for _ in range(repeats + 1):
    start = time.process_time()
    kept = sum(mechanism.replace_word(word) == word for word in chosen)
    speeds.append(rows / (time.process_time() - start))
print(json.dumps({"speeds": speeds[1:], "kept": kept / rows}))
"""


def peer(python: str, vectors: Path) -> dict | None:
    """Return the measurements in the peer's environment; None, with a message, if it cannot run."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    arguments = [python, "-c", PEER, str(EPSILON), str(SLOW_ROWS), str(REPEATS), str(vectors)]
    try:
        done = subprocess.run(arguments, env=os.environ | threads, capture_output=True, text=True, timeout=900)
    except OSError as error:
        print(f"mldp-text is left out: {python}: {error.strerror}")
        return None
    if done.returncode:
        print(f"mldp-text is left out: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def generated() -> np.ndarray:
    """Return generated vectors."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(WORDS, WIDTH)) * 0.6 * (1 + np.arange(WIDTH)) ** -0.15).astype(np.float32)


def one_at_a_time(vectors: np.ndarray, x: np.ndarray, epsilon: float) -> float:
    """Run the published algorithm for each word of x, and return the share of unchanged words."""
    rng = np.random.default_rng(0)
    width, kept = vectors.shape[1], 0
    for word in x:
        direction = rng.normal(size=width)
        z = vectors[word] + rng.gamma(width, 1 / epsilon) * direction / np.linalg.norm(direction)
        kept += int(np.linalg.norm(vectors - z.astype(np.float32), axis=1).argmin() == word)
    return kept / len(x)


def main(python: str | None) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        file = Path(folder) / "vectors.npy"
        peer_results = peer(python, file) if python else None
        if python is None:
            print("mldp-text is left out: give the python of an environment that has it")
        vectors = np.load(file) if peer_results else generated()
        words = Vocabulary(
            tuple(map(str, range(len(vectors)))), vectors, tags=(np.arange(len(vectors)) % 11).astype(np.int8)
        )
        x = np.random.default_rng(1).integers(0, len(words), ROWS)
        print(f"{len(words):,} words of {vectors.shape[1]} dimensions, ε = {EPSILON:g}, one thread")
        slow = SLOW_ROWS / seconds(lambda: one_at_a_time(vectors, x[:SLOW_ROWS], EPSILON))
        kept = one_at_a_time(vectors, x[:SLOW_ROWS], EPSILON)
        print(f"{'published algorithm, one at a time':<36}{slow:>10,.0f} words/s{'':<24} stay {kept:.3f}")
        against = [slow]
        if peer_results:
            against.append(statistics.median(peer_results["speeds"]))
            print(f"{'mldp-text':<36}{against[-1]:>10,.0f} words/s{'':<24} stay {peer_results['kept']:.3f}")
        for name, mechanism in (
            ("madlib", Madlib(EPSILON, words)),
            ("madlib-syntax, paper, k = 20", MadlibSyntax(EPSILON, words, mode="paper")),
        ):

            def work(mechanism=mechanism):
                return mechanism.sample(x, rng=streams(ROWS))

            fast = ROWS / seconds(work)
            ratios = " and ".join(f"{fast / s:,.1f}" for s in against)
            print(f"{name:<36}{fast:>10,.0f} words/s   ratio {ratios:<14} stay {(work() == x).mean():.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
