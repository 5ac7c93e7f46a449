"""Games of a custom mechanism, which has no line in `adversary.audit.games.GAMES`.

The mechanism gets the usual parameters. If it states no probabilities, the games use its draws alone. The audit does
not trust the mechanism about the worst pair, nor about the best score. Inputs are chosen by its stated probabilities
and by a pilot of separate draws, so the audit's false-alarm rate stands. Each score from its stated probabilities has a
learned score beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import CATALOGUE, admit, build
from mechanisms.channels import CHANNELS, Domain
from simulations.errors import UserError
from sottovoce.adversary.audit.games import (
    GAMES,
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
#: Values of parameters that have no default.
_USUAL: dict[str, Callable[[], Any]] = {"epsilon": lambda: 1.0, "dim": lambda: 16, "classes": lambda: 10}


def names() -> tuple[str, ...]:
    """Return all mechanisms that have a game by their name alone.

    They include those of the catalogue, also those added at run time.
    """
    return tuple(dict.fromkeys((*GAMES, *CATALOGUE)))


def games_of(name: str, delta: float) -> list[Game]:
    """Return the games of one of `names`, or of an external mechanism, which is imported.

    Args:
        name: Name of the mechanism.
        delta: δ of the audit.

    Raises:
        UserError: The mechanism needs parameters that the audit does not know.
        ValueError: There is no such mechanism. The message is one line.
    """
    if name in GAMES:
        return GAMES[name](delta)
    kind = admit(name)
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    unknown = [parameter for parameter in needed if parameter not in _USUAL and parameter != "vocabulary"]
    if unknown or getattr(kind, "reads", ()) or getattr(kind, "needs_prior", False):
        what = f"what to give it as {', '.join(unknown)}" if unknown else "what to give it beside its inputs"
        raise UserError(
            f"{name}: the audit does not know {what}; give defaults, or add a line to GAMES in "
            "sottovoce/adversary/audit/games.py"
        )
    spec = {"mechanism": name} | {key: _USUAL[key]() for key in needed if key in _USUAL}
    vocabulary = words()
    built = build(spec, channel=kind.channel, vocabulary=vocabulary)
    domain = CHANNELS[kind.channel].domain
    mechanism = built.word if domain is Domain.TEXT else built
    return list(_of_vectors(mechanism, delta) if domain.vectors else _of_numbers(mechanism, delta))


def _of_vectors(mechanism: Any, delta: float) -> Iterator[Game]:
    """Yield two antipodal pairs: along one coordinate, and along all of them, so that each coordinate is tested."""
    diagonal = np.full(mechanism.dim, mechanism.dim**-0.5)
    for along, shown in ((None, "antipodal"), (diagonal, "antipodal in all coordinates")):
        game = sphere_game(mechanism, delta, along=along, shown=shown)
        yield replace(game, fits=tuple(dict.fromkeys((*game.fits, learned))))


def _of_numbers(mechanism: Any, delta: float) -> Iterator[Game]:
    """Yield games of labels, answers or words, with the worst input pairs by stated probabilities and by the pilot."""
    texts = CHANNELS[mechanism.channel].domain is Domain.TEXT
    outputs = len(mechanism.vocabulary) if texts else mechanism.classes
    inputs = np.arange(outputs + 1 if texts else outputs)
    tables = [_said(mechanism, inputs, outputs), _done(mechanism, inputs, outputs)]
    said = tables[0]
    apart = distances_of(mechanism) if mechanism.guarantee.metric == "euclidean" else None
    for x, y in dict.fromkeys(worst_pair(table) for table in tables if table is not None):
        game = finite_game(
            mechanism, (x, y), delta, shown=f"{'words' if texts else 'labels'} {x} / {y}", outcomes=np.arange(outputs),
            log_probs=None if said is None else (said[x], said[y]),
            distance=None if apart is None else float(apart[x, y]),
        )  # fmt: skip
        yield replace(game, fits=tuple(dict.fromkeys((*game.fits, learned))))


def _said(mechanism: Any, inputs: NDArray[np.int64], outputs: int) -> FloatArray | None:
    """Return the mechanism's own log-probabilities (inputs, outputs); None if it states none."""
    if not hasattr(mechanism, "log_prob"):
        return None
    every = np.arange(outputs)
    return np.stack([np.asarray(mechanism.log_prob(every, np.full(outputs, x)), dtype=np.float64) for x in inputs])


def _done(mechanism: Any, inputs: NDArray[np.int64], outputs: int) -> FloatArray:
    """Return log-frequencies (inputs, outputs) of the pilot, with one added to each count."""
    rows = []
    for x in inputs:
        rng = streams(f"pilot {mechanism.name}", int(x), _PILOT, _PILOT_SEED)
        drawn = mechanism.sample(np.full(_PILOT, x), rng=rng)
        rows.append(np.log(np.bincount(drawn, minlength=outputs)[:outputs] + 1.0))
    return np.stack(rows)
