"""Games of a mechanism by its name: the game of its kind, or a search for the worst pair.

Only a mechanism of the catalogue has a game (`games.GAMES`). The audit does not trust other mechanisms about the worst
pair, nor about the best score. Inputs are chosen by the stated probabilities and by a pilot of separate
draws, so the audit's false-alarm rate stands. Each score from the stated probabilities has a learned score beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import CATALOGUE, admit, instance
from mechanisms.channels import Domain, domain_of
from mechanisms.facts import usual
from simulations.errors import UserError
from sottovoce.adversary.audit.games import (
    AUDITS,
    GAMES,
    TEXT_PARTS,
    Game,
    distances_of,
    finite_game,
    sphere_game,
    streams,
    words,
    worst_pair,
)
from sottovoce.adversary.estimators.audit import learned

FloatArray = NDArray[np.float64]

#: Draws of each input in the pilot, and the seed of its streams, which no audit may have.
_PILOT, _PILOT_SEED = 4000, 2**62


def names() -> tuple[str, ...]:
    """Return the names that have games: those of the catalogue, also if added at run time, and parts of a text."""
    return (*CATALOGUE, *TEXT_PARTS)


def games_of(name: str, delta: float) -> list[Game]:
    """Return the games of one of `names`, or of an external mechanism, which is imported.

    Args:
        name: Name of the mechanism.
        delta: δ of the audit.

    Raises:
        UserError: The mechanism reads what the audit cannot give it.
        ValueError: There is no such mechanism, or nobody knows its parameters. The message is one line.
    """
    if name in TEXT_PARTS:
        return TEXT_PARTS[name](delta)
    kind = admit(name)
    game = GAMES.get(name)
    if game is None and (bool(getattr(kind, "reads", ())) or getattr(kind, "needs_prior", False)):
        raise UserError(
            f"{name}: the audit does not know what to give it beside its inputs; give it a game "
            "in sottovoce/adversary/audit/games.py"
        )
    games: list[Game] = []
    for arguments in AUDITS.get(name, ({},)):
        mechanism = instance(kind, usual(kind) | arguments, words())
        if game is not None:
            games.append(game(mechanism, delta))
        else:
            games += _of_numbers(mechanism, delta) if mechanism.grid is None else _of_vectors(mechanism, delta)
    return games


def _of_vectors(mechanism: Any, delta: float) -> Iterator[Game]:
    """Yield two antipodal pairs: along one coordinate, and along all of them, so that each coordinate is tested."""
    diagonal = np.full(mechanism.dim, mechanism.dim**-0.5)
    for direction, description in ((None, "antipodal"), (diagonal, "antipodal in all coordinates")):
        game = sphere_game(mechanism, delta, along=direction, shown=description)
        yield replace(game, fits=tuple(dict.fromkeys((*game.fits, learned))))


def _of_numbers(mechanism: Any, delta: float) -> Iterator[Game]:
    """Yield games of labels, answers or words, with the worst input pairs by stated probabilities and by the pilot."""
    texts = domain_of(mechanism) is Domain.TEXT
    outputs = len(mechanism.vocabulary) if texts else mechanism.classes
    inputs = np.arange(outputs + 1 if texts else outputs)
    tables = [_said(mechanism, inputs, outputs), _done(mechanism, inputs, outputs)]
    log_law = tables[0]
    distances = distances_of(mechanism) if mechanism.guarantee.metric == "euclidean" else None
    for x, y in dict.fromkeys(worst_pair(table) for table in tables if table is not None):
        game = finite_game(
            mechanism,
            (x, y),
            delta,
            shown=f"{'words' if texts else 'labels'} {x} / {y}",
            outcomes=np.arange(outputs),
            log_probs=None if log_law is None else (log_law[x], log_law[y]),
            distance=None if distances is None else float(distances[x, y]),
        )
        yield replace(game, fits=tuple(dict.fromkeys((*game.fits, learned))))


def _said(mechanism: Any, inputs: NDArray[np.int64], outputs: int) -> FloatArray | None:
    """Return the mechanism's own log-probabilities (inputs, outputs); None if it states none."""
    if not hasattr(mechanism, "log_prob"):
        return None
    all_outputs = np.arange(outputs)
    return np.stack(
        [np.asarray(mechanism.log_prob(all_outputs, np.full(outputs, x)), dtype=np.float64) for x in inputs]
    )


def _done(mechanism: Any, inputs: NDArray[np.int64], outputs: int) -> FloatArray:
    """Return log-frequencies (inputs, outputs) of the pilot, with one added to each count."""
    rows = []
    for x in inputs:
        rng = streams(f"pilot {mechanism.name}", int(x), _PILOT, _PILOT_SEED)
        draws = mechanism.sample(np.full(_PILOT, x), rng=rng)
        rows.append(np.log(np.bincount(draws, minlength=outputs)[:outputs] + 1.0))
    return np.stack(rows)
