"""Uniform random numbers, a separate stream for each row: simulated (reproducible) or secure, never mixed.

Both sources return the midpoints (k + 1/2)·2^-52, k uniform in 0..2^52-1: every one is an exact float64, none is 0 or
1. (Midpoints of 53-bit cells are not floats above 1/2: the last one would round to 1.)
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray

WordArray = NDArray[np.uint64]

#: Probability mass of one lattice point of a uniform.
LATTICE = 2.0**-52
#: Mass of one point of a refined uniform.
FINE = LATTICE**2
_CELL = Decimal(LATTICE)  # exact, as a power in the default context would not be
_HALF_DECIMAL = Decimal("0.5")

# Philox4x32-10: multipliers and Weyl increments of Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
# as easy as 1, 2, 3" (SC 2011), section 3.3.
_MULTIPLIERS = (np.array(0xD2511F53, np.uint64), np.array(0xCD9E8D57, np.uint64))
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = np.array(0xFFFFFFFF, np.uint64)
_HALF = np.array(32, np.uint64)

# A float64 of exponent 0 whose mantissa is the 52 random bits is 1 + k·2^-52: less 1 - 2^-53, a midpoint.
_ONE_BITS = np.array(0x3FF0000000000000, np.uint64)
_DROP = np.array(12, np.uint64)
_BELOW_ONE = 1.0 - 2.0**-53

#: Start, in a row's stream, of the uniforms that refine others.
_FURTHER = 2**32
#: Counters processed at once: few calls into NumPy, and six working arrays that fit its caches.
_CHUNK = 32768


def philox(
    counter: tuple[WordArray, WordArray, WordArray, WordArray], key: tuple[int, int]
) -> tuple[WordArray, WordArray, WordArray, WordArray]:
    """Return the four words of Philox4x32-10 of counters (four broadcastable arrays of 32-bit words) under one key.

    Words are held in uint64, so a 32 x 32-bit product is one multiplication.
    """
    c0, c1, c2, c3 = counter
    keys = [
        tuple(np.array((k + r * w) & 0xFFFFFFFF, np.uint64) for k, w in zip(key, _INCREMENTS, strict=True))
        for r in range(_ROUNDS)
    ]
    # Words of the counter vary along one axis only: on the small arrays, two rounds cost almost nothing.
    for k0, k1 in keys[:2]:
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _MASK, (a >> _HALF) ^ c3 ^ k1, a & _MASK
    shape = np.broadcast_shapes(c0.shape, c1.shape, c2.shape, c3.shape)
    c0, c1, c2, c3 = (np.array(np.broadcast_to(c, shape), order="C") for c in (c0, c1, c2, c3))
    a, b = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
    for k0, k1 in keys[2:]:
        np.multiply(c0, _MULTIPLIERS[0], out=a)
        np.multiply(c2, _MULTIPLIERS[1], out=b)
        np.right_shift(b, _HALF, out=c0)
        np.bitwise_xor(c0, c1, out=c0)
        np.bitwise_xor(c0, k0, out=c0)
        np.bitwise_and(b, _MASK, out=c1)
        np.right_shift(a, _HALF, out=c2)
        np.bitwise_xor(c2, c3, out=c2)
        np.bitwise_xor(c2, k1, out=c2)
        np.bitwise_and(a, _MASK, out=c3)
    return c0, c1, c2, c3


def _midpoints(words: WordArray) -> FloatArray:
    """Turn 64 random bits into a uniform on the lattice, from the upper 52. Overwrites `words`."""
    np.right_shift(words, _DROP, out=words)
    np.bitwise_or(words, _ONE_BITS, out=words)
    uniforms = words.view(np.float64)
    np.subtract(uniforms, _BELOW_ONE, out=uniforms)
    return uniforms


class SimulatedUniforms:
    """Streams of n rows. Each call continues where the last one stopped. See SimulationStreams."""

    def __init__(self, key: tuple[int, int], users: IntArray, records: IntArray) -> None:
        self._key = key
        wide = users.astype(np.uint64)
        self._record, self._low, self._high = records.astype(np.uint64), wide & _MASK, wide >> _HALF
        self._used = 0

    def uniform(self, rows: int, k: int) -> FloatArray:
        """Return (rows, k) float64 in (0, 1).

        Raises:
            ValueError: `rows` is not the number of rows of the streams, or a stream is used up.
        """
        _check_request(rows, k, len(self._record))
        start, self._used = self._used, self._used + k
        if self._used > _FURTHER:
            raise ValueError("streams: a row has used up its stream of 2^32 uniforms")
        return self._drawn(self._record, self._low, self._high, start, k)

    def further(self, rows: IntArray, k: int) -> FloatArray:
        """Return, for these rows, refinements of the last k uniforms that `uniform` gave, (len(rows), k).

        They come from a part of the streams that `uniform` never reaches, and are the same for the same uniforms.
        """
        start = self._used - k + _FURTHER
        return self._drawn(self._record[rows], self._low[rows], self._high[rows], start, k)

    def _drawn(self, record: WordArray, low: WordArray, high: WordArray, start: int, k: int) -> FloatArray:
        rows, stop = len(record), start + k
        first, last = start // 2, -(-stop // 2)  # a block of four words makes two uniforms
        out = np.empty((rows, k))
        if not out.size:
            return out
        blocks = np.arange(first, last, dtype=np.uint64)[:, None]
        step = max(1, _CHUNK // len(blocks))
        for at in range(0, rows, step):
            row = slice(at, at + step)
            counter = (blocks, record[None, row], low[None, row], high[None, row])
            w0, w1, w2, w3 = philox(counter, self._key)
            for words, parity in (((w0, w1), 0), ((w2, w3), 1)):
                np.left_shift(words[1], _HALF, out=words[1])
                np.bitwise_or(words[0], words[1], out=words[0])
                uniforms = _midpoints(words[0])
                offset = 2 * first + parity - start  # first column of this half; -1 if it is used up
                skip = int(offset < 0)
                columns = out[row, offset + 2 * skip :: 2]
                columns[...] = uniforms[skip : skip + columns.shape[1]].T
        return out


class SeededUniforms:
    """Source that repeats, for tests and by hand: `mechanism.sample(x, rng=SeededUniforms(7))`.

    Its rows are those of the first draw, users 0, 1, ... of the seed's simulation. Each call continues where the last
    one stopped. Reproducible means not private.
    """

    def __init__(self, seed: int) -> None:
        self._streams = SimulationStreams(seed)
        self._rows: SimulatedUniforms | None = None

    def uniform(self, rows: int, k: int) -> FloatArray:
        """Return (rows, k) float64 in (0, 1).

        Raises:
            ValueError: `rows` differs from the first call's.
        """
        if self._rows is None:
            users = np.arange(rows, dtype=np.int64)
            self._rows = self._streams.rows(users, np.zeros_like(users), stage="by hand", channel="any")
        return self._rows.uniform(rows, k)

    def further(self, rows: IntArray, k: int) -> FloatArray:
        """Return `SimulatedUniforms.further`; only after a draw."""
        assert self._rows is not None
        return self._rows.further(rows, k)


@dataclass(frozen=True)
class SimulationStreams:
    """Reproducible streams: a function only of (seed, purpose, stage, channel, step, user, record).

    Counter-based (Philox4x32-10). The key is the first 64 bits of SHA-256 over (seed, stage, channel, step, purpose),
    the counter is (block, record, user's low word, user's high word). Rows of one key never share a counter, so their
    streams are disjoint. No draw depends on workers, on message order or on the grouping of rows. Two keys are two
    permutations; that two of q keys coincide has probability below q²·2^-65. Reproducible means not private: whoever
    knows the seed knows the noise. The seed never travels in a message.

    Attributes:
        seed: Seed of the simulation.
        purpose: Purpose of draws other than releases of the users' data, "" for these.
    """

    seed: int
    purpose: str = ""

    def __post_init__(self) -> None:
        if (seed := checks.whole(self.seed)) is None:
            raise ValueError(f"streams: the seed must be a whole number, got {self.seed!r}")
        object.__setattr__(self, "seed", seed)

    def rows(self, users: IntArray, records: IntArray, *, stage: str, channel: str, step: int = 0) -> SimulatedUniforms:
        """Return streams of n rows; users (n,) int64 >= 0, records (n,) int64 in [0, 2^32). No row twice."""
        users, records = _check_rows(users, records)
        purpose = [self.purpose] if self.purpose else []
        text = json.dumps(["sottovoce streams 1", self.seed, stage, channel, int(step), *purpose])
        digest = hashlib.sha256(text.encode()).digest()
        key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
        return SimulatedUniforms(key, users, records)


class SecureUniforms:
    """Rows drawn from the operating system's secure generator. See SecureStreams."""

    _rows: int | None = None

    def __init__(self, rows: int | None = None) -> None:
        self._rows = rows

    def uniform(self, rows: int, k: int) -> FloatArray:
        """Return (rows, k) float64 in (0, 1).

        Raises:
            ValueError: `rows` is not the number of rows of the streams.
        """
        _check_request(rows, k, rows if self._rows is None else self._rows)
        return self.further(np.arange(rows), k)

    def further(self, rows: IntArray, k: int) -> FloatArray:
        """Return fresh uniforms of these rows, (len(rows), k)."""
        words = np.frombuffer(bytearray(os.urandom(8 * len(rows) * k)), dtype=np.uint64)
        return _midpoints(words).reshape(len(rows), k)


@dataclass(frozen=True)
class SecureStreams(SecureUniforms):
    """The operating system's secure generator (os.urandom), for devices. It takes no seed.

    It is also a source itself: `mechanism.sample(x, rng=SecureStreams())` draws once for each row of x.
    """

    def rows(self, users: IntArray, records: IntArray, *, stage: str, channel: str, step: int = 0) -> SecureUniforms:
        """Return streams of n rows, with the arguments of SimulationStreams.rows.

        Draws depend on the number of rows alone.
        """
        users, _ = _check_rows(users, records)
        return SecureUniforms(len(users))


class _GeneratorUniforms:
    """Source of uniforms by a generator of NumPy, for tests and simulations by hand: not private."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def uniform(self, rows: int, k: int) -> FloatArray:
        return _midpoints(self._generator.integers(0, 2**64, size=(rows, k), dtype=np.uint64))

    def further(self, rows: IntArray, k: int) -> FloatArray:
        return self.uniform(len(rows), k)


def source(rng: Any) -> Any:
    """Return a source of uniforms by row: `rng` itself, or one that draws from a generator of NumPy.

    A device draws from `SecureStreams` alone, which its code names; no request and no bundle names a generator.
    """
    return _GeneratorUniforms(rng) if isinstance(rng, np.random.Generator) else rng


def drawn(rng: Any, rows: int, k: int) -> FloatArray:
    """Draw k uniforms for each of `rows` rows, (rows, k), from any source that a mechanism was given.

    Raises:
        TypeError: `rng` is neither a source of rows nor a generator of NumPy.
    """
    rng = source(rng)
    if not (hasattr(rng, "uniform") and hasattr(rng, "further")):
        raise TypeError(
            f"rng must be a source of uniforms, row by row: SecureStreams(), or SeededUniforms(seed) or a generator of "
            f"NumPy for draws that repeat; got {type(rng).__name__}"
        )
    uniforms: FloatArray = rng.uniform(rows, k)
    return uniforms


class Points:
    """Uniforms that can be refined: their places in their cells of 2^-52 are drawn when needed.

    A selection (`points[rows]`) is a `Points` too. Two selections of one row have the same further digits.

    Attributes:
        u: (n, k) midpoints, k for each row.
    """

    def __init__(self, u: FloatArray, entries: IntArray, cells: _Cells, first: int = 0) -> None:
        self.u = u
        self._entries, self._cells, self._first = entries, cells, first

    @classmethod
    def drawn(cls, rng: Any, shape: tuple[int, ...], k: int) -> Points:
        """Draw k uniforms for each entry of an array of that shape; its first axis is the rows of `rng`.

        Use the points before anything else is drawn from `rng`.
        """
        width = math.prod(shape[1:])
        rng = source(rng)
        u = drawn(rng, shape[0], width * k).reshape(-1, k)
        return cls(u, np.arange(len(u)), _Cells(rng, width, k))

    def __len__(self) -> int:
        return len(self.u)

    def __getitem__(self, rows: Any) -> Points:
        return Points(self.u[rows], self._entries[rows], self._cells, self._first)

    def columns(self, first: int, stop: int) -> Points:
        """Return the uniforms `first` to `stop` - 1 of each row."""
        return Points(self.u[:, first:stop], self._entries, self._cells, self._first + first)

    def fine(self, row: int, column: int = 0) -> Decimal:
        """Return a uniform to 2^-104; call it within `decimals.precise`."""
        share = self._cells.of(int(self._entries[row]))[self._first + column]
        return Decimal(float(self.u[row, column])) + (Decimal(float(share)) - _HALF_DECIMAL) * _CELL


class _Cells:
    """Places of an entry's uniforms in their cells, drawn once and cached."""

    def __init__(self, rng: Any, each: int, k: int) -> None:
        self._rng, self._each, self._k = rng, each, k
        self._known: dict[int, FloatArray] = {}

    def of(self, entry: int) -> FloatArray:
        if entry not in self._known:
            row, place = divmod(entry, self._each)
            shares = self._rng.further(np.array([row]), self._each * self._k)[0]
            self._known[entry] = shares[place * self._k : (place + 1) * self._k]
        return self._known[entry]


def _check_request(rows: int, k: int, expected: int) -> None:
    if rows != expected:
        raise ValueError(f"streams: {rows} rows of uniforms asked from streams made for {expected} rows")
    if k < 0:
        raise ValueError(f"streams: the number of uniforms must be at least 0, got {k}")


def _check_rows(users: IntArray, records: IntArray) -> tuple[IntArray, IntArray]:
    users, records = np.asarray(users), np.asarray(records)
    for name, values in (("users", users), ("records", records)):
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise ValueError(f"streams: {name} must be a row of whole numbers, got {values.dtype}")
    if len(users) != len(records):
        raise ValueError(f"streams: {len(users)} users but {len(records)} records")
    if len(users) and (users.min() < 0 or records.min() < 0 or records.max() >= 2**32):
        raise ValueError("streams: users must be at least 0 and records in 0..2^32-1")
    if len(users) > 1 and not (users[1:] > users[:-1]).all():  # distinct users are the common case, and cheap
        order = np.lexsort((records, users))
        same = (np.diff(users[order]) == 0) & (np.diff(records[order]) == 0)
        if same.any():
            at = order[int(np.argmax(same))]
            raise ValueError(f"streams: user {users[at]} record {records[at]} occurs twice; keep one of them")
    return users.astype(np.int64), records.astype(np.int64)
