"""Search for the pair of inputs that violates a claim most, on separate draws from those of the figures.

Pairs are compared by a bound of ε over the claimed ε, each from few draws at first. The worst pairs are drawn again and
moved a little (Jamieson and Talwalkar 2016, successive halving, with evolution in each round). The search uses draws
alone: no gradients, no densities.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.checks import is_number
from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, key_of
from sottovoce.adversary.audit.external.draws import QUICK, Drawer, Pair
from sottovoce.adversary.audit.external.source import shown
from sottovoce.adversary.estimators import audit as adversary

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

#: For each round: draws of an input, the share of the budget spent at its end, and its number of pairs.
Rounds = tuple[tuple[int, float, int], ...]
LONG: Rounds = ((256, 0.35, 300), (1024, 0.55, 60), (4096, 0.8, 20), (16384, 1.0, 6))
#: Error probability of the bounds that compare pairs; none of them is reported.
_ALPHA = 0.2
#: Least ε that a bound is compared with.
_LEAST = 0.05
#: Pairs from which new pairs are made.
_PARENTS = 6


class Pool:
    """Draws of a search, kept by input.

    Args:
        drawer: Draws of the source.
    """

    def __init__(self, drawer: Drawer) -> None:
        self.drawer, self._rows = drawer, dict[str, FloatArray]()

    def rows(self, x: Any, n: int) -> FloatArray:
        """Return the first n draws at an input, (n, 1 + f), new ones if there are fewer.

        Raises:
            UserError: `Drawer.rows` raises it.
        """
        key = key_of(x)
        cache = self._rows.get(key)
        if cache is None or len(cache) < n:
            draws = self.drawer.rows(x, n - (0 if cache is None else len(cache)))
            self._rows[key] = draws if cache is None else np.concatenate([cache, draws])
        return self._rows[key][:n]

    def kept(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return all draws so far at each of two inputs, as many of one as of the other."""
        results = [self._rows.get(key_of(x), np.zeros((0, 0))) for x in pair]
        n = min(map(len, results))
        return results[0][:n], results[1][:n]


def worst_pair(pool: Pool, budget: int, rounds: Rounds = LONG) -> Pair:
    """Return the pair of neighbouring inputs that looks worst.

    Raises:
        UserError: `Drawer.rows` raises it, or the claim names no two inputs that differ.
    """
    drawer, rows = pool.drawer, pool.rows
    claim = drawer.source.claim
    candidates, move = _candidates(drawer)
    start = drawer.drawn
    best: list[tuple[float, Pair]] = []
    for n, share, limit in rounds:
        ranking: list[tuple[float, Pair]] = []
        keys: set[str] = set()
        queue = iter([pair for _, pair in best[: limit // 2]]) if best else candidates
        for pair in islice(_followed(queue, ranking, move, drawer.rng), 5 * limit):  # some come again
            if (ranking or best) and (len(ranking) >= limit or drawer.drawn - start + 2 * n > share * budget):
                break
            if (key := key_of(pair)) not in keys and claim.distance(*pair):
                ranking.append((_looks(rows(pair[0], n), rows(pair[1], n), claim, pair), pair))
            keys.add(key)
        if not ranking:
            break
        best = sorted(ranking, key=lambda entry: -entry[0])
        log.info(f"{n:,} draws of {len(ranking)} pairs: the worst so far is {shown(best[0][1])}")
    if not best:
        raise UserError(f"{claim.name}: there are no two neighbouring inputs that differ")
    return best[0][1]


def _candidates(drawer: Drawer) -> tuple[Iterator[Pair], Callable[[Pair, np.random.Generator], Pair] | None]:
    """Return the first pairs, and a function that moves one."""
    claim = drawer.source.claim
    if claim.inputs is None:
        return (pair_of(claim, pair) for pair in claim.pairs), None
    domain = space(claim.inputs)
    pairs = Pairs(domain, claim.neighbours)
    if isinstance(domain, _Listed):
        pair_list = list(combinations(domain.values, 2))
        order = drawer.rng.permutation(len(pair_list))
        return (pair_list[i] for i in order), None
    proposals = (pairs.proposed(drawer.rng) for _ in range(LONG[0][2] // 2))
    return chain(pairs.extreme(), proposals), pairs.moved


def pair_of(claim: Claim, pair: Any) -> Pair:
    """Return the pair that a claim states.

    Raises:
        UserError: It is no pair.
    """
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise UserError(f"{claim.name}: {shown(pair)} is no pair of inputs")
    return pair[0], pair[1]


def _followed(
    queue: Iterator[Pair],
    ranked: list[tuple[float, Pair]],
    moved: Callable[[Pair, np.random.Generator], Pair] | None,
    rng: np.random.Generator,
) -> Iterator[Pair]:
    """Yield the pairs of a queue, then moved copies of the worst of them."""
    yield from queue
    while moved is not None and ranked:
        parents = sorted(ranked, key=lambda entry: -entry[0])[:_PARENTS]
        yield moved(parents[int(rng.integers(len(parents)))][1], rng)


def _looks(first: FloatArray, second: FloatArray, claim: Claim, pair: Pair) -> float:
    """Return the largest bound of ε over the claimed ε.

    Each half of the draws is scored by what was learned on the other half.
    """
    half = len(first) // 2
    first_half, second_half = slice(None, half), slice(half, None)
    scores = []
    for fit_slice, test_slice in ((first_half, second_half), (second_half, first_half)):
        fits = [fit(first[fit_slice], second[fit_slice]) for fit in QUICK]
        scores.append([[score(rows[test_slice]) for rows in (first, second)] for score in fits])
    parts = [
        np.stack([np.concatenate([fold[i][side] for fold in scores]) for i in range(len(QUICK))]) for side in range(2)
    ]
    result = adversary.Scores((parts[0], parts[1]), (parts[0], parts[1]))
    return max(
        adversary.lower_epsilon(result, delta, _ALPHA).epsilon / max(epsilon, _LEAST)
        for epsilon, delta in marks(claim, pair)
    )


def marks(claim: Claim, pair: Pair) -> list[tuple[float, float]]:
    """Return claimed points (ε, δ) of a pair, at which it is compared with other pairs."""
    of_pair = claim.of_pair(*pair, claim.at)
    points = of_pair.points
    thirds = points[[len(points) // 3, 2 * len(points) // 3]].tolist() if len(points) > 2 else []
    pure = [] if np.isinf(of_pair.pure) else [(of_pair.pure, 0.0)]
    return [*pure, (of_pair.at_delta, claim.at), *((epsilon, delta) for epsilon, delta in thirds if epsilon > 0)]


# --- spaces of inputs


Rng = np.random.Generator


class Space:
    """Space of inputs of one kind. `ends` are two inputs at the largest distance."""

    ends: tuple[Any, Any]

    def drawn(self, rng: Rng) -> Any:
        """Return a random input."""
        raise NotImplementedError

    def moved(self, x: Any, rng: Rng) -> Any:
        """Return an input near x; a random one if inputs are no numbers."""
        return self.drawn(rng)

    def opposite(self, x: Any, rng: Rng) -> Any:
        """Return an input far from x; a random one if inputs are no numbers."""
        return self.drawn(rng)

    def shrunk(self, x: Any, share: float) -> Any:
        """Return this share of x, or what is nearest to it; x if inputs are no numbers."""
        return x


class _Listed(Space):
    """Space of listed values.

    Args:
        values: The values.
    """

    def __init__(self, values: list[Any]) -> None:
        self.values, self.ends = values, (values[0], values[-1])

    def drawn(self, rng: Rng) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


class _Box(Space):
    """Space of numbers in an interval, or of vectors of them.

    Args:
        low: Lower bound.
        high: Upper bound.
        size: Length of a vector; None for a number.
        whole: Whether numbers are integers.
    """

    def __init__(self, low: float, high: float, size: int | None, whole: bool) -> None:
        self.low, self.high, self.size, self.whole = low, high, size, whole
        self.ends = self._out(np.full(size or (), low)), self._out(np.full(size or (), high))

    def _out(self, z: Any) -> Any:
        z = np.clip(z, self.low, self.high)
        if self.whole:
            return int(np.rint(z)) if self.size is None else [int(i) for i in np.rint(z)]
        return float(z) if self.size is None else [float(i) for i in z]

    def drawn(self, rng: Rng) -> Any:
        ends, uniforms = rng.choice([self.low, self.high], self.size), rng.uniform(self.low, self.high, self.size)
        if self.size is None:
            return self._out(ends if rng.integers(2) else uniforms)
        kind = rng.integers(4)
        constant = np.full(self.size, ends[0] if kind == 0 else (self.low + self.high) / 2)
        return self._out((constant, constant, ends, uniforms)[kind])

    def moved(self, x: Any, rng: Rng) -> Any:
        z = np.array(x, dtype=np.float64)
        step = rng.normal(0, (self.high - self.low) * 10.0 ** rng.uniform(-3, 0), self.size)
        mask = np.ones(()) if self.size is None else np.arange(self.size) == rng.integers(self.size)
        kind = rng.integers(3)
        if kind == 0:
            return self._out(np.where(mask, rng.choice([self.low, self.high]), z))
        return self._out(z + step * (mask if kind == 1 else 1.0))

    def opposite(self, x: Any, rng: Rng) -> Any:
        return self._out(self.low + self.high - np.array(x, dtype=np.float64))

    def shrunk(self, x: Any, share: float) -> Any:
        return self._out(share * np.array(x, dtype=np.float64))


class _Ball(Space):
    """Space of vectors of at most a Euclidean length.

    Args:
        radius: Largest length.
        size: Number of coordinates.
    """

    def __init__(self, radius: float, size: int) -> None:
        self.radius, self.size = radius, size
        self.ends = self._out(np.eye(size)[0], radius), self._out(-np.eye(size)[0], radius)

    def drawn(self, rng: Rng) -> Any:
        kind = rng.integers(4)
        if kind == 0:
            z = np.eye(self.size)[rng.integers(self.size)] * rng.choice([-1.0, 1.0])
        elif kind == 1:
            z = np.full(self.size, rng.choice([-1.0, 1.0]))
        else:
            z = rng.normal(size=self.size)
        return self._out(z, self.radius * (1.0 if kind < 3 else float(rng.random())))

    def moved(self, x: Any, rng: Rng) -> Any:
        z = np.array(x, dtype=np.float64)
        length = float(np.linalg.norm(z)) if rng.integers(2) else self.radius
        return self._out(z + rng.normal(0, self.radius * 10.0 ** rng.uniform(-2, 0), self.size), length)

    def opposite(self, x: Any, rng: Rng) -> Any:
        return [-float(i) for i in x]

    def shrunk(self, x: Any, share: float) -> Any:
        return [share * float(i) for i in x]

    def _out(self, z: Any, length: float) -> list[float]:
        # a little shorter, so that rounding does not put it outside
        return [float(i) for i in z / max(np.linalg.norm(z), 1e-300) * length * (1 - 1e-12)]


class _Records(Space):
    """Space of lists of records of one space.

    Args:
        each: Space of a record.
        count: Number of records.
    """

    def __init__(self, each: Space, count: int) -> None:
        self.each, self.count = each, count
        self.ends = [each.ends[0]] * count, [each.ends[1]] * count

    def drawn(self, rng: Rng) -> Any:
        kind = rng.integers(3)
        if kind == 0:
            return [self.each.drawn(rng) for _ in range(self.count)]
        member, other = self.each.drawn(rng), self.each.drawn(rng)
        return [member if kind == 1 or i else other for i in rng.random(self.count) < rng.random()]

    def moved(self, x: Any, rng: Rng) -> Any:
        at = int(rng.integers(len(x))) if x else 0
        return [self.each.moved(value, rng) if i == at else value for i, value in enumerate(x)]

    def opposite(self, x: Any, rng: Rng) -> Any:
        return [self.each.opposite(value, rng) for value in x]

    def shrunk(self, x: Any, share: float) -> Any:
        return [self.each.shrunk(value, share) for value in x]


def space(stated: Any, where: str = "claim: inputs") -> Space:
    """Return the space that a claim states.

    Raises:
        UserError: It is not a space.
    """
    if isinstance(stated, list | tuple):
        if len(stated) < 2:
            raise UserError(f"{where}: a list has two values or more")
        return _Listed(list(stated))
    if not isinstance(stated, Mapping):
        raise UserError(f"{where}: must be a list of values, or an object with low and high, radius, or records")
    keys = set(stated)
    if "records" in keys and keys <= {"records", "count"}:
        return _Records(space(stated["records"], f"{where}.records"), _whole(stated, "count", where))
    if "radius" in keys and keys <= {"radius", "size"}:
        return _Ball(_number(stated, "radius", where), _whole(stated, "size", where))
    if {"low", "high"} <= keys <= {"low", "high", "size", "whole"}:
        low, high = _number(stated, "low", where), _number(stated, "high", where)
        if not low < high:
            raise UserError(f"{where}: low must be below high")
        size = _whole(stated, "size", where) if "size" in keys else None
        return _Box(low, high, size, bool(stated.get("whole", False)))
    raise UserError(f"{where}: must have low and high (size, whole), radius and size, or records and count")


def _number(stated: Mapping[str, Any], key: str, where: str) -> float:
    value: Any = stated.get(key)
    if not is_number(value) or not np.isfinite(value):
        raise UserError(f"{where}: {key} must be a finite number, got {value!r}")
    return float(value)


def _whole(stated: Mapping[str, Any], key: str, where: str) -> int:
    value = stated.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:
        raise UserError(f"{where}: {key} must be a whole number from 1 to 100,000, got {value!r}")
    return value


class Pairs:
    """Pairs of neighbouring inputs of a space.

    Args:
        within: Space of inputs.
        neighbours: Relation, as in `Claim`.

    Raises:
        UserError: The relation is one of lists, and the space has none.
    """

    def __init__(self, within: Space, neighbours: str) -> None:
        if neighbours != "any" and not isinstance(within, _Records):
            raise UserError(f"claim: neighbours {neighbours!r} are lists; inputs must be records and count")
        self.within, self.neighbours = within, neighbours

    def extreme(self) -> Iterator[Pair]:
        """Yield the first pairs: the ends of the space, or lists of one end with one other record.

        In some lists the others are small, so that one record outweighs them all.
        """
        if self.neighbours == "any":
            yield self.within.ends
            return
        for ends, records in zip((self._each.ends, self._each.ends[::-1]), self.within.ends, strict=True):
            for rest in (records[1:], self.within.shrunk(records[1:], 1 / (2 * len(records)))):
                first, other = [ends[0], *rest], [ends[1], *rest]
                if self.neighbours == "add-remove":
                    yield first, rest
                    yield other, rest
                else:
                    yield first, other

    def proposed(self, rng: Rng) -> Pair:
        """Return a random pair."""
        x = self.within.drawn(rng)
        if self.neighbours == "any":
            return x, (self.within.opposite(x, rng) if rng.integers(2) else self.within.drawn(rng))
        element, at = self._each, int(rng.integers(len(x)))
        if self.neighbours == "add-remove":
            return x, [*x[:at], *x[at + 1 :]]
        other = element.opposite(x[at], rng) if rng.integers(2) else element.drawn(rng)
        return x, [*x[:at], other, *x[at + 1 :]]

    def moved(self, pair: Pair, rng: Rng) -> Pair:
        """Return a pair near a given one."""
        x, other = pair
        if self.neighbours == "any":
            kind = rng.integers(3)
            if kind == 0:
                return x, self.within.moved(other, rng)
            x = self.within.moved(x, rng)
            return x, (other if kind == 1 else self.within.opposite(x, rng))
        if self.neighbours == "add-remove":
            x, at = self.within.moved(x, rng), int(rng.integers(len(x)))
            return x, [*x[:at], *x[at + 1 :]]
        at = next((i for i, (a, b) in enumerate(zip(x, other, strict=True)) if a != b), 0)
        record = self._each.moved(other[at], rng) if rng.integers(2) else other[at]
        x = self.within.moved(x, rng)
        return x, [*x[:at], record, *x[at + 1 :]]

    @property
    def _each(self) -> Space:
        assert isinstance(self.within, _Records)
        return self.within.each
