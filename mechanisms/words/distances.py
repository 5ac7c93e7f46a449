"""Distances of words, by the metric of a mechanism's guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import Vocabulary

#: Rows of a block, for the largest distance and for differences.
_ROWS = 1024
#: Distances held at once.
_CHUNK = 2**22
_DOUBLE = 2.0**-53
#: Squared distances below this share of |x|² + max |y|² are computed from differences, because others cancel too much.
_NEAR = 2.0**-10
#: Largest squared distance from the centre.
_LONGEST = 2.0**100


@dataclass(frozen=True, eq=False)
class Geometry:
    """Distances from every row of `points` to the rows `outputs`. Another pseudometric overrides `bend`.

    Attributes:
        points: (N, m) float32.
        outputs: (K,) int64, rows of points, rising, at least one.
    """

    points: NDArray[np.float32]
    outputs: IntArray

    def bend(self, apart: FloatArray, x: np.int64, y: IntArray) -> None:
        """Turn Euclidean distances into those of this geometry, in place: those of row x to rows y."""

    @cached_property
    def _centred(self) -> FloatArray:
        """Return (N, m) points around their mean: distances do not change with it, and errors are smaller around it."""
        return self.points - self.points.mean(axis=0, dtype=np.float64)

    @cached_property
    def _columns(self) -> FloatArray:
        """Return the outputs' rows, a view where they are the first ones."""
        size = len(self.outputs)
        return self._centred[:size] if self.outputs[-1] == size - 1 else self._centred[self.outputs]

    @cached_property
    def _squares(self) -> FloatArray:
        """Return (N,) squared distances from the centre."""
        return np.einsum("ij,ij->i", self._centred, self._centred)

    @cached_property
    def largest(self) -> float:
        """Return the largest squared distance from the centre."""
        largest = float(self._squares.max())
        if largest > _LONGEST:
            raise ValueError("vocabulary: vectors are too long; scale them, and ε with them")
        return largest

    @property
    def error(self) -> float:
        """Bound the error of every distance here, in the unit of the points.

        A squared distance by an inner product in float64 is off by (m + 10)·2^-53 of |x|² + |y|². It is at least _NEAR
        of that if it is not computed from differences, which are off by a share of (m/2 + 4)·2^-53 alone.
        """
        most: float = (self.points.shape[1] + 10) * _DOUBLE * math.sqrt(2 * self.largest)
        return most / (2 * math.sqrt(_NEAR)) * (1 + 2.0**-10)

    def distances(self, x: IntArray) -> FloatArray:
        """Return distances of rows x to all outputs, (n,) -> (n, K). Their last bits depend on the other rows."""
        apart: FloatArray = (self._centred[x] * -2.0) @ self._columns.T
        squares, most = self._squares[self.outputs], self.largest
        for number, row, own in zip(np.asarray(x, dtype=np.int64), apart, self._squares[x], strict=True):
            row += squares
            row += own
            near = np.flatnonzero(row < _NEAR * (own + most) * (1 + 2.0**-10))
            row[near] = 0.0  # of an output itself
            np.sqrt(row, out=row)
            near = near[self.outputs[near] != number]
            if len(near):
                row[near] = self._differences(number, self.outputs[near])
            self.bend(row, number, self.outputs)
        return apart

    def row(self, x: np.int64) -> FloatArray:
        """Return the distances (K,) of row x to all outputs, from differences: the same bits in any company."""
        apart = self._differences(x, self.outputs)
        self.bend(apart, x, self.outputs)
        return apart

    def _differences(self, x: np.int64, y: IntArray) -> FloatArray:
        apart = np.empty(len(y))
        for at in range(0, len(y), _ROWS):
            difference = self.points[y[at : at + _ROWS]] - self.points[x].astype(np.float64)
            apart[at : at + _ROWS] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        return apart


@lru_cache(maxsize=4)
def geometry(vocabulary: Vocabulary, outputs: bytes | None = None) -> Geometry:
    """Return the cached distances to all words, or to `outputs`, the bytes of word ids, int64, rising."""
    chosen = np.arange(len(vocabulary)) if outputs is None else np.frombuffer(outputs, dtype=np.int64)
    return Geometry(vocabulary.points, chosen)


def blocks(words: IntArray, geometry: Geometry) -> list[IntArray]:
    """Return words in blocks whose distances are held at once."""
    rows = max(1, _CHUNK // len(geometry.outputs))
    return [words[at : at + rows] for at in range(0, len(words), rows)]


def metric_distances(mechanism: Any, x: IntArray, y: IntArray) -> FloatArray:
    """Return the distances that multiply the guarantee's ε, word ids (n,) and (k,) -> (n, k).

    Ids may include the unknown word's. The distances are the word mechanism's own `distances(x, y)`, or the Euclidean
    distances of the vectors.
    """
    own = getattr(mechanism, "distances", None)
    apart: FloatArray = distances(mechanism.vocabulary, x, y) if own is None else own(x, y)
    return apart


def distances(vocabulary: Vocabulary, x: IntArray, y: IntArray) -> FloatArray:
    """Return Euclidean distances, word ids (n,) and (k,) -> (n, k)."""
    return geometry(vocabulary, np.asarray(y, dtype=np.int64).tobytes()).distances(np.asarray(x))


@lru_cache(maxsize=16)
def diameter(vocabulary: Vocabulary) -> float:
    """Return the largest Euclidean distance of any two of the V + 1 points, rounded up: never below the true value.

    It is exact to 1e-9 of the largest distance from the centre. Points are taken by falling distance r from the mean.
    Two can be apart by no more than r_i + r_j, which ends the search long before all pairs are seen, unless all points
    lie on one sphere. The result is cached.
    """
    return largest_distance(vocabulary.points)


def largest_distance(points: NDArray[np.float32]) -> float:
    """Return the largest distance of points (n, m) float32: see `diameter`."""
    centred: FloatArray = points - points.mean(axis=0, dtype=np.float64)
    squares: FloatArray = np.einsum("ij,ij->i", centred, centred)
    order = np.argsort(-squares, kind="stable")
    centred, squares = centred[order], squares[order]
    radii, single = np.sqrt(squares), centred.astype(np.float32)
    # Inner products are off by (m + 10)·2^-24, or ·2^-53, of |x|² + |y|² at most: float32 finds the blocks that may
    # hold a larger distance, float64 measures those.
    width = points.shape[1] + 10
    rough, exact = (width * unit * 2 * squares[0] * (1 + 2.0**-10) for unit in (2.0**-24, _DOUBLE))
    best = 0.0  # squared, from above
    for at in range(0, len(points), _ROWS):
        if 4 * squares[at] * (1 + 2.0**-20) <= best:
            break
        rows = slice(at, at + _ROWS)
        for to in range(at, len(points), _ROWS):
            if (radii[at] + radii[to]) ** 2 * (1 + 2.0**-20) <= best:
                break
            columns = slice(to, to + _ROWS)
            product = single[rows] @ single[columns].T
            if squares[at] + squares[to] - 2 * float(product.min()) + rough > best:
                sums = squares[rows, None] + squares[None, columns]
                best = max(best, float((sums - 2 * (centred[rows] @ centred[columns].T)).max()) + exact)
    return math.sqrt(best) * (1 + 2.0**-40)
