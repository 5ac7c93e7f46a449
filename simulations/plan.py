"""From a central budget to an experiment: the largest local parameters, as a file that `simulate` runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mechanisms import catalogue, checks
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target, fits, largest_epsilon
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
    if not 0 <= dropout < 1:
        raise UserError(f"--dropout: must be at least 0 and below 1, got {dropout:g}")
    users = checks.integer("plan", "users", users, 1, 10**10)
    delivered = math.floor(users * (1 - dropout) - MARGIN * math.sqrt(users * dropout * (1 - dropout)) + 1e-9)
    if delivered < 1:
        raise UserError(f"--users: of {users} users, too few may be left at dropout {dropout:g}; invite more")
    target = Target(epsilon, delta, delivered, records, stages)

    def build(embedding: float, label: float) -> list[Any]:
        spec = {"mechanism": mechanism, "epsilon": embedding}
        spec |= {"delta": delta} if mechanism == "gaussian" else {}
        response = {"mechanism": "randomized-response", "epsilon": label}
        return [
            catalogue.build(spec, channel="embedding", dim=dim),
            catalogue.build(response, channel="label", classes=classes),
        ]

    splits = []
    for label in label_epsilons:
        found = largest_epsilon(lambda e, label=label: build(e, label), target)
        best = None if found is None else _rounded(found)
        central = None
        while best is not None and best > 0:
            central = _central(build(best, label), target)
            if central is not None and central <= epsilon and fits(build(best, label), target):
                break
            best = _rounded(best * STEP)
        worst = None if best is None else build(best, label)[0].guarantee.worst_case(delta)
        splits.append(
            {"label_epsilon": label, "embedding_epsilon": best, "worst_case": worst, "central_epsilon": central}
        )
    return {
        "epsilon": epsilon, "delta": delta, "users": users, "delivered": delivered, "dropout": dropout,
        "mechanism": mechanism, "dim": dim, "classes": classes, "splits": splits,
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


def _central(mechanisms: list[Any], target: Target) -> float | None:
    """The ε of a user by the ladder: shuffled, or their own where nothing is amplified."""
    embedding, label = mechanisms
    rungs = {
        r.name: r.epsilon
        for r in ladder(
            embedding, label, records=target.records, stages=target.stages, users=target.users, delta=target.delta
        )
    }
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
