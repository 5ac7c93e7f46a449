"""What is measured of a pair of inputs, as games."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.adversary.audit.games import Game
from sottovoce.adversary.audit.outside.drawer import Drawer
from sottovoce.adversary.audit.outside.outputs import strong
from sottovoce.adversary.audit.outside.source import shown
from sottovoce.adversary.audit.outside.spaces import Pair

FloatArray = NDArray[np.float64]

#: What is measured: a draw; and one beside a draw at an input that the adversary knows, whose noise may not be in it.
DRAW, BESIDE = "a draw", "beside a known draw"


def games_of(drawer: Drawer, pair: Pair) -> list[Game]:
    """What is measured of a pair: a draw, and a draw beside another at its first input, which the adversary knows.

    The second finds noise that comes again: if each request is answered with randomness of its own, the known draw says
    nothing, and the claim is the same. Of answers that are timed it is left out.
    """
    claim = drawer.source.claim
    made = Game(
        name=" ".join(part for part in (claim.name, claim.version) if part), about=DRAW,
        pair=f"{shown(pair[0])} / {shown(pair[1])}", worst=np.inf if claim.epsilon is None else claim.epsilon,
        theorem=claim.of_pair(*pair, claim.at), draw=_drawn(drawer, pair, DRAW), fits=strong(drawer.reader),
        gaussian=claim.mu is not None,
    )  # fmt: skip
    if claim.time:
        return [made]
    return [made, replace(made, about=BESIDE, draw=_drawn(drawer, pair, BESIDE), share=0.25)]


def _drawn(drawer: Drawer, pair: Pair, what: str) -> Callable[[int, int, int], NDArray[Any]]:
    """Draws as of `Game.draw`; both sides are drawn in turn when the first is asked for."""
    kept: dict[int, tuple[FloatArray, FloatArray]] = {}

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        if n not in kept:
            kept[n] = rows_of(drawer, pair, what, n)
        return kept[n][side]

    return draw


def rows_of(drawer: Drawer, pair: Pair, what: str, n: int) -> tuple[FloatArray, FloatArray]:
    """(n, 1 + f) new rows under each input of a pair, of DRAW or BESIDE."""
    found = drawer.both(*pair, n)
    if what == DRAW:
        return found
    known = drawer.both(pair[0], pair[0], n)  # whose ratio of densities, where there is one, is nothing
    return drawer.reader.beside(found[0], known[0]), drawer.reader.beside(found[1], known[1])
