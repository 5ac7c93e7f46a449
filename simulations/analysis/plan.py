"""Plan from a central budget to the largest local parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scipy.special import betainc

from mechanisms import catalogue, checks
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import TOLERANCE, Target, best_privunit, fits, largest, users_needed
from mechanisms.accounting.shuffle import MOST, price, samplers_reason
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import Mechanism
from mechanisms.mechanism_text import read_mechanism
from mechanisms.privunit import PrivUnit
from mechanisms.words.text import TextMechanism
from simulations.analysis.budget import described, is_text, mechanism_of
from simulations.errors import UserError

log = logging.getLogger(__name__)


#: Probability that fewer users are delivered than planned for.
MISSED = 1e-9
#: Relative step, below a unit of the third digit, that leads to the next smaller number of three digits.
STEP = 1e-9
#: Label ε to try by default.
LABEL_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Terms:
    """Budget of a plan: a central (ε, δ) of each invited user, and the labels beside the planned mechanism.

    Attributes:
        epsilon: Central ε.
        delta: Central δ.
        users: Number of invited users; None plans without a shuffler.
        dropout: Share of users who never answer.
        records: Largest number of records of a user.
        stages: Number of stages in which a user releases anew.
        label_epsilons: Label ε to try, each under randomized response.
        classes: Number of classes.
    """

    epsilon: float
    delta: float
    users: int | None
    dropout: float = 0.0
    records: int = 1
    stages: int = 1
    label_epsilons: Sequence[float] = LABEL_EPSILONS
    classes: int = 2

    @property
    def target(self) -> Target:
        """Return the budget with the number of users who will be delivered.

        With dropouts, fewer users are delivered with probability `MISSED` at most.

        Raises:
            ValueError: A number is out of range.
        """
        delivered = None if self.users is None else _delivered(self.users, self.dropout)
        return Target(self.epsilon, self.delta, delivered, self.records, self.stages)

    def label(self, epsilon: float) -> Any:
        """Return the mechanism of the labels at an ε."""
        spec = {"mechanism": "randomized-response", "epsilon": epsilon}
        return catalogue.build(spec, channel="label", classes=self.classes)


def plan(terms: Terms, *, mechanism: str, dim: int) -> dict[str, Any]:
    """Return for each label ε the largest embedding ε, to three digits, whose ladder stays within the terms.

    The keys are "epsilon", "delta", "users", "delivered" (the number planned for), "crowd", "dropout", "mechanism",
    "dim", "classes" and "splits". A split has "label_epsilon", "embedding_epsilon", "worst_case" and "central_epsilon",
    the last three None if nothing fits.

    Raises:
        ValueError: A parameter is invalid.
    """
    target = terms.target
    spec: dict[str, Any] = {"mechanism": mechanism} | ({"delta": terms.delta} if mechanism == "gaussian" else {})

    def build(epsilon: float) -> Any:
        return catalogue.build(spec | {"epsilon": epsilon}, channel="embedding", dim=dim)

    about = {"crowd": target.users, "mechanism": mechanism, "dim": dim}
    return _planned(terms, target, about, build, lambda release: fits([*release.values()], target), "embedding", {})


def plan_text(
    terms: Terms,
    build: Callable[[float], TextMechanism],
    *,
    public: Mapping[str, str] | None = None,
    crowd: int | None = None,
) -> dict[str, Any]:
    """Return for each label ε the largest ε of a text's word mechanism, as `plan` does for embeddings.

    "tokens" replaces "dim", and "text_epsilon" replaces "embedding_epsilon". "worst_case" is of the whole text, and
    every ε of texts that agree in "public", in words; between others it is infinite. `build`
    returns the text at an ε of its word mechanism. `public` has the exposures that are declared public, each with its
    reason, and `crowd` is the least number of delivered users who agree in them. Without a crowd nothing is amplified.

    Raises:
        UserError: The text exposes something that is not declared.
    """
    public, text, target = public or {}, build(1.0), terms.target
    exposes = text.guarantee.exposes
    if open_ := [name for name in exposes if name not in public]:
        raise UserError(
            f"{text.name}: no ε holds between texts that differ in {' and '.join(EXPOSURES[n] for n in open_)}; plan "
            f'for texts that agree in it with --accept-unprotected "{open_[0]}: why it is public"'
        )
    if crowd is not None:
        if target.users is None or not exposes:
            why = "without --users there is no shuffler" if target.users is None else "the text exposes nothing"
            raise UserError(f"--crowd: {why}, so there is no crowd to speak of; leave it out")
        crowd = checks.integer("plan", "--crowd", crowd, 1, target.users)
    agreed: dict[str, Any] = {"public": public, "crowd": crowd}

    def fitting(release: Mapping[str, Mechanism]) -> bool:
        worst = sum(item.guarantee.worst_case(terms.delta, declared=public) for item in release.values())
        releases = terms.records * terms.stages
        # an ε that holds only at some δ may compose to more than the sum at this δ
        if (releases == 1 or text.guarantee.sigma is None) and worst * releases <= terms.epsilon:
            return True  # the ladder, which is slow, gives no more than this
        central = _central(target, **release, **agreed)
        return central is not None and central <= terms.epsilon

    about: dict[str, Any] = {"crowd": crowd if exposes else target.users, "mechanism": text.name, "tokens": text.tokens}
    about["public"] = [EXPOSURES[name] for name in exposes]
    return _planned(terms, target, about, build, fitting, "text", agreed)


def plan_privunit(terms: Terms, *, dim: int) -> dict[str, Any]:
    """Return PrivUnit with D = dim whose mean has the least error within the terms, ε to three digits.

    The keys are "epsilon", "delta", "users", "delivered", "crowd", "dropout", "mechanism", "dim", "local_epsilon",
    "cap_probability", "expected_cosine", "noise", "curator_noise" and "central_epsilon". The last six are None if
    nothing fits. "noise" is the length of the error of the mean of unit vectors, at most 1/(√n·E cos). "curator_noise"
    is that of a trusted curator who adds Gaussian noise to the exact mean at the same central (ε, δ). One vector covers
    all records of a user, so their number does not matter.

    Raises:
        ValueError: A parameter is invalid.
    """
    target = replace(terms.target, records=1)
    best = best_privunit(dim, target)
    answer: dict[str, Any] = dict.fromkeys(
        ("local_epsilon", "cap_probability", "expected_cosine", "noise", "curator_noise", "central_epsilon")
    )
    if best is not None:
        build = partial(PrivUnit, dim, cap_probability=best.cap_probability)
        epsilon, central = _at_most(
            best.epsilon,
            lambda e: fits([build(e)], target),
            lambda e: _central(target, statistic=build(e)),
            terms.epsilon,
        )
        if epsilon is not None and target.users is not None:
            chosen, curator = build(epsilon), Gaussian.calibrated(terms.epsilon, terms.delta, dim)
            answer = {
                "local_epsilon": epsilon,
                "cap_probability": chosen.cap_probability,
                "expected_cosine": chosen.scale,
                "noise": 1 / chosen.scale / math.sqrt(target.users),
                "curator_noise": math.sqrt(dim) * curator.sigma / target.users,
                "central_epsilon": central,
            }
    return _about(terms, target, {"crowd": target.users, "mechanism": PrivUnit.name, "dim": dim}) | answer


def plan_users(terms: Terms, mechanism: str, label_epsilon: float | None) -> dict[str, Any]:
    """Return the least number of delivered users of one crowd at which given mechanisms stay within the terms.

    The keys are "epsilon", "delta", "mechanisms" and "users", None if 10^10 users do not suffice.

    Args:
        terms: Budget; its number of users is not read.
        mechanism: Name and parameters of the mechanism.
        label_epsilon: ε of a label that is released too; None without one.

    Raises:
        ValueError: A parameter is invalid, or the mechanism sanitizes texts.
    """
    if is_text(read_mechanism(mechanism)["mechanism"]):
        raise UserError(f"--mechanism {mechanism}: no number of users is planned for a text; leave epsilon out")
    released = [mechanism_of(mechanism, classes=terms.classes, delta=terms.delta)]
    if label_epsilon is not None:
        released.append(terms.label(label_epsilon))
    target = replace(terms, users=None).target  # of which no number is out of range
    needed = users_needed(
        released, epsilon=target.epsilon, delta=target.delta, records=target.records, stages=target.stages
    )
    names = [described(item) for item in released]
    return {"epsilon": terms.epsilon, "delta": terms.delta, "mechanisms": names, "users": needed}


def _about(terms: Terms, target: Target, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epsilon": terms.epsilon,
        "delta": terms.delta,
        "users": terms.users,
        "delivered": target.users,
        "dropout": terms.dropout,
        **about,
    }


def _planned(
    terms: Terms,
    target: Target,
    about: Mapping[str, Any],
    build: Callable[[float], Mechanism],
    fitting: Callable[[Mapping[str, Mechanism]], bool],
    channel: str,
    agreed: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the largest ε of a channel's mechanism beside each label; "reason" if its sampler leaves no room in δ.

    `build` returns the mechanism at an ε, `fitting` judges it together with a label's, by channel, and `agreed` has
    arguments of the ladder about what is public.
    """
    drawn = build(1.0)  # reports an error before the search
    declared = agreed.get("public") or {}

    def split(label: float) -> dict[str, Any]:
        def release(epsilon: float) -> dict[str, Any]:
            return {channel: build(epsilon), "label": response}

        def fits_at(epsilon: float) -> bool:
            return fitting(release(epsilon))

        response = terms.label(label)
        best, central = _at_most(
            largest(fits_at), fits_at, lambda e: _central(target, **release(e), **agreed), terms.epsilon
        )
        worst = None if best is None else build(best).guarantee.worst_case(terms.delta, declared=declared)
        return {"label_epsilon": label, f"{channel}_epsilon": best, "worst_case": worst, "central_epsilon": central}

    splits = []
    for number, label in enumerate(terms.label_epsilons, 1):
        log.info(f"label ε = {label:g}: split {number} of {len(terms.label_epsilons)}")
        splits.append(split(label))
    answer = _about(terms, target, about) | {"classes": terms.classes, "splits": splits}
    lost, (_, delta) = drawn.guarantee.numeric_delta * (about["crowd"] or 0), target.one_record
    if price(0.0, lost) > MOST * delta and all(item["worst_case"] is None for item in splits):
        answer["reason"] = samplers_reason(lost, delta)
    return answer


def _delivered(users: int, dropout: float) -> int:
    if not 0 <= dropout < 1:
        raise UserError(f"--dropout: must be at least 0 and below 1, got {dropout:g}")
    users = checks.integer("plan", "users", users, 1, 10**10)
    # fewer than k of n answer where more than n - k drop out: a tail of the binomial law, an incomplete beta function
    least, most = 0, users
    while least < most:
        middle = (least + most + 1) // 2
        missed = float(betainc(users - middle + 1, middle, dropout))
        least, most = (middle, most) if missed <= MISSED * (1 - 1e-6) else (least, middle - 1)
    delivered = least
    if delivered < 1:
        raise UserError(f"--users: of {users} users, too few may be left at dropout {dropout:g}; invite more")
    return delivered


def _at_most(
    most: float | None, fitting: Callable[[float], bool], central: Callable[[float], float | None], epsilon: float
) -> tuple[float | None, float | None]:
    """Return the largest parameter of three digits up to about `most`, and its central ε; None if nothing fits.

    `most` is exact up to TOLERANCE, so a value slightly above it is tried first.
    """
    best = None if most is None else _rounded(most * (1 + TOLERANCE))
    while best is not None and best > 0:
        cost = central(best) if fitting(best) else None  # `fitting` is faster than the price
        if cost is not None and cost <= epsilon:
            return best, cost
        best = _rounded(best * (1 - STEP))  # one unit of the last digit
    return None, None


def _central(
    target: Target, *, embedding: Mechanism | None = None, label: Mechanism | None = None, **release: Any
) -> float | None:
    """Return the ε of a user by the ladder: shuffled, or local if nothing is amplified."""
    numbers = {name: getattr(target, name) for name in ("records", "stages", "users", "delta")}
    rungs = {rung.name: rung.epsilon for rung in ladder(embedding, label, **numbers, **release)}
    return rungs["shuffled"] if rungs["shuffled"] is not None else rungs["user"]


def _rounded(value: float) -> float | None:
    """Round down to three digits; return None if nothing is left."""
    if value < 1e-4:
        return None
    digits = 2 - math.floor(math.log10(value))
    return math.floor(value * 10**digits) / 10**digits
