"""Draws of a source as rows for tests, for one input or for two inputs in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.adversary.audit.external.outputs import Reader, strong
from sottovoce.adversary.audit.external.source import BATCH, Source, shown
from sottovoce.adversary.audit.games import Game

FloatArray = NDArray[np.float64]
Pair = tuple[Any, Any]

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
        self._base, self._asked = int(np.random.default_rng([seed, 2]).integers(_SEEDS)), 0
        self.drawn = 0

    def rows(self, x: Any, n: int, *, alone: bool = False) -> FloatArray:
        """Return new draws at an input, (n, 1 + f).

        Args:
            x: Input.
            n: Number of draws.
            alone: Whether each draw is a request.

        Raises:
            UserError: The source or `Reader.rows` raises it.
        """
        step = 1 if alone else BATCH
        return np.concatenate([self._request(x, min(step, n - at)) for at in range(0, n, step)])

    def both(self, x: Any, other: Any, n: int, *, alone: bool = False) -> tuple[FloatArray, FloatArray]:
        """Return new draws at each of two inputs, (n, 1 + f) each.

        Requests alternate between the inputs, with the first one by a coin each time. So any drift during the draws is
        the same for both.

        Args:
            x: First input.
            other: Second input.
            n: Draws of each input.
            alone: Whether each draw is a request.
        """
        step = 1 if alone else BATCH
        result: tuple[list[FloatArray], list[FloatArray]] = ([], [])
        for at in range(0, n, step):
            for side in self.rng.permutation(2):
                result[side].append(self._request((x, other)[side], min(step, n - at)))
        return np.concatenate(result[0]), np.concatenate(result[1])

    def tossed(self, x: Any, other: Any, n: int, *, alone: bool = False) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return new draws, each at one of two inputs by a fair coin: rows (n, 1 + f), and 0 or 1 for each, (n,).

        Args:
            x: First input.
            other: Second input.
            n: Draws in all.
            alone: Whether each draw is a request.
        """
        sides = self.rng.integers(0, 2, n)
        order = [int(side) for side in self.rng.permutation(2) if (sides == side).any()]
        entries = {side: self.rows((x, other)[side], int((sides == side).sum()), alone=alone) for side in order}
        rows = np.empty((n, entries[order[0]].shape[1]))
        for side, part in entries.items():
            rows[sides == side] = part
        return rows, sides

    def _request(self, x: Any, n: int) -> FloatArray:
        """Return the rows of one request."""
        self.drawn, self._asked = self.drawn + n, self._asked + 1
        return self.reader.rows(self.source.draws(x, n, (self._base + self._asked) % _SEEDS))


#: Names of the measurements: a draw, a draw beside another one at an input that the adversary knows, whose noise must
#: not be in the other, and a draw that was requested alone, not with thousands of others.
DRAW, BESIDE, ALONE = "a draw", "beside a known draw", "a draw alone"


def games_of(drawer: Drawer, pair: Pair) -> list[Game]:
    """Return the games of a pair: a draw, one beside a known draw at its first input, and one that is requested alone.

    The second game finds repeated noise. If each request has its own randomness, the known draw says nothing, and the
    claim is the same. The third has few draws, each a request.
    """
    claim = drawer.source.claim
    game = Game(
        name=" ".join(part for part in (claim.name, claim.version) if part),
        about=DRAW,
        pair=f"{shown(pair[0])} / {shown(pair[1])}",
        worst=np.inf if claim.epsilon is None else claim.epsilon,
        theorem=claim.of_pair(*pair, claim.at),
        draw=_drawn(drawer, pair, DRAW),
        fits=strong(claim),
        gaussian=claim.mu is not None,
    )
    shares = ((BESIDE, 0.25), (ALONE, 0.0))
    return [
        game,
        *(replace(game, about=kind, draw=_drawn(drawer, pair, kind), share=share) for kind, share in shares),
    ]


def _drawn(drawer: Drawer, pair: Pair, what: str) -> Callable[[int, int, int], NDArray[Any]]:
    """Return draws for `Game.draw`; the first request draws both sides in turn."""
    memo: dict[int, tuple[FloatArray, FloatArray]] = {}

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        if n not in memo:
            memo[n] = _rows(drawer, pair, what, n)
        return memo[n][side]

    return draw


def _rows(drawer: Drawer, pair: Pair, what: str, n: int) -> tuple[FloatArray, FloatArray]:
    """Return new rows (n, 1 + f) under each input of a pair, of DRAW, BESIDE or ALONE."""
    result = drawer.both(*pair, n, alone=what == ALONE)
    if what != BESIDE:
        return result
    references = drawer.both(pair[0], pair[0], n)
    return drawer.reader.beside(result[0], references[0]), drawer.reader.beside(result[1], references[1])
