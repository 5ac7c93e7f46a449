"""From a central budget to an experiment: the largest local parameters, as a file that `simulate` runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mechanisms import catalogue, checks
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target, fits, largest
from mechanisms.guarantee import EXPOSURES
from mechanisms.text import Text
from simulations.builtin import LIMIT
from simulations.errors import UserError

PUBLIC, TEST = 1500, 1000
#: Standard deviations below its mean at which the number of delivered users is planned: missed once in 10^9 runs.
MARGIN = 6.0
#: By how much a parameter is lowered where rounding, or another bound's tolerance, put it just above the budget.
STEP = 0.995


def plan(
    *, mechanism: str, dim: int, classes: int, label_epsilons: Sequence[float], epsilon: float, delta: float,
    users: int, dropout: float = 0.0, records: int = 1, stages: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """For each label ε the largest embedding ε, to three digits, whose ladder keeps within a central (ε, δ).

    {"epsilon", "delta", "users", "delivered", "dropout", "mechanism", "dim", "classes", "splits"}; a split is
    {"label_epsilon", "embedding_epsilon", "worst_case", "central_epsilon"}, the last three None where none fits.
    users: invited; "delivered" is what is planned for: with drop-outs, six standard deviations below the mean.
    Raises ValueError, one line.
    """
    delivered = _delivered(users, dropout)
    target = Target(epsilon, delta, delivered, records, stages)
    spec: dict[str, Any] = {"mechanism": mechanism} | ({"delta": delta} if mechanism == "gaussian" else {})

    def build(embedding: float) -> Any:
        return catalogue.build(spec | {"epsilon": embedding}, channel="embedding", dim=dim)

    def split(label: float) -> dict[str, Any]:
        response = _label(label, classes)
        best, central = _best(
            lambda e: fits([build(e), response], target), lambda e: _central(target, build(e), response), epsilon
        )
        worst = None if best is None else build(best).guarantee.worst_case(delta)
        return {"label_epsilon": label, "embedding_epsilon": best, "worst_case": worst, "central_epsilon": central}

    return {
        "epsilon": epsilon, "delta": delta, "users": users, "delivered": delivered, "dropout": dropout,
        "mechanism": mechanism, "dim": dim, "classes": classes,
        "splits": [split(label) for label in label_epsilons],
    }  # fmt: skip


def plan_text(
    build: Callable[[float], Text], *, classes: int, label_epsilons: Sequence[float], epsilon: float, delta: float,
    users: int | None, dropout: float = 0.0, records: int = 1, stages: int = 1, public: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """As `plan`, for a text: for each label ε the largest ε of its word mechanism.

    build: the text by that ε. users: None plans without a shuffler. public: what the text exposes and is declared
    public, each with its reason. {"epsilon", "delta", "users", "delivered", "dropout", "mechanism", "tokens",
    "classes", "splits"}; a split is {"label_epsilon", "text_epsilon", "worst_case", "central_epsilon"}, the worst case
    that of the whole text. Raises UserError where it exposes what is not declared.
    """
    public = public or {}
    text = build(1.0)
    if open_ := [name for name in text.guarantee.exposes if name not in public]:
        raise UserError(
            f"{text.name}: no ε holds between texts that differ in {' and '.join(EXPOSURES[n] for n in open_)}; plan "
            f'for texts that agree in it with --accept-unprotected "{open_[0]}: why it is public"'
        )
    delivered = None if users is None else _delivered(users, dropout)
    target = Target(epsilon, delta, delivered, records, stages)

    def split(label: float) -> dict[str, Any]:
        response = _label(label, classes)

        def cost(e: float) -> float | None:
            return _central(target, None, response, build(e), public)

        def fitting(e: float) -> bool:
            worst = build(e).guarantee.worst_case(delta, declared=public) + response.guarantee.worst_case()
            if worst * records * stages <= epsilon:
                return True  # and the ladder, which takes its time, says no more than that
            found = cost(e)
            return found is not None and found <= epsilon

        best, central = _best(fitting, cost, epsilon)
        worst = None if best is None else build(best).guarantee.worst_case(delta, declared=public)
        return {"label_epsilon": label, "text_epsilon": best, "worst_case": worst, "central_epsilon": central}

    return {
        "epsilon": epsilon, "delta": delta, "users": users, "delivered": delivered, "dropout": dropout,
        "mechanism": text.name, "tokens": text.tokens, "classes": classes,
        "splits": [split(label) for label in label_epsilons],
    }  # fmt: skip


def experiment_file(planned: dict[str, Any], *, name: str) -> str:
    """An experiment of the built-in corpus with an arm for each split, as TOML that `simulate` runs.

    No batch below the planned number of users is ever handed to the server (`minimum-users`), so the budget holds
    whoever drops out. There are as many test users as training users, so their batch keeps within it too.
    Raises UserError where no split fits, or the corpus has too few reviews.
    """
    from simulations.experiment import from_table, to_toml

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
        table["policy"]["delta"] = planned["delta"]
    head = (
        f"# Planned for a central ε of {planned['epsilon']:g} at δ = {planned['delta']:g} with "
        f"{planned['delivered']:,} users delivered.\n# What it costs: sottovoce budget ladder THIS_FILE\n"
    )
    return head + to_toml(from_table(table))


def _delivered(users: int, dropout: float) -> int:
    if not 0 <= dropout < 1:
        raise UserError(f"--dropout: must be at least 0 and below 1, got {dropout:g}")
    users = checks.integer("plan", "users", users, 1, 10**10)
    delivered = math.floor(users * (1 - dropout) - MARGIN * math.sqrt(users * dropout * (1 - dropout)) + 1e-9)
    if delivered < 1:
        raise UserError(f"--users: of {users} users, too few may be left at dropout {dropout:g}; invite more")
    return delivered


def _label(epsilon: float, classes: int) -> Any:
    return catalogue.build({"mechanism": "randomized-response", "epsilon": epsilon}, channel="label", classes=classes)


def _best(
    fitting: Callable[[float], bool], central: Callable[[float], float | None], epsilon: float
) -> tuple[float | None, float | None]:
    """The largest parameter that fits, to three digits, and what it costs by the ladder; None where none fits."""
    found = largest(fitting)
    best, cost = None if found is None else _rounded(found), None
    while best is not None and best > 0:
        cost = central(best)
        if cost is not None and cost <= epsilon and fitting(best):
            break
        best = _rounded(best * STEP)
    return best, cost


def _central(
    target: Target, embedding: Any, label: Any, text: Text | None = None, public: Mapping[str, str] | None = None
) -> float | None:
    """The ε of a user by the ladder: shuffled, or their own where nothing is amplified."""
    rungs = {
        r.name: r.epsilon
        for r in ladder(
            embedding, label, records=target.records, stages=target.stages, users=target.users, delta=target.delta,
            text=text, public=public,
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
