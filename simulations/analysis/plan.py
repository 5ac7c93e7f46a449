"""From a central budget to an experiment: the largest local parameters, as a file that `simulate` runs."""

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
from mechanisms.accounting.planner import TOLERANCE, Target, best_privunit, fits, largest
from mechanisms.accounting.shuffle import samplers_reason
from mechanisms.accounting.with_sampler_error import MOST, price
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import Mechanism
from mechanisms.privunit import PrivUnit
from mechanisms.words.text import TextMechanism
from simulations.corpora.builtin import LIMIT
from simulations.errors import UserError
from simulations.experiment import from_table, to_toml

log = logging.getLogger(__name__)


PUBLIC, TEST = 1500, 1000
#: Probability with which fewer users may be delivered than are planned for.
MISSED = 1e-9
#: Less than a unit of three digits (relative): what is below that much less is the next number of three digits.
STEP = 1e-9
#: Label ε that are tried where none is given.
LABEL_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Terms:
    """What a plan has to keep: a central (ε, δ) of each user who is invited, and the labels beside what is planned.

    users: None plans without a shuffler. dropout: share of them who never answer. records: most of one user; stages:
    in which one user releases anew. label_epsilons: each is tried, under randomized response of so many classes.
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
        """The budget, of as many users as will be delivered: with drop-outs, the most that are missed with probability
        `MISSED` at most. Raises ValueError, one line."""
        delivered = None if self.users is None else _delivered(self.users, self.dropout)
        return Target(self.epsilon, self.delta, delivered, self.records, self.stages)

    def label(self, epsilon: float) -> Any:
        """The mechanism of the labels beside."""
        spec = {"mechanism": "randomized-response", "epsilon": epsilon}
        return catalogue.build(spec, channel="label", classes=self.classes)


def plan(terms: Terms, *, mechanism: str, dim: int) -> dict[str, Any]:
    """For each label ε the largest embedding ε, to three digits, whose ladder keeps within the terms.

    {"epsilon", "delta", "users", "delivered", "crowd", "dropout", "mechanism", "dim", "classes", "splits"}; a split is
    {"label_epsilon", "embedding_epsilon", "worst_case", "central_epsilon"}, the last three None where none fits.
    "delivered" is what is planned for. Raises ValueError, one line.
    """
    target = terms.target
    spec: dict[str, Any] = {"mechanism": mechanism} | ({"delta": terms.delta} if mechanism == "gaussian" else {})

    def build(embedding: float) -> Any:
        return catalogue.build(spec | {"epsilon": embedding}, channel="embedding", dim=dim)

    build(1.0)  # a mistake is said before anything is searched

    def split(label: float) -> dict[str, Any]:
        response = terms.label(label)
        best, central = _best(
            lambda e: fits([build(e), response], target), lambda e: _central(target, build(e), response), terms.epsilon
        )
        worst = None if best is None else build(best).guarantee.worst_case(terms.delta)
        return {"label_epsilon": label, "embedding_epsilon": best, "worst_case": worst, "central_epsilon": central}

    about = {"crowd": target.users, "mechanism": mechanism, "dim": dim}
    return _planned(terms, target, about, build(1.0), split)


def plan_text(
    terms: Terms, build: Callable[[float], TextMechanism], *, public: Mapping[str, str] | None = None,
    crowd: int | None = None,
) -> dict[str, Any]:
    """As `plan`, for a text: for each label ε the largest ε of its word mechanism.

    build: the text by that ε. public: what the text exposes and is declared public, each with its reason; crowd: how
    many users delivered at the least agree in it, without which none helps another. {"epsilon", "delta", "users",
    "delivered", "crowd", "dropout", "mechanism", "tokens", "classes", "splits"}; a split is {"label_epsilon",
    "text_epsilon", "worst_case", "central_epsilon"}, the worst case that of the whole text. Raises UserError where it
    exposes what is not declared.
    """
    public = public or {}
    text = build(1.0)
    if open_ := [name for name in text.guarantee.exposes if name not in public]:
        raise UserError(
            f"{text.name}: no ε holds between texts that differ in {' and '.join(EXPOSURES[n] for n in open_)}; plan "
            f'for texts that agree in it with --accept-unprotected "{open_[0]}: why it is public"'
        )
    target = terms.target
    if crowd is not None:
        if target.users is None or not text.guarantee.exposes:
            why = "without --users there is no shuffler" if target.users is None else "the text exposes nothing"
            raise UserError(f"--crowd: {why}, so there is no crowd to speak of; leave it out")
        crowd = checks.integer("plan", "--crowd", crowd, 1, target.users)

    def split(label: float) -> dict[str, Any]:
        response = terms.label(label)

        def worst_case(e: float) -> float:
            return build(e).guarantee.worst_case(terms.delta, declared=public)

        def cost(e: float) -> float | None:
            return _central(target, None, response, build(e), public, crowd)

        def fitting(e: float) -> bool:
            worst, releases = worst_case(e) + response.guarantee.worst_case(), terms.records * terms.stages
            # where the ε of one holds at some δ alone, that of several at this δ may be more than so many times it
            if (releases == 1 or text.guarantee.sigma is None) and worst * releases <= terms.epsilon:
                return True  # and the ladder, which takes its time, says no more than that
            central = cost(e)
            return central is not None and central <= terms.epsilon

        best, central = _best(fitting, cost, terms.epsilon)
        worst = None if best is None else worst_case(best)
        return {"label_epsilon": label, "text_epsilon": best, "worst_case": worst, "central_epsilon": central}

    hidden = crowd if text.guarantee.exposes else target.users
    about = {"crowd": hidden, "mechanism": text.name, "tokens": text.tokens}
    return _planned(terms, target, about, text, split)


def plan_privunit(terms: Terms, *, dim: int) -> dict[str, Any]:
    """The PrivUnit of D = dim whose mean has the least error within the terms, ε to three digits.

    {"epsilon", "delta", "users", "delivered", "crowd", "dropout", "mechanism", "dim", "local_epsilon",
    "cap_probability", "expected_cosine", "noise", "curator_noise", "central_epsilon"}, the last six None where none
    fits. noise: length of the error of the mean of unit vectors, 1/(√n·E cos) at most; curator_noise: what it is where
    a trusted curator adds Gaussian noise to their exact mean, at the same central (ε, δ). A user's records are all in
    the one vector, whose number counts for nothing. Raises ValueError, one line.
    """
    target = replace(terms.target, records=1)
    best = best_privunit(dim, target)
    answer: dict[str, Any] = dict.fromkeys(
        ("local_epsilon", "cap_probability", "expected_cosine", "noise", "curator_noise", "central_epsilon")
    )
    if best is not None:
        build = partial(PrivUnit, dim, cap_probability=best.cap_probability)
        epsilon, central = _at_most(best.epsilon, lambda e: fits([build(e)], target), lambda e: _central(
            target, None, None, statistic=build(e)), terms.epsilon)  # fmt: skip
        if epsilon is not None and target.users is not None:
            chosen, curator = build(epsilon), Gaussian.calibrated(terms.epsilon, terms.delta, dim)
            answer = {
                "local_epsilon": epsilon, "cap_probability": chosen.cap_probability, "expected_cosine": chosen.scale,
                "noise": 1 / chosen.scale / math.sqrt(target.users),
                "curator_noise": math.sqrt(dim) * curator.sigma / target.users,
                "central_epsilon": central,
            }  # fmt: skip
    return _about(terms, target, {"crowd": target.users, "mechanism": PrivUnit.name, "dim": dim}) | answer


def _about(terms: Terms, target: Target, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epsilon": terms.epsilon, "delta": terms.delta, "users": terms.users, "delivered": target.users,
        "dropout": terms.dropout, **about,
    }  # fmt: skip


def _planned(
    terms: Terms, target: Target, about: Mapping[str, Any], drawn: Mechanism,
    split: Callable[[float], dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Plan each split. drawn: what is planned, at some ε; "reason" says so where its sampler leaves δ no room."""
    splits = []
    for number, label in enumerate(terms.label_epsilons, 1):
        log.info(f"label ε = {label:g}: split {number} of {len(terms.label_epsilons)}")
        splits.append(split(label))
    answer = _about(terms, target, about) | {"classes": terms.classes, "splits": splits}
    lost, (_, delta) = drawn.guarantee.numeric_delta * (about["crowd"] or 0), target.one_record
    if price(0.0, lost) > MOST * delta and all(each["worst_case"] is None for each in splits):
        answer["reason"] = samplers_reason(lost, delta)
    return answer


def experiment_file(planned: dict[str, Any], *, name: str) -> str:
    """An experiment of the built-in corpus with an arm for each split, as TOML that `simulate` runs.

    No batch below the planned number of users is ever handed to the server (`minimum-users`), so the budget holds
    whoever drops out. There are as many test users as training users, so their batch keeps within it too.
    Raises UserError where no split fits, or the corpus has too few reviews.
    """
    splits = [s for s in planned["splits"] if s["embedding_epsilon"] is not None]
    if not splits:
        raise UserError("--out: no local parameters fit this budget; raise --epsilon or --users")
    most = LIMIT - PUBLIC - TEST
    if planned["users"] > most:
        raise UserError(f"--out: the built-in corpus has reviews for {most:,} users, no more; plan for fewer")
    task = {2: "sentiment", 12: "genre"}.get(planned["classes"])
    if task is None:
        raise UserError(f"--out: the built-in corpus has 2 or 12 classes, not {planned['classes']}")
    spec = {"mechanism": planned["mechanism"], "dim": planned["dim"]}
    spec |= {"delta": planned["delta"]} if planned["mechanism"] == "gaussian" else {}
    table = {
        "name": name,
        "data": {
            "source": "built-in", "task": task, "public-size": PUBLIC, "test-size": TEST,
            "test-repeats": math.ceil(planned["delivered"] / TEST),
        },
        "population": {"users": planned["users"], "dropout": planned["dropout"]},
        "shuffle": {"minimum-users": planned["delivered"], "delta": planned["delta"]},
        "policy": {
            "embedding": _up(max(s["worst_case"] for s in splits)),
            "label": _up(max(s["label_epsilon"] for s in splits)),
        },
        "arm": [
            {
                "name": f"ε = {s['embedding_epsilon']:g}, label ε = {s['label_epsilon']:g}",
                "embedding": spec | {"epsilon": s["embedding_epsilon"]},
                "label": {"mechanism": "randomized-response", "epsilon": s["label_epsilon"]},
            }
            for s in splits
        ],
    }  # fmt: skip
    if planned["mechanism"] == "gaussian":
        # one half of the total is the filter's; of the other, samplers may spend what the noise does
        table["policy"] |= {"delta": planned["delta"], "total-delta": max(1e-5, 4 * planned["delta"])}
    head = (
        f"# Planned for a central ε of {planned['epsilon']:g} at δ = {planned['delta']:g} with "
        f"{planned['delivered']:,} users delivered.\n# What it costs: sottovoce budget ladder THIS_FILE\n"
    )
    return head + to_toml(from_table(table))


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


def _best(
    fitting: Callable[[float], bool], central: Callable[[float], float | None], epsilon: float
) -> tuple[float | None, float | None]:
    """The largest parameter that fits, to three digits, and what it costs by the ladder; None where none fits."""
    most = largest(fitting)
    return (None, None) if most is None else _at_most(most, fitting, central, epsilon)


def _at_most(
    most: float, fitting: Callable[[float], bool], central: Callable[[float], float | None], epsilon: float
) -> tuple[float | None, float | None]:
    """The largest parameter that fits, to three digits, and what it costs by the ladder. most: as large to TOLERANCE,
    so that what is as near above it is tried first."""
    best = _rounded(most * (1 + TOLERANCE))
    while best is not None and best > 0:
        cost = central(best) if fitting(best) else None  # whether it fits is sooner found than what it costs
        if cost is not None and cost <= epsilon:
            return best, cost
        best = _rounded(best * (1 - STEP))  # one unit of the last digit
    return None, None


def _central(
    target: Target, embedding: Any, label: Any, text: TextMechanism | None = None,
    public: Mapping[str, str] | None = None, crowd: int | None = None, statistic: PrivUnit | None = None,
) -> float | None:  # fmt: skip
    """The ε of a user by the ladder: shuffled, or their own where nothing is amplified."""
    rungs = {
        r.name: r.epsilon
        for r in ladder(
            embedding, label, records=target.records, stages=target.stages, users=target.users, delta=target.delta,
            text=text, public=public, crowd=crowd, statistic=statistic,
        )
    }  # fmt: skip
    return rungs["shuffled"] if rungs["shuffled"] is not None else rungs["user"]


def _rounded(value: float) -> float | None:
    """Down to three digits; None where nothing is left."""
    if value < 1e-4:
        return None
    digits = 2 - math.floor(math.log10(value))
    return math.floor(value * 10**digits) / 10**digits


def _up(value: float) -> float:
    """Up to three digits: a policy's limit that the planned release just passes."""
    digits = 2 - math.floor(math.log10(value))
    return math.ceil(value * 10**digits) / 10**digits
