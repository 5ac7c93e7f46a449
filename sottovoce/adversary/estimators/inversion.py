"""Inversion of sentence embeddings to words, learned on public text.

An embedding is any vector that leaves a client: the full-width embedding itself, if nothing protects it, or the m'
released coordinates. The adversary knows the encoder, the maps and the mechanism. It makes the same vectors of *public*
texts, with noise, so it adapts to the mechanism. On these it learns a score of each word for a vector. A word is
guessed if its score reaches a threshold. The threshold and the other choices maximize F1 on held-out public texts. Then
it learns on all of them.

- `regression`: the presence of each word by least squares with a penalty. It is a multi-label inverter. Song and
  Raghunathan 2020, section 3.2.2, train a network for it; on a few thousand public texts the linear one was more
  accurate.
- `two_step`: the white-box attack (the same, section 3.2.1, as Du et al. 2023, section 4.4, use it). A linear map leads
  from the vector to a lower layer, here the mean of the input embeddings of a text's tokens. Then the words that come
  nearest to it follow from min over w >= 0 of |target - Σ w_i·e_i|²/2 + λ·Σ w_i.

For a vector that says nothing about a text, `regression` ranks words by frequency, and so guesses like the baseline.
`two_step` knows no such prior, and may do worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh
from sklearn.linear_model import Ridge

from mechanisms.arrays import BoolArray, IntArray

FloatArray = NDArray[Any]
#: Function from vectors (n, k) to a score of each word, (n, V).
Score = Callable[[FloatArray], FloatArray]
#: Function from rows of the public texts to the score learned on them.
Fit = Callable[[IntArray], Score]

#: Share of the public texts that choose thresholds and penalties, and their largest number.
_HELD_OUT, _MOST_HELD = 0.25, 250
#: Penalties to try, relative to the mean square of a column.
PENALTIES = (1e-2, 3e-2, 1e-1, 1.0)
#: Vectors up to this width include the products of two coordinates.
_NARROW = 32
#: λ, as a share of the largest correlation of any word with any target.
SPARSITIES = (1e-3, 1e-2)
_STEPS = 50


def guessed(fits: Iterable[Fit], public: FloatArray, words: BoolArray, seen: FloatArray, *, seed: int) -> BoolArray:
    """Return the guessed words behind each attacked vector, (n, V), by the fit that is best on held-out public texts.

    Public vectors (d, p, k) are d independent draws for each of p public texts, which hold `words` (p, V). Attacked
    vectors are (n, k).

    Raises:
        ValueError: There are fewer than 8 public texts.
    """
    texts = public.shape[1]
    if texts < 8:
        raise ValueError(f"{texts} public texts are too few to learn on")
    order = np.random.default_rng([seed, 8]).permutation(texts)
    cut = min(_MOST_HELD, int(texts * _HELD_OUT))
    test_rows, fit_rows = order[:cut], order[cut:]
    results = [(*_threshold(fit(fit_rows)(public[0, test_rows]), words[test_rows]), fit) for fit in fits]
    _, threshold, fit = max(results, key=lambda result: result[0])
    return np.asarray(fit(order)(seen) >= threshold)


def most_frequent(words: BoolArray) -> BoolArray:
    """Return the most frequent words of public texts, (V,): the guess that ignores the release.

    Their number gives the largest F1 on the public texts, which hold `words` (p, V).
    """
    frequency = words.mean(axis=0)
    order = np.argsort(-frequency, kind="stable")
    count = np.arange(1, len(order) + 1)
    value = 2 * np.cumsum(frequency[order]) / (count + frequency.sum())
    guess = np.zeros(len(order), dtype=bool)
    guess[order[: int(value.argmax()) + 1]] = True
    return guess


def regression(public: FloatArray, words: BoolArray, penalty: float) -> Fit:
    """Return an attack by least squares with a ridge penalty for the presence of each word.

    Public vectors are (d, p, k), with all draws of a text alike, and the words of the texts (p, V).
    """
    draws = public.shape[0]

    def fit(rows: IntArray) -> Score:
        x = _features(public[:, rows].reshape(draws * len(rows), -1))
        model = _ridge(x, np.tile(words[rows], (draws, 1)), penalty)
        return lambda vectors: model(_features(vectors))

    return fit


def two_step(
    public: FloatArray, lower: FloatArray, table: FloatArray, wanted: BoolArray, penalty: float, sparsity: float
) -> Fit:
    """Return the white-box attack through a lower layer, whose output for public texts (d, p, k) is (p, m).

    The table has the vectors (U, m) of all words that may be in a text, of which V are wanted, (U,). The penalty is the
    ridge of the linear map, and the sparsity λ, as a share of the largest correlation.
    """
    draws = public.shape[0]
    gram = (table @ table.T).astype(np.float32)
    largest = float(eigsh(gram, k=1, v0=np.ones(len(gram)), return_eigenvectors=False)[0])

    def fit(rows: IntArray) -> Score:
        to_lower = _ridge(public[:, rows].reshape(draws * len(rows), -1), np.tile(lower[rows], (draws, 1)), penalty)

        def score(seen: FloatArray) -> FloatArray:
            speaks = (to_lower(seen) @ table.T).astype(np.float32)
            return _sparse(gram, speaks, sparsity * float(np.abs(speaks).max()), largest)[:, wanted]

        return score

    return fit


def _threshold(score: FloatArray, words: BoolArray) -> tuple[float, float]:
    """Return the largest F1 and its threshold, by counting from the highest score down."""
    order = np.argsort(-score, axis=None, kind="stable")
    hits = np.cumsum(words.ravel()[order])
    value = 2 * hits / (np.arange(1, len(order) + 1) + words.sum())
    scores = score.ravel()[order]
    value[:-1][scores[:-1] == scores[1:]] = -1.0  # equal scores are all guessed or none
    at = int(value.argmax())
    return float(value[at]), float(scores[at])


def _features(x: FloatArray) -> FloatArray:
    if x.shape[1] > _NARROW:
        return x
    i, j = np.triu_indices(x.shape[1])
    return np.hstack([x, x[:, i] * x[:, j]])


def _ridge(x: FloatArray, y: FloatArray, penalty: float) -> Score:
    variance = np.asarray(x, dtype=np.float64).var(axis=0).mean()
    model = Ridge(penalty * len(x) * max(float(variance), 1e-12))
    return model.fit(np.asarray(x, dtype=np.float64), y).predict


def _sparse(gram: FloatArray, speaks: FloatArray, penalty: float, largest: float) -> FloatArray:
    """Return min over w >= 0 of w·G·w/2 - w·c + λ·Σw for each row c of `speaks`.

    It uses accelerated projected gradients (Beck and Teboulle 2009).
    """
    w = np.zeros_like(speaks)
    z, t = w, 1.0
    for _ in range(_STEPS):
        next_w = np.maximum(0, z - (z @ gram - speaks + np.float32(penalty)) / np.float32(largest))
        next_t = (1 + np.sqrt(1 + 4 * t * t)) / 2
        z = next_w + np.float32((t - 1) / next_t) * (next_w - w)
        w, t = next_w, next_t
    return w
