"""Sequential part of an audit: the search for the worst pair alternates with bets on it, and a violation stops it.

The search runs in passes, each with more draws than the one before. After a pass the auditor bets on the pair that
looks worst (`estimators.betting`), with a half of the wealth that no earlier pass had. Bets learn from the draws of the
search and from earlier bets, never from a draw that is still to come. If the claim is true, the wealth of all passes
together ever reaches 1/alpha with probability at most alpha.

A draw is scored by itself, and beside a draw at x in the same place of an earlier answer, which the adversary knows:
noise that comes again shows there, and costs no further draws.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.draws import QUICK, TREES, Drawer, Pair, of_columns
from sottovoce.adversary.audit.external.search import LONG, Rounds, worst_pair
from sottovoce.adversary.audit.external.source import BATCH
from sottovoce.adversary.estimators.audit import Fit, frequencies, learned
from sottovoce.adversary.estimators.betting import Expert, mixed_log_wealth

log = logging.getLogger(__name__)


#: Passes of a search before the long one: its rounds, its share of the budget, at most so many draws, and the bets
#: after it as a multiple of these.
_SHORT: tuple[tuple[Rounds, float, int, int], ...] = (
    (((16, 0.6, 10), (64, 1.0, 3)), 0.2, 500, 3),
    (((64, 0.4, 40), (256, 0.7, 10), (1024, 1.0, 3)), 0.1, 4000, 1),
)
#: Bets after the long search, as a share of what is left.
_LAST = 0.2
#: Logarithm of what 1 became from which bets go on beyond their share of the draws.
_WINNING = math.log(2)
#: Largest logarithm of a wealth.
_HUGE = 600.0
#: Draws of the first bets, and their growth: the share of all bets so far.
_FIRST, _GROWTH = 32, 0.2


@dataclass(frozen=True, eq=False)
class Stopped:
    """Violation that stopped an audit: the wealth in the end, and draws so far with log10 of the wealth after each bet.

    The expert who won most bets on the claimed point (ε, δ), by a draw alone or `beside` a known one.
    """

    log_wealth: float
    process: list[tuple[int, float]]
    point: tuple[float, float]
    beside: bool


def points_of(claim: Claim, pair: Pair) -> FloatArray:
    """Return the claimed points (ε, δ) of a pair that a bet may use, (J, 2)."""
    if claim.epsilon is not None:
        return np.array([[claim.epsilon * claim.distance(*pair), claim.delta]])
    return claim.of_pair(*pair, claim.at).points


def search(drawer: Drawer, budget: int, alpha: float, only: Pair | None) -> tuple[Pair, Stopped | None]:
    """Search for the worst pair, bet on it, and return it with the violation, if one was found."""
    end, process = drawer.drawn + budget, list[tuple[int, float]]()
    wealth, reserve, pair = 0.0, 1.0, only  # wealth of passes that are over, and wealth that no pass has had
    for rounds, portion, limit, times in _SHORT if only is None else ():
        draws = min(limit, int(portion * budget))
        pair = _searched(drawer, draws, rounds, pair)
        stop = min(end, drawer.drawn + times * draws)
        violation, won = bet(drawer, pair, (stop, end), alpha, (wealth + reserve / 2, reserve / 2), process)
        if violation is not None:
            return pair, violation
        wealth, reserve = wealth + won * reserve / 2, reserve / 2
    if only is None:
        pair = _searched(drawer, int((end - drawer.drawn) * (1 - _LAST)), LONG, pair)
    assert pair is not None
    return pair, bet(drawer, pair, (end, end), alpha, (wealth, reserve), process)[0]


def _searched(drawer: Drawer, draws: int, rounds: Rounds, pair: Pair | None) -> Pair:
    """Return the worst pair of a pass, or that of the pass before if the draws are too few to compare two."""
    return worst_pair(drawer, draws, rounds) if pair is None or draws >= 4 * rounds[0][0] else pair


def bet(
    drawer: Drawer,
    pair: Pair,
    until: tuple[int, int],
    alpha: float,
    wealth: tuple[float, float],
    process: list[tuple[int, float]],
    *,
    alone: bool = False,
) -> tuple[Stopped | None, float]:
    """Bet on a pair, and return the violation, if one is found, and what 1 became.

    Args:
        drawer: Draws of the source.
        pair: Pair of inputs.
        until: Number of the source's draws at which to end, and at which to end if the bets are winning.
        alpha: Probability that a true claim stops the audit.
        wealth: Wealth that is not bet here, and wealth that is.
        process: The process, to be extended.
        alone: Whether each draw is a request.
    """
    points = points_of(drawer.source.claim, pair)
    single = [Expert(fit, points) for fit in _SINGLE]
    joint = [Expert(fit, points) for fit in _JOINT]
    searched = drawer.kept(pair)
    if len(searched[0]):
        order = drawer.rng.permutation(2 * len(searched[0]))
        rows, sides = np.concatenate(searched)[order], np.repeat([0, 1], len(searched[0]))[order]
        for expert in single:
            expert.learn(rows, sides)
    reference: FloatArray | None = None
    won, bets = 0.0, 0
    while drawer.drawn < (last := until[won > _WINNING]):
        n = min(max(_FIRST, int(bets * _GROWTH)), last - drawer.drawn, BATCH)
        rows, sides = drawer.tossed(*pair, n, alone=alone)
        bets += n
        for expert in single:
            expert.stake(rows, sides)
        if reference is not None:
            joint_rows = _beside(drawer, rows, sides, reference)
            for expert in joint:
                expert.stake(joint_rows, sides)
        if (sides == 0).any():
            reference = rows[sides == 0]
        won = mixed_log_wealth([*single, *joint])
        total = math.log(wealth[0] + wealth[1] * math.exp(min(won, _HUGE))) if won > -math.inf or wealth[0] else won
        process.append((drawer.drawn, round(total / math.log(10), 4)))
        if total >= -math.log(alpha):
            best = max((e for e in (*single, *joint) if e.bet is not None), key=lambda e: e.log_wealth.max())
            assert best.bet is not None
            log.info(f"the claim is violated: {drawer.drawn:,} draws")
            point = best.bet.epsilon, best.bet.delta
            return Stopped(total, process, point, best in joint), math.exp(min(won, _HUGE))
    return None, math.exp(min(won, _HUGE))


def _beside(drawer: Drawer, rows: FloatArray, sides: IntArray, known: FloatArray) -> FloatArray:
    """Return rows of draws beside known draws at x, in the same places of an earlier answer, (n, f')."""
    place = np.empty(len(rows), np.int64)
    for side in (0, 1):
        place[sides == side] = np.arange((sides == side).sum())
    return drawer.reader.beside(rows, known[place % len(known)])


#: Scores of a draw by itself.
_SINGLE: tuple[Fit, ...] = (*QUICK, TREES)
#: Scores of a draw beside a known one.
_JOINT: tuple[Fit, ...] = (
    of_columns(1, None, learned),
    TREES,
    of_columns(-1, None, frequencies, whole=True),
)
