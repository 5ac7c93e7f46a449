"""Facts about an arm for one of its users, in plain words, from the arm's results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechanisms.channels import CHANNELS, EMBEDDING, LABEL, TEXT, VECTOR
from server.card import PAYERS, Price, dearest, price_of
from server.protocols.centralised import PROTOCOL as CENTRALISED
from server.protocols.paper import PROTOCOL as PAPER
from server.protocols.public_only import PROTOCOL as PUBLIC_ONLY
from simulations.experiment.result import ArmResult
from simulations.output.numbers import is_finite
from simulations.run import trust

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
    both = (("a training user", arm.ladder), ("a user at inference", arm.test_ladder))
    return [_side(who, rungs) for who, rungs in both if rungs]


def _side(who: str, rungs: Rungs) -> Side:
    protected, bare, exposed = [], [], []
    for rung in rungs:
        name = rung["rung"]
        if name in _SUMS:
            continue
        if rung["epsilon"] == math.inf:
            bare.append(_bare(name))
        elif rung["epsilon"] is not None:
            protected.append(CHANNELS[name].released if name in CHANNELS else name)
        elif rung["assumption"].startswith("declared public"):
            exposed.append(f"{_bare(name)} ({rung['assumption']})")
    exposed += [f"{said} of each text, declared public" for said in trust.agreed(rungs) if said != LABEL.name]
    return Side(who, rungs, protected, bare, exposed)


def _bare(name: str) -> str:
    return CHANNELS[name].bare if name in CHANNELS else _GRADIENTS.get(name, name)


def unprotected(arm: ArmResult) -> bool:
    """Return True if `trust.unprotected`, a user's rung of the ladder, or the protocol itself says so."""
    clear = any(rung["rung"] == "user" and rung["epsilon"] == math.inf for side in sides(arm) for rung in side.rungs)
    return trust.unprotected(arm) or clear or arm.way == PAPER.name


def server_is_trusted(arm: ArmResult) -> bool:
    """Return True if an arm's users send all of their data to the server, protected at most in what it publishes."""
    if arm.way == CENTRALISED.name:
        return True
    return arm.budget.central_epsilon is not None and arm.budget.simulated_epsilon is None


def kept(arm: ArmResult) -> list[str]:
    """Return the data that stay on the device, in words."""
    if arm.way == PUBLIC_ONLY.name and not arm.test_ladder:
        return ["everything: no user took part, the model has learnt from public texts alone"]
    if arm.way == PAPER.name or server_is_trusted(arm):
        return ["nothing that this report could vouch for"]
    bare = {text for side in sides(arm) for text in (*side.bare, *side.exposed)}
    said = [] if any(text.startswith(TEXT.bare) for text in bare) else ["the texts as they were written"]
    if not any(text.startswith((LABEL.bare, VECTOR.bare)) for text in bare):
        said.append("the true labels, or which class a text belongs to")
    if not any(text.startswith((EMBEDDING.bare, VECTOR.bare, TEXT.bare)) for text in bare):
        said.append("the exact numbers that a text is turned into, before noise")
    return said or ["nothing that is of weight"]


@dataclass(frozen=True)
class Cost:
    """Cost (ε, δ) of everything one user releases.

    Args:
        epsilon: ε; inf if nothing is promised, None if there is no release or ε is unknown.
        delta: δ.
        whose: User who pays it, "training user" or "test user"; "" if nobody in particular.
        why: Reason, if there is no finite ε.
    """

    epsilon: float | None
    delta: float
    why: str = ""
    whose: str = ""


def worst(arm: ArmResult) -> Cost:
    """Return the worst-case cost of the user who pays most, training or test user, who trusts nobody.

    It is the theorems' ε, or that at the ladder's δ if they have none at δ = 0.
    """
    if (spent := arm.budget.simulated_epsilon) is not None:
        return Cost(math.inf, 0.0, f"none: simulated in clear; devices that did it would spend ε = {spent:.4g}")
    if server_is_trusted(arm):
        return Cost(math.inf, 0.0, "none: the server has to be trusted with everything")
    if unprotected(arm):
        return Cost(math.inf, 0.0, "none: something leaves without protection")
    if arm.way != PUBLIC_ONLY.name and not arm.ladder:
        return Cost(None, 0.0, "the results do not say")
    return _priced(dearest(arm.ladders))


def paid(arm: ArmResult, ladder: str) -> Cost | None:
    """Return the worst-case cost of one user of a ladder, of PAYERS; None if there is no such user."""
    if ladder == "ladder" and (unprotected(arm) or server_is_trusted(arm)):
        return worst(arm)
    price = price_of(getattr(arm, ladder), PAYERS[ladder])
    return None if price is None else _priced(price)


def one_by_one(arm: ArmResult) -> bool:
    """Return True if the cost of a user who asks is that of one text."""
    found = {rung["rung"]: rung["epsilon"] for rung in arm.test_ladder or [] if rung["rung"] in ("user", "record")}
    return len(found) == 2 and found["user"] == found["record"]


def _priced(price: Price) -> Cost:
    if price.epsilon == math.inf:
        return Cost(math.inf, 0.0, "none: something leaves without protection", price.whose)
    return Cost(price.epsilon, price.delta, price.why, price.whose)


def central(arm: ArmResult) -> tuple[Cost, str]:
    """Return the cost with trust, and the trusted party: "the shuffler", "the server", "nobody"."""
    epsilon, who = trust.central(arm)
    if who == "the server" and epsilon is not None and is_finite(epsilon):
        return Cost(epsilon, arm.budget.central_delta or 0.0, whose=PAYERS["ladder"]), who
    costs = [cost for whose in arm.ladders if (cost := _among(arm, whose, epsilon)) is not None]
    hidden = who == "the shuffler" or any(map(_shuffled, arm.ladders.values()))
    if not costs or not hidden or arm.reference or not all(is_finite(cost.epsilon) for cost in costs):
        return Cost(None, 0.0, "no further promise"), "nobody"
    most = max(costs, key=lambda cost: cost.epsilon or 0.0)
    return replace(most, delta=max(cost.delta for cost in costs)), "the shuffler"


def _shuffled(rungs: Rungs | None) -> Mapping[str, Any] | None:
    """The shuffled rung of a ladder, where something is amplified."""
    rung = next((rung for rung in rungs or [] if rung["rung"] == "shuffled"), None)
    return rung if rung is not None and is_finite(rung["epsilon"]) else None


def _among(arm: ArmResult, whose: str, simulated: float | None) -> Cost | None:
    """Return what one user of a ladder pays if the shuffler is honest, None if there is no such user.

    It is the user's own ε where nothing hides them.

    Args:
        arm: The arm, as results have it.
        whose: User whose ladder it is, of PAYERS.
        simulated: ε of training users who are simulated in clear.
    """
    if whose == PAYERS["ladder"] and arm.budget.simulated_epsilon is not None:
        return Cost(simulated, arm.budget.central_delta or 0.0, whose=whose)
    if (rung := _shuffled(arm.ladders[whose])) is not None:
        return Cost(float(rung["epsilon"]), rung["delta"], whose=whose)
    price = price_of(arm.ladders[whose], whose)
    return None if price is None else _priced(price)


def best_guess(cost: Cost) -> float | None:
    """Return the largest share of right guesses of which of two equally likely inputs a release comes from.

    It is (e^ε + δ)/(e^ε + 1), from TPR - FPR <= (e^ε - 1 + 2δ)/(e^ε + 1). None without an ε.

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1.
    """
    if cost.epsilon is None:
        return None
    away = math.exp(-cost.epsilon)
    return min(1.0, (1 + cost.delta * away) / (1 + away))


def strongest(entries: list[Mapping[str, Any]], arm: str) -> Mapping[str, Any] | None:
    """Return the attack on an arm with the largest gain over a guess without any release; None if there is none."""
    own = [entry for entry in entries if entry["arm"] == arm]
    return max(own, key=lambda entry: entry["success"] - (entry["baseline"] or 0.0), default=None)
