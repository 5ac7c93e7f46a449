"""The exponential mechanism over the distances of a vocabulary: the one sampler of SanText and its kin.

Pr[y | x] is proportional to exp(-ε·d(x, y)/2), y one of the outputs (Yue et al. 2021, equation 1).

**Loss (proved).** For inputs x, x': the weights of y differ by at most exp(ε·d(x, x')/2) by the triangle inequality,
and so do the sums of the weights over the outputs: ε·d(x, x') together. It needs no more than that: outputs may be a
part of the words, inputs may lie anywhere (the unknown word), and words may lie at the same place.

**Exact, and fast.** Nothing of the size of inputs times outputs is ever held, and most of the work is in float32,
which does not touch the distribution: float32 distances, lowered by a bound of their error, give *proposal* weights
w' >= w. One uniform picks a point under the proposal weights; it is taken where it lies under w, which is settled
without w for nearly every point (a squeeze), and by the distance in float64 for the rest. A point above w, one in ten
thousand, is answered by another draw from the whole row of float64 weights. That is rejection sampling with the
second attempt drawn exactly: conditioned on either way, the draw follows w/Σw.

**Bits do not depend on the company.** Rows are computed in blocks of fixed numbers of words, always of the same
shape, so that a word gives the same draw alone and among thousands (BLAS answers other bits for other shapes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical
from mechanisms.vocabulary import Vocabulary

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int64]

#: Uniforms that a draw uses.
UNIFORMS = 2
#: Rows of a block of proposal weights, outputs of a cell of them, and rows and columns of a block in float64.
_ROWS, _CELL, _EXACT_ROWS, _EXACT_COLUMNS = 128, 64, 16, 4096
#: Draws treated at once, and bytes of proposal weights that one mechanism remembers.
_CHUNK, _REMEMBERED = 8192, 2**26
#: Bytes of distances of the rows that were asked for last, which a geometry remembers.
_LAST = 2**22
_SINGLE, _DOUBLE = 2.0**-24, 2.0**-53
#: How much float32 square roots, products and exponentials may be off, sixteen roundings' worth.
_SLACK = 2.0**-20
#: Share of a proposal weight below which a point is taken unseen.
_SURE = 1 - 2.0**-6
#: Squared distances below this share of |x|² + |y|² are taken from differences, for others cancel too much.
_NEAR = 2.0**-10
#: Largest squared distance from the centre that float32 is trusted with.
_LONGEST = 2.0**100


@dataclass(frozen=True, eq=False)
class Exponential:
    """Draws from exp(-ε·d(x, y)/2) over the outputs y of a geometry, for x any row of its points. epsilon: at least 0.
    """

    geometry: Geometry
    epsilon: float
    _blocks: dict[int, tuple[SingleArray, FloatArray, FloatArray]] = field(default_factory=dict, repr=False)

    @property
    def numeric_epsilon(self) -> float:
        """How much the arithmetic adds to the loss of any pair: four times the error of a log-weight.

        Two for the weights of two inputs, two for their sums. A draw from proposal and repair mixes two answers that
        are each within that error, and so stays within it.
        """
        far = 2 * math.sqrt(self.geometry.largest)
        return 2 * self.epsilon * (self.geometry.error + far * 4 * _DOUBLE) + 16 * _DOUBLE

    @property
    def numeric_delta(self) -> float:
        """Total-variation distance of a draw on lattice uniforms from the exact distribution, at most.

        An output is met on an interval of the first uniform, and on another of the second: four ends, each off by a
        lattice cell of 2^-52 and by the rounding of one addition, of a product and of a difference, 2^-53 of the
        total each (what one sum is off by cancels in the difference of two neighbours). Weights below e^-87 of the
        largest, which float32 holds in part or not at all, may be met wrongly or never.
        """
        return len(self.geometry.outputs) * 2.0**-48

    def sample(self, x: IntArray, uniforms: FloatArray) -> IntArray:
        """One output for each row number, (n,) and (n, 2) in (0, 1) -> (n,) int64, one of `outputs`."""
        order = np.argsort(x, kind="stable")
        inputs, u = x[order], uniforms[order]
        drawn = np.empty(len(x), dtype=np.int64)
        for start, stop in _runs(inputs // _ROWS):
            block = self._block(int(inputs[start]) // _ROWS)
            for at in range(start, stop, _CHUNK):
                part = slice(at, min(stop, at + _CHUNK))
                drawn[part] = self._propose(inputs[part], u[part, 0], *block)
        # the second attempt, a few words at a time
        missed = np.flatnonzero(drawn < 0)
        for at in range(0, len(missed), _EXACT_ROWS):
            part_of = missed[at : at + _EXACT_ROWS]
            weights = self.log_weights(inputs[part_of])
            drawn[part_of] = categorical.sample(weights, u[part_of, 1])
        out = np.empty(len(x), dtype=np.int64)
        out[order] = self.geometry.outputs[drawn]
        return out

    def log_weights(self, x: IntArray) -> FloatArray:
        """-ε·d/2 to every output, in float64: (n,) -> (n, K)."""
        weights: FloatArray = -self.epsilon / 2 * self.geometry.distances(x)
        return weights

    def log_probs(self, x: IntArray) -> FloatArray:
        """Log probability of every output, (n,) -> (n, K)."""
        return categorical.log_normalize(self.log_weights(x))

    def _block(self, number: int) -> tuple[SingleArray, FloatArray, FloatArray]:
        """Proposal weights (rows, padded K), sums up to the end of each cell (rows, cells), offsets (rows,)."""
        known = self._blocks.get(number)
        if known is None:
            known = self._computed(number)
            room = _REMEMBERED // known[0].nbytes
            while self._blocks and len(self._blocks) >= room:
                self._blocks.pop(next(iter(self._blocks)))
            if room:
                self._blocks[number] = known
        return known

    def _computed(self, number: int) -> tuple[SingleArray, FloatArray, FloatArray]:
        first = number * _ROWS
        weights = self.geometry.lowered(first, min(first + _ROWS, len(self.geometry.points)))
        offsets = np.zeros(len(weights), dtype=np.float32)
        # a word that is no output has no weight of 1: the nearest output gets one
        far = ~self.geometry.own[first : first + _ROWS]
        if far.any():
            lowered = weights[far] * np.float32(1 - _SLACK)
            offsets[far] = lowered[:, : len(self.geometry.outputs)].min(axis=1)
            weights[far] = np.maximum(lowered - offsets[far, None], 0)
        weights *= np.float32(-self.epsilon / 2 * (1 - _SLACK))
        np.exp(weights, out=weights)
        weights[:, len(self.geometry.outputs) :] = 0
        # cells are wide enough for all their weights, however float32 sums them
        cells = weights.reshape(len(weights), -1, _CELL).sum(axis=2).astype(np.float64) * (1 + 2 * _CELL * _SINGLE)
        return weights, np.cumsum(cells, axis=1), offsets.astype(np.float64)

    @cached_property
    def _far(self) -> float:
        """Proposal weights up to this are at most 1/_SURE times the weight itself.

        With d² - low² <= g and low >= r: ε/2·(d - low) <= ε·g/(4r); roundings add ε·d·_SLACK. Both must be below
        2^-7, which leaves as much for the factor 1 - _SLACK of `_propose`.
        """
        rounding = 4 * _SLACK * self.epsilon * 2 * math.sqrt(self.geometry.largest)
        room = 2.0**-7 - rounding
        if room <= 0:
            return 0.0
        return math.exp(-self.epsilon / 2 * (self.epsilon / 4 * self.geometry.gap / room))

    def _propose(
        self, x: IntArray, u: FloatArray, weights: SingleArray, ends: FloatArray, offsets: FloatArray
    ) -> IntArray:
        """Positions in `outputs`, -1 where a point lies above the weights: x sorted, all of one block."""
        rows = x % _ROWS
        total = ends[rows, -1]
        points = np.minimum(u * total, np.nextafter(total, 0))
        cells = np.empty(len(x), dtype=np.int64)
        for start, stop in _runs(rows):
            cells[start:stop] = ends[rows[start]].searchsorted(points[start:stop], side="right")
        points -= np.where(cells > 0, ends[rows, cells - 1], 0.0)
        inside = weights.reshape(-1, _CELL)[rows * ends.shape[1] + cells]
        sums = np.cumsum(inside, axis=1, dtype=np.float64)
        place = np.count_nonzero(sums <= points[:, None], axis=1)
        in_cell = place < _CELL
        place = np.minimum(place, _CELL - 1)
        each = np.arange(len(x))
        points -= np.where(place > 0, sums[each, place - 1], 0.0)
        chosen = np.where(in_cell, cells * _CELL + place, 0)
        height = inside[each, place].astype(np.float64)
        taken = in_cell & (height <= self._far) & (points < _SURE * height)
        taken |= in_cell & (self.geometry.outputs[chosen] == x) & (points < 1 - _SLACK)
        unclear = np.flatnonzero(in_cell & ~taken)
        if len(unclear):
            apart = self.geometry.pairs(x[unclear], self.geometry.outputs[chosen[unclear]])
            true = np.exp(-self.epsilon / 2 * (apart - offsets[rows[unclear]]))
            taken[unclear] = points[unclear] < true * (1 - _SLACK)
        return np.where(taken, chosen, -1)


@dataclass(frozen=True, eq=False)
class Geometry:
    """Distances from every row of `points` to the rows `outputs`, a few rows at a time.

    points: (N, m) float32. outputs: (K,) int64, rows of points, rising, at least one.
    """

    points: SingleArray
    outputs: IntArray

    @cached_property
    def _last(self) -> dict[bytes, FloatArray]:
        return {}

    @cached_property
    def centre(self) -> FloatArray:
        """(m,) the mean: distances do not change with it, and errors are smaller around it."""
        centre: FloatArray = self.points.mean(axis=0, dtype=np.float64)
        return centre

    @cached_property
    def own(self) -> NDArray[np.bool_]:
        """(N,) whether a row is an output itself."""
        own = np.zeros(len(self.points), dtype=bool)
        own[self.outputs] = True
        return own

    @cached_property
    def _centred(self) -> SingleArray:
        rows, width = self.points.shape
        if self.largest > _LONGEST:
            raise ValueError("vocabulary: vectors are too long for float32; scale them, and ε with them")
        centred = np.zeros((max(rows, self._padded), width), dtype=np.float32)
        for at in range(0, rows, _EXACT_COLUMNS):
            part = self.points[at : at + _EXACT_COLUMNS]
            centred[at : at + len(part)] = part - self.centre
        return centred

    @property
    def _padded(self) -> int:
        return -(-len(self.outputs) // _CELL) * _CELL

    @cached_property
    def _columns(self) -> SingleArray:
        """The outputs' rows, filled up to whole cells with anything."""
        if self.outputs[-1] == len(self.outputs) - 1:
            return self._centred[: self._padded]
        columns = np.zeros((self._padded, self.points.shape[1]), dtype=np.float32)
        columns[: len(self.outputs)] = self._centred[self.outputs]
        return columns

    @cached_property
    def squares(self) -> FloatArray:
        """(N,) squared distances from the centre."""
        squares = np.empty(len(self.points))
        for at in range(0, len(squares), _EXACT_COLUMNS):
            rows = self.points[at : at + _EXACT_COLUMNS] - self.centre
            squares[at : at + _EXACT_COLUMNS] = np.einsum("ij,ij->i", rows, rows)
        return squares

    @cached_property
    def largest(self) -> float:
        """The largest of `squares`."""
        return float(self.squares.max())

    @property
    def _single_error(self) -> float:
        """Bound of the error of a squared distance in float32, as a share of |x|² + |y|².

        (m + 2)·2^-24·2|x||y| of the inner product in any order (its rounded factors included) is at most that share
        of the sum; eight more for the squares, their sums, the centring and higher orders.
        """
        return float((self.points.shape[1] + 10) * _SINGLE * (1 + 2.0**-10))

    @property
    def gap(self) -> float:
        """Bound on d² - low², `low` what `lowered` answers before any rounding of its root."""
        return 2 * self._single_error * 2 * self.largest

    def lowered(self, start: int, stop: int) -> SingleArray:
        """float32 distances of rows start..stop to the outputs, none above the truth: (rows, padded K).

        But for the rounding of the last operation, the root.
        """
        low: SingleArray = np.matmul(self._centred[start:stop] * np.float32(-2), self._columns.T)
        low += self._column_squares  # of the columns that fill up, nothing is read
        low += (self.squares[start:stop, None] * (1 - self._single_error)).astype(np.float32)
        np.maximum(low, 0, out=low)
        np.sqrt(low, out=low)
        return low

    @cached_property
    def _column_squares(self) -> SingleArray:
        squares = np.zeros(len(self._columns), dtype=np.float32)
        squares[: len(self.outputs)] = self.squares[self.outputs] * (1 - self._single_error)
        return squares

    @property
    def error(self) -> float:
        """Bound of the error of `distances` and `pairs`, in the unit of the points.

        A squared distance by the inner product in float64 is off by (m + 10)·2^-53 of |x|² + |y|², and is at least
        _NEAR of that where it is not taken from differences, which are off by a share of (m/2 + 4)·2^-53 alone.
        """
        most: float = (self.points.shape[1] + 10) * _DOUBLE * math.sqrt(2 * self.largest)
        return most / (2 * math.sqrt(_NEAR)) * (1 + 2.0**-10)

    def pairs(self, x: IntArray, y: IntArray) -> FloatArray:
        """Distances of rows x to rows y, (n,) and (n,) -> (n,), from their differences in float64."""
        apart = np.empty(len(x))
        for at in range(0, len(x), _CHUNK):
            part = slice(at, at + _CHUNK)
            difference = self.points[x[part]].astype(np.float64) - self.points[y[part]]
            apart[part] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        return apart

    def distances(self, x: IntArray) -> FloatArray:
        """Distances of rows x to all outputs in float64, (n,) -> (n, K), not to be written to; each row's bits whatever
        the others are. Those of the last few rows are remembered: the same words are asked for again at another ε."""
        key = np.asarray(x, dtype=np.int64).tobytes()
        known = self._last.get(key)
        if known is None:
            known = self._measured(x)
            known.flags.writeable = False
            if known.nbytes <= _LAST:
                self._last.clear()
                self._last[key] = known
        return known

    def _measured(self, x: IntArray) -> FloatArray:
        inputs, back = np.unique(x, return_inverse=True)
        apart = np.empty((len(inputs), len(self.outputs)))
        runs = _runs(inputs // _EXACT_ROWS)
        for at in range(0, len(self.outputs), _EXACT_COLUMNS):
            outputs = self.outputs[at : at + _EXACT_COLUMNS]
            columns = self.points[outputs] - self.centre
            for start, stop in runs:
                first = int(inputs[start]) // _EXACT_ROWS * _EXACT_ROWS
                rows = self.points[first : first + _EXACT_ROWS] - self.centre
                product = (rows @ columns.T)[inputs[start:stop] - first]
                sums = self.squares[inputs[start:stop], None] + self.squares[outputs]
                squared = sums - 2 * product
                near, column = np.nonzero(squared < _NEAR * sums * (1 + 2.0**-10))
                np.sqrt(np.maximum(squared, 0), out=squared)
                squared[near, column] = self.pairs(inputs[start + near], outputs[column])
                apart[start:stop, at : at + len(outputs)] = squared
        return apart[back] if len(x) != len(inputs) or (np.diff(back) != 1).any() else apart


def _runs(values: IntArray) -> list[tuple[int, int]]:
    """Where a row of equal values starts and stops: values sorted, or at least grouped."""
    if not len(values):
        return []
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    return list(zip([0, *edges.tolist()], [*edges.tolist(), len(values)], strict=True))


@lru_cache(maxsize=4)
def _shared(vocabulary: Vocabulary, outputs: bytes | None) -> Geometry:
    """One for all ε."""
    chosen = np.arange(len(vocabulary)) if outputs is None else np.frombuffer(outputs, dtype=np.int64)
    return Geometry(vocabulary.points, chosen)


@lru_cache(maxsize=4)
def exponential(vocabulary: Vocabulary, epsilon: float, outputs: bytes | None = None) -> Exponential:
    """The sampler from the words of a vocabulary (and the unknown one) to all of them, or to those of the ids `outputs`
    (the bytes of int64, rising). Remembered for this process."""
    return Exponential(_shared(vocabulary, outputs), epsilon)
