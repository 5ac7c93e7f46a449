"""Certificates: files that show a violation to anyone, with its pair, test, counts and confidence; and their check."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from simulations.errors import UserError, no_file
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.drawer import Drawer
from sottovoce.adversary.audit.external.outputs import Part
from sottovoce.adversary.audit.external.pairs import BESIDE, DRAW, rows_of
from sottovoce.adversary.audit.external.sequential import Stopped, beside, points_of
from sottovoce.adversary.audit.external.source import BATCH, Source
from sottovoce.adversary.audit.external.spaces import Pair
from sottovoce.adversary.audit.measure import Finding
from sottovoce.adversary.estimators.audit import Counts, Event, excess_of
from sottovoce.adversary.estimators.betting import Bet

FORMAT = "sottovoce-audit-certificate-1"
#: Probability that a check of new draws confirms a false violation.
CHECKED = 1e-3
#: Draws of the first bets of a check.
_FEWEST = 32


def certificate(source: Source, pair: Pair, finding: Finding, *, draws: int, seed: int) -> dict[str, Any]:
    """Return the certificate of a violated finding, JSON-ready: of its figures, the one that is violated most surely.

    Args:
        source: Source of the draws.
        pair: Pair of inputs.
        finding: Violated finding.
        draws: Draws of the audit.
        seed: Seed of the audit.
    """
    epsilon, delta, event, counts = max(
        finding.violations, key=lambda each: excess_of(each[3], each[0], finding.alpha) - each[1]
    )
    test = finding.fitted[event.of]
    assert isinstance(test, Part)
    return _about(source, draws, seed) | {
        "what": finding.game.about,
        "pair": list(pair),
        "claimed": {"epsilon": epsilon, "delta": delta},
        "measured": {
            "delta": excess_of(counts, epsilon, finding.alpha),
            "confidence": 1 - finding.alpha,
            "hits": counts.hits,
            "misses": counts.misses,
            "draws": [counts.own, counts.other],
        },
        "event": {"swapped": event.swapped, "threshold": event.threshold, "test": test.stated()},
    }


def certificate_of_bets(
    source: Source, stopped: Stopped, claimed: tuple[float, float], *, alpha: float, draws: int, seed: int
) -> dict[str, Any]:
    """Return the certificate of a violation that stopped an audit, JSON-ready.

    Args:
        source: Source of the draws.
        stopped: The violation.
        claimed: Claimed point (ε, δ) of the last bet.
        alpha: Probability that a true claim stops the audit.
        draws: Draws of the audit, at both inputs and of the search.
        seed: Seed of the audit.
    """
    return _about(source, draws, seed) | {
        "what": BESIDE if stopped.beside else DRAW,
        "pair": list(stopped.pair),
        "claimed": {"epsilon": claimed[0], "delta": claimed[1]},
        "measured": {"log10_wealth": stopped.log_wealth / math.log(10), "confidence": 1 - alpha},
        "process": [list(item) for item in stopped.process],
        "bet": stopped.bet.stated() | {"test": stopped.test.stated()},
    }


def _about(source: Source, draws: int, seed: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "command": source.command,
        "claim": source.claim.stated(),
        "draws": draws,
        "seed": seed,
        "versions": {
            "sottovoce": version("sottovoce"),
            "python": platform.python_version(),
            "audited": source.claim.version,
        },
    }


def load(path: Path) -> dict[str, Any]:
    """Read the certificate in a file.

    Raises:
        UserError: The file holds none.
    """
    if not path.is_file():
        raise no_file(path)
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is no JSON: {error}") from error
    if not isinstance(written, Mapping) or written.get("format") != FORMAT:
        raise UserError(f"{path}: is no certificate of this version ({FORMAT})")
    return dict(written)


def checked(written: Mapping[str, Any], source: Source, *, seed: int | None = None) -> dict[str, Any]:
    """Check a certificate by the same number of new draws.

    The event is that of the certificate. The claim is the source's current one, so that a corrected claim is not
    violated.

    Args:
        written: Certificate.
        source: Source of new draws.
        seed: Seed of the new draws; None for the one after the certificate's.

    Returns:
        Counts, and `confirmed`, which is wrong with probability at most 1e-3.

    Raises:
        UserError: The certificate is damaged, or is about another claim.
    """
    stated = Claim.of(written.get("claim"), "certificate")
    if stated.stated() != source.claim.stated():
        raise UserError(f"certificate: is about another claim than {source.claim.name} makes now; audit it anew")
    if "bet" in written:
        return _bet_again(written, source, seed)
    try:
        pair, event, claimed = written["pair"], written["event"], written["claimed"]
        test = Part.of(event["test"])
        x, other = pair
        epsilon, delta = float(claimed["epsilon"]), float(claimed["delta"])
        threshold, what, n = float(event["threshold"]), str(written["what"]), int(written["measured"]["draws"][0])
        seed = int(written["seed"]) + 1 if seed is None else seed
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"certificate: is damaged: {type(error).__name__} {error}") from error
    rows = rows_of(Drawer(source, seed), (x, other), what, n)
    counts: Counts = Event(0, bool(event["swapped"]), threshold).counted(test(rows[0]), test(rows[1]))
    measured = excess_of(counts, epsilon, CHECKED)
    return {
        "confirmed": measured > delta,
        "epsilon": epsilon,
        "claimed": delta,
        "measured": measured,
        "hits": counts.hits,
        "misses": counts.misses,
        "draws": n,
        "seed": seed,
        "confidence": 1 - CHECKED,
    }


def _bet_again(written: Mapping[str, Any], source: Source, seed: int | None) -> dict[str, Any]:
    """Check by the certificate's bet on new draws, at most four times as many as those of the audit."""
    try:
        bet, test = Bet.of(written["bet"]), Part.of(written["bet"]["test"])
        x, other = written["pair"]
        joint, most = written["what"] == BESIDE, 4 * int(written["draws"])
        seed = int(written["seed"]) + 1 if seed is None else seed
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"certificate: is damaged: {type(error).__name__} {error}") from error
    drawer = Drawer(source, seed)
    points = points_of(source.claim, (x, other))
    if not np.isclose(points, [bet.epsilon, bet.delta], rtol=0, atol=1e-9).all(axis=1).any():
        raise UserError("certificate: is damaged: its point is not one that is claimed of its pair")
    wealth, known = 0.0, None
    while wealth < -math.log(CHECKED) and drawer.drawn < most:
        rows, sides = drawer.tossed(x, other, min(max(_FEWEST, drawer.drawn // 4), BATCH, most - drawer.drawn))
        if not joint or known is not None:
            seen = rows if known is None else beside(drawer, rows, sides, known)
            with np.errstate(divide="ignore"):
                wealth += float(np.log(bet.factors(test(seen), sides)).sum())
        if joint and (sides == 0).any():
            known = rows[sides == 0]
    return {
        "confirmed": wealth >= -math.log(CHECKED),
        "epsilon": bet.epsilon,
        "claimed": bet.delta,
        "log10_wealth": wealth / math.log(10),
        "draws": drawer.drawn,
        "seed": seed,
        "confidence": 1 - CHECKED,
    }
