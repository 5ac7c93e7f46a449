"""The numbers on the page are those of the command line, of ten settings; most are slow, as both compute them."""

from __future__ import annotations

from typing import Any

import pytest

from sottovoce.explore.settings import Settings
from tests.sottovoce.explore.conftest import Ask
from tests.support.budgets import answer, rung

SETTINGS: list[Any] = [
    {"epsilon": 2.0, "dim": 8, "delta": 1e-5},
    {"channel": "statistic", "epsilon": 1.0, "dim": 8, "delta": 1e-8},
    {"channel": "label", "epsilon": 0.5},
    *(
        pytest.param(about, marks=pytest.mark.slow)
        for about in (
            {"epsilon": 4.0, "dim": 16},
            {"epsilon": 3.0, "dim": 16, "label_epsilon": 1.0},
            {"mechanism": "planar-laplace", "epsilon": 4.0, "dim": 16},
            {"mechanism": "gaussian", "epsilon": 4.0, "dim": 16, "delta": 1e-5},
            {"channel": "statistic", "epsilon": 4.0, "dim": 16},
            {"channel": "label", "epsilon": 2.0},
            {"channel": "label", "epsilon": 6.0, "delta": 1e-9},
        )
    ),
]


def options(settings: Settings, classes: int) -> list[str]:
    size = settings.size(classes)
    sized = "" if size is None else f",dim={size}"
    label = settings.label_epsilon
    beside = [] if label is None else ["--mechanism", f"randomized-response:epsilon={label}"]
    own = f"{settings.mechanism}:epsilon={settings.epsilon}{sized}"
    return ["--mechanism", own, *beside, "--delta", str(settings.delta)]


@pytest.mark.parametrize("about", SETTINGS)
def test_ten_settings_cost_what_the_command_line_says(
    about: dict[str, Any], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    price, loss = ask("price", about, text=""), ask("loss", about)
    found = answer(capsys, "ladder", *options(Settings.of(about), 2))
    record = rung(found["ladder"], "record")
    assert price["worst_case"] == record["worst_case"] and loss["local"] == record["epsilon"]
    assert price["mechanisms"] == found["mechanisms"]
