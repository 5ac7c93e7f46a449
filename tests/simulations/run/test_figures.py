"""Figure of accuracy against ε, and the prices behind it (`simulations.run.trust`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mechanisms.accounting.ladder import ladder
from mechanisms.randomized_response import RandomizedResponse
from simulations.experiment.arm import embedding_mechanism
from simulations.experiment.result import ArmResult, arms_of
from simulations.run import trust
from simulations.run.figures import frontier_figure
from tests.support.results import user


def arm(
    name: str,
    accuracy: float,
    *,
    reference: bool = False,
    shuffled: float | None = None,
    public: Sequence[str] = (),
    **budget: Any,
) -> dict[str, Any]:
    budget = {"worst_case_epsilon": float("inf"), "label_epsilon": None} | budget
    paid = budget["worst_case_epsilon"] + (budget["label_epsilon"] or 0)
    rungs = user(paid, public=public, delta=1e-6)
    rungs += [] if shuffled is None else [{"rung": "shuffled", "epsilon": shuffled, "delta": 1e-6}]
    return {
        "name": name,
        "reference": reference,
        "accuracy_clean_test": accuracy,
        "accuracy_clean_test_se": 0.01,
        "ladder": rungs,
        "budget": budget,
    }


def run(seed: int, more: float = 0.0) -> dict[str, Any]:
    return {
        "name": "small",
        "seed": seed,
        "arms": [
            arm("no noise", 0.9 + more, reference=True),
            arm("next to no noise", 0.95 + more, reference=True, central_epsilon=1000.0),
            arm("one vector, ε = 1", 0.8 + more, shuffled=1.0, worst_case_epsilon=6.0),
            arm("one vector, ε = 4", 0.85 + more, shuffled=4.0, worst_case_epsilon=10.0),
            arm("DP-SGD, ε = 1", 0.87 + more, reference=True, central_epsilon=1.0),
            arm("as published: Laplace, ε = 10, label ε = 1", 0.6 + more, worst_case_epsilon=20.0, label_epsilon=1.0),
        ],
    }


def lines(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): list(zip(*line[0].get_data(), strict=True)) for line in axes.containers}


def near(epsilon: float, accuracy: float) -> tuple[Any, Any]:
    """Lines of an equal ε stand side by side."""
    return pytest.approx(epsilon, rel=0.06), pytest.approx(accuracy)


def test_each_arm_lies_at_the_largest_epsilon_of_its_trust() -> None:
    first, second = run(1, -0.01), run(2, 0.01)
    second["arms"][2]["ladder"] = [{"rung": "shuffled", "epsilon": 1.5, "delta": 1e-6}]  # and no worst case
    figure = frontier_figure([first, second])
    central, local = map(lines, figure.axes)
    assert central == {"one vector": [near(1.5, 0.8), near(4.0, 0.85)], "DP-SGD": [near(1.0, 0.87)]}
    assert [x for x, _ in local["one vector"]] == [10.0] and "DP-SGD" not in local
    assert local["as published: Laplace"] == [(21.0, pytest.approx(0.6))]
    second["arms"][3]["ladder"] = []  # in one run of ε = 4 nobody was hidden
    assert [x for x, _ in lines(frontier_figure([first, second]).axes[0])["one vector"]] == [near(1.5, 0)[0]]


def test_the_legend_names_trust_and_what_is_public_or_not_private() -> None:
    public = arm("one vector, ε = 4", 0.85, shuffled=4.0, worst_case_epsilon=10.0, public=["label"])
    arms = run(1)["arms"]
    shown = frontier_figure([run(1) | {"arms": [*arms[:3], public, *arms[4:]]}]).legends[0].get_texts()
    assert [" ".join(text.get_text().split()) for text in shown] == [
        "one vector (central ε: trusting the shuffler)",
        "one vector, label public (central ε: trusting the shuffler)",
        "DP-SGD (central ε: trusting the server)",
        "as published: Laplace (no central ε)",
        "no noise (not private)",
        "next to no noise (not private)",
    ]


def price(values: dict[str, Any]) -> float | None:
    return trust.local(ArmResult.from_dict(values))


def test_a_local_price_is_of_all_records_of_users_who_trust_nobody() -> None:
    assert [trust.local(each) for each in arms_of(run(1))] == [None, None, 6.0, 10.0, None, 21.0]
    assert trust.local(*arms_of(run(1))[2:4]) == 10.0  # of several runs the largest
    several = ladder(
        embedding_mechanism({"mechanism": "planar-laplace", "epsilon": 10.0}, 16),
        RandomizedResponse(1.0, classes=2),
        records=3,
        users=None,
        delta=1e-6,
    )
    holder = arm("as published", 0.6, worst_case_epsilon=20.0, label_epsilon=1.0)
    assert price(holder | {"ladder": [rung.to_dict() for rung in several]}) == pytest.approx(63.0)  # 3 × 21
    rung = {"rung": "user", "epsilon": None, "worst_case": None, "delta": 1e-6}
    assert price(holder | {"ladder": [rung]}) is None  # an unknown number of records
    rung["worst_case"] = "inf"  # as a file has it
    assert price(holder | {"ladder": [rung | {"epsilon": "inf"}]}) is None
    assert price(holder | {"ladder": [rung | {"epsilon": 7.0}]}) == 7.0  # Gaussian noise
