"""Audit: claimed and measured values side by side, and whether any claim is violated.

Every figure that can raise an alarm is wrong with probability at most alpha. All alphas sum to `FAMILY` (Bonferroni),
whatever the dependence between the figures. So a whole audit of true claims raises any alarm with probability at most
1e-3.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mechanisms.catalogue import admit, nearest
from mechanisms.plugin import installed, is_reference
from simulations.errors import UserError
from simulations.output.atomic import staged
from simulations.output.jsonable import json_ready
from simulations.output.markdown import number
from simulations.output.markdown import table as markdown
from sottovoce.adversary.audit.client import DEVICE, PARTS, Clients
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.run import audit_source, check_seed, checked, load
from sottovoce.adversary.audit.external.source import Function, program
from sottovoce.adversary.audit.games import Game, games_of
from sottovoce.adversary.audit.games import names as mechanisms
from sottovoce.adversary.audit.measure import FAMILY, NOT_FOUND, VIOLATED, Audit, measure, tests
from sottovoce.adversary.audit.measure import results as results_of
from sottovoce.adversary.estimators import audit as adversary

#: Most draws of each input: all draws of a game are in memory at once.
_MOST_DRAWS = 2_000_000


def names() -> tuple[str, ...]:
    """Return the names that can be audited."""
    return (*mechanisms(), *PARTS)


def check(audit: Audit) -> None:
    """Check the settings of an audit.

    Raises:
        UserError: They cannot be audited.
    """
    for name in audit.mechanisms:
        if name not in names() and (is_reference(name) or name in installed()):
            admit(name)
        elif name not in names():
            suggestion = nearest(name, (*names(), *installed()))
            raise UserError(f"--mechanism {name}: there is none of that name; {suggestion}")
    if not 0 < audit.delta < 1:
        raise UserError(f"--delta {audit.delta:g}: must be above 0 and below 1")
    check_seed(audit.seed)
    minimum = adversary.MIN_DRAWS * 10  # whole shuffles are a tenth of the draws
    if not minimum <= audit.draws <= _MOST_DRAWS:
        raise UserError(
            f"--draws {audit.draws}: at the confidence of an audit take from {minimum:,} to {_MOST_DRAWS:,} draws"
        )


def run(audit: Audit, *, family: float = FAMILY) -> dict[str, Any]:
    """Measure everything that is requested: one entry a game, and one for each client's ledger.

    `violated` counts the claims that were found to be violated, and `not_tested` names what the audit cannot find.
    False alarms make `violated` positive with probability at most `family`.

    Raises:
        UserError: `check` raises it.
    """
    check(audit)
    games: list[Game] = []
    clients: dict[str, Clients] = {}
    with tempfile.TemporaryDirectory(prefix="sottovoce-audit-") as folder:
        for name in dict.fromkeys(audit.mechanisms or names()):
            if name not in PARTS:
                games += games_of(name, audit.delta)
                continue
            clients[name] = Clients(Path(folder) / name, deployed=name == DEVICE)
            games += PARTS[name](clients[name], audit.delta)
        findings = measure(games, audit, family=family)
        ledgers = {name: client.charged() for name, client in clients.items() if client.answered}
    entries = [finding.entry() for finding in findings]
    for name, (releases, charges) in ledgers.items():
        entries.append(
            {
                "name": name,
                "about": "ledger",
                "pair": f"{releases:,} releases, {charges:,} of them charged as they left",
                "releases": releases,
                "charges": charges,
                "verdict": NOT_FOUND if releases == charges else VIOLATED,
            }
        )
    return results_of(audit, entries, family=family, figures=tests(games))


def audit(
    *mechanisms: Any,
    draws: int = 200_000,
    delta: float = 1e-3,
    seed: int = 1,
    fixed: bool = False,
    out: Path | str | None = None,
) -> dict[str, Any]:
    """Measure lower bounds of ε beside the claimed ones, as the command `audit` does.

    In place of names, it takes a function of an input and a number of draws, which returns as many draws, and its
    `Claim`. It then searches for the worst pair on half of the draws, stops if that violates the claim, and delta is
    the claim's.

    Args:
        *mechanisms: Names of `names`, all without names. Or external mechanisms, by the name that their package
            installs or as "package.module:Class".
        draws: Draws of each of two inputs.
        delta: δ at which ε is compared beside the pure one.
        seed: Seed of the draws.
        fixed: Whether to measure a function with all draws, and not to stop at a violation. Names are always measured
            so.
        out: Folder for audit.json, audit.md and certificates, new or empty.

    Returns:
        The results of `run`, with infinities as floats. For a function, `certificates` has each violation.

    Raises:
        UserError: `check` raises it.
    """
    if any(callable(item) for item in mechanisms):
        if len(mechanisms) != 2 or not isinstance(mechanisms[1], Claim):
            raise UserError("audit: a function is audited alone, with its claim: audit(function, Claim(...))")
        return _kept(lambda: audit_source(Function(*mechanisms), draws=draws, seed=seed, fixed=fixed), out)
    request = Audit(mechanisms, draws, delta, seed)
    check(request)
    return _kept(lambda: run(request), out)


def audit_command(
    command: str,
    *,
    draws: int = 200_000,
    seed: int = 1,
    fixed: bool = False,
    timeout: float = 60.0,
    out: Path | str | None = None,
) -> dict[str, Any]:
    """Run the audit of a program, which states its claim and answers as `adversary.audit.external.source` describes.

    `timeout` is in seconds for an answer. Other arguments are those of `audit`.

    Raises:
        UserError: The program does not do so.
    """

    def audited() -> dict[str, Any]:
        with program(command, timeout) as source:
            return audit_source(source, draws=draws, seed=seed, fixed=fixed)

    return _kept(audited, out)


def _kept(audited: Callable[[], dict[str, Any]], out: Path | str | None) -> dict[str, Any]:
    """Return the results, and write them into a folder if one is named."""
    if out is None:
        return audited()
    with staged(Path(out)) as part:
        results = audited()
        write(results, part)
    return results


def verify(
    path: Path | str,
    mechanism: str | Callable[[Any, int], Any] | None = None,
    *,
    seed: int | None = None,
    timeout: float = 60.0,
) -> dict[str, Any]:
    """Check by new draws whether they confirm a certificate, an audit's file of a violation.

    Args:
        path: File of the certificate.
        mechanism: Command or function that draws. None runs the command that the certificate names, so read it first.
        seed: Seed of the new draws.
        timeout: Seconds to wait for an answer.

    Returns:
        The result of `adversary.audit.external.run.checked`.

    Raises:
        UserError: The file is no certificate, or the program does not answer.
    """
    check_seed(seed or 0)
    entries = load(Path(path))
    if callable(mechanism):
        function = Function(mechanism, Claim.of(entries.get("claim"), str(path)))
        return checked(entries, function, seed=seed)
    command = entries.get("command") if mechanism is None else mechanism
    if not isinstance(command, str):
        raise UserError(f"{path}: names no command that draws anew; give one with --command")
    with program(command, timeout) as source:
        return checked(entries, source, seed=seed)


HEADINGS = (
    "mechanism",
    "pair",
    "worst case ε",
    "claimed ε",
    "exact ε",
    "measured ε ≥",
    "claimed ε(δ)",
    "measured ε(δ) ≥",
    "claimed δ, measured δ ≥ at ε",
    "draws",
    "verdict",
)


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown, with a sentence about their confidence."""
    rows = []
    for e in results["entries"]:
        name = f"{e['name']}: {e['about']}" if e["about"] else e["name"]
        if "deltas" not in e:
            cells = [name, e["pair"], *[""] * 8, e["verdict"]]
        else:
            items = [d for d in e["deltas"] if d["what"] == "shown"]
            if e["verdict"] == VIOLATED:
                items = [d for d in e["deltas"] if d["measured"] > d["claimed"]] or items
            points = [[number(d[key]) for key in ("claimed", "measured", "epsilon")] for d in items]
            keys = ("worst_case", "claimed", "exact", "measured", "claimed_at_delta", "measured_at_delta")
            figures = [number(e[key]) for key in keys]
            cells = [
                name,
                e["pair"],
                *figures,
                "{}, {} at {}".format(*points[-1]) if points else "",
                f"{e['draws']:,}",
                e["verdict"],
            ]
        rows.append(cells)
    text = (
        f"{results['violated']} of {len(results['entries'])} entries violated. δ = {results['delta']:g}. "
        f"{results['tests']} figures can raise an alarm, each with confidence {results['confidence_each']:.7f}: true "
        f"claims raise any with probability at most {results['false_alarm_rate']:g}. A measured ε is a lower bound: no "
        "violation found is no proof. A worst case is between inputs that agree in what the mechanism exposes; between "
        f"others it is ∞. Not tested: {'; '.join(results['not_tested'])}."
    )
    return "\n".join([markdown(HEADINGS, rows), "", text])


def write(results: dict[str, Any], folder: Path) -> None:
    """Write audit.json and audit.md, and a file for each certificate."""
    entries = {key: value for key, value in results.items() if key != "certificates"}
    _json(entries, folder / "audit.json")
    (folder / "audit.md").write_text(table(results) + "\n", encoding="utf-8")
    for number_, item in enumerate(results.get("certificates", ()), 1):
        _json(item, folder / f"certificate-{number_}.json")


def _json(value: dict[str, Any], path: Path) -> None:
    text = json.dumps(json_ready(value), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
