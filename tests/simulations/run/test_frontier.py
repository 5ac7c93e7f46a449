"""The figure of accuracy against ε: which arms lie where, and by whose trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mechanisms.accounting.ladder import ladder
from mechanisms.randomized_response import RandomizedResponse
from simulations.experiment.arm import embedding_mechanism
from simulations.experiment.result import ArmResult, arms_of
from simulations.run import trust
from simulations.run.frontier import frontier_figure
from tests.support.results import user as users


def arm(
    name: str,
    accuracy: float,
    *,
    reference: bool = False,
    shuffled: float | None = None,
    public: Sequence[str] = (),
    **budget: Any,
) -> Any:
    budget = {"worst_case_epsilon": float("inf"), "label_epsilon": None} | budget
    user = budget["worst_case_epsilon"] + (budget["label_epsilon"] or 0)
    ladder = users(user, public=public, delta=1e-6)
    ladder += [] if shuffled is None else [{"rung": "shuffled", "epsilon": shuffled, "delta": 1e-6}]
    return {
        "name": name,
        "reference": reference,
        "accuracy_clean_test": accuracy,
        "accuracy_clean_test_se": 0.01,
        "ladder": ladder,
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


def drawn(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): list(zip(*line[0].get_data(), strict=True)) for line in axes.containers}


def near(epsilon: float, accuracy: float) -> tuple[Any, Any]:
    """Lines of an equal ε stand side by side."""
    return pytest.approx(epsilon, rel=0.06), pytest.approx(accuracy)


def test_each_arm_lies_at_the_epsilon_of_its_trust() -> None:
    figure = frontier_figure({"": [run(1, -0.01), run(2, 0.01)]})
    central, local = map(drawn, figure.axes)
    assert central["one vector"] == [near(1.0, 0.8), near(4.0, 0.85)]
    assert central["DP-SGD"] == [near(1.0, 0.87)]
    assert set(central) == {"one vector", "DP-SGD"}
    assert [x for x, _ in local["one vector"]] == [6.0, 10.0]
    assert local["as published: Laplace"] == [(21.0, pytest.approx(0.6))] and "DP-SGD" not in local
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == [
        "one vector (central ε: trusting the shuffler)",
        "DP-SGD (central ε: trusting the server)",
        "as published: Laplace (no central ε)",
        "no noise (not private)",
        "next to no noise (not private)",
    ]
    assert "2 seeds" in figure.axes[0].get_title(loc="left")
    assert "seed 1" in frontier_figure({"": [run(1)]}).axes[0].get_title(loc="left")


def test_both_errors_are_drawn_on_an_axis_that_does_not_stretch_small_differences() -> None:
    figure = frontier_figure({"": [run(1, -0.002), run(2, 0.002)]})
    axes = figure.axes[0]
    bars = [segment for each in axes.collections for segment in each.get_segments()]
    assert any(abs(abs(a[1] - b[1]) - 0.02) < 1e-9 for a, b in bars), "by test text: ± .01"
    assert any(abs(abs(a[1] - b[1]) - 0.004) < 1e-9 for a, b in bars), "over seeds: ± .002"
    low, high = frontier_figure({"": [run(1) | {"arms": run(1)["arms"][2:3]}]}).axes[0].get_ylim()
    assert high - low >= 0.1
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert set(ticks) <= {"0.5", "1", "2", "5"} and len(ticks) >= 2


def test_the_legend_says_what_is_not_private_and_what_is_public() -> None:
    """A reference or not: what has no finite ε is not private. A row of public labels shares no line with another."""
    clear, hidden = arm("in clear", 0.9), arm("one vector, ε = 1", 0.8, shuffled=1.0, worst_case_epsilon=6.0)
    public = arm("one vector, ε = 4", 0.85, shuffled=4.0, worst_case_epsilon=10.0, public=["label"])
    shown = frontier_figure({"": [run(1) | {"arms": [clear, hidden, public]}]}).legends[0].get_texts()
    assert [text.get_text() for text in shown] == [
        "one vector (central ε: trusting the shuffler)",
        "one vector, label public (central ε: trusting the\nshuffler)",
        "in clear (not private)",
    ]


def test_an_arm_without_an_accuracy_is_left_out() -> None:
    short = run(1)
    short["arms"][4]["accuracy_clean_test"] = None
    assert "DP-SGD" not in drawn(frontier_figure({"": [short]}).axes[0])


def price(arm: dict[str, object]) -> float | None:
    return trust.local(ArmResult.from_dict(arm))


def test_a_price_is_of_those_who_trust_nobody() -> None:
    assert [trust.local(each) for each in arms_of(run(1))] == [None, None, 6.0, 10.0, None, 21.0]


def test_a_price_is_of_all_records_of_a_user() -> None:
    """Who holds three records releases three embeddings and labels: 3 × 21, while the budget is of one."""
    holder = arm("as published", 0.6, worst_case_epsilon=20.0, label_epsilon=1.0)
    several = ladder(
        embedding_mechanism({"mechanism": "planar-laplace", "epsilon": 10.0}, 16),
        RandomizedResponse(1.0, classes=2),
        records=3,
        users=None,
        delta=1e-6,
    )
    assert price(holder | {"ladder": [rung.to_dict() for rung in several]}) == pytest.approx(63.0)
    unknown = {"rung": "user", "epsilon": None, "worst_case": None, "delta": 1e-6}
    assert price(holder | {"ladder": [unknown]}) is None


def test_infinity_as_a_file_has_it_is_no_price() -> None:
    clear = {"rung": "user", "epsilon": "inf", "worst_case": "inf", "delta": 1e-6}
    open_ = arm("in clear", 0.9, worst_case_epsilon=1.0) | {"ladder": [clear]}
    assert price(open_) is None
    open_["ladder"][0] = clear | {"epsilon": 7.0}  # Gaussian noise
    assert price(open_) == 7.0


def test_a_price_is_that_of_the_dearest_run() -> None:
    first, second = run(1), run(2)
    second["arms"][2]["ladder"] = [{"rung": "shuffled", "epsilon": 1.5, "delta": 1e-6}]  # and no price of its user's
    figure = frontier_figure({"": [first, second]})
    central, local = map(drawn, figure.axes)
    assert central["one vector"][0] == near(1.5, 0.8) and [x for x, _ in local["one vector"]] == [10.0]
    second["arms"][3]["ladder"] = []  # of 4.0, nobody was hidden there
    assert [x for x, _ in drawn(frontier_figure({"": [first, second]}).axes[0])["one vector"]] == [near(1.5, 0)[0]]


def test_names_that_differ_in_more_than_epsilon_share_no_line() -> None:
    few, many = (
        arm(f"one vector, ε = {e}, {n} users", 0.8, shuffled=e, worst_case_epsilon=6.0)
        for e, n in ((1.0, 500), (4.0, 9000))
    )
    lines = drawn(frontier_figure({"": [run(1) | {"arms": [few, many]}]}).axes[0])
    assert set(lines) == {"one vector, 500 users", "one vector, 9000 users"}


def test_the_legend_says_whom_any_arm_of_a_line_trusts() -> None:
    """The smallest ε may find no crowd to hide in, and the line lies at central ε all the same."""
    alone = arm("one vector, ε = 0.1", 0.7, worst_case_epsilon=0.1)
    hidden = arm("one vector, ε = 4", 0.8, shuffled=4.0, worst_case_epsilon=10.0)
    figure = frontier_figure({"": [run(1) | {"arms": [alone, hidden]}]})
    (told,) = figure.legends[0].get_texts()
    assert told.get_text() == "one vector (central ε: trusting the shuffler)"


def test_each_encoder_has_lines_of_its_own() -> None:
    """Lines of one arm share colour and legend, encoders differ in their line; panels stand below each other."""
    figure = frontier_figure({"small": [run(1)], "large": [run(1, 0.05)]})
    central, local = figure.axes
    assert central.get_position().x0 == local.get_position().x0
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said[-2:] == ["encoder small", "encoder large"] and len(said) == len(set(said))
    one = [each for each in central.containers if each.get_label() == "one vector"]
    assert [each[0].get_linestyle() for each in one] == ["-", "--"]
    assert one[0][0].get_color() == one[1][0].get_color()
    assert one[1][0].get_ydata() == pytest.approx(one[0][0].get_ydata() + 0.05)
