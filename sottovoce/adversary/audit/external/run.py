"""Audit of an external mechanism: a search that stops at a violation, a test on as many new draws, certificates."""

from __future__ import annotations

import math
from typing import Any

from simulations.errors import UserError
from sottovoce.adversary.audit.external.certificate import certificate, certificate_of_bets
from sottovoce.adversary.audit.external.draws import BESIDE, DRAW, Drawer, Pair, games_of
from sottovoce.adversary.audit.external.search import Pool, pair_of, worst_pair
from sottovoce.adversary.audit.external.sequential import Searched, search
from sottovoce.adversary.audit.external.source import Source, shown
from sottovoce.adversary.audit.measure import FAMILY, NOT_FOUND, VIOLATED, Audit, entry, measure, results, tests
from sottovoce.adversary.estimators.audit import MIN_DRAWS

#: Limits of the draws of each input. A half of them is for the search, and a quarter of the rest for a pair of draws.
#: All draws of a game are in memory at once.
LEAST, MOST = 8 * MIN_DRAWS, 4_000_000
#: Least draws of each input for a search that bets.
FEWEST = 100


def check_seed(seed: int) -> None:
    """Check that a seed can be a root seed.

    Raises:
        UserError: It is negative.
    """
    if seed < 0:
        raise UserError(f"--seed {seed}: must be at least 0")


def audit_source(
    source: Source, *, draws: int, seed: int, family: float = FAMILY, fixed: bool = False
) -> dict[str, Any]:
    """Run an audit of a source.

    The search bets on what it finds, and a violation stops the audit (`audit.external.sequential`). If none is found,
    the other half of the draws measures how close the claim is. With fewer draws than `LEAST`, all are for the search.

    Args:
        source: Source of the draws.
        draws: Draws of each of two inputs, at most. Half of them search for the worst pair, if the claim names more
            than one.
        seed: Seed of the draws.
        family: Probability of any false alarm.
        fixed: Whether to measure with all draws, and not to stop at a violation.

    Returns:
        Results in the form of `adversary.audit.run.run`, and `certificates`, one of each violated entry.

    Raises:
        UserError: The draws or the seed are invalid, or the source does not follow its claim.
    """
    check_seed(seed)
    minimum = LEAST if fixed else FEWEST
    if not minimum <= draws <= MOST:
        raise UserError(f"--draws {draws}: take from {minimum:,} to {MOST:,} draws")
    claim, drawer = source.claim, Drawer(source, seed)
    pair = _only(source)
    budget_left = draws if pair is not None else draws // 2
    request = Audit(draws=draws, delta=claim.at, seed=seed)
    if fixed:
        pair = worst_pair(Pool(drawer), draws) if pair is None else pair
    else:
        family = family if draws < LEAST else family / 2
        budget = 2 * draws if draws < LEAST else draws
        search_result = search(drawer, budget, family, pair)
        if search_result.stopped is not None or draws < LEAST:
            return _of_bets(source, drawer, search_result, request, family)
        pair, budget_left = search_result.pair, draws // 2
    games = games_of(drawer, pair)
    findings = measure(games, Audit(draws=budget_left, delta=claim.at, seed=seed), family=family)
    certificates = [
        certificate(source, pair, finding, draws=drawer.drawn, seed=seed) for finding in findings if finding.violations
    ]
    alpha, figures = (family, tests(games)) if fixed else (2 * family, 2 * tests(games))
    result = results(request, [entry(finding) for finding in findings], family=alpha, figures=figures)
    return result | {"certificates": certificates}


def _of_bets(source: Source, drawer: Drawer, searched: Searched, asked: Audit, family: float) -> dict[str, Any]:
    """Return the results of an audit that ended with its search.

    The bound of a violated claim is the claim itself: it says that ε is larger, not by how much.
    """
    claim, pair, violation = source.claim, searched.pair, searched.stopped
    of_pair = claim.of_pair(*pair, claim.at)
    pure, at_delta = (of_pair.pure, of_pair.at_delta) if violation is not None else (0.0, 0.0)
    entries = {
        "name": " ".join(part for part in (claim.name, claim.version) if part),
        "about": BESIDE if violation is not None and violation.beside else DRAW,
        "pair": f"{shown(pair[0])} / {shown(pair[1])}",
        "worst_case": math.inf if claim.epsilon is None else claim.epsilon,
        "claimed": of_pair.pure,
        "exact": None,
        "measured": 0.0 if math.isinf(pure) else pure,
        "claimed_at_delta": of_pair.at_delta,
        "exact_at_delta": None,
        "measured_at_delta": at_delta,
        "measured_mu": None,
        "deltas": [],
        "draws": drawer.drawn,
        "confidence": 1 - family,
        "reach": math.inf,
        "verdict": NOT_FOUND if violation is None else VIOLATED,
    }
    certificates = []
    if violation is not None:
        certificates = [certificate_of_bets(source, violation, alpha=family, draws=drawer.drawn, seed=asked.seed)]
    return results(asked, [entries], family=family, figures=1) | {"certificates": certificates}


def _only(source: Source) -> Pair | None:
    """Return the one pair that a claim names; None if there are more."""
    if len(source.claim.pairs) == 1:
        x, other = pair_of(source.claim, source.claim.pairs[0])
        if not source.claim.distance(x, other):
            raise UserError(f"{source.claim.name}: there are no two neighbouring inputs that differ")
        return x, other
    return None
