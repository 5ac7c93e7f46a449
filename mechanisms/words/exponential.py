"""Exponential mechanism over the distances of a vocabulary: the sampler of SanText and related mechanisms.

Pr[y | x] is proportional to exp(-ε·d(x, y)/2), y one of the outputs (Yue et al. 2021, equation 1).

**Loss (proved).** For inputs x, x': the weights of y differ by at most exp(ε·d(x, x')/2) by the triangle inequality,
and so do the sums of the weights over the outputs: ε·d(x, x') together. Nothing else is required. Outputs may be a part
of the words, inputs may lie anywhere (the unknown word), and words may lie at the same place.

**Exact, and fast.** No array of the size of inputs times outputs is ever held. Most of the work is in float32, which
does not affect the distribution: float32 distances, lowered by a bound of their error, give *proposal* weights w' >= w.
One uniform picks a point under the proposal weights. It is accepted if it lies under w, which is decided without w for
nearly every point (a squeeze), and by the distance in float64 for the rest. For a point above w, one in ten thousand,
another draw is made from the whole row of float64 weights. That is rejection sampling with the second attempt drawn
exactly: conditioned on either way, the draw follows w/Σw.

**Bits do not depend on the other rows.** A word gives the same draw alone and among thousands. BLAS may return other
bits for other shapes, and for another row of one shape. A geometry tests once which rows of which shapes agree on this
machine, and a word stands in rows of one kind alone (`Geometry.lowered`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.decimals import precise
from mechanisms.streams import FINE, Points
from mechanisms.vocabulary import Vocabulary

SingleArray = NDArray[np.float32]

#: Uniforms of a draw.
UNIFORMS = 2
#: Outputs of a cell of proposal weights, and rows and columns of a block in float64.
_CELL, _EXACT_ROWS, _EXACT_COLUMNS = 64, 16, 4096
#: Rows of a product in float32: few for a sentence, more for many words; and the fixed cost of a product, in rows (it
#: reads all outputs).
_FEW, _MANY, _CALL = 24, 120, 45
#: Draws processed at once, bytes of the proposal weights of all words (which are cached if they fit), and of those of a
#: product of many rows.
_CHUNK, _REMEMBERED, _AT_ONCE = 8192, 2**26, 2**24
#: Bytes of distances of the last requested rows, which a geometry caches.
_LAST = 2**22
_SINGLE, _DOUBLE = 2.0**-24, 2.0**-53
#: Largest error of float32 square roots, products and exponentials, sixteen roundings' worth.
_SLACK = 2.0**-20
#: Share of a proposal weight below which a point is accepted without its weight.
_SURE = 1 - 2.0**-6
#: Squared distances below this share of |x|² + |y|² are computed from differences, because others cancel too much.
_NEAR = 2.0**-10
#: Largest squared distance from the centre for which float32 is used.
_LONGEST = 2.0**100


@dataclass(frozen=True, eq=False)
class Exponential:
    """Draws from exp(-ε·d(x, y)/2) over the outputs y of a geometry, for x any row of its points.

    Attributes:
        geometry: Distances.
        epsilon: ε, at least 0.
    """

    geometry: Geometry
    epsilon: float

    @property
    def numeric_epsilon(self) -> float:
        """Return the addition of the arithmetic to the loss of any pair: four times the error of a log-weight.

        Two are for the weights of two inputs, two for their sums. A draw from proposal and repair mixes two draws that
        are each within that error, and so stays within it.
        """
        far = 2 * math.sqrt(self.geometry.largest)
        return 2 * self.epsilon * (self.geometry.error + far * 4 * _DOUBLE) + 16 * _DOUBLE

    @property
    def numeric_delta(self) -> float:
        """Bound the total-variation distance of a draw on `Points` from the exact distribution.

        (Proved) The first attempt is a function of the proposal weights, which are exact numbers, and of its uniform:
        cells are as wide as their numbers, whose sum is the total. A draw is certain if no end of a cell, of a weight,
        or of the accepted part of it is within `_doubt` of the point. Else all of them are computed in decimals, with
        the uniform to 2^-104. An output is met on an interval of the first uniform, and on another of the second: three
        ends that no two outputs share, each off by one cell of 2^-104. Weights below e^-87 of the largest, which
        float32 holds in part or not at all, may be met wrongly or never.
        """
        return len(self.geometry.outputs) * (4 * FINE + 2.0**-123)

    def sample(self, x: IntArray, uniforms: FloatArray | Points) -> IntArray:
        """Draw one output for each row number, (n,) and (n, 2) -> (n,) int64, one of `outputs`. Exact on `Points`."""
        order = np.argsort(x, kind="stable")
        points = uniforms if isinstance(uniforms, Points) else Points.midpoints(uniforms)
        inputs, points = x[order], points[order]
        drawn = np.empty(len(x), dtype=np.int64)
        words, first = np.unique(inputs, return_index=True)
        first = np.append(first, len(inputs))
        at_once = self.geometry.at_once if self._kept is None else max(1, len(words))
        for start in range(0, len(words), at_once):
            stops = first[start : start + at_once + 1]
            proposals, places = self._proposals(words[start : start + at_once])
            rows = np.repeat(places, np.diff(stops))
            for at in range(stops[0], stops[-1], _CHUNK):
                part = slice(at, min(stops[-1], at + _CHUNK))
                here = slice(part.start - stops[0], part.stop - stops[0])
                drawn[part] = self._propose(inputs[part], rows[here], points[part], proposals)
        # the second attempt, a few words at a time
        missed = np.flatnonzero(drawn < 0)
        for at in range(0, len(missed), _EXACT_ROWS):
            part_of = missed[at : at + _EXACT_ROWS]
            weights = self.log_weights(inputs[part_of])
            drawn[part_of] = categorical.sample(weights, points[part_of].columns(1, 2))
        out = np.empty(len(x), dtype=np.int64)
        out[order] = self.geometry.outputs[drawn]
        return out

    def log_weights(self, x: IntArray) -> FloatArray:
        """Return -ε·d/2 to every output, in float64: (n,) -> (n, K)."""
        weights: FloatArray = -self.epsilon / 2 * self.geometry.distances(x)
        return weights

    def log_probs(self, x: IntArray) -> FloatArray:
        """Return the log probability of every output, (n,) -> (n, K)."""
        return categorical.log_normalize(self.log_weights(x))

    def _proposals(self, words: IntArray) -> tuple[_Proposals, IntArray]:
        """Return proposals of these words, rising and each once, possibly among others; and the row of each.

        The words must be at most `at_once` if those of all words are too many to be cached.
        """
        if self._kept is None:
            order = self.geometry.arranged(words)
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
            return self._made(words[order]), places
        kept, mask = self._kept
        new = words[~mask[words]]
        new = new[self.geometry.arranged(new)]
        for at in range(0, len(new), self.geometry.at_once):
            ids = new[at : at + self.geometry.at_once]
            proposals = self._made(ids)
            kept.weights[ids], kept.ends[ids], kept.offsets[ids] = proposals.weights, proposals.ends, proposals.offsets
        mask[new] = True
        return kept, words

    @cached_property
    def _kept(self) -> tuple[_Proposals, BoolArray] | None:
        """Return room for the proposals of all words, and a mask of those that are there; None if that is too much."""
        n, padded = len(self.geometry.points), self.geometry.padded
        if n * self.geometry.row_bytes > _REMEMBERED:
            return None
        room = _Proposals(np.empty((n, padded), np.float32), np.empty((n, padded // _CELL)), np.empty(n))
        return room, np.zeros(n, dtype=bool)

    def _made(self, words: IntArray) -> _Proposals:
        """Return proposals of these words, in rows of their order."""
        weights = self.geometry.lowered(words)
        offsets = np.zeros(len(weights), dtype=np.float32)
        # a word that is no output has no weight of 1, so the nearest output gets one
        far = ~self.geometry.own[words]
        if far.any():
            lowered = weights[far] * np.float32(1 - _SLACK)
            offsets[far] = lowered[:, : len(self.geometry.outputs)].min(axis=1)
            weights[far] = np.maximum(lowered - offsets[far, None], 0)
        weights *= np.float32(-self.epsilon / 2 * (1 - _SLACK))
        np.exp(weights, out=weights)
        weights[:, len(self.geometry.outputs) :] = 0
        return _Proposals(weights, np.cumsum(_widths(weights), axis=1), offsets.astype(np.float64))

    @cached_property
    def _far(self) -> float:
        """Return a bound such that proposal weights up to it are at most 1/_SURE times the weight itself.

        With d² - low² <= g and low >= r: ε/2·(d - low) <= ε·g/(4r); roundings add ε·d·_SLACK. Both must be below 2^-7,
        which leaves as much for the factor 1 - _SLACK of `_propose`.
        """
        rounding = 4 * _SLACK * self.epsilon * 2 * math.sqrt(self.geometry.largest)
        room = 2.0**-7 - rounding
        if room <= 0:
            return 0.0
        return math.exp(-self.epsilon / 2 * (self.epsilon / 4 * self.geometry.gap / room))

    def _doubt(self, total: FloatArray, cells: int) -> FloatArray:
        """Bound the distance of a point, a cell's end or a weight's end from the exact one, together, (n,).

        In units of 2^-53 of the total: the uniform's cell reaches 1 to either side. The total, an end and the product
        are off by a rounding for each cell, and one more; sums in a cell by one for each weight.
        """
        return (2 * cells + _CELL + 64) * _DOUBLE * total

    def _propose(self, x: IntArray, rows: IntArray, uniforms: Points, held: _Proposals) -> IntArray:
        """Return positions in `outputs`, -1 where a point lies above the weights.

        `rows` has the row of each of x among the proposals, those of one word together.
        """
        weights, ends, offsets = held.weights, held.ends, held.offsets
        total = ends[rows, -1]
        points = np.minimum(uniforms.u[:, 0] * total, np.nextafter(total, 0))
        doubt = self._doubt(total, ends.shape[1])
        cells = np.empty(len(x), dtype=np.int64)
        for start, stop in _runs(rows):
            cells[start:stop] = ends[rows[start]].searchsorted(points[start:stop], side="right")
        room = ends[rows, cells] - points
        points -= np.where(cells > 0, ends[rows, cells - 1], 0.0)
        inside = weights.reshape(-1, _CELL)[rows * ends.shape[1] + cells]
        sums = np.cumsum(inside, axis=1, dtype=np.float64)
        place = np.count_nonzero(sums <= points[:, None], axis=1)
        in_cell = place < _CELL
        place = np.minimum(place, _CELL - 1)
        index = np.arange(len(x))
        room = np.where(in_cell, np.minimum(room, sums[index, place] - points), room)
        points -= np.where(in_cell, np.where(place > 0, sums[index, place - 1], 0.0), sums[:, -1])
        unsure = ~(np.minimum(points, room) > doubt)
        chosen = np.where(in_cell, cells * _CELL + place, 0)
        height = inside[index, place].astype(np.float64)
        accepted = in_cell & (height <= self._far) & (points < _SURE * height)
        unsure |= in_cell & (height <= self._far) & ~(np.abs(points - _SURE * height) > doubt)
        own = in_cell & (self.geometry.outputs[chosen] == x)
        accepted |= own & (points < 1 - _SLACK)
        unsure |= own & ~(np.abs(points - (1 - _SLACK)) > doubt)
        unclear = np.flatnonzero(in_cell & ~accepted)
        if len(unclear):
            apart = self.geometry.pairs(x[unclear], self.geometry.outputs[chosen[unclear]])
            short = offsets[rows[unclear]]
            true = np.exp(-self.epsilon / 2 * (apart - short)) * (1 - _SLACK)
            accepted[unclear] = points[unclear] < true
            off = doubt[unclear] + (16 + 2 * self.epsilon * (apart + short)) * _DOUBLE * true
            unsure[unclear] |= ~(np.abs(points[unclear] - true) > off)
        choices = np.where(accepted, chosen, -1)
        for row in np.flatnonzero(unsure):
            choices[row] = self._settled(x[row], weights[rows[row]], offsets[rows[row]], uniforms, int(row))
        return choices

    def _settled(self, x: np.int64, weights: SingleArray, offset: np.float64, uniforms: Points, row: int) -> int:
        """Return the result of `_propose` for one row, in decimals."""
        with precise():
            widths = [Decimal(width) for width in _widths(weights[None])[0].tolist()]
            remainder, cell = uniforms.fine(row) * sum(widths, Decimal(0)), 0
            while cell + 1 < len(widths) and remainder >= widths[cell]:
                remainder, cell = remainder - widths[cell], cell + 1
            for place in range(cell * _CELL, (cell + 1) * _CELL):
                weight = Decimal(float(weights[place]))
                if remainder < weight:
                    apart = self.geometry.pairs(np.array([x]), self.geometry.outputs[place : place + 1])[0]
                    exponent = -Decimal(self.epsilon) / 2 * (Decimal(float(apart)) - Decimal(float(offset)))
                    return place if remainder < exponent.exp() * Decimal(1 - _SLACK) else -1
                remainder -= weight
        return -1


@dataclass(frozen=True, eq=False)
class _Proposals:
    """Proposal `weights` (rows, padded K), the `ends` (rows, cells) of cells, and `offsets` of distances (rows,)."""

    weights: SingleArray
    ends: FloatArray
    offsets: FloatArray


def _widths(weights: SingleArray) -> FloatArray:
    """Return widths of the cells of proposal weights (n, padded K).

    They are enough for all weights in any order of float32 sums.
    """
    sums: FloatArray = weights.reshape(len(weights), -1, _CELL).sum(axis=2).astype(np.float64)
    return sums * (1 + 2 * _CELL * _SINGLE)


@dataclass(frozen=True, eq=False)
class Geometry:
    """Distances from every row of `points` to the rows `outputs`, a few rows at a time.

    Another pseudometric overrides `bend`, and nothing else: `lowered`, `pairs` and `distances` measure Euclidean
    distances themselves and bend them once, at their end.

    Attributes:
        points: (N, m) float32.
        outputs: (K,) int64, rows of points, rising, at least one.
    """

    points: SingleArray
    outputs: IntArray

    def bend(self, apart: NDArray[Any], x: IntArray, y: IntArray) -> None:
        """Turn Euclidean distances into those of this geometry, in place.

        `apart` is float32 (lowered ones) or float64, of the shape to which rows x and y broadcast.
        """

    @cached_property
    def _last(self) -> dict[bytes, FloatArray]:
        return {}

    @cached_property
    def centre(self) -> FloatArray:
        """Return (m,) the mean: distances do not change with it, and errors are smaller around it."""
        centre: FloatArray = self.points.mean(axis=0, dtype=np.float64)
        return centre

    @cached_property
    def own(self) -> BoolArray:
        """Return (N,) whether a row is an output itself."""
        own = np.zeros(len(self.points), dtype=bool)
        own[self.outputs] = True
        return own

    @cached_property
    def _centred(self) -> SingleArray:
        rows, width = self.points.shape
        if self.largest > _LONGEST:
            raise ValueError("vocabulary: vectors are too long for float32; scale them, and ε with them")
        centred = np.zeros((max(rows, self.padded), width), dtype=np.float32)
        for at in range(0, rows, _EXACT_COLUMNS):
            part = self.points[at : at + _EXACT_COLUMNS]
            centred[at : at + len(part)] = part - self.centre
        return centred

    @property
    def padded(self) -> int:
        """Return K, filled up to whole cells."""
        return -(-len(self.outputs) // _CELL) * _CELL

    @property
    def row_bytes(self) -> int:
        """Return the bytes of the proposal weights of one word."""
        return 4 * self.padded

    @cached_property
    def _columns(self) -> SingleArray:
        """Return the outputs' rows, filled up to whole cells with any values."""
        if self.outputs[-1] == len(self.outputs) - 1:
            return self._centred[: self.padded]
        columns = np.zeros((self.padded, self.points.shape[1]), dtype=np.float32)
        columns[: len(self.outputs)] = self._centred[self.outputs]
        return columns

    @cached_property
    def squares(self) -> FloatArray:
        """Return (N,) squared distances from the centre."""
        squares = np.empty(len(self.points))
        for at in range(0, len(squares), _EXACT_COLUMNS):
            rows = self.points[at : at + _EXACT_COLUMNS] - self.centre
            squares[at : at + _EXACT_COLUMNS] = np.einsum("ij,ij->i", rows, rows)
        return squares

    @cached_property
    def largest(self) -> float:
        """Return the largest of `squares`."""
        return float(self.squares.max())

    @property
    def _single_error(self) -> float:
        """Bound the error of a squared distance in float32, as a share of |x|² + |y|².

        (m + 2)·2^-24·2|x||y| of the inner product in any order (its rounded factors included) is at most that share of
        the sum; eight more for the squares, their sums, the centring and higher orders.
        """
        return float((self.points.shape[1] + 10) * _SINGLE * (1 + 2.0**-10))

    @property
    def gap(self) -> float:
        """Bound d² - low², `low` the result of `lowered` before any rounding of its root."""
        return 2 * self._single_error * 2 * self.largest

    def lowered(self, x: IntArray) -> SingleArray:
        """Return float32 distances of rows x, each once, to the outputs, none above the true value: (n, padded K).

        Each row's bits do not depend on the other rows. The bound holds except for the rounding of the last operation,
        the root.
        """
        low = None
        kinds = x % len(self._places[_FEW])
        queues = [np.flatnonzero(kinds == kind) for kind in range(len(self._places[_FEW]))]
        while any(map(len, queues)):
            sizes = {
                shape: sum(min(len(queue), len(rows)) for queue, rows in zip(queues, places, strict=True))
                for shape, places in self._places.items()
            }
            shape = max(sizes, key=lambda shape: sizes[shape] / (_CALL + shape))
            places = self._places[shape]
            chosen = [queue[: len(rows)] for queue, rows in zip(queues, places, strict=True)]
            queues = [queue[len(rows) :] for queue, rows in zip(queues, places, strict=True)]
            rows = np.concatenate([rows[: len(batch)] for batch, rows in zip(chosen, places, strict=True)])
            here = np.concatenate(chosen)
            factors = np.zeros((shape, self.points.shape[1]), dtype=np.float32)
            factors[rows] = self._centred[x[here]] * np.float32(-2)
            product: SingleArray = np.matmul(factors, self._columns.T)
            if len(here) == len(x):  # one product has them all, and in this order if they were `arranged`
                wanted = rows[np.argsort(here)]
                low = product[: len(x)] if np.array_equal(wanted, np.arange(len(x))) else product[wanted]
            else:
                low = np.empty((len(x), self.padded), dtype=np.float32) if low is None else low
                low[here] = product[rows]
        if low is None:
            return np.empty((0, self.padded), dtype=np.float32)
        low += self._column_squares  # the columns that fill up are never read
        own: FloatArray = self.squares[x] * (1 - self._single_error)
        low += own.astype(np.float32)[:, None]
        np.maximum(low, 0, out=low)
        np.sqrt(low, out=low)
        self.bend(low[:, : len(self.outputs)], x[:, None], self.outputs[None])
        return low

    def arranged(self, x: IntArray) -> IntArray:
        """Return the best order of rows x, each once, `at_once` in a call: a product's own. (n,) -> (n,)."""
        shape = max(self._places)
        places, turns = self._places[shape], np.empty(len(x), dtype=np.int64)
        kinds = x % len(places)
        for kind, rows in enumerate(places):
            mine = np.flatnonzero(kinds == kind)
            number, at = np.divmod(np.arange(len(mine)), len(rows))
            turns[mine] = number * shape + rows[at]
        return np.argsort(turns)

    @cached_property
    def _places(self) -> dict[int, list[IntArray]]:
        """Return, for each shape of a product, its rows sorted into kinds.

        Rows of one kind have the same bits in all shapes. The order in which BLAS sums depends on shapes and rows, and
        not on values. One vector in all rows reveals it, since hardly any two orders have the same sums at all outputs.
        If each row is of a kind of its own, words stand in fixed rows; if all are alike, anywhere.
        """
        vector = np.sin(np.arange(1, self.points.shape[1] + 1)).astype(np.float32)
        groups: dict[int, dict[bytes, list[int]]] = {}
        for shape in (_FEW, _MANY) if _MANY * self.row_bytes <= _AT_ONCE else (_FEW,):
            groups[shape] = {}
            for row, sums in enumerate(np.matmul(np.tile(vector, (shape, 1)), self._columns.T)):
                groups[shape].setdefault(sums.tobytes(), []).append(row)
        groups = {shape: rows_of for shape, rows_of in groups.items() if rows_of.keys() == groups[_FEW].keys()}
        rooms = {kind: len(rows) for kind, rows in groups[max(groups)].items()}
        kinds = [kind for kind, room in rooms.items() if 4 * room >= max(rooms.values())]  # few rows would delay all
        return {shape: [np.array(rows_of[kind]) for kind in kinds] for shape, rows_of in groups.items()}

    @cached_property
    def at_once(self) -> int:
        """Return the best number of words in one call: about as many as one product has room for."""
        rooms = [len(places) * min(map(len, places)) for places in self._places.values()]
        return max(rooms)

    @cached_property
    def _column_squares(self) -> SingleArray:
        squares = np.zeros(len(self._columns), dtype=np.float32)
        squares[: len(self.outputs)] = self.squares[self.outputs] * (1 - self._single_error)
        return squares

    @property
    def error(self) -> float:
        """Bound the error of `distances` and `pairs`, in the unit of the points.

        A squared distance by the inner product in float64 is off by (m + 10)·2^-53 of |x|² + |y|². It is at least _NEAR
        of that if it is not computed from differences, which are off by a share of (m/2 + 4)·2^-53 alone.
        """
        most: float = (self.points.shape[1] + 10) * _DOUBLE * math.sqrt(2 * self.largest)
        return most / (2 * math.sqrt(_NEAR)) * (1 + 2.0**-10)

    def pairs(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return distances of rows x to rows y, (n,) and (n,) -> (n,), from their differences in float64."""
        apart = self._differences(x, y)
        self.bend(apart, x, y)
        return apart

    def _differences(self, x: IntArray, y: IntArray) -> FloatArray:
        apart = np.empty(len(x))
        for at in range(0, len(x), _CHUNK):
            part = slice(at, at + _CHUNK)
            difference = self.points[x[part]].astype(np.float64) - self.points[y[part]]
            apart[part] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        return apart

    def distances(self, x: IntArray) -> FloatArray:
        """Return distances of rows x to all outputs in float64, (n,) -> (n, K), read-only.

        Each row's bits do not depend on the other rows. Those of the last few rows are cached: the same words are
        requested again at another ε.
        """
        key = np.asarray(x, dtype=np.int64).tobytes()
        distances = self._last.get(key)
        if distances is None:
            distances = self._measured(x)
            self.bend(distances, x[:, None], self.outputs[None])
            distances.flags.writeable = False
            if distances.nbytes <= _LAST:
                self._last.clear()
                self._last[key] = distances
        return distances

    def _measured(self, x: IntArray) -> FloatArray:
        """Return Euclidean distances, (n,) -> (n, K), in an array of their own."""
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
                squared[near, column] = self._differences(inputs[start + near], outputs[column])
                apart[start:stop, at : at + len(outputs)] = squared
        return apart[back] if len(x) != len(inputs) or (np.diff(back) != 1).any() else apart


def _runs(values: IntArray) -> list[tuple[int, int]]:
    """Return the start and stop of each run of equal values: values sorted, or at least grouped."""
    if not len(values):
        return []
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    return list(zip([0, *edges.tolist()], [*edges.tolist(), len(values)], strict=True))


@lru_cache(maxsize=4)
def _shared(vocabulary: Vocabulary, outputs: bytes | None) -> Geometry:
    """Return one geometry for all ε."""
    chosen = np.arange(len(vocabulary)) if outputs is None else np.frombuffer(outputs, dtype=np.int64)
    return Geometry(vocabulary.points, chosen)


@lru_cache(maxsize=4)
def exponential(vocabulary: Vocabulary, epsilon: float, outputs: bytes | None = None) -> Exponential:
    """Return the cached sampler from the words of a vocabulary (and the unknown one) to all of them, or to `outputs`.

    `outputs` are the bytes of word ids, int64, rising.
    """
    return Exponential(_shared(vocabulary, outputs), epsilon)
