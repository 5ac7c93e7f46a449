"""The audit: what is claimed and what is measured, side by side, and whether any claim is violated.

Every figure that can raise an alarm is wrong with probability at most alpha, and alphas make `FAMILY` together
(Bonferroni), whatever the dependence between them: a whole audit of sound mechanisms raises any alarm with
probability at most 1e-3.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanisms.catalogue import admit, nearest
from mechanisms.own import installed, is_reference
from server.attacks import audit as adversary
from simulations.audit.client_games import DEVICE, PARTS
from simulations.audit.clients import Clients
from simulations.audit.games import Game
from simulations.audit.own import games_of
from simulations.audit.own import names as mechanisms
from simulations.audit.timing import TIMING, Timed, pairs_of, timed
from simulations.errors import UserError
from simulations.output.atomic import staged
from simulations.output.jsonable import json_ready
from simulations.output.markdown import number
from simulations.output.markdown import table as markdown

#: Largest probability that an audit of sound mechanisms raises any alarm.
FAMILY = 1e-3
#: Draws of each input, at most: all of a game are held at once.
_MOST_DRAWS = 2_000_000


def names() -> tuple[str, ...]:
    """What can be audited."""
    return (*mechanisms(), *PARTS, TIMING)


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

    reach: the largest ε that so many draws could show.
    """

    game: Game
    draws: int
    alpha: float
    pure: adversary.LowerBound
    at_delta: adversary.LowerBound
    excess: tuple[adversary.Excess, ...]
    shown: tuple[adversary.Excess, ...]
    reach: float

    @property
    def verdict(self) -> str:
        """violated, holds, or "no claim" where nothing is promised."""
        theorem = self.game.theorem
        if not self.game.claims:
            return "no claim"
        broken = self.pure.epsilon > theorem.pure or self.at_delta.epsilon > theorem.at_delta
        return "violated" if broken or any(e.violated for e in (*self.excess, *self.shown)) else "holds"


def check(audit: Audit) -> None:
    """UserError on what cannot be audited."""
    for name in audit.mechanisms:
        if name not in names() and (is_reference(name) or name in installed()):
            admit(name)
        elif name not in names():
            near = nearest(name, (*names(), *installed()))
            raise UserError(f"--mechanism {name}: there is none of that name; {near}")
    if not 0 < audit.delta < 1:
        raise UserError(f"--delta {audit.delta:g}: must be above 0 and below 1")
    if audit.seed < 0:
        raise UserError(f"--seed {audit.seed}: must be at least 0")
    least = adversary.MIN_DRAWS * 10  # whole shuffles are a tenth of the draws
    if not least <= audit.draws <= _MOST_DRAWS:
        raise UserError(
            f"--draws {audit.draws}: at the confidence of an audit take from {least:,} to {_MOST_DRAWS:,} draws"
        )


def run(audit: Audit, *, family: float = FAMILY, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measure everything that is asked for: one entry a game, and one for each client's ledger. `violated` counts the
    claims that do not hold; by false alarms it is above 0 with probability at most `family`. UserError as in `check`.
    """
    check(audit)
    games: list[Game] = []
    clients: dict[str, Clients] = {}
    times: list[Timed] = []
    with tempfile.TemporaryDirectory(prefix="sottovoce-audit-") as folder:
        for name in dict.fromkeys(audit.mechanisms or names()):
            if name == TIMING:
                times = timed(Clients(Path(folder) / name, deployed=True), pairs_of(audit.draws), audit.seed)
                continue
            if name not in PARTS:
                games += games_of(name, audit.delta)
                continue
            clients[name] = Clients(Path(folder) / name, deployed=name == DEVICE)
            games += PARTS[name](clients[name], audit.delta)
        figures = max(1, tests(games) + sum(each.promised for each in times))
        findings = measure(games, audit, family=family * tests(games) / figures, progress=progress)
        ledgers = {name: asked.charged() for name, asked in clients.items() if asked.answered}
    entries = [entry(finding) for finding in findings] + [each.entry(family / figures) for each in times]
    for name, charged in ledgers.items():
        entries.append(
            {
                "name": name,
                "about": "ledger",
                "pair": f"{charged.releases:,} releases, {charged.charges:,} of them charged as they left",
                "releases": charged.releases,
                "charges": charged.charges,
                "verdict": "holds" if charged.releases == charged.charges else "violated",
            }
        )
    return {
        "draws": audit.draws,
        "delta": audit.delta,
        "seed": audit.seed,
        "false_alarm_rate": family,
        "tests": figures,
        "confidence_each": 1 - family / figures,
        "violated": sum(e["verdict"] == "violated" for e in entries),
        "entries": entries,
    }


def audit(
    *mechanisms: str, draws: int = 200_000, delta: float = 1e-3, seed: int = 1, out: Path | str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Lower bounds of ε, measured, beside what is claimed: what the command `audit` does.

    mechanisms: names of `names`, all where there are none; or other people's, by the name that their package installs
    or as "package.module:Class". draws: of each of two inputs. delta: at which ε is compared
    beside the pure one. out: a folder for audit.json and audit.md, new or empty. Returns the results of `run`, with
    infinities as floats; `violated` counts the claims that do not hold. UserError as in `check`.
    """
    asked = Audit(mechanisms, draws, delta, seed)
    check(asked)
    if out is None:
        return run(asked, progress=progress)
    with staged(Path(out)) as part:
        results = run(asked, progress=progress)
        write(results, part)
    return results


def tests(games: Iterable[Game]) -> int:
    """How many figures can raise an alarm: of each game two bounds of ε, one of δ for each claim and for each ε that is
    shown."""
    return sum(2 + len(game.claims) + len(game.shown) for game in games if game.claims) or 1


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
            reach=adversary.largest(n, alpha),
        )  # fmt: skip
        findings.append(finding)
        progress(f"{game.name} ({game.about}): ε at least {finding.pure.epsilon:.3g}, {finding.verdict}")
    return findings


def _numeric(delta: float, epsilon: float) -> float:
    """What a sampler's total variation adds to a δ at ε, at most."""
    return min(1.0, delta * (1 + math.exp(min(epsilon, 14.0))))


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
        "measured_at_delta": finding.at_delta.epsilon,
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


HEADINGS = (
    "mechanism", "pair", "worst case ε", "claimed ε", "exact ε", "measured ε ≥", "claimed ε(δ)", "measured ε(δ) ≥",
    "claimed δ, measured δ ≥ at ε", "draws", "verdict",
)  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The results as Markdown, with a sentence about what they are worth."""
    rows = []
    for e in results["entries"]:
        name = f"{e['name']}: {e['about']}" if e["about"] else e["name"]
        if "deltas" not in e:
            cells = [name, e["pair"], *[""] * 8, e["verdict"]]
        else:
            shown = [d for d in e["deltas"] if d["what"] == "shown"]
            if e["verdict"] == "violated":
                shown = [d for d in e["deltas"] if d["measured"] > d["claimed"]] or shown
            at = "" if not shown else (
                f"{number(shown[-1]['claimed'])}, {number(shown[-1]['measured'])} at {number(shown[-1]['epsilon'])}"
            )  # fmt: skip
            cells = [
                name, e["pair"], *(number(e[k]) for k in (
                    "worst_case", "claimed", "exact", "measured", "claimed_at_delta", "measured_at_delta"
                )), at, f"{e['draws']:,}", e["verdict"],
            ]  # fmt: skip
        rows.append(cells)
    said = (
        f"{results['violated']} of {len(results['entries'])} entries violated. δ = {results['delta']:g}. "
        f"{results['tests']} figures can raise an alarm, each with confidence {results['confidence_each']:.7f}: sound "
        f"mechanisms raise any with probability at most {results['false_alarm_rate']:g}. A measured ε is a lower "
        "bound: what was not found is not thereby absent."
    )
    return "\n".join([markdown(HEADINGS, rows), "", said])


def write(results: dict[str, Any], folder: Path) -> None:
    """audit.json and audit.md."""
    text = json.dumps(json_ready(results), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "audit.json").write_text(text + "\n", encoding="utf-8")
    (folder / "audit.md").write_text(table(results) + "\n", encoding="utf-8")
