"""Table of the smallest faults that the audit finds: faults of each kind, planted in ever smaller sizes.

    python -m benchmarks.audit_sizes             # default draws of `sottovoce audit`
    python -m benchmarks.audit_sizes 2000000     # most draws of `sottovoce audit`

A fault is planted only in the sampler, for the time of one game. A size counts as found if the game alarms at the
confidence of each figure in a whole audit, on one seed. Near the smallest size, another seed may decide otherwise.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Uniforms
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from mechanisms.vocabulary import NOTHING
from mechanisms.words.santext import SanText
from mechanisms.words.text import Length
from simulations.output.markdown import table
from sottovoce.adversary.audit import client as parts
from sottovoce.adversary.audit import run as audit
from sottovoce.adversary.audit.client import Clients
from sottovoce.adversary.audit.games import Game, games_of

#: Most figures of a whole audit: each has its share of the family's rate.
FIGURES = 400
#: Scales of the noise, and shares of all draws.
SCALES = (2 / 3, 0.8, 0.9, 0.95, 0.97)
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
DELTA = 1e-3

MakeGame = Callable[[Path], Game]


@dataclass(frozen=True)
class Fault:
    """Kind of fault.

    Args:
        what: Description.
        sizes: Sizes, the largest first.
        plant: Function from a size to a context in which the sampler is faulty.
        game_of: Function from a folder of clients to the game that searches for the fault.
    """

    what: str
    sizes: tuple[float, ...]
    plant: Callable[[float], Any]
    game_of: MakeGame


def _of(name: str, at: int = 0) -> MakeGame:
    """Return a mechanism's game by itself."""
    return lambda folder: games_of(name, DELTA)[at]


def _through(games: Callable[[Clients, float], list[Game]], at: int = 0) -> MakeGame:
    """Return a game of the client."""
    return lambda folder: games(Clients(folder), DELTA)[at]


def _noise(kind: Any) -> Callable[[float], Any]:
    """Return a fault that scales the noise."""

    @contextmanager
    def plant(scale: float) -> Iterator[None]:
        sample = kind.sample

        def louder(self: Any, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
            drawn: NDArray[Any] = sample(replace(self, epsilon=self.epsilon / scale), x, rng=rng)
            return drawn

        with _put(kind, "sample", louder):
            yield

    return plant


def _clear(kind: Any, where: Callable[[NDArray[Any]], NDArray[np.bool_]] | None = None) -> Callable[[float], Any]:
    """Return a fault that releases the input itself in a share of rows, in the entries that `where` selects."""

    @contextmanager
    def plant(share: float) -> Iterator[None]:
        sample, chance = kind.sample, np.random.Generator(np.random.Philox(5))

        def leaking(self: Any, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
            x = np.asarray(x)
            picked = (chance.random(len(x)) < share).reshape(-1, *[1] * (x.ndim - 1))
            exposed = np.ones(x.shape, dtype=bool) if where is None else where(x)
            return np.where(picked & exposed, x, sample(self, x, rng=rng))

        with _put(kind, "sample", leaking):
            yield

    return plant


@contextmanager
def _put(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _behind_the_first(x: NDArray[Any]) -> NDArray[np.bool_]:
    return (np.arange(x.shape[1]) > 0) & (x != NOTHING)


FAULTS = (
    Fault("noise, Purkayastha m'=16, ε=4", SCALES, _noise(Purkayastha), _of("purkayastha", 1)),
    Fault("noise, PrivUnit D=16, ε=2", SCALES, _noise(PrivUnit), _of("privunit")),
    Fault("noise, randomized response ε=1, K=10", SCALES, _noise(RandomizedResponse), _of("randomized-response")),
    Fault("noise, SanText ε=1", SCALES, _noise(SanText), _of("santext")),
    Fault("noise of the client's embedding", SCALES, _noise(Purkayastha), _through(parts.client_games, 1)),
    Fault("noise of the client's label", SCALES, _noise(RandomizedResponse), _through(parts.client_games)),
    Fault("noise of the client's words", SCALES, _noise(SanText), _through(parts.client_text_games)),
    Fault("noise of the client's one vector", SCALES, _noise(PrivUnit), _through(parts.client_statistic_games)),
    Fault("embedding in clear, m'=16", SHARES, _clear(Purkayastha), _of("purkayastha", 1)),
    Fault("embedding in clear, client", SHARES, _clear(Purkayastha), _through(parts.client_games)),
    Fault("one vector in clear, client", SHARES, _clear(PrivUnit), _through(parts.client_statistic_games)),
    Fault("label in clear, client", SHARES, _clear(RandomizedResponse), _through(parts.client_games)),
    Fault(
        "words behind the first in clear, client",
        SHARES,
        _clear(SanText, _behind_the_first),
        _through(parts.client_text_games),
    ),
    Fault(
        "length above 4 in clear, client", SHARES, _clear(Length, lambda x: x > 4), _through(parts.client_text_games, 2)
    ),
)


def smallest(fault: Fault, draws: int) -> float | None:
    """Return the last size that is found before one that is not; None if the first size is not found.

    Args:
        fault: Kind of fault.
        draws: Draws of each input.
    """
    smallest_found = None
    for size in fault.sizes:
        with tempfile.TemporaryDirectory() as folder, fault.plant(size):
            game = fault.game_of(Path(folder))
            family = audit.FAMILY * audit.tests([game]) / FIGURES
            (finding,) = audit.measure([game], audit.Audit(draws=draws), family=family)
        if finding.verdict != "violated":
            break
        smallest_found = size
    return smallest_found


def main(draws: int) -> None:
    """Print the table for a number of draws."""
    rows = []
    for fault in FAULTS:
        size = smallest(fault, draws)
        shown = "×{:.2f}" if fault.sizes is SCALES else "{:.1%}"
        rows.append([fault.what, "none" if size is None else shown.format(size)])
        print(*rows[-1], sep=": ", file=sys.stderr, flush=True)
    print(table(("fault", f"smallest that {draws:,} draws find"), rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else audit.Audit().draws)
