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

from mechanisms.arrays import FloatArray
from mechanisms.checks import is_number, is_whole
from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, key_of
from sottovoce.adversary.audit.external.draws import QUICK, Drawer, Pair
from sottovoce.adversary.audit.external.source import shown
from sottovoce.adversary.estimators import audit as adversary

log = logging.getLogger(__name__)


#: For each round: draws of an input, the share of the budget spent at its end, and its number of pairs.
Rounds = tuple[tuple[int, float, int], ...]
LONG: Rounds = ((256, 0.35, 300), (1024, 0.55, 60), (4096, 0.8, 20), (16384, 1.0, 6))
#: Error probability of the bounds that compare pairs; none of them is reported.
_ALPHA = 0.2
#: Least ε that a bound is compared with.
_LEAST = 0.05
#: Pairs from which new pairs are made.
_PARENTS = 6


def worst_pair(drawer: Drawer, budget: int, rounds: Rounds = LONG) -> Pair:
    """Return the pair of neighbouring inputs that looks worst.

    Raises:
        UserError: `Drawer.rows` raises it, or the claim names no two inputs that differ.
    """
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
                first, second = (drawer.first_rows(x, n) for x in pair)
                ranking.append((_looks(first, second, claim, pair), pair))
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
    if type(domain) is Space:
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
    """Space of listed values. `ends` are two inputs at the largest distance."""

    def __init__(self, values: list[Any]) -> None:
        self.values, self.ends = values, (values[0], values[-1])

    def drawn(self, rng: Rng) -> Any:
        """Return a random input."""
        return self.values[int(rng.integers(len(self.values)))]

    def moved(self, x: Any, rng: Rng) -> Any:
        """Return an input near x; a random one if inputs are no numbers."""
        return self.drawn(rng)

    def opposite(self, x: Any, rng: Rng) -> Any:
        """Return an input far from x; a random one if inputs are no numbers."""
        return self.drawn(rng)

    def shrunk(self, x: Any, share: float) -> Any:
        """Return this share of x, or what is nearest to it; x if inputs are no numbers."""
        return x


class _Numbers(Space):
    """Space of numbers in an interval, or of vectors of them, if need be of at most a Euclidean length.

    Args:
        low: Lower bound.
        high: Upper bound.
        size: Length of a vector; None for a number.
        whole: Whether numbers are integers.
        radius: Largest Euclidean length.
    """

    def __init__(
        self, low: float, high: float, size: int | None, *, whole: bool = False, radius: float = np.inf
    ) -> None:
        self.low, self.high, self.size, self.whole, self.radius = low, high, size, whole, radius
        # the ends of a ball are on an axis, and of a box in its corners
        first = np.zeros(size or ()) if radius == np.inf else np.arange(size or 1) > 0
        centre = (low + high) / 2
        self.ends = self._inside(np.where(first, centre, low)), self._inside(np.where(first, centre, high))

    def _inside(self, z: Any) -> Any:
        z = np.clip(z, self.low, self.high)
        # a little shorter, so that rounding does not put it outside
        z = z * min(1.0, (1 - 1e-12) / max(float(np.linalg.norm(z / self.radius)), 1e-300))
        return (np.vectorize(int, otypes=[object])(np.rint(z)) if self.whole else z).tolist()  # of any size

    def drawn(self, rng: Rng) -> Any:
        ends, uniforms = rng.choice([self.low, self.high], self.size), rng.uniform(self.low, self.high, self.size)
        if self.size is None:
            return self._inside(ends if rng.integers(2) else uniforms)
        centre = np.full(self.size, (self.low + self.high) / 2)
        axis = np.where(np.arange(self.size) == rng.integers(self.size), ends[0], centre)
        return self._inside((np.full(self.size, ends[0]), centre, axis, ends, uniforms)[rng.integers(5)])

    def moved(self, x: Any, rng: Rng) -> Any:
        z = np.array(x, dtype=np.float64)
        step = rng.normal(0, (self.high - self.low) * 10.0 ** rng.uniform(-3, 0), self.size)
        mask = np.ones(()) if self.size is None else np.arange(self.size) == rng.integers(self.size)
        kind = rng.integers(3)
        if kind == 0:
            return self._inside(np.where(mask, rng.choice([self.low, self.high]), z))
        return self._inside(z + step * (mask if kind == 1 else 1.0))

    def opposite(self, x: Any, rng: Rng) -> Any:
        return self._inside(self.low + self.high - np.array(x, dtype=np.float64))

    def shrunk(self, x: Any, share: float) -> Any:
        return self._inside(share * np.array(x, dtype=np.float64))


class _Records(Space):
    """Space of lists of `count` records of one space."""

    def __init__(self, record: Space, count: int) -> None:
        self.record, self.count = record, count
        self.ends = [record.ends[0]] * count, [record.ends[1]] * count

    def drawn(self, rng: Rng) -> Any:
        kind = rng.integers(3)
        if kind == 0:
            return [self.record.drawn(rng) for _ in range(self.count)]
        member, other = self.record.drawn(rng), self.record.drawn(rng)
        return [member if kind == 1 or i else other for i in rng.random(self.count) < rng.random()]

    def moved(self, x: Any, rng: Rng) -> Any:
        at = int(rng.integers(max(1, len(x))))
        return [self.record.moved(value, rng) if i == at else value for i, value in enumerate(x)]

    def opposite(self, x: Any, rng: Rng) -> Any:
        return [self.record.opposite(value, rng) for value in x]

    def shrunk(self, x: Any, share: float) -> Any:
        return [self.record.shrunk(value, share) for value in x]


def space(stated: Any, where: str = "claim: inputs") -> Space:
    """Return the space that a claim states.

    Raises:
        UserError: It is not a space.
    """
    if isinstance(stated, list | tuple):
        if len(stated) < 2:
            raise UserError(f"{where}: a list has two values or more")
        return Space(list(stated))
    if not isinstance(stated, Mapping):
        raise UserError(f"{where}: must be a list of values, or an object with low and high, radius, or records")
    keys = set(stated)
    if "records" in keys and keys <= {"records", "count"}:
        return _Records(space(stated["records"], f"{where}.records"), _whole(stated, "count", where))
    if "radius" in keys and keys <= {"radius", "size"}:
        radius = _number(stated, "radius", where)
        return _Numbers(-radius, radius, _whole(stated, "size", where), radius=radius)
    if {"low", "high"} <= keys <= {"low", "high", "size", "whole"}:
        low, high = _number(stated, "low", where), _number(stated, "high", where)
        if not low < high:
            raise UserError(f"{where}: low must be below high")
        size = _whole(stated, "size", where) if "size" in keys else None
        return _Numbers(low, high, size, whole=bool(stated.get("whole", False)))
    raise UserError(f"{where}: must have low and high (size, whole), radius and size, or records and count")


def _number(stated: Mapping[str, Any], key: str, where: str) -> float:
    value: Any = stated.get(key)
    if not is_number(value) or not np.isfinite(value):
        raise UserError(f"{where}: {key} must be a finite number, got {value!r}")
    return float(value)


def _whole(stated: Mapping[str, Any], key: str, where: str) -> int:
    value: Any = stated.get(key)
    if not is_whole(value, 1, 100_000):
        raise UserError(f"{where}: {key} must be a whole number from 1 to 100,000, got {value!r}")
    return int(value)


class Pairs:
    """Pairs of neighbouring inputs of a space: two values, alone or as one record of a list.

    Args:
        within: Space of inputs.
        neighbours: Relation, as in `Claim`.

    Raises:
        UserError: The relation is one of lists, and the space has none.
    """

    def __init__(self, within: Space, neighbours: str) -> None:
        self.within = self.values = within
        self.neighbours = neighbours
        if neighbours != "any":
            if not isinstance(within, _Records):
                raise UserError(f"claim: neighbours {neighbours!r} are lists; inputs must be records and count")
            self.values = within.record

    def extreme(self) -> Iterator[Pair]:
        """Yield the first pairs: the ends of the space, or lists of one end with one other record.

        In some lists the others are small, so that one record outweighs them all.
        """
        if self.neighbours == "any":
            yield self.within.ends
            return
        for values, records in zip((self.values.ends, self.values.ends[::-1]), self.within.ends, strict=True):
            for rest in (records[1:], self.within.shrunk(records[1:], 1 / (2 * len(records)))):
                yield self._within_lists(values, rest, 0)
                if self.neighbours == "add-remove":
                    yield self._within_lists(values[::-1], rest, 0)

    def proposed(self, rng: Rng) -> Pair:
        """Return a random pair."""
        x = self.values.drawn(rng)
        values = x, (self.values.opposite(x, rng) if rng.integers(2) else self.values.drawn(rng))
        if self.neighbours == "any":
            return values
        rest = self.within.drawn(rng)[1:]
        return self._within_lists(values, rest, int(rng.integers(len(rest) + 1)))

    def moved(self, pair: Pair, rng: Rng) -> Pair:
        """Return a pair near a given one."""
        if self.neighbours == "any":
            return self._moved_values(pair, rng)
        x, other = pair
        at = next((i for i, (a, b) in enumerate(zip(x, other, strict=False)) if a != b), len(x) - 1)
        values, rest = (x[at], other[at] if self.neighbours == "replace" else x[at]), [*x[:at], *x[at + 1 :]]
        if rng.integers(2):
            values = self._moved_values(values, rng)
        return self._within_lists(values, self.within.moved(rest, rng) if rng.integers(2) else rest, at)

    def _moved_values(self, values: Pair, rng: Rng) -> Pair:
        x, other = values
        kind = rng.integers(3)
        if kind == 0:
            return x, self.values.moved(other, rng)
        x = self.values.moved(x, rng)
        return x, (other if kind == 1 else self.values.opposite(x, rng))

    def _within_lists(self, values: Pair, rest: list[Any], at: int) -> Pair:
        """Return lists with the first value, and the second or none, at a place among other records."""
        first, second = ([*rest[:at], value, *rest[at:]] for value in values)
        return first, (rest if self.neighbours == "add-remove" else second)
