"""Composition of several shuffled rounds: the proved δ(ε) of each round, as a privacy loss distribution.

**One round.** For every truncation of the blanket (`accounting.truncated`), and for none, blanket bound plus price is
an upper bound of the whole profile δ(ε), whatever the δ that the truncation was made for. A large γ' serves small ε and
costs too much at large ones. So each ε takes the least over several truncations.

**The greatest profile below (proved).** The true profile is convex in e^ε, and that of an exchanged pair is
δ(-ε) = 1 - e^-ε + e^-ε·δ(ε). So it lies below every chord between two points that it lies below. That is, it lies below
the greatest convex function under all points and their mirror images. At ε = 0 the chord of a point and its own image
gives δ(0) <= tanh(ε/2) + 2·δ(ε)/(1 + e^ε).

**Composition.** A profile convex in e^ε is that of a pair of distributions, and pairs that dominate compose (Zhu, Dong
and Wang 2022, Theorem 10 and Proposition 12). Chords join its points (`losses.categorical.from_profile`), and the laws
are convolved (`accounting.pld`): pessimistic throughout.
"""

from __future__ import annotations

import math

import numpy as np

from mechanisms.accounting import pld
from mechanisms.accounting.blanket import blanket_delta, blanket_epsilon
from mechanisms.accounting.truncated import TruncatedBlanket, best_truncation
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.categorical import from_profile
from mechanisms.losses.loss import LossCells

#: Points of ε at which a round's profile is taken.
_POINTS = 72
#: At every point of this stride all truncations are evaluated, and between them the two that are likely the best.
_APART = 4
#: Share of δ that all rounds together may spend beyond the last point.
_SHARE = 1e-2
#: δ whose best truncations bound a round, beside that share of one round.
_CUTS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def rounds_epsilon(cells: BlanketCells, n: int, count: int, delta: float) -> float | None:
    """Return ε at δ of `count` >= 1 shuffled rounds of n delivered users each, or None if they do not amplify."""
    loss = round_loss(cells, n, delta * _SHARE / count)
    return None if loss is None else pld.compose([(loss, count)], tail=delta * 1e-6).epsilon(delta)


def round_loss(cells: BlanketCells, n: int, smallest: float) -> LossCells | None:
    """Return a loss that dominates one round of n users, its δ(ε) followed down to `smallest`, or None."""
    plain = blanket_epsilon(cells, n, smallest)
    last = best_truncation(cells, n, smallest)
    if plain is None and last is None:
        return None
    top = min(math.inf if plain is None else plain, math.inf if last is None else last.epsilon)
    if top == 0:  # not exactly nothing: with more rounds beside it, that δ adds up
        return from_profile(np.zeros(1), np.array([smallest]))
    candidates = [TruncatedBlanket(cells, 0.0, top), last, *(best_truncation(cells, n, cut) for cut in _CUTS)]
    cuts = [cut for cut in candidates if cut is not None]
    epsilons: FloatArray = np.linspace(0.0, 1.0, _POINTS) ** 1.5 * top  # denser where many rounds spend their δ
    price = np.array([[cut.price(n, float(epsilon)) for epsilon in epsilons] for cut in cuts])
    deltas = np.ones((len(cuts), _POINTS))

    def look(cut: int, at: IntArray) -> None:
        cells, slack = cuts[cut].cells, smallest * 3e-3
        found = [blanket_delta(cells, n, epsilon, slack=slack) for epsilon in epsilons[at].tolist()]
        deltas[cut, at] = np.minimum.accumulate(found) + price[cut, at]

    scan = np.unique(np.append(np.arange(0, _POINTS, _APART), _POINTS - 1))
    for cut in range(len(cuts)):
        look(cut, scan[price[cut, scan] < deltas[:, scan].min(axis=0)])  # elsewhere this truncation cannot be the best
    between = np.array([np.interp(epsilons, epsilons[scan], np.log(row[scan])) for row in deltas])
    likely = np.argsort(between, axis=0)[:2]  # all of them give a bound, so only the likeliest are evaluated
    for cut in range(len(cuts)):
        wanted = (likely == cut).any(axis=0) & (price[cut] < 1)
        wanted[scan] = False
        look(cut, np.flatnonzero(wanted))
    return from_profile(*envelope(epsilons, deltas.min(axis=0)))


def envelope(epsilons: FloatArray, deltas: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the corners (ε, δ) of the greatest profile below the points: (J,), (J,) -> (I,), (I,).

    epsilons rise from 0, and deltas are at most 1. A profile is as above: convex in e^ε, and its own exchanged pair's.
    """
    deltas = np.minimum.accumulate(np.minimum(deltas, 1.0))
    crossing = np.tanh(epsilons / 2) + 2 * deltas / (1 + np.exp(epsilons))
    deltas[0] = min(deltas[0], float(crossing.min()) * (1 + 1e-12))
    kept = [0]
    for at in range(1, len(epsilons)):
        while len(kept) > 1:
            first, middle = kept[-2:]
            rise = math.expm1(epsilons[at] - epsilons[first]), math.expm1(epsilons[middle] - epsilons[first])
            if (deltas[middle] - deltas[first]) * rise[0] < (deltas[at] - deltas[first]) * rise[1]:
                break  # a corner: below the chord of its neighbours
            kept.pop()
        kept.append(at)
    return epsilons[kept], deltas[kept]
