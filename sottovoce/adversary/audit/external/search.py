"""Search for the pair of inputs that violates a claim most, on separate draws from those of the figures.

Pairs are compared by a bound of ε over the claimed ε, each from few draws at first. The worst pairs are drawn again and
moved a little (Jamieson and Talwalkar 2016, successive halving, with evolution in each round). The search uses draws
alone: no gradients, no densities.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, key_of
from sottovoce.adversary.audit.external.drawer import Drawer
from sottovoce.adversary.audit.external.outputs import QUICK
from sottovoce.adversary.audit.external.source import shown
from sottovoce.adversary.audit.external.spaces import Listed, Pair, Pairs, space
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
        had = self._rows.get(key)
        if had is None or len(had) < n:
            more = self.drawer.rows(x, n - (0 if had is None else len(had)))
            self._rows[key] = more if had is None else np.concatenate([had, more])
        return self._rows[key][:n]

    def kept(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return all draws so far at each of two inputs, as many of one as of the other."""
        results = [self._rows.get(key_of(x), np.zeros((0, 0))) for x in pair]
        n = min(map(len, results))
        return results[0][:n], results[1][:n]


def worst_pair(pool: Pool, budget: int, rounds: Rounds = LONG) -> Pair:
    """Return the pair of neighbouring inputs that looks worst.

    Args:
        pool: Draws of the source.
        budget: New draws in all.
        rounds: Rounds of the search.

    Raises:
        UserError: `Drawer.rows` raises it, or the claim names no two inputs that differ.
    """
    drawer, rows = pool.drawer, pool.rows
    claim = drawer.source.claim
    candidates, moved = _candidates(drawer)
    start = drawer.drawn
    best: list[tuple[float, Pair]] = []
    for n, share, most in rounds:
        ranked: list[tuple[float, Pair]] = []
        seen: set[str] = set()
        queue = iter([pair for _, pair in best[: most // 2]]) if best else candidates
        for pair in _followed(queue, ranked, moved, drawer.rng):
            if (ranked or best) and (len(seen) >= most or drawer.drawn - start + 2 * n > share * budget):
                break
            key = key_of(pair)
            if key in seen or not claim.distance(*pair):
                seen.add(key + " ")
                if len(seen) > 4 * most:
                    break
                continue
            seen.add(key)
            ranked.append((_looks(rows(pair[0], n), rows(pair[1], n), claim, pair), pair))
        if not ranked:
            break
        best = sorted(ranked, key=lambda each: -each[0])
        log.info(f"{n:,} draws of {len(ranked)} pairs: the worst so far is {shown(best[0][1])}")
    if not best:
        raise UserError(f"{claim.name}: there are no two neighbouring inputs that differ")
    return best[0][1]


def _candidates(drawer: Drawer) -> tuple[Iterator[Pair], Callable[[Pair, np.random.Generator], Pair] | None]:
    """Return the first pairs, and a function that moves one."""
    claim = drawer.source.claim
    if claim.inputs is None:
        return _named(drawer), None
    within = space(claim.inputs)
    pairs = Pairs(within, claim.neighbours)
    if isinstance(within, Listed):
        every = list(combinations(within.values, 2))
        order = drawer.rng.permutation(len(every))
        return (every[i] for i in order), None
    proposed = (pairs.proposed(drawer.rng) for _ in range(LONG[0][2] // 2))
    return chain(pairs.extreme(), proposed), pairs.moved


def _named(drawer: Drawer) -> Iterator[Pair]:
    claim = drawer.source.claim
    several = LONG[0][2]
    given = claim.pairs if isinstance(claim.pairs, list | tuple) else map(drawer.source.pair, range(several))
    for pair in given:
        yield pair_of(claim, pair)


def pair_of(claim: Claim, pair: Any) -> Pair:
    """Return the pair that a claim or a program states.

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
        parents = sorted(ranked, key=lambda each: -each[0])[:_PARENTS]
        yield moved(parents[int(rng.integers(len(parents)))][1], rng)


def _looks(first: FloatArray, second: FloatArray, claim: Claim, pair: Pair) -> float:
    """Return the largest bound of ε over the claimed ε.

    Each half of the draws is scored by what was learned on the other half.
    """
    half = len(first) // 2
    one, other = slice(None, half), slice(half, None)
    scored = []
    for here, there in ((one, other), (other, one)):
        fitted = [fit(first[here], second[here]) for fit in QUICK]
        scored.append([[score(rows[there]) for rows in (first, second)] for score in fitted])
    parts = [
        np.stack([np.concatenate([fold[i][side] for fold in scored]) for i in range(len(QUICK))]) for side in range(2)
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
    some = points[[len(points) // 3, 2 * len(points) // 3]].tolist() if len(points) > 2 else []
    pure = [] if np.isinf(of_pair.pure) else [(of_pair.pure, 0.0)]
    return [*pure, (of_pair.at_delta, claim.at), *((epsilon, delta) for epsilon, delta in some if epsilon > 0)]
