"""Privacy label: the report in machine-readable form.

Its fields are those of NIST SP 800-226 (2025) for a claim of differential privacy: the unit, neighbours, parameters,
model of trust, mechanism, composition, exposures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.card import PAYERS, Price
from simulations.experiment.result import ArmResult
from simulations.output.jsonable import json_ready
from simulations.output.numbers import is_finite
from sottovoce.report import facts
from sottovoce.report.reading import Finished
from sottovoce.report.studies import Study, summary

FORMAT = "sottovoce privacy label, version 4"
#: Users of an arm, and of PAYERS.
_ROLES = {"training": PAYERS["ladder"], "inference": PAYERS["test_ladder"]}


def label(runs: Sequence[Finished], studies: Sequence[Study] = ()) -> dict[str, Any]:
    """Return the label, JSON-ready.

    An infinite or unknown ε is null: `protected` and `unprotected` distinguish the two.

    Of an arm, trust.nobody and trust.with_trust have an entry for a training user and one for a user at inference.

    Args:
        runs: Finished runs.
        studies: Studies that some of them belong to.
    """
    result: dict[str, Any] = json_ready(
        {
            "format": FORMAT,
            "after": "NIST SP 800-226",
            "studies": [summary(study) for study in studies],
            "runs": [_run(run) for run in runs],
        }
    )
    return result


def _run(run: Finished) -> dict[str, Any]:
    entries = None if run.attacks is None else run.attacks["entries"]
    return {
        "name": run.results["name"],
        "seed": run.results["seed"],
        "has_run": run.has_run,
        "way": run.results["way"],
        "versions": run.results.get("versions"),
        "encoder": run.results.get("encoder"),
        "policy": run.results.get("policy"),
        "arms": [_arm(run, arm, entries) for arm in run.arms],
        "audit": None
        if run.audit is None
        else {key: run.audit.get(key) for key in ("violated", "draws", "delta", "seed", "false_alarm_rate")},
    }


def _arm(run: Finished, arm: ArmResult, entries: list[dict[str, Any]] | None) -> dict[str, Any]:
    account = None if run.accounts is None else run.accounts.get(arm.name)
    roles = [role for role, payer in _ROLES.items() if arm.ladders[payer]]
    measures: dict[str, dict[str, float]] = {}
    for item in arm.estimates():
        if item.split is not None:
            measures.setdefault(item.metric, {})[item.split] = item.value
    return {
        "name": arm.name,
        "reference": arm.reference,
        "protected": not facts.unprotected(arm),
        "mechanism": arm.mechanism,
        "label_mechanism": arm.label_mechanism,
        "trust": {
            "nobody": {role: _price(facts.paid(arm, payer)) for role, payer in _ROLES.items()},
            "with_trust": {role: _trusted(*facts.central(arm, payer)) for role, payer in _ROLES.items()},
        },
        "users": {role: _side(side) for role, side in zip(roles, facts.sides(arm), strict=True)},
        "stays_on_device": facts.kept(arm),
        "charged": None
        if account is None
        else {
            "users": account.users,
            "releases": account.releases,
            "releases_per_user_at_most": account.most,
            "bytes": account.bytes,
        },
        "attacks": None
        if entries is None
        else [
            {key: entry.get(key) for key in ("attack", "attribute", "success", "baseline", "bound", "alarm")}
            for entry in entries
            if entry["arm"] == arm.name
        ],
        "accuracy": {"sanitized": None, "on_device": None} | measures.pop("accuracy", {}),
        "measures": measures,
    }


def _price(price: Price | None) -> dict[str, Any] | None:
    """Return the entry of a price; None if nothing is released. An ε holds between data that agree in "public"."""
    if price is None:
        return None
    finite = is_finite(price.epsilon)
    return {
        "epsilon": price.epsilon if finite else None,
        "delta": price.delta if finite else None,
        "public": list(price.public),
        "why": price.why or None,
    }


def _trusted(price: Price | None, whom: str) -> dict[str, Any] | None:
    return None if price is None else {"whom": whom} | (_price(price) or {})


def _side(side: facts.Side) -> dict[str, Any]:
    return {
        "leaves": side.protected,
        "unprotected": side.bare,
        "exposed": side.exposed,
        "rungs": [_rung(rung) for rung in side.rungs],
        "amplification": _amplification(side),
    }


def _rung(rung: Any) -> dict[str, Any]:
    """Return the entry of one unit; composition states how its releases add up, under which conditions."""
    finite = is_finite(rung["epsilon"])
    return {
        "rung": rung["rung"],
        "unit_of_privacy": rung["unit"],
        "neighbours": rung["neighbours"],
        "epsilon": rung["epsilon"] if finite else None,
        "delta": rung["delta"] if finite else None,
        "worst_case_epsilon": rung["worst_case"] if is_finite(rung["worst_case"]) else None,
        "unprotected": list(rung["unprotected"]),
        "composition": rung["assumption"],
    }


def _amplification(side: facts.Side) -> dict[str, Any] | None:
    rung = side.rung("shuffled")
    if rung is None or not is_finite(rung["epsilon"]):
        return None
    return {
        "by": "shuffler",
        "epsilon": rung["epsilon"],
        "delta": rung["delta"],
        "crowd": rung["crowd"],
        "neighbours": rung["neighbours"],
        "assumptions": rung["assumption"],
    }
