"""Audit of an external mechanism: a search that stops at a violation, a test on as many new draws, certificates.

A certificate is a file that shows a violation to anyone, with its pair, draws and confidence. `checked` draws anew.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simulations.errors import UserError, no_file
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.draws import ALONE, Drawer, Pair, games_of
from sottovoce.adversary.audit.external.search import pair_of, worst_pair
from sottovoce.adversary.audit.external.sequential import Stopped, bet, search
from sottovoce.adversary.audit.external.source import Source
from sottovoce.adversary.audit.measure import (
    FAMILY,
    NOT_FOUND,
    VIOLATED,
    Audit,
    Finding,
    entry,
    measure,
    results,
    tests,
)
from sottovoce.adversary.estimators.audit import MIN_DRAWS, excess_of

FORMAT = "sottovoce-audit-certificate-1"
#: Probability that a check of new draws confirms a false violation.
CHECKED = 1e-3
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
        pair = worst_pair(drawer, draws) if pair is None else pair
    else:
        family = family if draws < LEAST else family / 2
        budget = 2 * draws if draws < LEAST else draws
        pair, violation = search(drawer, budget, family, pair)
        if violation is not None or draws < LEAST:
            return _of_bets(drawer, pair, violation, request, family)
        budget_left = draws // 2
    games = games_of(drawer, pair)
    findings = measure(games, replace(request, draws=budget_left), family=family)
    certificates = []
    for finding in findings:
        if finding.violations:
            point, measured = _of_finding(finding)
            certificates.append(certificate(source, pair, finding.game.about, point, (drawer.drawn, seed), measured))
    alpha, figures = (family, tests(games)) if fixed else (2 * family, 2 * tests(games))
    result = results(request, [finding.entry() for finding in findings], family=alpha, figures=figures)
    return result | {"certificates": certificates}


def _of_bets(drawer: Drawer, pair: Pair, violation: Stopped | None, request: Audit, family: float) -> dict[str, Any]:
    """Return the results of an audit that ended with its search.

    The bound of a violated claim is the claim itself: it says that ε is larger, not by how much.
    """
    draw, beside, _ = games_of(drawer, pair)
    game = beside if violation is not None and violation.beside else draw
    pure, at_delta = (game.theorem.pure, game.theorem.at_delta) if violation is not None else (0.0, 0.0)
    result = entry(
        game,
        NOT_FOUND if violation is None else VIOLATED,
        draws=drawer.drawn,
        confidence=1 - family,
        measured=0.0 if math.isinf(pure) else pure,
        measured_at_delta=at_delta,
        measured_mu=None,
        deltas=[],
        reach=math.inf,
    )
    certificates = []
    if violation is not None:
        measured = {"log10_wealth": violation.log_wealth / math.log(10), "confidence": 1 - family}
        written = certificate(drawer.source, pair, game.about, violation.point, (drawer.drawn, request.seed), measured)
        certificates = [written | {"process": [list(item) for item in violation.process]}]
    return results(request, [result], family=family, figures=1) | {"certificates": certificates}


def _only(source: Source) -> Pair | None:
    """Return the one pair that a claim names; None if there are more."""
    if len(source.claim.pairs) == 1:
        x, other = pair_of(source.claim, source.claim.pairs[0])
        if not source.claim.distance(x, other):
            raise UserError(f"{source.claim.name}: there are no two neighbouring inputs that differ")
        return x, other
    return None


# --- certificates


def certificate(
    source: Source, pair: Pair, about: str, point: tuple[float, float], drawn: tuple[int, int], measured: dict[str, Any]
) -> dict[str, Any]:
    """Return the certificate of a violated claim, JSON-ready.

    `about` is what was drawn: `DRAW`, `BESIDE` or `ALONE`. The claimed point is (ε, δ). `drawn` are the draws of the
    audit, at both inputs and of the search, and its seed.
    """
    return {
        "format": FORMAT,
        "command": source.command,
        "claim": source.claim.stated(),
        "what": about,
        "pair": list(pair),
        "claimed": {"epsilon": point[0], "delta": point[1]},
        "draws": drawn[0],
        "seed": drawn[1],
        "versions": {
            "sottovoce": version("sottovoce"),
            "python": platform.python_version(),
            "audited": source.claim.version,
        },
        "measured": measured,
    }


def _of_finding(finding: Finding) -> tuple[tuple[float, float], dict[str, Any]]:
    """Return the claimed point of a finding that is violated most surely, and what was measured there."""
    epsilon, delta, counts = max(
        finding.violations, key=lambda violation: excess_of(violation[2], violation[0], finding.alpha) - violation[1]
    )
    return (epsilon, delta), {
        "delta": excess_of(counts, epsilon, finding.alpha),
        "confidence": 1 - finding.alpha,
        "hits": counts.hits,
        "misses": counts.misses,
        "draws": [counts.own, counts.other],
    }


def load(path: Path) -> dict[str, Any]:
    """Read the certificate in a file.

    Raises:
        UserError: The file holds none.
    """
    if not path.is_file():
        raise no_file(path)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is no JSON: {error}") from error
    if not isinstance(entries, Mapping) or entries.get("format") != FORMAT:
        raise UserError(f"{path}: is no certificate of this version ({FORMAT})")
    return dict(entries)


def checked(written: Mapping[str, Any], source: Source, *, seed: int | None = None) -> dict[str, Any]:
    """Check a certificate by bets on new draws at its pair, at most four times as many as the audit took.

    The bets learn from the new draws alone. The claim is the source's current one, so that a corrected claim is not
    violated.

    The default seed of the new draws is the one after the certificate's. The result has the claimed point, the wealth,
    and `confirmed`, which is wrong with probability at most 1e-3.

    Raises:
        UserError: The certificate is damaged, or is about another claim.
    """
    claim = Claim.of(written.get("claim"), "certificate")
    if claim.stated() != source.claim.stated():
        raise UserError(f"certificate: is about another claim than {source.claim.name} makes now; audit it anew")
    try:
        (x, other), single, limit = written["pair"], written["what"] == ALONE, 4 * int(written["draws"])
        epsilon, delta = float(written["claimed"]["epsilon"]), float(written["claimed"]["delta"])
        seed = int(written["seed"]) + 1 if seed is None else seed
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"certificate: is damaged: {type(error).__name__} {error}") from error
    drawer, process = Drawer(source, seed), list[tuple[int, float]]()
    result, _ = bet(drawer, (x, other), (limit, limit), CHECKED, (0.0, 1.0), process, alone=single)
    if result is not None:
        epsilon, delta = result.point
    return {
        "confirmed": result is not None,
        "epsilon": epsilon,
        "claimed": delta,
        "log10_wealth": process[-1][1] if process else 0.0,
        "draws": drawer.drawn,
        "seed": seed,
        "confidence": 1 - CHECKED,
    }
