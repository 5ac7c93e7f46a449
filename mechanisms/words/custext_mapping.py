"""CusText's one-to-many mapping: the words that may replace a word, and their scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import NOTHING, Vocabulary

SIMILARITIES = ("euclidean", "cosine")
MAX_K = 256
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Mapping:
    """Groups of words; the output set of every word of a group is the group.

    Attributes:
        group: (V + 1,) int64, the group of each input.
        members: (groups, K) int64, rising, NOTHING where a group is smaller.
        scores: (V + 1, K) closeness of each member to the input, 1 the nearest and 0 the farthest of the group (all 1
            if all are equally close), -inf where there is none.
    """

    group: IntArray
    members: IntArray
    scores: FloatArray


@lru_cache(maxsize=4)
def mapping(vocabulary: Vocabulary, k: int, similarity: str) -> Mapping:
    """Return the greedy mapping of Chen et al. 2022, Algorithm 1 (Fu 2024, Algorithm 1). Cached.

    While at least K words are left, the first of them (public: the lowest number) and its K - 1 nearest, ties to the
    lower number, become a group and leave. The rest is a group of fewer. A last group of one word is that word: it is
    always kept. The unknown word, which is no output, joins the group whose centre is nearest to its point. It takes
    V²·m/K operations.

    Args:
        vocabulary: Words to be grouped.
        k: K.
        similarity: "euclidean" distance, or the "cosine" (0 with a vector of length 0).
    """
    points = vocabulary.points.astype(np.float64)
    if similarity == "cosine":
        lengths = np.sqrt(np.einsum("ij,ij->i", points, points))[:, None]
        points /= np.where(lengths > 0, lengths, 1.0)
    members = _greedy(points[:-1], k, similarity)
    group = np.empty(len(points), dtype=np.int64)
    for number, row in enumerate(members):
        group[row[row != NOTHING]] = number
    centres = np.stack([points[row[row != NOTHING]].mean(axis=0) for row in members])
    group[-1] = np.argmin(((centres - points[-1]) ** 2).sum(axis=1))

    scores = np.full((len(points), members.shape[1]), -np.inf)
    for x, point in enumerate(points):
        row = members[group[x]]
        row = row[row != NOTHING]
        if similarity == "cosine":
            near = np.einsum("ij,j->i", points[row], point)
        else:
            difference = points[row] - point
            near = -np.sqrt(np.einsum("ij,ij->i", difference, difference))
        span = near.max() - near.min()
        scores[x, : len(row)] = (near - near.min()) / span if span > 0 else 1.0
    for array in (group, members, scores):
        array.flags.writeable = False
    return Mapping(group, members, scores)


def _greedy(points: FloatArray, k: int, similarity: str) -> IntArray:
    """Return the members of each group, (groups, min(K, V)), rising, from points (V, m).

    For cosines, points have length 1 or 0.
    """
    left_ids = np.arange(len(points))
    squares = np.zeros(len(points)) if similarity == "cosine" else np.einsum("ij,ij->i", points, points)
    gone = np.zeros(len(points), dtype=bool)
    groups: list[IntArray] = []
    count = len(points)
    first = 0
    while count >= k:
        while gone[first]:
            first += 1
        far = squares - 2 * (points @ points[first])
        far[gone] = np.inf
        far[first] = -np.inf
        limit = np.partition(far, k - 1)[k - 1]
        near = np.flatnonzero(far <= limit)
        chosen = near[np.argsort(far[near], kind="stable")[:k]]
        groups.append(np.sort(left_ids[chosen]))
        gone[chosen] = True
        count -= k
        if count < 0.75 * len(gone):  # words that left need no further measuring
            points, squares, left_ids = points[~gone], squares[~gone], left_ids[~gone]
            gone, first = np.zeros(count, dtype=bool), 0
    if count:
        groups.append(left_ids[~gone])
    members = np.full((len(groups), min(k, max(map(len, groups)))), NOTHING)
    for row, word_ids in zip(members, groups, strict=True):
        row[: len(word_ids)] = word_ids
    return members
