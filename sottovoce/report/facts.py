"""Facts about an arm for one of its users, in plain words, from the arm's results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechanisms.accounting.ladder import shared
from mechanisms.channels import CHANNELS, EMBEDDING, LABEL, TEXT, VECTOR
from server.card import PAYERS, Price, price_of
from server.protocols.declaration import CENTRALISED, PAPER, PUBLIC_ONLY
from simulations.experiment.result import ArmResult
from simulations.output.numbers import is_finite
from simulations.run import trust
from sottovoce.report.reading import Finished

Rungs = Sequence[Mapping[str, Any]]

#: Description of an unprotected release that is of no channel.
_GRADIENTS = {"gradients": "gradients computed from the raw texts"}
#: Rungs that are sums of other rungs.
_SUMS = ("token", "record", "user", "shuffled")


@dataclass(frozen=True)
class Side:
    """Releases of training users, or of users who query the model.

    Args:
        who: The users, in words.
        rungs: Their ladder.
        protected: Releases with a mechanism, in words.
        bare: Releases without a mechanism, in words.
        exposed: Data that leave in clear because they were declared public, in words.
    """

    who: str
    rungs: Rungs
    protected: list[str]
    bare: list[str]
    exposed: list[str]

    def rung(self, name: str) -> Mapping[str, Any] | None:
        """Return the rung of a name; None if there is none."""
        return next((rung for rung in self.rungs if rung["rung"] == name), None)


def sides(arm: ArmResult) -> list[Side]:
    """Return the sides of training users and of users who query the model, if the results have their ladders."""
    ladders = (("a training user", arm.ladder), ("a user at inference", arm.test_ladder))
    return [_side(payer, rungs) for payer, rungs in ladders if rungs]


def _side(who: str, rungs: Rungs) -> Side:
    protected, clear_names, exposures = [], [], []
    for rung in rungs:
        name = rung["rung"]
        if name in _SUMS:
            continue
        if rung["epsilon"] == math.inf:
            clear_names.append(_bare(name))
        elif rung["epsilon"] is not None:
            protected.append(CHANNELS[name].released if name in CHANNELS else name)
        elif rung["assumption"].startswith("declared public"):
            exposures.append(f"{_bare(name)} ({rung['assumption']})")
    public = next((shared(rung) for rung in rungs if rung["rung"] == "user"), ())
    exposures += [f"{exposure} of each text, declared public" for exposure in public if exposure != LABEL.name]
    return Side(who, rungs, protected, clear_names, exposures)


def _bare(name: str) -> str:
    return CHANNELS[name].bare if name in CHANNELS else _GRADIENTS.get(name, name)


def unprotected(arm: ArmResult) -> bool:
    """Return True if `trust.unprotected`, a user's rung of the ladder, or the protocol itself says so."""
    clear_rung = any(
        rung["rung"] == "user" and rung["epsilon"] == math.inf for side in sides(arm) for rung in side.rungs
    )
    return trust.unprotected(arm) or clear_rung or arm.way == PAPER.name


def server_is_trusted(arm: ArmResult) -> bool:
    """Return True if an arm's users send all of their data to the server, protected at most in what it publishes."""
    return arm.way == CENTRALISED.name or arm.budget.central_epsilon is not None


def kept(arm: ArmResult) -> list[str]:
    """Return the data that stay on the device, in words."""
    if arm.way == PUBLIC_ONLY.name and not arm.test_ladder:
        return ["everything: no user took part, the model has learnt from public texts alone"]
    if arm.way == PAPER.name or server_is_trusted(arm):
        return ["nothing that this report could vouch for"]
    clear_texts = {text for side in sides(arm) for text in (*side.bare, *side.exposed)}
    lines = [] if any(text.startswith(TEXT.bare) for text in clear_texts) else ["the texts as they were written"]
    if not any(text.startswith((LABEL.bare, VECTOR.bare)) for text in clear_texts):
        lines.append("the true labels, or which class a text belongs to")
    if not any(text.startswith((EMBEDDING.bare, VECTOR.bare, TEXT.bare)) for text in clear_texts):
        lines.append("the exact numbers that a text is turned into, before noise")
    return lines or ["nothing that is of weight"]


def paid(arm: ArmResult, whose: str) -> Price | None:
    """Return the price of all that a user releases over a whole run, trusting nobody; None if there is no such user.

    It is the theorems' ε, or that at the ladder's δ if they have none at δ = 0.

    Args:
        arm: The arm.
        whose: The user, of PAYERS.
    """
    if whose == PAYERS["ladder"]:
        reason = ""
        if server_is_trusted(arm):
            reason = "none: the server has to be trusted with everything"
        elif unprotected(arm):
            reason = "none: something leaves without protection"
        elif arm.way != PUBLIC_ONLY.name and not arm.ladder:
            return Price(None, whose=whose, why="the results do not say")
        if reason:
            return Price(math.inf, whose=whose, why=reason)
    return price_of(arm.ladders[whose], whose)


def payers(runs: Sequence[Finished]) -> dict[str, str]:
    """Return the users of these runs, of PAYERS, by their part: inference only if some arm's users send requests."""
    queries = any(arm.test_ladder for run in runs for arm in run.arms)
    return {"training": PAYERS["ladder"]} | ({"inference": PAYERS["test_ladder"]} if queries else {})


def central(arm: ArmResult, whose: str) -> tuple[Price | None, str]:
    """Return the price of a user with trust, and the trusted party: "the shuffler", "the server".

    (None, "nobody") if trust in nobody makes it smaller.

    Args:
        arm: The arm.
        whose: The user, of PAYERS.
    """
    if whose == PAYERS["ladder"] and is_finite(arm.budget.central_epsilon):
        return Price(arm.budget.central_epsilon, arm.budget.central_delta or 0.0, whose), trust.central(arm)[1]
    rung = next((rung for rung in arm.ladders[whose] or [] if rung["rung"] == "shuffled"), None)
    if rung is None or arm.reference or not is_finite(rung["epsilon"]):
        return None, "nobody"
    return Price(float(rung["epsilon"]), rung["delta"], whose, public=shared(rung)), "the shuffler"


def best_guess(price: Price) -> float | None:
    """Return the largest share of right guesses of which of two equally likely inputs a release comes from.

    It is (e^ε + δ)/(e^ε + 1), from TPR - FPR <= (e^ε - 1 + 2δ)/(e^ε + 1). None without an ε.

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1.
    """
    if price.epsilon is None:
        return None
    factor = math.exp(-price.epsilon)
    return min(1.0, (1 + price.delta * factor) / (1 + factor))


def strongest(entries: list[Mapping[str, Any]], arm: str) -> Mapping[str, Any] | None:
    """Return the attack on an arm with the largest gain over a guess without any release; None if there is none."""
    arm_entries = [entry for entry in entries if entry["arm"] == arm]
    return max(arm_entries, key=lambda entry: entry["success"] - (entry["baseline"] or 0.0), default=None)
