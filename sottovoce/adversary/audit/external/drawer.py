"""Draws of a source as rows for tests, for one input or for two inputs in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.adversary.audit.external.outputs import Reader
from sottovoce.adversary.audit.external.source import BATCH, Source

FloatArray = NDArray[np.float64]

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
        there = [int(side) for side in self.rng.permutation(2) if (sides == side).any()]
        entries = {side: self.rows((x, other)[side], int((sides == side).sum()), alone=alone) for side in there}
        rows = np.empty((n, entries[there[0]].shape[1]))
        for side, part in entries.items():
            rows[sides == side] = part
        return rows, sides

    def _request(self, x: Any, n: int) -> FloatArray:
        """Return the rows of one request."""
        self.drawn += n
        return self.reader.rows(self.source.draws(x, n, self._seed()))

    def _seed(self) -> int:
        self._asked += 1
        return (self._base + self._asked) % _SEEDS
