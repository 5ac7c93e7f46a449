"""Games of a pair of inputs of an external mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.adversary.audit.external.drawer import Drawer
from sottovoce.adversary.audit.external.outputs import strong
from sottovoce.adversary.audit.external.source import shown
from sottovoce.adversary.audit.external.spaces import Pair
from sottovoce.adversary.audit.games import Game

FloatArray = NDArray[np.float64]

#: Names of the measurements: a draw, a draw beside another one at an input that the adversary knows, whose noise must
#: not be in the other, and a draw that was requested alone, not with thousands of others.
DRAW, BESIDE, ALONE = "a draw", "beside a known draw", "a draw alone"


def games_of(drawer: Drawer, pair: Pair) -> list[Game]:
    """Return the games of a pair: a draw, one beside a known draw at its first input, and one that is requested alone.

    The second game finds repeated noise. If each request has its own randomness, the known draw says nothing, and the
    claim is the same. The third has few draws, each a request.
    """
    claim = drawer.source.claim
    made = Game(
        name=" ".join(part for part in (claim.name, claim.version) if part),
        about=DRAW,
        pair=f"{shown(pair[0])} / {shown(pair[1])}",
        worst=np.inf if claim.epsilon is None else claim.epsilon,
        theorem=claim.of_pair(*pair, claim.at),
        draw=_drawn(drawer, pair, DRAW),
        fits=strong(claim),
        gaussian=claim.mu is not None,
    )
    others = ((BESIDE, 0.25), (ALONE, 0.0))
    return [made, *(replace(made, about=what, draw=_drawn(drawer, pair, what), share=share) for what, share in others)]


def _drawn(drawer: Drawer, pair: Pair, what: str) -> Callable[[int, int, int], NDArray[Any]]:
    """Return draws for `Game.draw`; the first request draws both sides in turn."""
    kept: dict[int, tuple[FloatArray, FloatArray]] = {}

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        if n not in kept:
            kept[n] = _rows(drawer, pair, what, n)
        return kept[n][side]

    return draw


def _rows(drawer: Drawer, pair: Pair, what: str, n: int) -> tuple[FloatArray, FloatArray]:
    """Return new rows (n, 1 + f) under each input of a pair, of DRAW, BESIDE or ALONE."""
    result = drawer.both(*pair, n, alone=what == ALONE)
    if what != BESIDE:
        return result
    known = drawer.both(pair[0], pair[0], n)
    return drawer.reader.beside(result[0], known[0]), drawer.reader.beside(result[1], known[1])
