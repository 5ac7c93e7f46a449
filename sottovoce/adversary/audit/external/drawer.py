"""Draws of a source as rows for tests, for one input or for two inputs in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError
from sottovoce.adversary.audit.external.outputs import Reader
from sottovoce.adversary.audit.external.source import BATCH, Source, timed

FloatArray = NDArray[np.float64]

#: Limit of the seeds for programs; no two requests of an audit have the same seed.
_SEEDS = 2**31
#: Limit of log-densities.
_LEAST_LIKELY = 1e6


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

    def rows(self, x: Any, n: int) -> FloatArray:
        """Return new draws at an input, (n, 1 + f).

        Raises:
            UserError: The source or `Reader.rows` raises it.
        """
        pieces = [self._request(x, min(BATCH, n - at)) for at in range(0, n, BATCH)]
        return np.concatenate(pieces)

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
        step = 1 if alone or self.source.claim.time else BATCH
        found: tuple[list[FloatArray], list[FloatArray]] = ([], [])
        for at in range(0, n, step):
            for side in self.rng.permutation(2):
                found[side].append(self._request((x, other)[side], min(step, n - at), ratio=(x, other)))
        return np.concatenate(found[0]), np.concatenate(found[1])

    def tossed(self, x: Any, other: Any, n: int) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return new draws, each at one of two inputs by a fair coin: rows (n, 1 + f), and 0 or 1 for each, (n,).

        Args:
            x: First input.
            other: Second input.
            n: Draws in all.
        """
        sides = self.rng.integers(0, 2, n)
        if self.source.claim.time:
            return np.concatenate([self._request((x, other)[side], 1, ratio=(x, other)) for side in sides]), sides
        there = [int(side) for side in self.rng.permutation(2) if (sides == side).any()]
        found = {side: self._request((x, other)[side], int((sides == side).sum()), ratio=(x, other)) for side in there}
        rows = np.empty((n, found[there[0]].shape[1]))
        for side, part in found.items():
            rows[sides == side] = part
        return rows, sides

    def _request(self, x: Any, n: int, *, ratio: tuple[Any, Any] | None = None) -> FloatArray:
        """Return rows of one request; the log-ratio of densities at the inputs `ratio` comes last, if it is known."""
        self.drawn += n
        if not self.source.claim.time:
            draws = self.source.draws(x, n, self._seed())
            rows = self.reader.rows(draws)
            if ratio is None or not self.source.claim.density:
                return rows
            return np.column_stack([rows, self._density(ratio[0], draws) - self._density(ratio[1], draws)])
        answers = [timed(self.source, x, self._seed()) for _ in range(n)]
        return self.reader.rows([draw for draws, _ in answers for draw in draws], [took for _, took in answers])

    def _density(self, x: Any, draws: Any) -> FloatArray:
        try:
            found = np.asarray(self.source.log_density(x, draws), dtype=np.float64)
        except (TypeError, ValueError):
            found = np.zeros(0)
        if found.shape != (len(draws),) or np.isnan(found).any():
            raise UserError(f"{self.source.claim.name}: a density is not a number for each draw")
        return np.clip(found, -_LEAST_LIKELY, _LEAST_LIKELY)

    def _seed(self) -> int:
        self._asked += 1
        return (self._base + self._asked) % _SEEDS
