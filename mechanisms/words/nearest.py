"""Exact nearest word of a point: single-precision matrix products find candidates, double precision decides.

**Why the answer is exact.** With c the centre of the vectors and R the largest distance from it, let e = (word - c)/R
and z = (point - c)/R. The nearest word has the largest z·e - |e|²/2. Divided by |z| + 1 this is the product of a = (z,
1)/(|z| + 1) and b = (e, -|e|²/2), whose lengths are at most 1 and √(5/4). Whatever the order of its sums, a
single-precision product of n terms is within γ_n·Σ|a_i b_i| of the exact one, γ_n = n·u/(1 - n·u), u = 2^-24 (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1). So by Cauchy and Schwarz every score is within √(5/4)·γ. A
word whose score is more than twice that below the best one is not the nearest. Of those that remain, mostly one, the
squared distance in float64, each summed on its own, decides; equals go to the lower number. So the result depends
neither on BLAS's treatment of shapes and blocks, nor on the grouping of points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.vocabulary import Vocabulary

#: Scores held at once: 64 MB of float32.
_SCORES = 2**24


@dataclass(frozen=True)
class _Table:
    """Words in the order of their tags: `order` (V,) their ids, `augmented` (V, m + 1) float32 rows b."""

    order: IntArray
    place: IntArray  # the inverse of `order`
    ends: IntArray  # ends of each tag's words in that order; (1,) without tags
    augmented: NDArray[np.float32]
    centre: FloatArray
    radius: float
    tolerance: np.float32


@lru_cache(maxsize=4)
def _table(vocabulary: Vocabulary) -> _Table:
    tags = np.zeros(len(vocabulary), np.int8) if vocabulary.tags is None else vocabulary.tags
    order = np.argsort(tags, kind="stable")
    vectors = vocabulary.vectors[order].astype(np.float64)
    centre = vectors.mean(axis=0)
    vectors -= centre
    radius = math.sqrt(float(np.einsum("ij,ij->i", vectors, vectors).max())) or 1.0
    vectors /= radius
    half = np.einsum("ij,ij->i", vectors, vectors) / 2
    terms = (vectors.shape[1] + 16) * 2.0**-24  # the products, and the roundings of a, b and the threshold
    return _Table(
        order=order,
        place=np.argsort(order),
        ends=np.cumsum(np.bincount(tags)),
        augmented=np.hstack([vectors, -half[:, None]]).astype(np.float32),
        centre=centre,
        radius=radius,
        tolerance=np.float32(2 * math.sqrt(1.25) * terms / (1 - terms) + 1e-30),
    )


def nearest(points: FloatArray, vocabulary: Vocabulary) -> IntArray:
    """Return the id of the word nearest to each of points (n, m) float64 -> (n,); equals go to the lower number."""
    ids = np.empty(len(points), dtype=np.int64)
    rows = max(1, _SCORES // len(vocabulary))
    for at in range(0, len(points), rows):
        part = points[at : at + rows]
        ids[at : at + rows] = _best(_scores(part, vocabulary), part, vocabulary, 0)
    return ids


def nearest_alike(points: FloatArray, tags: IntArray, k: int, vocabulary: Vocabulary) -> IntArray:
    """Return the first of the k words nearest to each point that has the point's tag, or the nearest word.

    Nothing is sorted: the nearest word of the tag is the answer iff fewer than k words are nearer.

    Args:
        points: (n, m) float64.
        tags: (n,) positions in TAGS, or -1 for none.
        k: Size of the pool.
        vocabulary: Words with tags.

    Raises:
        ValueError: The vocabulary has no tags.
    """
    if vocabulary.tags is None:
        raise ValueError("nearest: the vocabulary has no tags")
    ids = np.empty(len(points), dtype=np.int64)
    ends = _table(vocabulary).ends
    starts = np.concatenate([[0], ends[:-1]])
    rows = max(1, _SCORES // len(vocabulary))
    for tag in np.unique(tags):
        same = np.flatnonzero(tags == tag)
        for at in range(0, len(same), rows):
            which = same[at : at + rows]
            part = points[which]
            scores = _scores(part, vocabulary)
            ids[which] = _best(scores, part, vocabulary, 0)
            if 0 <= tag < len(ends) and starts[tag] < ends[tag]:
                neighbours = _best(scores[:, starts[tag] : ends[tag]], part, vocabulary, int(starts[tag]))
                pooled = _fewer_nearer(k, scores, part, neighbours, vocabulary)
                ids[which[pooled]] = neighbours[pooled]
    return ids


def squared_distances(points: FloatArray, word_ids: IntArray, vocabulary: Vocabulary) -> FloatArray:
    """Return |point - word|² of rows: (n, m) float64 and (n,) -> (n,), the same bits in any batch."""
    apart = points - vocabulary.vectors[word_ids]
    squared: FloatArray = np.einsum("ij,ij->i", apart, apart)
    return squared


def _scores(points: FloatArray, vocabulary: Vocabulary) -> NDArray[np.float32]:
    """Return (n, V) float32 scores, in the table's order of words."""
    table = _table(vocabulary)
    z = (points - table.centre) / table.radius
    a = np.hstack([z, np.ones((len(z), 1))])
    a /= np.sqrt(np.einsum("ij,ij->i", z, z))[:, None] + 1.0
    scores: NDArray[np.float32] = a.astype(np.float32) @ table.augmented.T
    return scores


def _best(scores: NDArray[np.float32], points: FloatArray, vocabulary: Vocabulary, first: int) -> IntArray:
    """Return the nearest of the words with these scores, from place `first` of the table's order."""
    table = _table(vocabulary)
    enough = scores.max(axis=1) - table.tolerance
    rows, places = np.divmod(np.flatnonzero(scores >= enough[:, None]), scores.shape[1])
    word_ids, counts = table.order[first + places], np.bincount(rows, minlength=len(points))
    if len(rows) > len(points):  # of several candidates the float64 distance chooses
        unsure = counts[rows] > 1
        distance = np.zeros(len(rows))
        distance[unsure] = squared_distances(points[rows[unsure]], word_ids[unsure], vocabulary)
        word_ids = word_ids[np.lexsort((word_ids, distance, rows))]
    best: IntArray = word_ids[np.cumsum(counts) - counts]
    return best


def _fewer_nearer(
    k: int, scores: NDArray[np.float32], points: FloatArray, word_ids: IntArray, vocabulary: Vocabulary
) -> BoolArray:
    """Return True where fewer than k words are nearer to a point than the given one, or as near with a lower number."""
    table = _table(vocabulary)
    own = scores[np.arange(len(points)), table.place[word_ids]]
    surely = np.count_nonzero(scores > (own + table.tolerance)[:, None], axis=1)
    undecided = np.flatnonzero(surely < k)
    rows, places = np.nonzero(scores[undecided] >= (own[undecided] - table.tolerance)[:, None])
    unsure = scores[undecided[rows], places] <= own[undecided[rows]] + table.tolerance
    rows, others = undecided[rows[unsure]], table.order[places[unsure]]
    other_distances = squared_distances(points[rows], others, vocabulary)
    own_distances = squared_distances(points, word_ids, vocabulary)[rows]
    before = (other_distances < own_distances) | ((other_distances == own_distances) & (others < word_ids[rows]))
    fewer: BoolArray = surely + np.bincount(rows[before], minlength=len(points)) < k
    return fewer
