"""What one audit measures: of each game bounds of ε and of δ, and whether what is claimed holds.

Every figure that can raise an alarm is wrong with probability at most alpha, and alphas make `FAMILY` together
(Bonferroni), whatever the dependence between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mechanisms.guarantee import gaussian_epsilon
from sottovoce.adversary.audit.games import Game
from sottovoce.adversary.estimators import audit as adversary

#: Largest probability that an audit of sound mechanisms raises any alarm.
FAMILY = 1e-3


@dataclass(frozen=True)
class Audit:
    """What to audit. mechanisms: names of `names`, or other people's; all of `names` where there are none. draws: of
    each input. delta: at which ε is compared beside the pure one. seed: of the draws."""

    mechanisms: tuple[str, ...] = ()
    draws: int = 200_000
    delta: float = 1e-3
    seed: int = 1


@dataclass(frozen=True)
class Finding:
    """One game, measured. Bounds are lower bounds. excess: of each claim the point that looked worst. shown: the δ of
    the closest claim at each of `game.shown`.

    mu: a lower bound of μ, where the claim is a Gaussian's curve. reach: the largest ε that so many draws could show.
    fitted: the scores that events are about.
    """

    game: Game
    draws: int
    alpha: float
    pure: adversary.LowerBound
    at_delta: adversary.LowerBound
    excess: tuple[adversary.Excess, ...]
    shown: tuple[adversary.Excess, ...]
    mu: float | None
    reach: float
    delta: float
    fitted: tuple[adversary.Score, ...]

    @property
    def verdict(self) -> str:
        """violated, holds, or "no claim" where nothing is promised."""
        if not self.game.claims:
            return "no claim"
        return "violated" if self.violations else "holds"

    @property
    def violations(self) -> list[tuple[float, float, adversary.Event, adversary.Counts]]:
        """Points (ε, δ) of what is claimed that do not hold, each with the event that shows it."""
        theorem = self.game.theorem
        bounds = ((theorem.pure, 0.0, self.pure), (theorem.at_delta, self.delta, self.at_delta))
        return [
            *((e.epsilon, e.claimed, e.event, e.counts) for e in (*self.excess, *self.shown) if e.violated),
            *((epsilon, delta, b.event, b.counts) for epsilon, delta, b in bounds if b.epsilon > epsilon),
        ]


def tests(games: Iterable[Game]) -> int:
    """How many figures there are that may be wrong: of each game two bounds of ε, one of δ for each claim and for each
    ε that is shown, and one of μ where that is claimed."""
    return sum(2 + len(game.claims) + len(game.shown) + game.gaussian for game in games if game.claims) or 1


def measure(
    games: list[Game], audit: Audit, *, family: float = FAMILY, progress: Callable[[str], None] = lambda line: None
) -> list[Finding]:
    """The games' findings, whose false alarms have probability `family` together."""
    alpha = family / tests(games)
    findings = []
    for game in games:
        n = max(adversary.MIN_DRAWS, int(audit.draws * game.share))
        found = adversary.scores(game.draw(0, n, audit.seed), game.draw(1, n, audit.seed), *game.fits)
        finding = Finding(
            game=game, draws=n, alpha=alpha,
            pure=adversary.lower_epsilon(found, _numeric(game.theorem.numeric_delta, game.theorem.pure), alpha),
            at_delta=adversary.lower_epsilon(
                found, audit.delta + _numeric(game.theorem.numeric_delta, game.theorem.at_delta), alpha
            ),
            excess=tuple(adversary.excess(found, c.points, alpha) for c in game.claims),
            shown=tuple(adversary.excess(found, point[None], alpha) for point in game.shown),
            mu=adversary.lower_mu(found, alpha) if game.gaussian else None,
            reach=adversary.largest(n, alpha), delta=audit.delta, fitted=found.fitted,
        )  # fmt: skip
        findings.append(finding)
        progress(f"{game.name} ({game.about}): ε at least {finding.pure.epsilon:.3g}, {finding.verdict}")
    return findings


def _numeric(delta: float, epsilon: float) -> float:
    """What a sampler's total variation adds to a δ at ε, at most."""
    return min(1.0, delta * (1 + math.exp(min(epsilon, 14.0))))


def _of_mu(finding: Finding) -> float:
    """ε at the audit's δ of the Gaussian curve that was refuted; 0 where none is claimed."""
    return gaussian_epsilon(finding.mu, finding.delta) if finding.mu else 0.0


def results(audit: Audit, entries: list[dict[str, Any]], *, family: float, figures: int) -> dict[str, Any]:
    """What an audit has found: how it was made, how many entries are violated, and the entries. figures: that share the
    false alarms, whose probability is `family` together. JSON-ready but for infinities."""
    return {
        "draws": audit.draws,
        "delta": audit.delta,
        "seed": audit.seed,
        "false_alarm_rate": family,
        "tests": figures,
        "confidence_each": 1 - family / figures,
        "violated": sum(each["verdict"] == "violated" for each in entries),
        "entries": entries,
    }


def entry(finding: Finding) -> dict[str, Any]:
    """JSON-ready but for infinities."""
    game = finding.game
    return {
        "name": game.name,
        "about": game.about,
        "pair": game.pair,
        "worst_case": game.worst,
        "claimed": game.theorem.pure,
        "exact": None if game.law is None else game.law.pure,
        "measured": finding.pure.epsilon,
        "claimed_at_delta": game.theorem.at_delta,
        "exact_at_delta": None if game.law is None else game.law.at_delta,
        "measured_at_delta": max(finding.at_delta.epsilon, _of_mu(finding)),
        "measured_mu": finding.mu,
        "deltas": [
            {"what": what, "epsilon": e.epsilon, "claimed": e.claimed, "measured": e.measured}
            for what, e in (
                *(("shown", e) for e in finding.shown),
                *zip(("worst of the theorem", "worst of the exact law"), finding.excess, strict=False),
            )
        ],
        "draws": finding.draws,
        "confidence": 1 - finding.alpha,
        "reach": finding.reach,
        "verdict": finding.verdict,
    }
