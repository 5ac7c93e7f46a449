"""Learned scores of draws of two inputs, beside those of `adversary.estimators.audit`: boosted trees, frequencies.

A score maps rows of features (n, f) to scores (n,); a high score speaks for the first input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.adversary.estimators.audit import Outputs, Score, Table, as_rows, learned

FloatArray = NDArray[np.float64]

#: Most outputs of each input for learning trees.
_LEARNT = 8192
#: Number of bins for a tree's feature.
_BINS = 32


@dataclass(frozen=True, eq=False)
class Trees:
    """Gradient boosting of trees of one depth. All rows of a level are split by the same feature and cut.

    Args:
        columns: Features (trees, depth).
        cuts: Cuts (trees, depth); a row goes up if its feature is above the cut.
        leaves: Values (trees, 2^depth).

    Source: Friedman 2001.
    """

    columns: NDArray[np.int64]
    cuts: FloatArray
    leaves: FloatArray

    def __call__(self, outputs: Outputs) -> FloatArray:
        """Return the scores (n,) of outputs."""
        x = as_rows(outputs)
        total = np.zeros(len(x))
        powers = 1 << np.arange(self.cuts.shape[1])
        for columns, cuts, leaves in zip(self.columns, self.cuts, self.leaves, strict=True):
            total += leaves[(x[:, columns] > cuts) @ powers]
        return total


#: Number of trees, their depth, and the share of its step that each takes.
_COUNT, _DEPTH, _RATE = 24, 3, 0.4


def trees(first: Outputs, second: Outputs) -> Score:
    """Learn a score by trees, from at most 8,192 outputs of each input.

    Each level takes the split that reduces the logistic loss most, by Newton's step.
    """
    x = np.vstack([as_rows(first[:_LEARNT]), as_rows(second[:_LEARNT])])
    truth = np.repeat([1.0, 0.0], [len(first[:_LEARNT]), len(second[:_LEARNT])])
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1])) for column in x.T]
    edges = [cuts[cuts < column.max()] for cuts, column in zip(edges, x.T, strict=True)]
    alive = [i for i, cuts in enumerate(edges) if len(cuts)]
    if not alive:
        return Table({})
    codes = np.stack([np.searchsorted(edges[i], x[:, i], side="left") for i in alive])
    logit, tree_list = np.zeros(len(x)), []
    for _ in range(_COUNT):
        p = 1 / (1 + np.exp(-logit))
        splits, leaf = _tree(codes, truth - p, p * (1 - p), _DEPTH)
        size = 1 << _DEPTH
        values = _RATE * np.bincount(leaf, truth - p, size) / (np.bincount(leaf, p * (1 - p), size) + 1.0)
        logit += values[leaf]
        tree_list.append((splits, values))
    columns = np.array([[alive[i] for i, _ in splits] for splits, _ in tree_list])
    cuts = np.array(
        [[edges[alive[i]][b] if b < len(edges[alive[i]]) else np.inf for i, b in splits] for splits, _ in tree_list]
    )
    return Trees(columns, cuts, np.array([values for _, values in tree_list]))


def _tree(
    codes: NDArray[np.int64], rest: FloatArray, weight: FloatArray, depth: int
) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """Return the splits (row of codes, bin) of one tree, and the leaf of each row.

    A split may gain nothing by itself where two gain together, so the first level takes the best split whatever it
    gains.
    """
    leaf, splits = np.zeros(codes.shape[1], dtype=np.int64), []
    for level in range(depth):
        gains = np.zeros((len(codes), _BINS))
        size = 1 << level
        for i, row in enumerate(codes):
            at = leaf * _BINS + row
            below = np.cumsum(np.bincount(at, rest, size * _BINS).reshape(size, _BINS), axis=1)
            weight_below = np.cumsum(np.bincount(at, weight, size * _BINS).reshape(size, _BINS), axis=1)
            upper, weight_above = below[:, -1:] - below, weight_below[:, -1:] - weight_below
            gains[i] = (below**2 / (weight_below + 1.0) + upper**2 / (weight_above + 1.0)).sum(axis=0)
        best = divmod(int(np.argmax(gains)), _BINS)
        splits.append(best)
        leaf += (codes[best[0]] > best[1]).astype(np.int64) << level
    return splits, leaf


def frequencies(first: Outputs, second: Outputs) -> Score:
    """Learn a score from the frequency of each outcome; if most outcomes occur once, the score is 0."""
    if len(np.unique(first, axis=0)) > len(first) / 2:
        return Table({})
    return learned(first, second)
