"""Draws of a source as rows of numbers for tests, with a check of each draw, for one input or for two in turn.

A row's first number identifies the draw: 52 bits of a hash, the same for the same draw. Features follow:

- the value of a number, and the exponent of its lowest bit, by which floating-point noise may reveal an input;
- the length of a sequence, its items and their places;
- whether anything was released at all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, key_of
from sottovoce.adversary.audit.external.source import BATCH, Source, shown
from sottovoce.adversary.audit.games import Game
from sottovoce.adversary.estimators.audit import Fit, Outputs, Score, frequencies, learned, trees

Pair = tuple[Any, Any]

#: Buckets of a sequence's items, and number of its first places that have features.
_BUCKETS, _PLACES = 16, 3
#: Words and whole numbers whose hashes are cached.
_REMEMBERED = 100_000
#: Coordinates of a vector whose lowest bits are features.
_GRIDS = 16


@dataclass
class Reader:
    """Reader of one form of draws.

    Args:
        claim: Claim with the form.
        size: Numbers in a vector, set by the first draw.
    """

    claim: Claim
    size: int | None = None
    _names: dict[tuple[type, Any], float] = field(default_factory=dict)

    def rows(self, draws: Any) -> FloatArray:
        """Return rows (n, 1 + f) of n draws.

        Raises:
            UserError: A draw does not have the claimed form.
        """
        if not isinstance(draws, list | tuple | np.ndarray):
            raise UserError(f"{self.claim.name}: draws must be a list, got {type(draws).__name__}")
        kind = self.claim.releases
        if kind in ("number", "vector"):
            return self._numbers(draws)
        if kind == "category":
            return np.array([[self._name(self._category(draw)), draw is None] for draw in draws], dtype=np.float64)
        return np.array([self._sequence(draw) for draw in draws], dtype=np.float64)

    def beside(self, draws: FloatArray, others: FloatArray) -> FloatArray:
        """Return rows of draws beside rows of others: both, differences, products, and whether they are equal."""
        name = np.fmod(draws[:, 0] * 31 + others[:, 0] * 17, 2.0**52)
        first, second = draws[:, 1:], others[:, 1:]
        with np.errstate(over="ignore"):
            joint = np.clip(np.hstack([first - second, first * second]), -1e300, 1e300)
        equal = draws[:, 0] == others[:, 0]
        return np.column_stack([name, first, second, joint, equal])

    def _numbers(self, draws: Any) -> FloatArray:
        scalar = self.claim.releases == "number"
        lists = [None if draw is None else [draw] if scalar else draw for draw in draws]
        if self.size is None:
            self.size = next((len(draw) for draw in lists if isinstance(draw, list | tuple | np.ndarray)), 1)
        missing = np.array([draw is None for draw in lists])
        rows = [[0.0] * self.size if draw is None else draw for draw in lists]
        form = "a number" if scalar else f"a vector of {self.size} numbers"
        try:
            values = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            values = np.zeros(0)
        if values.shape != (len(rows), self.size) or not np.isfinite(values).all() or _is_text(rows):
            raise UserError(f"{self.claim.name}: a draw is not {form}, finite, as the claim says (or None)")
        grids = _grid(values[:, :_GRIDS])
        width = np.sqrt((np.minimum(np.abs(values), 1e150) ** 2).sum(axis=1))
        keys = np.ascontiguousarray(np.column_stack([values, missing]) + 0.0).view(np.uint8).reshape(len(values), -1)
        names = [_short(row.tobytes()) for row in keys]
        return np.column_stack([names, missing, values, width, grids])

    def _category(self, draw: Any) -> Any:
        if draw is None or isinstance(draw, str | int | bool | np.integer):
            return draw
        raise UserError(f"{self.claim.name}: a draw is not a category (a word or a whole number), as the claim says")

    def _sequence(self, draw: Any) -> list[float]:
        if self.claim.releases == "text":
            if draw is not None and not isinstance(draw, str):
                raise UserError(f"{self.claim.name}: a draw is not a text, as the claim says")
            items: list[Any] = [] if draw is None else draw.split()
            length = 0 if draw is None else len(draw)
        else:
            if draw is not None and not isinstance(draw, list | tuple | np.ndarray):
                raise UserError(f"{self.claim.name}: a draw is not a sequence of categories, as the claim says")
            items = [] if draw is None else list(draw)
            length = len(items)
        buckets, place_buckets = [0.0] * _BUCKETS, [0.0] * (_PLACES * _BUCKETS)
        for at, item in enumerate(items):
            bucket = int(self._name(item)) % _BUCKETS
            buckets[bucket] += 1
            if at < _PLACES:
                place_buckets[at * _BUCKETS + bucket] = 1.0
        return [_hash(draw), draw is None, length, len(items), *buckets, *place_buckets]

    def _name(self, value: Any) -> float:
        if not isinstance(value, str | int):  # 0.0 and -0.0 are equal, and are different draws
            return _hash(value)
        key = type(value), value
        if key not in self._names:
            if len(self._names) >= _REMEMBERED:
                return _hash(value)
            self._names[key] = _hash(value)
        return self._names[key]


def _hash(value: Any) -> float:
    return _short(key_of(value).encode())


def _short(content: bytes) -> float:
    return float(int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big") >> 4)


def _is_text(rows: Sequence[Any]) -> bool:
    return any(isinstance(value, str | bool) for row in rows[:1000] for value in row)


def _grid(values: FloatArray) -> FloatArray:
    """Return the exponents of the lowest bits of numbers; for 0, that of the smallest number."""
    fraction, exponent = np.frexp(values)
    mantissa = np.abs(fraction * 2.0**53).astype(np.int64)
    lowest = np.log2(np.maximum(mantissa & -mantissa, 1))
    return np.where(values == 0, math.log2(5e-324), exponent - 53 + lowest)


# --- tests


def of_columns(first: int, last: int | None, fit: Fit, *, whole: bool = False) -> Fit:
    """Return a fit of some columns of rows.

    Args:
        first: First column.
        last: The column after the last; None for all.
        fit: Function that learns the score.
        whole: Whether to convert the columns to whole numbers.
    """

    def taken(rows: Outputs) -> Outputs:
        columns = rows[:, first:last]
        return columns.astype(np.int64) if whole else columns

    def fitted(one: Outputs, other: Outputs) -> Score:
        score = fit(taken(one), taken(other))
        return lambda rows: score(taken(rows))

    return fitted


#: Fast tests for a search over many pairs: frequencies of draws, and a linear score.
QUICK: tuple[Fit, ...] = (of_columns(0, 1, frequencies, whole=True), of_columns(1, None, learned))
#: Boosted trees of all features.
TREES = of_columns(1, None, trees)


# --- draws


#: Limit of the seeds for programs; no two requests of an audit have the same seed.
_SEEDS = 2**31


class Drawer:
    """Rows of a source's draws.

    Args:
        source: Source of the draws.
        seed: Seed of coins, and of the seeds for the source.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.reader = source, Reader(source.claim)
        self.rng = np.random.default_rng([seed, 1])
        self._base, self._requests = int(np.random.default_rng([seed, 2]).integers(_SEEDS)), 0
        self.drawn = 0
        self._kept = dict[str, FloatArray]()  # draws of the search, by input

    def rows(self, x: Any, n: int, *, alone: bool = False) -> FloatArray:
        """Return new draws at an input, (n, 1 + f).

        Raises:
            UserError: The source or `Reader.rows` raises it.
        """
        step = 1 if alone else BATCH
        return np.concatenate([self._request(x, min(step, n - at)) for at in range(0, n, step)])

    def first_rows(self, x: Any, n: int) -> FloatArray:
        """Return the first n draws at an input that were kept, and new ones, which are kept, if there are fewer."""
        rows = self._kept.get(key_of(x))
        if rows is None or len(rows) < n:
            draws = self.rows(x, n - (0 if rows is None else len(rows)))
            rows = self._kept[key_of(x)] = draws if rows is None else np.concatenate([rows, draws])
        return rows[:n]

    def kept(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return all draws kept so far at each of two inputs, as many of one as of the other."""
        first, second = (self._kept.get(key_of(x), np.zeros((0, 0))) for x in pair)
        n = min(len(first), len(second))
        return first[:n], second[:n]

    def both(self, x: Any, other: Any, n: int, *, alone: bool = False) -> tuple[FloatArray, FloatArray]:
        """Return new draws at each of two inputs, (n, 1 + f) each.

        Requests alternate between the inputs, with the first one by a coin each time. So any drift during the draws is
        the same for both.
        """
        step = 1 if alone else BATCH
        result: tuple[list[FloatArray], list[FloatArray]] = ([], [])
        for at in range(0, n, step):
            for side in self.rng.permutation(2):
                result[side].append(self._request((x, other)[side], min(step, n - at)))
        return np.concatenate(result[0]), np.concatenate(result[1])

    def tossed(self, x: Any, other: Any, n: int, *, alone: bool = False) -> tuple[FloatArray, IntArray]:
        """Return new draws, each at one of two inputs by a fair coin: rows (n, 1 + f), and 0 or 1 for each, (n,)."""
        sides = self.rng.integers(0, 2, n)
        order = [int(side) for side in self.rng.permutation(2) if (sides == side).any()]
        entries = {side: self.rows((x, other)[side], int((sides == side).sum()), alone=alone) for side in order}
        rows = np.empty((n, entries[order[0]].shape[1]))
        for side, part in entries.items():
            rows[sides == side] = part
        return rows, sides

    def _request(self, x: Any, n: int) -> FloatArray:
        """Return the rows of one request."""
        self.drawn, self._requests = self.drawn + n, self._requests + 1
        return self.reader.rows(self.source.draws(x, n, (self._base + self._requests) % _SEEDS))


#: Names of the measurements: a draw, a draw beside another one at an input that the adversary knows, whose noise must
#: not be in the other, and a draw that was requested alone, not with thousands of others.
DRAW, BESIDE, ALONE = "a draw", "beside a known draw", "a draw alone"


def games_of(drawer: Drawer, pair: Pair) -> list[Game]:
    """Return the games of a pair: a draw, one beside a known draw at its first input, and one that is requested alone.

    The second game finds repeated noise. If each request has its own randomness, the known draw says nothing, and the
    claim is the same. The third has few draws, each a request.
    """
    claim = drawer.source.claim
    return [
        Game(
            name=" ".join(part for part in (claim.name, claim.version) if part),
            about=kind,
            pair=f"{shown(pair[0])} / {shown(pair[1])}",
            worst=np.inf if claim.epsilon is None else claim.epsilon,
            theorem=claim.of_pair(*pair, claim.at),
            draw=_draw_of(drawer, pair, kind),
            fits=QUICK if claim.releases == "category" else (*QUICK, TREES),
            share=share,
            gaussian=claim.mu is not None,
        )
        for kind, share in ((DRAW, 1.0), (BESIDE, 0.25), (ALONE, 0.0))
    ]


def _draw_of(drawer: Drawer, pair: Pair, kind: str) -> Callable[[int, int, int], NDArray[Any]]:
    """Return the function `Game.draw` of DRAW, BESIDE or ALONE; the first request draws both sides in turn."""

    @cache
    def rows(n: int) -> tuple[FloatArray, ...]:
        result = drawer.both(*pair, n, alone=kind == ALONE)
        if kind != BESIDE:
            return result
        references = drawer.both(pair[0], pair[0], n)
        return tuple(map(drawer.reader.beside, result, references))

    return lambda side, n, seed: rows(n)[side]
