"""Measurement of an audit: bounds of ε and δ for each game, whether a claim is violated, and what was not tested.

Every figure that can raise an alarm is wrong with probability at most alpha. All alphas sum to `FAMILY` (Bonferroni),
whatever the dependence between the figures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mechanisms.guarantee import gaussian_epsilon
from sottovoce.adversary.audit.games import Game
from sottovoce.adversary.estimators import audit as adversary

log = logging.getLogger(__name__)

#: Largest probability that an audit of true claims raises any alarm.
FAMILY = 1e-3
#: Verdicts. An audit never shows that a claim is true.
VIOLATED, NOT_FOUND, NO_CLAIM = "violated", "no violation found", "no claim"


@dataclass(frozen=True)
class Audit:
    """Settings of an audit: names of mechanisms (() for all), draws of each input, δ of a further comparison, seed."""

    mechanisms: tuple[str, ...] = ()
    draws: int = 200_000
    delta: float = 1e-3
    seed: int = 1


@dataclass(frozen=True)
class Finding:
    """Measurement of one game. Bounds are lower bounds.

    Args:
        game: The game.
        draws: Draws of each input.
        alpha: Error probability of each figure.
        pure: Bound of the pure ε.
        at_delta: Bound of ε at δ.
        excess: For each claim, the point that looked worst.
        shown: Measured δ of the closest claim at each of `game.shown`.
        mu: Bound of μ, if the claim is a Gaussian's curve.
        delta: δ of the audit.
        differ: Number of rows that a mechanism draws otherwise in small batches than in a large one.
    """

    game: Game
    draws: int
    alpha: float
    pure: adversary.LowerBound
    at_delta: adversary.LowerBound
    excess: tuple[adversary.Excess, ...]
    shown: tuple[adversary.Excess, ...]
    mu: float | None
    delta: float
    differ: int

    @property
    def verdict(self) -> str:
        """Return the verdict. A row that depends on others is a violation: a claim is about one row alone."""
        if not self.game.claims:
            return NO_CLAIM
        return VIOLATED if self.violations or self.differ else NOT_FOUND

    @property
    def violations(self) -> list[tuple[float, float, adversary.Counts]]:
        """Return the claimed points (ε, δ) that are violated, each with the counts that show it."""
        theorem = self.game.theorem
        bounds = ((theorem.pure, 0.0, self.pure), (theorem.at_delta, self.delta, self.at_delta))
        return [
            *((e.epsilon, e.claimed, e.counts) for e in (*self.excess, *self.shown) if e.violated),
            *((epsilon, delta, b.counts) for epsilon, delta, b in bounds if b.epsilon > epsilon),
        ]

    def entry(self) -> dict[str, Any]:
        """Return the entry of the finding, JSON-ready but for infinities."""
        at_delta = max(self.at_delta.epsilon, gaussian_epsilon(self.mu, self.delta) if self.mu else 0.0)
        kinds = ("worst of the theorem", "worst of the exact law")
        points = [*(("shown", e) for e in self.shown), *zip(kinds, self.excess, strict=False)]
        claims = entry(
            self.game,
            self.verdict,
            draws=self.draws,
            confidence=1 - self.alpha,
            measured=self.pure.epsilon,
            measured_at_delta=at_delta,
            measured_mu=self.mu,
            deltas=[
                {"what": kind, "epsilon": e.epsilon, "claimed": e.claimed, "measured": e.measured} for kind, e in points
            ],
            reach=adversary.largest(self.draws, self.alpha),
        )
        differ = f"; {self.differ} rows differ in small batches" if self.differ else ""
        return claims | {"pair": self.game.pair + differ}


def tests(games: Iterable[Game]) -> int:
    """Return the number of figures that may be wrong.

    Each game has two bounds of ε, one of δ for each claim and for each shown ε, and one of μ if it is claimed.
    """
    return sum(2 + len(game.claims) + len(game.shown) + game.gaussian for game in games if game.claims) or 1


def measure(games: list[Game], audit: Audit, *, family: float = FAMILY) -> list[Finding]:
    """Return the games' findings, whose false alarms have probability `family` together."""
    alpha = family / tests(games)
    findings = []
    for game in games:
        n = max(adversary.MIN_DRAWS, int(audit.draws * game.share))
        result = adversary.scores(game.draw(0, n, audit.seed), game.draw(1, n, audit.seed), *game.fits)
        finding = Finding(
            game=game,
            draws=n,
            alpha=alpha,
            pure=adversary.lower_epsilon(result, _numeric(game.theorem.numeric_delta, game.theorem.pure), alpha),
            at_delta=adversary.lower_epsilon(
                result, audit.delta + _numeric(game.theorem.numeric_delta, game.theorem.at_delta), alpha
            ),
            excess=tuple(adversary.excess(result, c.points, alpha) for c in game.claims),
            shown=tuple(adversary.excess(result, point[None], alpha) for point in game.shown),
            mu=adversary.lower_mu(result, alpha) if game.gaussian else None,
            delta=audit.delta,
            differ=0 if game.differing is None else game.differing(audit.seed),
        )
        findings.append(finding)
        log.info(f"{game.name} ({game.about}): ε at least {finding.pure.epsilon:.3g}, {finding.verdict}")
    return findings


def _numeric(delta: float, epsilon: float) -> float:
    """Return the most that a sampler's total variation adds to a δ at ε."""
    return min(1.0, delta * (1 + math.exp(min(epsilon, 14.0))))


#: What no audit tests, beside events too rare for its draws.
_NOT_TESTED = (
    "inputs beside the pair of each row, so no fault at one value or one direction of a vector",
    "sizes of a batch and numbers of draws in a row that were not drawn, and faults that come with time or load",
    "more than three bits or coordinates of a release together",
)


def results(audit: Audit, entries: list[dict[str, Any]], *, family: float, figures: int) -> dict[str, Any]:
    """Return the results of an audit, JSON-ready but for infinities."""
    alpha, draws = family / figures, max((item.get("draws", 0) for item in entries), default=0)
    half = max(1, draws - draws // 2)
    rare = (
        f"rare leaks: no event with a probability below about e^ε/{1 / float(adversary.high(0, half, alpha / 2)):,.0f} "
        "can show one, and one that both inputs give must be more frequent"
    )
    return {
        "draws": audit.draws,
        "delta": audit.delta,
        "seed": audit.seed,
        "false_alarm_rate": family,
        "tests": figures,
        "confidence_each": 1 - alpha,
        "violated": sum(item["verdict"] == VIOLATED for item in entries),
        "not_tested": [_NOT_TESTED[0], rare, *_NOT_TESTED[1:]],
        "entries": entries,
    }


def entry(game: Game, verdict: str, *, draws: int, confidence: float, **measured: Any) -> dict[str, Any]:
    """Return the entry of a game: its claims, and what was measured of them."""
    return {
        "name": game.name,
        "about": game.about,
        "pair": game.pair,
        "worst_case": game.worst,
        "claimed": game.theorem.pure,
        "exact": None if game.law is None else game.law.pure,
        "claimed_at_delta": game.theorem.at_delta,
        "exact_at_delta": None if game.law is None else game.law.at_delta,
        **measured,
        "draws": draws,
        "confidence": confidence,
        "verdict": verdict,
    }
