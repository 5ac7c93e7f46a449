"""Checks of public parameters and inputs. Each returns the value, or raises a ValueError of one line that names it."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sized
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray

#: Largest deviation from length 1 of an input row of a spherical mechanism (it is then normalized exactly).
UNIT_TOLERANCE = 1e-6
#: Largest ε of most mechanisms, each in its own unit, and the smallest of those that divide by it.
MAX_EPSILON, MIN_EPSILON = 1000.0, 1e-6
#: Smallest ε above 0 of any mechanism.
LEAST_EPSILON = 1e-100
#: Modes of a published mechanism: with the gaps of its theorem repaired, or to the letter.
MODES = ("repaired", "paper")
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


def real(owner: str, name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a float within [low, high]; no NaN, text or boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{owner}: {name} must be a number from {low:g} to {high:g}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not (math.isfinite(number) and low <= number <= high):
        short = f"{number:g}"
        got = short if float(short) == number else number  # 1000.0001 must not read as 1000
        raise ValueError(f"{owner}: {name} must be from {low:g} to {high:g}, got {got}")
    return number


def whole(value: object) -> int | None:
    """Return an integer of any type, as NumPy's, as an int; None for another value: a boolean, or a float as 2.0."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def times(owner: str, value: Any) -> int:
    """Return `value` as a number of releases: whole and at least 1; no boolean, and no float as 2.0."""
    number = whole(value)
    if number is None or number < 1:
        raise ValueError(f"{owner}: a number of releases must be whole and at least 1, got {value!r}")
    return number


def epsilon(owner: str, value: Any, *, name: str = "epsilon", low: float = 0.0) -> float:
    """Return `value` as an ε within [low, MAX_EPSILON], and not so close to 0 that float64 holds no multiples of it."""
    number = real(owner, name, value, low, MAX_EPSILON)
    if 0 < number < LEAST_EPSILON:
        raise ValueError(f"{owner}: {name} must be 0, or from {LEAST_EPSILON:g} to {MAX_EPSILON:g}, got {number:g}")
    return number


def one_of(owner: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Check that `value` is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{owner}: {name} must be {' or '.join(allowed)}, got {value!r}")


def is_number(value: object) -> bool:
    """Return True if a value is a number, NumPy's included, and not a boolean."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: object, low: int, high: int) -> bool:
    """Return True if a value from JSON or TOML is an integer from low to high, neither a boolean nor a float as 2.0."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_slug(value: object) -> TypeGuard[str]:
    """Return True if a value is a short name that is safe in a file name, as a stage's and an arm's must be."""
    return isinstance(value, str) and _SLUG.fullmatch(value) is not None


def is_hex(value: object) -> TypeGuard[str]:
    """Return True if a value is 32 bytes (a SHA-256 or a public key) in 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def differs(owner: str, distance: float | None) -> bool:
    """Return True if a discrete distance, 0 or 1 (None: 1), means that two inputs differ."""
    if distance is None:
        return True
    if distance not in (0, 1):
        raise ValueError(f"{owner}: the distance of two labels is 0 or 1, got {distance}")
    return distance == 1


def integer(owner: str, name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int within [low, high]; no boolean, and no float as 2.0."""
    number = whole(value)
    if number is None:
        raise ValueError(f"{owner}: {name} must be a whole number from {low} to {high}, got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{owner}: {name} must be from {low} to {high}, got {number}")
    return number


def rows(owner: str, x: NDArray[Any], dim: int) -> FloatArray:
    """Return x as float64 of shape (n, dim), all finite."""
    values: FloatArray = np.ascontiguousarray(x, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != dim:
        raise ValueError(f"{owner}: expected rows of {dim} coordinates, got an array of shape {values.shape}")
    bad: BoolArray = np.any(~np.isfinite(values), axis=1)
    if bad.any():
        raise ValueError(f"{owner}: row {_first(bad)} holds a value that is not finite")
    return values


def unit_rows(owner: str, x: NDArray[Any], dim: int) -> tuple[FloatArray, FloatArray]:
    """Return x as float64 (n, dim), rows of length 1 (to 1e-6), and the length of each row (n, 1)."""
    # contiguous: sums over a row then run in one order, whatever the memory layout or the number of rows
    values: FloatArray = np.ascontiguousarray(x, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != dim:
        raise ValueError(f"{owner}: expected rows of {dim} coordinates, got an array of shape {values.shape}")
    lengths = np.sqrt(np.einsum("ij,ij->i", values, values))
    bad = ~(np.abs(lengths - 1.0) <= UNIT_TOLERANCE)  # also true for NaN
    if bad.any():
        row = _first(bad)
        raise ValueError(f"{owner}: row {row} has length {lengths[row]:g}, not 1; normalize the inputs")
    return values, lengths[:, None]


def ball_rows(owner: str, x: NDArray[Any], dim: int) -> FloatArray:
    """Return x as float64 of shape (n, dim), all finite, no row longer than 1 (to 1e-6)."""
    values = rows(owner, x, dim)
    lengths = np.sqrt(np.einsum("ij,ij->i", values, values))
    bad: BoolArray = lengths > 1.0 + UNIT_TOLERANCE
    if bad.any():
        row = _first(bad)
        raise ValueError(f"{owner}: row {row} has length {lengths[row]:g}, above 1")
    return values


def labels(owner: str, x: NDArray[Any], classes: int) -> IntArray:
    """Return x as int64 labels of shape (n,) in [0, classes)."""
    values = np.asarray(x)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(f"{owner}: expected a row of whole-number labels, got {values.dtype} {values.shape}")
    bad = (values < 0) | (values >= classes)
    if bad.any():
        row = _first(bad)
        raise ValueError(f"{owner}: label {values[row]} of row {row} is outside 0..{classes - 1}")
    return values.astype(np.int64)


def word_ids(owner: str, x: NDArray[Any], vocabulary: Sized) -> IntArray:
    """Return x as int64 word ids, (n,) or (n, L): 0..V - 1, V (unknown), or -1 (nothing)."""
    values = np.asarray(x)
    if values.ndim not in (1, 2) or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(f"{owner}: expected word ids, got {values.dtype} {values.shape}")
    if values.size and (values.min() < -1 or values.max() > len(vocabulary)):
        raise ValueError(f"{owner}: a word id is outside -1..{len(vocabulary)}")
    return values.astype(np.int64)


def word_id_row(owner: str, x: NDArray[Any], vocabulary: Sized) -> IntArray:
    """Return x as int64 word ids, (n,): 0..V - 1, or V (unknown)."""
    ids = word_ids(owner, x, vocabulary)
    if ids.ndim != 1 or (ids.size and ids.min() < 0):
        raise ValueError(f"{owner}: probabilities are of a row of words, and NOTHING is none")
    return ids


def _first(mask: BoolArray) -> int:
    return int(np.argmax(mask))
