"""Certificates: files that show a violation to anyone, with its pair, draws and confidence; and their check."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simulations.errors import UserError, no_file
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.draws import ALONE, BESIDE, DRAW, Drawer, Pair
from sottovoce.adversary.audit.external.search import Pool
from sottovoce.adversary.audit.external.sequential import Stopped, bet
from sottovoce.adversary.audit.external.source import Source
from sottovoce.adversary.audit.measure import Finding
from sottovoce.adversary.estimators.audit import excess_of

FORMAT = "sottovoce-audit-certificate-1"
#: Probability that a check of new draws confirms a false violation.
CHECKED = 1e-3


def certificate(source: Source, pair: Pair, finding: Finding, *, draws: int, seed: int) -> dict[str, Any]:
    """Return the certificate of a violated finding, JSON-ready: of its figures, the one that is violated most surely.

    Args:
        source: Source of the draws.
        pair: Pair of inputs.
        finding: Violated finding.
        draws: Draws of the audit.
        seed: Seed of the audit.
    """
    epsilon, delta, _, counts = max(
        finding.violations, key=lambda violation: excess_of(violation[3], violation[0], finding.alpha) - violation[1]
    )
    measurement = {
        "delta": excess_of(counts, epsilon, finding.alpha),
        "confidence": 1 - finding.alpha,
        "hits": counts.hits,
        "misses": counts.misses,
        "draws": [counts.own, counts.other],
    }
    kind = finding.game.about
    return _certificate(source, pair, kind, (epsilon, delta), draws=draws, seed=seed) | {"measured": measurement}


def certificate_of_bets(source: Source, stopped: Stopped, *, alpha: float, draws: int, seed: int) -> dict[str, Any]:
    """Return the certificate of a violation that stopped an audit, JSON-ready.

    Args:
        source: Source of the draws.
        stopped: The violation.
        alpha: Probability that a true claim stops the audit.
        draws: Draws of the audit, at both inputs and of the search.
        seed: Seed of the audit.
    """
    kind = BESIDE if stopped.beside else DRAW
    return _certificate(source, stopped.pair, kind, stopped.point, draws=draws, seed=seed) | {
        "measured": {"log10_wealth": stopped.log_wealth / math.log(10), "confidence": 1 - alpha},
        "process": [list(item) for item in stopped.process],
    }


def _certificate(
    source: Source, pair: Pair, about: str, point: tuple[float, float], *, draws: int, seed: int
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "command": source.command,
        "claim": source.claim.stated(),
        "what": about,
        "pair": list(pair),
        "claimed": {"epsilon": point[0], "delta": point[1]},
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

    Args:
        written: Certificate.
        source: Source of new draws.
        seed: Seed of the new draws; None for the one after the certificate's.

    Returns:
        The claimed point, the wealth, and `confirmed`, which is wrong with probability at most 1e-3.

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
    result, _ = bet(drawer, Pool(drawer), (x, other), (limit, limit), CHECKED, (0.0, 1.0), process, alone=single)
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
