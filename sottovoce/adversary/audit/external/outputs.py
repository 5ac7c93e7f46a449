"""Conversion of draws to rows of numbers for tests, with a check of each draw.

A row's first number identifies the draw: 52 bits of a hash, the same for the same draw. Features follow:

- the value of a number, and the exponent of its lowest bit, by which floating-point noise may reveal an input;
- the length of a sequence, its items and their places;
- whether anything was released at all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, key_of
from sottovoce.adversary.estimators.audit import Fit, Outputs, Score, learned
from sottovoce.adversary.estimators.classifiers import frequencies, trees

FloatArray = NDArray[np.float64]

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

        Args:
            draws: List of draws.

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


def strong(claim: Claim) -> tuple[Fit, ...]:
    """Return all tests for the pair that is tested."""
    return QUICK if claim.releases == "category" else (*QUICK, TREES)
