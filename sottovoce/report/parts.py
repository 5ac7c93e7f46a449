"""Parts of the report about one run: releases, costs, attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from server.declarations import CENTRALISED, PAPER
from simulations.analysis.attack_results import ALLOWED, BELOW, below
from simulations.experiment.result import ArmResult
from simulations.output.numbers import count, is_finite, share
from sottovoce.report import facts
from sottovoce.report.glossary import term
from sottovoce.report.html import Cell, Markup, element, joined, listed, table
from sottovoce.report.reading import Finished

NOT_PROTECTED = element("span", "NOT PROTECTED", class_="badge")
REFERENCE = element("span", "REFERENCE, NOT FOR USE", class_="badge")


def named(arm: ArmResult) -> Markup:
    """Return an arm's name, with its warnings."""
    marks = [mark for mark, holds in ((REFERENCE, arm.reference), (NOT_PROTECTED, facts.unprotected(arm)))
             if holds]  # fmt: skip
    return joined([arm.name, *(part for mark in marks for part in (" ", mark))])


def price(cost: facts.Cost) -> Cell:
    """Return an ε with its δ, or the reason why there is none; an infinite ε is never a number."""
    if not is_finite(cost.epsilon):
        # Sorts a missing promise as the most expensive one.
        return Cell(cost.why or "no bound", math.inf if cost.epsilon is not None else None)
    return Cell(f"ε = {cost.epsilon:.4g}" + (f" at δ = {cost.delta:.3g}" if cost.delta else ""), cost.epsilon)


def guess(cost: facts.Cost) -> str:
    """Return the best success of an adversary's guess from a release, rounded up, in words."""
    chance = facts.best_guess(cost)
    if chance is None:
        return "–"
    if chance > 0.9999:
        return "practically every guess may be right"
    return f"at most {math.ceil(chance * 1e4) / 100:.2f} in 100 guesses are right, where a coin has 50"


def released(run: Finished) -> Markup:
    """Return what leaves a device and what does not, for each arm."""
    sentence = run.results.get("way_sentence")
    parts = [element("p", sentence, class_="warn")] if sentence else []
    for arm in run.arms:
        bad = facts.unprotected(arm)
        parts.append(element(
            "div", element("h4", named(arm)),
            element("div", element("div", *_leaves(arm)), element("div", *_stays(arm)), class_="both"),
            class_="arm bad" if bad else "arm",
        ))  # fmt: skip
    return joined(parts)


#: Reason why a server must be trusted with everything, by protocol.
_TRUSTED = {
    PAPER.name: "gradients depend on the raw text",
    CENTRALISED.name: "it learns from the texts and labels as they are, and adds no noise",
}


def _leaves(arm: ArmResult) -> list[Markup]:
    said = [element("p", element("strong", "Leaves the device"))]
    if arm.way == PAPER.name or facts.server_is_trusted(arm):
        why = _TRUSTED.get(arm.way, "the server adds the noise")
        return [*said, element("p", f"Everything, to a server that has to be trusted with it: {why}.", class_="warn")]
    sides = facts.sides(arm)
    if not sides:
        return [*said, element("p", "Nothing." if not arm.users else "The results do not say.")]
    for side in sides:
        said.append(element("p", f"Of {side.who}:"))
        if side.bare:
            said.append(element("p", "WITHOUT PROTECTION: ", "; ".join(side.bare), ".", class_="warn"))
        said.append(listed([*side.protected, *(f"in clear: {text}" for text in side.exposed)]))
    size = f" A user who taught sent {count(arm.bytes_per_user)} bytes." if arm.bytes_per_user else ""
    return [*said, element("p", "Not hidden: that the device took part, and how much it sent.", size, class_="soft")]


def _stays(arm: ArmResult) -> list[Markup]:
    return [element("p", element("strong", "Stays on the device")), listed(facts.kept(arm))]


def ladders(run: Finished) -> Markup:
    """Return ε for every unit of every arm, with the worst case."""
    parts: list[Markup] = []
    for arm in run.arms:
        sides = facts.sides(arm)
        if sides:
            parts.append(element("h4", named(arm)))
        parts += [_ladder(f"{side.who}: what it costs them, unit by unit", side) for side in sides]
    return joined(parts or [element("p", "The results hold no ladder: nothing was released, or an older version ran.")])


def _ladder(caption: str, side: facts.Side) -> Markup:
    rows, marked = [], {}
    for rung in side.rungs:
        if rung["epsilon"] is None and rung["rung"] not in ("user", "shuffled") and not _public(rung):
            continue  # no such release exists
        if rung["epsilon"] == math.inf:
            marked[len(rows)] = "bad"
        rows.append([
            rung["rung"], _epsilon(rung["epsilon"]), "–" if not is_finite(rung["epsilon"]) else f"{rung['delta']:.3g}",
            _epsilon(rung["worst_case"]), "–" if rung.get("crowd") is None else count(rung["crowd"]),
            rung["neighbours"], rung["assumption"],
        ])  # fmt: skip
    headings = [
        term("rung", "unit"), term("ε"), term("δ"), term("worst case", "worst case ε (δ = 0)"), term("crowd"),
        term("neighbours", "between which two"), "if and as long as",
    ]  # fmt: skip
    return table(caption[0].upper() + caption[1:], headings, rows, marked=marked)


def _public(rung: Mapping[str, Any]) -> bool:
    return str(rung["assumption"]).startswith("declared public")


def _epsilon(value: Any) -> str | Cell:
    if value is None:
        return "–"
    return Cell(f"{value:.4g}", value) if is_finite(value) else Cell(NOT_PROTECTED)


# --- attacks, audit, ledgers


def attacks(run: Finished) -> Markup:
    """Return the success of each attack, beside a guess and the theorem's bound."""
    if run.attacks is None:
        return element(
            "p", "Nobody has attacked this run. Bounds hold without that; what a real adversary gets is not known. "
            "To try it: ", element("code", f"sottovoce attack {run.folder}"), ".", class_="warn",
        )  # fmt: skip
    rows, marked = [], {}
    for entry in run.attacks["entries"]:
        bare = entry.get("worst_case_epsilon") == math.inf
        if entry["alarm"] or bare:
            marked[len(rows)] = "bad"
        rows.append([
            joined([entry["arm"], " ", NOT_PROTECTED]) if bare else entry["arm"],
            entry["attack"] + (f" of {entry['attribute']}" if entry.get("attribute") else ""),
            about(entry), _share(entry["success"]), _share(entry["baseline"]), _share(entry["bound"]),
            "; ".join(said for said in ("ALARM: more than a true theorem allows" * bool(entry["alarm"]),
                                        BELOW * below(entry), entry.get("note", "")) if said),
        ])  # fmt: skip
    headings = [term("arm"), term("attack"), "what it guesses", "success", "a guess without any release",
                "the theorem allows", "note"]  # fmt: skip
    reading = run.attacks.get("reading", [])
    skipped = run.attacks.get("skipped") or []
    left_out = [element("p", f"Not tried, since they do not apply: {len(skipped)}; attacks.json says which and why.")]
    return joined([
        table("What attacks got", headings, rows, sorts=True, marked=marked),
        *(element("p", text, class_="soft") for text in (*reading, ALLOWED)), *(left_out if skipped else []),
    ])  # fmt: skip


def about(entry: Mapping[str, Any]) -> str:
    """Return the goal of an attack."""
    return str(entry.get("about", f"{entry['attack']}: attacks.md describes it"))


def _share(value: Any) -> str | Cell:
    return Cell(share(value), value) if is_finite(value) else "–"


def audit(run: Finished) -> Markup:
    """Return the results of the audit: whether the code keeps the theorems' claims."""
    place = run.folder / "audit"
    if run.audit is None:
        return element(
            "p", "No audit lies beside this run. To measure whether this installation keeps its claims: ",
            element("code", f"sottovoce audit --out {place}"), ".",
        )  # fmt: skip
    found = run.audit
    said = (
        f"{len(found['entries']):,} mechanisms and parts of the client were measured with {found.get('draws', 0):,} "
        f"draws each; {found.get('violated')} violated a claim. A measured ε is a lower bound: what was not found "
        "is not thereby absent."
    )
    if not found.get("violated"):
        return element("p", said)
    broken = [f"{e['name']}: {e['pair']}" for e in found["entries"] if e["verdict"] == "violated"]
    return joined([element("p", said, class_="warn"), listed(broken)])


def ledgers(run: Finished) -> Markup:
    """Return the totals of the devices' ledgers."""
    if run.accounts is None:
        return element("p", "The ledgers are too large to be counted here; they lie in the run's folder.")
    if not run.accounts:
        return element("p", "The run's folder holds no ledger.")
    rows = [
        [name, *(Cell(count(value), value) for value in (book.users, book.releases, book.most, book.bytes))]
        for name, book in run.accounts.items()
    ]
    headings = [term("arm"), "users", term("release", "releases"), "releases of one user, at most", "bytes"]
    return table("What was charged, to teach and to ask", headings, rows)
