"""The numbers on the page are those of the command line."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.explore.settings import Settings
from tests.simulations.explore.conftest import Ask
from tests.support.budgets import answer, rung

SETTINGS: list[Any] = [
    {"epsilon": 2.0, "dim": 8, "users": 1000, "delta": 1e-5},
    *(pytest.param(about, marks=pytest.mark.slow) for about in (
        {"epsilon": 4.0, "dim": 16, "users": 20_000}, {"epsilon": 3.0, "dim": 16, "label_epsilon": 1.0, "users": 5000},
        {"epsilon": 1.5, "dim": 3, "users": 100}, {"mechanism": "planar-laplace", "epsilon": 4.0, "dim": 16},
    )),
    {"channel": "statistic", "epsilon": 4.0, "dim": 16, "users": 10_000},
    {"channel": "statistic", "epsilon": 1.0, "dim": 64, "users": 500, "delta": 1e-8},
    {"channel": "label", "epsilon": 2.0, "users": 10_000},
    {"channel": "label", "epsilon": 0.5, "users": 2},
    {"channel": "label", "epsilon": 6.0, "users": 10_000_000, "delta": 1e-9},
]


def options(settings: Settings, classes: int) -> list[str]:
    size = settings.size(classes)
    given = {"mechanism": settings.mechanism, "epsilon": settings.epsilon, "dim": size, "delta": settings.delta,
             "label-epsilon": settings.label_epsilon}  # fmt: skip
    return [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]


@pytest.mark.parametrize("about", SETTINGS)
def test_ten_settings_cost_what_the_command_line_says(
    about: dict[str, Any], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.of(about)
    same = options(settings, 2)
    price, crowd = ask("price", about, text=""), ask("crowd", about)
    record = rung(answer(capsys, "ladder", *same)["ladder"], "record")
    assert price["worst_case"] == record["worst_case"] and price["local"] == record["epsilon"]
    local = answer(capsys, "local", *same)
    assert price["worst_case"] == local["worst_case"] and price["mechanisms"] == local["mechanisms"]
    shuffled = answer(capsys, "shuffle", *same, "--users", str(settings.users))
    assert crowd["epsilon"] == shuffled["epsilon"] and crowd["lower_bound"] == shuffled["lower_bound"]
